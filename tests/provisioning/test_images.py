"""Images of a few bytes: checking, finding, comparing and packing them; what they are made of."""

import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cli import main
from commands import image as image_command
from provisioning.images import build
from provisioning.images import image as module
from provisioning.images.build import locked
from provisioning.images.image import PACKAGES, PACKED, Image, current, difference, find, images, prune
from provisioning.images.pack import cpio, joined, oci_archive, pack_image
from provisioning.nodes import local_node
from suite.errors import RequestError
from suite.interfaces import Completed
from tests.provisioning.conftest import MakeImage, fake_node, make, raises


def broken(image: Image) -> str:
    with pytest.raises(RequestError) as caught:
        image.check()
    assert image.digest[:12] in caught.value.message
    assert "bench image build --rebuild" in str(caught.value.remedy)
    return caught.value.message.partition("is broken: ")[2]


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def blanked(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))
    os.utime(path, (1, 1))


@pytest.mark.parametrize(
    ("spoil", "name", "said", "verified"),
    [
        *((Path.unlink, name, "{name} is missing", "missing") for name in PACKED),
        (truncated, "disk.img", "{name} has {less} bytes instead of {size}", "another digest"),
        (blanked, "oci.tar", "{name} has another digest", "another digest"),
    ],
)
def test_a_packed_file_that_is_missing_or_another_is_found(
    make_image: MakeImage, spoil: Callable[[Path], None], name: str, said: str, verified: str
) -> None:
    image = make_image()
    size = image.file(name).stat().st_size
    spoil(image.file(name))
    assert broken(image) == said.format(name=name, size=size, less=size - 1)
    assert image.verify() == [f"{name}: {verified}"]


def test_a_touched_file_is_hashed_once_for_all_benches(make_image: MakeImage, monkeypatch: pytest.MonkeyPatch) -> None:
    image, hashed, sha256 = make_image(), list[str](), module.sha256

    def counted(path: Path) -> str:
        hashed.append(path.name)
        return sha256(path)

    monkeypatch.setattr(module, "sha256", counted)
    os.utime(image.file("disk.img"), (1, 1))
    others = current()
    image.check()
    current().check()
    assert hashed == ["disk.img"]
    image.file("oci.tar").chmod(0o666)
    others.check()
    others.check()
    assert hashed == ["disk.img", "disk.img", "oci.tar", "oci.tar"], "what others may write to is hashed each time"


def test_a_tree_without_its_manifest_or_with_another_is_found(make_image: MakeImage) -> None:
    image = make_image()
    manifest = image.tree / "opt/virtbench/manifest.tsv"
    manifest.write_text(manifest.read_text().replace("644", "600"))
    assert broken(image) == "its manifest has another digest"
    assert image.verify() == ["tree: its manifest is missing or has another digest"]
    manifest.unlink()
    assert broken(image) == "its tree is missing"
    assert image.verify() == ["tree: its manifest is missing or has another digest"]


def test_other_content_under_the_old_time_or_in_the_tree_is_found_by_verifying(make_image: MakeImage) -> None:
    image = make_image()
    image.check()
    assert image.verify() == []
    path, info = image.file("disk.img"), image.file("disk.img").stat()
    path.write_bytes(bytes(info.st_size))
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    image.check()
    (image.tree / "file").write_text("y")
    (image.tree / "more").touch()
    in_the_tree = ("tree: /file: other content", "tree: /more is not in the manifest")
    assert image.verify() == ["disk.img: another digest", *in_the_tree]


def test_the_newest_of_each_variant_is_the_current_one_and_kept_by_pruning(make_image: MakeImage) -> None:
    for variant, command in {"cpu": "run: bench image build", "cuda": "run: bench image build --cuda"}.items():
        with pytest.raises(RequestError, match=f"no {variant} image has been built") as caught:
            current(variant)
        assert caught.value.remedy == command
    old = make_image("2026-01-01T00:00:00+00:00", "old")
    new = make_image("2026-02-01T00:00:00+00:00", "new")
    cuda = make_image("2025-03-01T00:00:00+00:00", "cuda", "cuda")
    assert images() == [new, old, cuda]
    assert (current(), find(None), current("cuda")) == (new, new, cuda)
    assert find(old.digest[:6]) == old
    for digest in ("ffffffffffff", "", "short", old.digest[:5]):
        with pytest.raises(RequestError, match=f"no image {digest!r}"):
            find(digest)
    assert prune() == [old]
    assert not old.directory.exists()
    assert images() == [new, cuda]
    assert prune() == []


