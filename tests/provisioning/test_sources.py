"""What an image is made of, and what tells two apart."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli import main
from provisioning.images.build import locked
from provisioning.images.image import PACKAGES, Image, difference, packages
from suite import userland

MakeImage = Callable[..., Image]


def test_the_lock_names_every_wheel_by_its_digest(tmp_path: Path) -> None:
    (tmp_path / "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl").write_bytes(b"torch")
    (tmp_path / "typing_extensions-4.16.0-py3-none-any.whl").write_bytes(b"typing")
    (tmp_path / "notes.txt").write_text("no wheel")
    digests = [hashlib.sha256(content).hexdigest() for content in (b"torch", b"typing")]
    assert locked(tmp_path).splitlines() == [
        f"torch==2.13.0+cpu --hash=sha256:{digests[0]}",
        f"typing_extensions==4.16.0 --hash=sha256:{digests[1]}",
    ]


def with_packages(image: Image, text: str) -> Image:
    status = image.tree / PACKAGES
    status.parent.mkdir(parents=True)
    status.write_text(text)
    digest = userland.write_manifest(str(image.tree))
    moved = image.model_copy(update={"digest": digest})
    shutil.move(image.directory, moved.directory)
    moved.save()
    return moved


@pytest.fixture
def two(make_image: MakeImage) -> tuple[Image, Image]:
    one = with_packages(make_image(), "Package: fio\nStatus: installed\nVersion: 3.33-3\n d: no field\n\n")
    fio = "Package: fio\nVersion: 3.33-4\n\nPackage: perf\nVersion: 6.1\n"
    return one, with_packages(make_image(content="y"), fio)


def test_packages_are_read_from_the_tree(two: tuple[Image, Image]) -> None:
    assert [packages(image.tree) for image in two] == [{"fio": "3.33-3"}, {"fio": "3.33-4", "perf": "6.1"}]


def test_what_tells_two_images_apart_is_named(two: tuple[Image, Image]) -> None:
    one, other = two
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
