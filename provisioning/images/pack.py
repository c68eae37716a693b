"""One tree, packed as a VM disk, an OCI archive and an initramfs."""

import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath
from typing import Any

from provisioning.engines.base import image_reference
from provisioning.images.image import sha256
from suite.errors import MeasurementError
from suite.interfaces import Node
from suite.userland import EXCLUDED

# Modules that a guest needs before it has its disk; those it depends on are found in modules.dep.
FIRST_MODULES = ("virtio_pci", "virtio_blk", "ext4")
LABEL = "virtbench"
BLOBS = "blobs/sha256"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
# Of the top directory: a root without capabilities may then write there, and see what of its files is in memory.
OWNED_BY_ROOT = ("-E", "root_owner=0:0")


def disk(node: Node, tree: Path, target: Path) -> None:
    """Pack the tree as an ext4 file system without a journal (it is only ever read)."""
    size = sum(path.lstat().st_blocks * 512 for path in tree.rglob("*"))
    mib = int(size * 1.1 / (1 << 20))
    filesystem(node, tree, target, mib=mib + 256, journal=False)


def filesystem(
    node: Node,
    content: PurePath,
    target: PurePath,
    *,
    mib: int | None = None,
    journal: bool,
    inodes: int | None = None,
    label: str = LABEL,
) -> None:
    """Pack a directory as an ext4 file system, in a file of ``mib`` MiB or, without, on a whole block device.

    ``inodes``: how many files it can hold; without, as many as mke2fs finds usual for its size.
    """
    argv = ["mke2fs", "-q", "-t", "ext4"]
    if not journal:
        argv += ["-O", "^has_journal"]
    argv += ["-m", "0", *OWNED_BY_ROOT]
    if inodes:
        argv += ["-N", str(inodes)]
    argv += ["-L", label, "-d", str(content), str(target)]
    if mib:
        argv.append(f"{mib}M")
    node.run(argv, timeout_s=6 * 3600.0)


def oci_archive(tree: Path, target: Path, digest: str) -> None:
    """Pack the tree as an image of one layer: the OCI layout, and docker's older manifest over the same blobs.

    Owners and times are those of no host, so that the same tree gives the same archive.
    """
    pack_image(tree, target, image_reference(digest), _anonymous)


def pack_image(
    tree: Path,
    target: Path,
    reference: str,
    owned: Callable[[tarfile.TarInfo], Any],
    base: Path | None = None,
) -> None:
    """Pack the tree, whose files ``owned`` completes, as a layer: the only one, or upon that of an archive ``base``."""
    layer = target.with_suffix(".layer")
    try:
        with tarfile.open(layer, "w", format=tarfile.PAX_FORMAT) as tar:
            for path in sorted(tree.iterdir()):
                tar.add(path, arcname=path.name, filter=owned)
        with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as tar:
            layers = [_copy_layer(base, tar)] if base else []
            layers.append(_add_file(tar, layer))
            _finish(tar, reference, layers)
    finally:
        layer.unlink(missing_ok=True)


def _copy_layer(base: Path, tar: tarfile.TarFile) -> tuple[str, int]:
    with tarfile.open(base) as old:
        manifest = old.extractfile("manifest.json")
        (blob,) = json.load(manifest)[0]["Layers"] if manifest else []
        info = old.getmember(blob)
        tar.addfile(info, old.extractfile(info))
    return PurePath(blob).name, info.size


def _finish(tar: tarfile.TarFile, reference: str, layers: Sequence[tuple[str, int]]) -> None:
    """Add what makes an image of the layers: its configuration, and the manifests of both formats."""
    settings = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha}" for sha, _ in layers]},
        # Without it podman cannot build upon the image: it counts the layers here.
        "history": [{"created_by": "bench image build"}] * len(layers),
    }
    config, config_bytes = _add(tar, settings)
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": _descriptor("application/vnd.oci.image.config.v1+json", config, config_bytes),
        "layers": [_descriptor("application/vnd.oci.image.layer.v1.tar", *layer) for layer in layers],
    }
    digest, size = _add(tar, manifest)
    index = _descriptor(MANIFEST_TYPE, digest, size)
    index["annotations"] = {"org.opencontainers.image.ref.name": reference}
    _add(tar, {"imageLayoutVersion": "1.0.0"}, "oci-layout")
    _add(tar, {"schemaVersion": 2, "manifests": [index]}, "index.json")
    of_docker = {
        "Config": f"{BLOBS}/{config}",
        "RepoTags": [reference],
        "Layers": [f"{BLOBS}/{sha}" for sha, _ in layers],
    }
    _add(tar, [of_docker], "manifest.json")