@pytest.mark.parametrize("content", ["", "{}", "[1]", "\0"])
def test_a_folder_without_a_readable_description_is_no_image(make_image: MakeImage, content: str) -> None:
    image = make_image()
    described = (image.directory / "image.json").read_text()
    (image.directory / "image.json").write_text(content)
    assert images() == []
    (image.directory / "image.json").write_text(described)
    image.directory.rename(image.directory.with_name("0" * 12))
    assert images() == [], "it describes another image"


# ---- the OCI archive

DIGEST = "0123456789abcdef" * 4


def tree(root: Path, names: tuple[str, ...] = ("bin/sh", "etc/name", "dev/null", "tmp/left", "var/log/old")) -> Path:
    make(root, {name: name for name in names})
    (root / "bin/sh").chmod(0o755)
    (root / "lib").symlink_to("usr/lib")
    return root


def unpacked(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        found = {member.name: tar.extractfile(member) for member in tar}
        return {name: file.read() for name, file in found.items() if file}


def blob(archive: dict[str, bytes], descriptor: dict[str, Any]) -> bytes:
    """The content that a descriptor names, its digest and size checked."""
    algorithm, _, digest = descriptor["digest"].partition(":")
    content = archive[f"blobs/{algorithm}/{digest}"]
    assert hashlib.sha256(content).hexdigest() == digest
    assert len(content) == descriptor["size"]
    return content


def layers_of(archive: dict[str, bytes], reference: str) -> list[bytes]:
    """The layers of an image of this name, which both manifests describe alike."""
    assert json.loads(archive["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads(archive["index.json"])["manifests"]
    assert entry["annotations"] == {"org.opencontainers.image.ref.name": reference}
    manifest = json.loads(blob(archive, entry))
    assert (manifest["schemaVersion"], manifest["mediaType"]) == (2, entry["mediaType"])
    config, layers = json.loads(blob(archive, manifest["config"])), manifest["layers"]
    assert config["rootfs"] == {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]}
    assert config["os"] == "linux"
    assert len(config["history"]) == len(layers), "podman counts the layers by it"
    (older,) = json.loads(archive["manifest.json"])
    blobs = [f"blobs/sha256/{each['digest'][7:]}" for each in (manifest["config"], *layers)]
    assert older == {"RepoTags": [reference], "Config": blobs[0], "Layers": blobs[1:]}, "of docker's"
    return [blob(archive, layer) for layer in layers]


def test_the_archive_is_an_oci_layout_of_the_tree_without_owners_and_times(tmp_path: Path) -> None:
    oci_archive(tree(tmp_path / "tree"), target := tmp_path / "oci.tar", DIGEST)
    assert not target.with_suffix(".layer").exists()
    (content,) = layers_of(unpacked(target), "virtbench:0123456789ab")
    with tarfile.open(fileobj=io.BytesIO(content)) as layer:
        members = {member.name: member for member in layer}
    assert {"bin/sh", "etc/name", "lib", "dev", "tmp", "var", "var/log"} <= set(members)
    assert not {"dev/null", "tmp/left", "var/log/old"} & set(members), "a runtime mounts there"
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in members.values()} == {(0, 0, "", "", 0)}
    assert (members["bin/sh"].mode, members["lib"].linkname) == (0o755, "usr/lib")


def test_the_same_tree_gives_the_same_archive_whenever_and_wherever(tmp_path: Path) -> None:
    one = tree(tmp_path / "one")
    other = tree(tmp_path / "other", ("var/log/old", "tmp/another", "etc/name", "dev/zero", "bin/sh"))
    for path in other.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    oci_archive(one, tmp_path / "one.tar", DIGEST)
    oci_archive(other, tmp_path / "other.tar", DIGEST)
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "other.tar").read_bytes()
    (other / "etc/name").write_text("another")
    oci_archive(other, tmp_path / "other.tar", DIGEST)
    assert unpacked(tmp_path / "one.tar").keys() != unpacked(tmp_path / "other.tar").keys()


def test_a_second_layer_lies_upon_the_first_and_all_digests_are_right(tmp_path: Path) -> None:
    oci_archive(tree(tmp_path / "one"), tmp_path / "one.tar", DIGEST)
    make(tmp_path, {"more/usr/added": "added"})
    pack_image(tmp_path / "more", tmp_path / "two.tar", "virtbench-suite:1", lambda info: info, tmp_path / "one.tar")
    lower, upper = layers_of(unpacked(tmp_path / "two.tar"), "virtbench-suite:1")
    assert [lower] == layers_of(unpacked(tmp_path / "one.tar"), "virtbench:0123456789ab")
    with tarfile.open(fileobj=io.BytesIO(upper)) as layer:
        assert "usr/added" in layer.getnames()


