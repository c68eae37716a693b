"""The image on a machine: its tree, sent once, verified, and put in its place in one step."""

import os
from collections.abc import Callable

from provisioning import artefacts
from provisioning.images.image import Image
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
    with artefacts.making(f"image {image.digest[:12]} on {machine.name}", note):
        hashed = machine.run(["sha256sum", "--", f"{final}/{MANIFEST}"], check=False).stdout
        if hashed.partition(" ")[0] != image.digest:
            _send_image(machine, image, final, note)
    return final


def _send_image(machine: Machine, image: Image, final: str, note: Callable[[str], None]) -> None:
    images = f"{machine.planned.directory}/images"
    machine.run(["mkdir", "-p", "-m", "700", "--", images])
    measured = machine.carrier.run(["du", "-s", "-B1", "--", str(image.tree)], timeout_s=600.0).stdout
    size_bytes = int(measured.split()[0])
    check_disk_space(machine, images, size_bytes, "the image")
    note(f"sending the image to {machine.name}: {size_bytes / 1e9:.1f} GB (once)")
    with artefacts.workshop(machine, images) as arriving:
        machine.run(["chmod", "755", "--", arriving])
        machine.run(["mkdir", "-m", "755", "--", f"{arriving}/tree"])
        _send(machine, str(image.tree), f"{arriving}/tree")
        note(f"verifying the image on {machine.name}")
        _verify(machine, f"{arriving}/tree", image)
        place = final.removesuffix("/tree")
        machine.run(["sync", "--file-system", "--", arriving], timeout_s=SENT_WITHIN_S)
        machine.run(["rm", "-r", "-f", "--", place])
        artefacts.put(machine, arriving, place)


def sync_file(machine: Machine, image: Image, name: str, note: Callable[[str], None]) -> None:
    """Send one of the image's packed files, unless the machine has it already.

    Raises RequestError when there is no room, MeasurementError when what has arrived is another file.
    """
    final, stamp = f"{tree_of(machine.planned, image).removesuffix('/tree')}/{name}", image.files[name]
    with artefacts.making(f"{name} of image {image.digest[:12]} on {machine.name}", note):
        if artefacts.digest_of(machine, final) != stamp.sha256:
            _send_file(machine, image, name, final, note)


def _send_file(machine: Machine, image: Image, name: str, final: str, note: Callable[[str], None]) -> None:
    directory, stamp = final.rpartition("/")[0], image.files[name]
    check_disk_space(machine, directory, stamp.size_bytes, "the image")
    note(f"sending {name} to {machine.name}: {stamp.size_bytes / 1e9:.1f} GB (once)")
    with artefacts.workshop(machine, directory) as half_made:
        arriving = f"{half_made}/{name}"
        argv = ["dd", f"of={arriving}", "bs=1M", "conv=sparse", "iflag=fullblock", "status=none"]
        with image.file(name).open("rb") as content:
            writing = machine.start(argv, stdin=content)
        if status := writing.wait(SENT_WITHIN_S):
            raise CommandError(argv, status, f"{machine.name}: {writing.output_tail()}")
        if artefacts.sha256_on(machine, arriving) != stamp.sha256:
            raise MeasurementError(
                f"the {name} that arrived on {machine.name} is another",
                kind="image",
                remedy="see that the image is whole here: bench image verify; then run again",
            )
        artefacts.put_stamped(machine, arriving, final, stamp.sha256)


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