def _add_file(tar: tarfile.TarFile, path: Path) -> tuple[str, int]:
    sha = sha256(path)
    info = tarfile.TarInfo(f"{BLOBS}/{sha}")
    info.size = path.stat().st_size
    with path.open("rb") as file:
        tar.addfile(info, file)
    return sha, info.size


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    # Mount points must be empty directories; their content on this host is not part of the tree.
    if any(info.name.startswith(f"{name}/") for name in EXCLUDED):
        return None
    info.uid = 0
    info.gid = 0
    info.uname = ""
    info.gname = ""
    info.mtime = 0
    return info


def _descriptor(media_type: str, sha256: str, size: int) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{sha256}", "size": size}


def _add(tar: tarfile.TarFile, value: object, name: str | None = None) -> tuple[str, int]:
    """Add a value as JSON, by its own digest if it has no name; return the digest and the size."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    content = text.encode()
    sha = hashlib.sha256(content).hexdigest()
    info = tarfile.TarInfo(name or f"{BLOBS}/{sha}")
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))
    return sha, len(content)


def initramfs(node: Node, tree: Path, target: Path) -> None:
    """Pack what a guest starts with: busybox, the drivers of its disk, and the script that finds it."""
    root = target.with_suffix(".root")
    try:
        for name in ("bin", "dev", "proc", "sys", "root"):
            (root / name).mkdir(parents=True)
        shutil.copy2(tree / "bin/busybox", root / "bin/busybox")
        shutil.copy2(tree / "opt/virtbench/guest/initramfs-init", root / "init")
        add_modules(tree, root, FIRST_MODULES)
        archive = cpio(node, root)
        target.write_bytes(gzip.compress(archive, compresslevel=6, mtime=0))
    finally:
        shutil.rmtree(root, ignore_errors=True)


def add_modules(tree: Path, root: Path, names: Sequence[str]) -> None:
    """Copy the modules that a guest loads first, and the list of them. Raises MeasurementError if one is missing."""
    order = _module_order(tree, names)
    directory = root / "modules"
    directory.mkdir()
    for module in order:
        shutil.copy2(module, directory / module.name)
    lines = [f"{module.name}\n" for module in order]
    (root / "modules.order").write_text("".join(lines))


def cpio(node: Node, root: Path) -> bytes:
    """Return a directory as an archive that the kernel unpacks; several of them may follow each other in one file.

    The same content gives the same archive: its times are set to 1970.
    """
    paths = []
    for path in root.rglob("*"):
        os.utime(path, (0, 0), follow_symlinks=False)
        paths.append(str(path.relative_to(root)))
    archive = root.with_suffix(".cpio")
    argv = ["cpio", "--quiet", "--create", "--format=newc", "--reproducible", "--owner=0:0", f"--file={archive}"]
    try:
        listed = "".join(f"{path}\n" for path in sorted(paths))
        node.run([*argv, f"--directory={root}"], stdin=listed.encode())
        return archive.read_bytes()
    finally:
        archive.unlink(missing_ok=True)


def joined(first: bytes, second: bytes) -> bytes:
    """Join two archives in one initramfs. The kernel takes an uncompressed one only at a multiple of four bytes."""
    return first + bytes(-len(first) % 4) + second


def _module_order(tree: Path, names: Sequence[str]) -> list[Path]:
    """Return the modules to load, each after those it depends on. A driver built into the kernel has no file."""
    (release,) = (tree / "usr/lib/modules").iterdir()
    dependencies = (release / "modules.dep").read_text().splitlines()
    lines = (line.partition(":") for line in dependencies)
    depends = {module: needs.split() for module, _, needs in lines}
    builtin = (release / "modules.builtin").read_text()
    order: dict[str, None] = {}
    for name in names:
        named = (module for module in depends if Path(module).name.split(".")[0] == name)
        path = next(named, None)
        if path is None:
            if f"/{name}.ko" not in builtin:
                raise MeasurementError(f"the guest's kernel has no {name}", kind="image")
            continue
        # modules.dep lists what a module needs with the innermost last.
        order |= dict.fromkeys((*reversed(depends[path]), path))
    return [release / module for module in order]