@pytest.mark.skipif(shutil.which("cpio") is None, reason="cpio is not installed")
def test_the_same_directory_gives_the_same_initramfs_whenever_and_wherever(tmp_path: Path) -> None:
    one, other = tree(tmp_path / "one"), tree(tmp_path / "other")
    for path in other.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    with local_node((), None) as node:
        first = cpio(node, one)
        assert first == cpio(node, other)
        (other / "etc/name").write_text("another")
        assert first != cpio(node, other)


@pytest.mark.parametrize("size", range(5))
def test_a_second_archive_begins_at_a_multiple_of_four(size: int) -> None:
    both = joined(b"x" * size, b"second")
    assert both.index(b"second") % 4 == 0
    assert both.startswith(b"x" * size)


def test_a_version_of_cuda_chooses_wheels_and_another_recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plain, older = (build.requirements(cuda).splitlines() for cuda in ("", "12.6"))
    changed = [(one, other) for one, other in zip(plain, older, strict=True) if one != other]
    assert [one.partition("==")[0] for one, _ in changed] == ["torch", "torchvision"]
    assert all(other == f"{one}+cu126" for one, other in changed)
    assert len({build.recipe_sha256(*words) for words in (("cpu",), ("cuda",), ("cuda", "12.6"))}) == 3
    pip: Any = fake_node({(sys.executable, "-m", "pip"): Completed(1, "", "warning\nERROR: no matching torch\n")})
    with raises(RequestError, r"pip finds no torch for CUDA 12\.6: ERROR: no matching torch", "index"):
        build._fetch_wheels(pip, "cuda", "12.6", tmp_path, lambda _: None)
    made: list[tuple[str, str]] = []

    def make(variant: str, *_: object, rebuild: bool, cuda: str) -> Image:
        made.append((variant, cuda))
        return Image(digest="a" * 64, variant="cuda", recipe_sha256="", created_at=str(rebuild), base="", files={})

    monkeypatch.setattr(image_command, "build", make)
    for words in ((), ("--cuda",), ("--cuda", "--rebuild"), ("--cuda", "12.6")):
        assert CliRunner().invoke(image_command.image, ["build", *words]).exit_code == 0
    assert made == [("cpu", ""), ("cuda", ""), ("cuda", ""), ("cuda", "12.6")]
    assert isinstance(CliRunner().invoke(image_command.image, ["build", "--cuda", "new"]).exception, RequestError)


@pytest.mark.parametrize(
    ("packages", "line", "cuda"),
    [
        ("lib/python3.12/site-packages", "cuda: Optional[str] = '12.6'", "12.6"),
        ("local/lib/python3.11/dist-packages", "cuda: Optional[str] = None", ""),
        ("local/lib/python3.11/dist-packages", "cuda = None", ""),
        ("lib/python3.12/site-packages", None, None),
    ],
)
def test_an_image_shows_the_cuda_of_its_torch(
    make_image: MakeImage, packages: str, line: str | None, cuda: str | None
) -> None:
    image = make_image()
    version = {"torch/version.py": f"__all__ = ['cuda']\n{line}\n"} if line else {"other.py": ""}
    make(image.tree / "usr" / packages, version)
    assert image.cuda == cuda


def test_the_lock_names_every_wheel_by_its_digest(tmp_path: Path) -> None:
    wheels = ("torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl", "typing_extensions-4.16.0-py3-none-any.whl")
    make(tmp_path, {wheels[0]: "torch", wheels[1]: "typing", "notes.txt": "no wheel"})
    digests = [hashlib.sha256(content).hexdigest() for content in (b"torch", b"typing")]
    assert locked(tmp_path).splitlines() == [
        f"torch==2.13.0+cpu --hash=sha256:{digests[0]}",
        f"typing_extensions==4.16.0 --hash=sha256:{digests[1]}",
    ]


def test_what_tells_two_images_apart_is_named(make_image: MakeImage) -> None:
    one = make_image(files={PACKAGES: "Package: fio\nStatus: installed\nVersion: 3.33-3\n d: no field\n\n"})
    fio = "Package: fio\nVersion: 3.33-4\n\nPackage: perf\nVersion: 6.1\n"
    other = make_image(content="y", files={PACKAGES: fio})
    assert difference(one, one) == []
    assert difference(one, other) == [
        "package fio: 3.33-3, 3.33-4",
        "package perf: absent, 6.1",
        "/file: another content",
        f"/{PACKAGES}: another size, another content",
    ]
    ended = CliRunner().invoke(main, ["image", "diff", one.digest, other.digest])
    assert ended.exit_code == 1
    assert "package perf: absent, 6.1" in ended.output
    assert CliRunner().invoke(main, ["image", "diff", one.digest, one.digest]).exit_code == 0
