"""The image on a machine: its tree, sent once, verified, and put in its place in one step."""

import os
import secrets
from collections.abc import Callable

from provisioning.images.image import Image
from provisioning.nodes import undone
from provisioning.remote.machine import Machine
from provisioning.volumes import check_disk_space
from suite.errors import CommandError, MeasurementError
from suite.inventory import InventoryNode
from suite.userland import MANIFEST, parse_line

SENT_WITHIN_S = 3600.0
VERIFIED_WITHIN_S = 900.0


def tree_of(planned: InventoryNode, image: Image) -> str:
    """Return where the image's tree is, or is to be, on the machine."""
    return f"{planned.directory}/images/{image.digest[:12]}/tree"


def sync_image(machine: Machine, image: Image, note: Callable[[str], None]) -> str:
    """Send the image's tree, unless the machine has it already, and return where it is there.

    Raises RequestError when there is no room, MeasurementError when what has arrived is not the image.
    """
    final = tree_of(machine.planned, image)
    hashed = machine.run(["sha256sum", "--", f"{final}/{MANIFEST}"], check=False).stdout
    if hashed.partition(" ")[0] == image.digest:
        return final
    images = f"{machine.planned.directory}/images"
    machine.run(["mkdir", "-p", "-m", "700", "--", images])
    measured = machine.carrier.run(["du", "-s", "-B1", "--", str(image.tree)], timeout_s=600.0).stdout
    size_bytes = int(measured.split()[0])
    check_disk_space(machine, images, size_bytes, "the image")
    note(f"sending the image to {machine.name}: {size_bytes / 1e9:.1f} GB (once)")
    arriving = f"{images}/.arriving-{secrets.token_hex(6)}"
    with undone(machine, ["rm", "-r", "-f", "--", arriving]):
        machine.run(["mkdir", "-p", "-m", "755", "--", f"{arriving}/tree"])
        _send(machine, str(image.tree), f"{arriving}/tree")
        note(f"verifying the image on {machine.name}")
        _verify(machine, f"{arriving}/tree", image)
        place = final.removesuffix("/tree")
        machine.run(["rm", "-r", "-f", "--", place])
        machine.run(["mv", "-T", "--", arriving, place])
    return final


def sync_file(machine: Machine, image: Image, name: str, note: Callable[[str], None]) -> None:
    """Send one of the image's packed files. A file of the right size there is one that was verified.

    Raises RequestError when there is no room, MeasurementError when what has arrived is another file.
    """
    directory = tree_of(machine.planned, image).removesuffix("/tree")
    final, stamp = f"{directory}/{name}", image.files[name]
    if machine.run(["stat", "--format=%s", "--", final], check=False).stdout.strip() == str(stamp.size_bytes):
        return
    check_disk_space(machine, directory, stamp.size_bytes, "the image")
    note(f"sending {name} to {machine.name}: {stamp.size_bytes / 1e9:.1f} GB (once)")
    arriving = f"{directory}/.arriving-{secrets.token_hex(6)}"
    with undone(machine, ["rm", "-f", "--", arriving]):
        argv = ["dd", f"of={arriving}", "bs=1M", "conv=sparse", "iflag=fullblock", "status=none"]
        with image.file(name).open("rb") as content:
            writing = machine.start(argv, stdin=content)
        if status := writing.wait(SENT_WITHIN_S):
            raise CommandError(argv, status, f"{machine.name}: {writing.output_tail()}")
        found = machine.run(["sha256sum", "--", arriving], timeout_s=VERIFIED_WITHIN_S).stdout.partition(" ")[0]
        if found != stamp.sha256:
            raise MeasurementError(
                f"the {name} that arrived on {machine.name} is another",
                kind="image",
                remedy="see that the image is whole here: bench image verify; then run again",
            )
        machine.run(["mv", "-T", "--", arriving, final])


def _send(machine: Machine, source: str, target: str) -> None:
    """Send the tree from tar to tar, with nothing in between but ssh."""
    reading, writing = os.pipe()
    packing = machine.carrier.start(
        ["tar", "--create", "--numeric-owner", "--file=-", f"--directory={source}", "."],
        stdout=os.fdopen(writing, "wb"),
    )
    unpack = ["tar", "--extract", "--numeric-owner", "--same-permissions", "--file=-", f"--directory={target}"]
    unpacking = machine.start(unpack, stdin=os.fdopen(reading, "rb"))
    status = unpacking.wait(SENT_WITHIN_S), packing.wait(60.0)
    if any(status):
        said = unpacking.output_tail() or packing.output_tail()
        raise CommandError(unpack, status[0], f"{machine.name}: {said}")


def _verify(machine: Machine, tree: str, image: Image) -> None:
    """Compare the content of every file. All else (types, permissions, links) every trial compares from inside."""
    check = ["env", "--chdir", tree, "sha256sum", "--check", "--quiet", "--strict", "-"]
    given = checksums((image.tree / MANIFEST).read_text(encoding="ascii"), image.digest).encode()
    answer = machine.run(check, stdin=given, check=False, timeout_s=VERIFIED_WITHIN_S)
    if answer.returncode:
        wrong = answer.stdout.strip().splitlines() or answer.stderr.strip().splitlines() or ["no answer"]
        raise MeasurementError(
            f"what arrived on {machine.name} is not image {image.digest[:12]}: {'; '.join(wrong[:3])}",
            kind="image",
            output_tail=answer.stdout[-2000:] + answer.stderr[-2000:],
            remedy="see that the image is whole here: bench image verify; then run again",
        )


def checksums(manifest: str, digest: str) -> str:
    """Return the manifest's files, and the manifest itself, as sha256sum(1) reads them."""
    entries = (parse_line(line) for line in manifest.splitlines())
    files = [(entry.content, entry.path) for entry in entries if entry.kind == "file"]
    lines = []
    for content, path in [*files, (digest, MANIFEST)]:
        escaped = path.replace("\\", "\\\\").replace("\n", "\\n")
        # A backslash before the line says that some characters of the path are escaped.
        lines.append(f"{'' if escaped == path else chr(92)}{content}  {escaped}\n")
    return "".join(lines)
