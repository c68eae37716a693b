"""From --data to a data set, and whether a set is as it was made: a refusal with a remedy for all that is none."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from scenarios.datasets.generated import MANIFEST, PLAN
from scenarios.datasets.resolve import resolve
from scenarios.datasets.writer import make, verify
from suite.errors import BenchError, RequestError
from worker.data.listing import listing
from worker.workloads.workload import CLASSES


def fill(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"image")
    return root


def refused(text: str, home: Path, *words: str) -> None:
    with pytest.raises(RequestError) as raised:
        resolve(text, home)
    told = f"{raised.value.message} {raised.value.remedy}"
    assert raised.value.remedy
    assert all(word in told for word in words), told


def test_a_folder_of_classes_with_images_of_many_kinds(tmp_path: Path) -> None:
    fill(tmp_path, "cat/1.jpg", "cat/deep/2.JPEG", "dog/3.png", "dog/4.Webp", "dog/notes.txt", "readme.md")
    name, found = resolve(f"imagefolder:{tmp_path}", tmp_path)
    assert (name, found.kind, found.images, found.size_bytes) == ("imagefolder", "imagefolder", 4, 30)
    listed = listing(tmp_path).sha256
    assert (found.directory, found.digest, found.listing_sha256) == (str(tmp_path), "contents", listed)


def test_of_ilsvrc2012_the_training_images_alone_are_taken(tmp_path: Path) -> None:
    fill(tmp_path, "train/n01440764/a.JPEG", "train/n01443537/b.JPEG", "val/n01440764/c.JPEG", "devkit/data.mat")
    name, found = resolve(f"imagenet:{tmp_path}", tmp_path)
    assert (name, found.kind, found.images, found.directory) == ("imagenet", "imagenet", 2, str(tmp_path / "train"))
    assert resolve(f"imagenet:{tmp_path}/train", tmp_path)[1] == found


def test_imagenet_whose_train_is_a_link_is_taken_from_where_it_is(tmp_path: Path) -> None:
    fill(tmp_path / "disk", "n01440764/a.JPEG")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train").symlink_to(tmp_path / "disk")
    assert resolve(f"imagenet:{tmp_path}/mine", tmp_path)[1].directory == str(tmp_path / "disk")


def test_the_directory_may_be_relative_a_link_or_below_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "pets", "cat/1.jpg")
    (tmp_path / "link").symlink_to("pets")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for written in ("pets", "link", "~/pets", "./pets/"):
        assert resolve(f"imagefolder:{written}", tmp_path)[1].directory == str(tmp_path / "pets")


def test_what_a_file_system_and_the_user_hide_is_no_class(tmp_path: Path) -> None:
    fill(tmp_path, "cat/1.jpg", ".thumbs/1.jpg")
    (tmp_path / "lost+found").mkdir()
    assert resolve(f"imagefolder:{tmp_path}", tmp_path)[1].images == 1


ONE = {"cat/1.jpg": b"image"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ("there is no",)),
        (b"", ("is not a directory",)),
        ({}, ("is empty",)),
        ({"1.jpg": b"image"}, ("no class folders", "DIR/CLASS/*.jpg")),
        ({**ONE, "dog/notes.txt": b""}, ("1 of 2 class folders", "hold no images: dog", ".jpeg")),
        ({"cat/1.jpg": b""}, ("1 of 1 class folders",)),
        ({**ONE, "dog/": b""}, ("hold no images: dog",)),
        ({**ONE, "cat/again": ".."}, ("cannot read", "again", "links")),
        ({**ONE, "cat/2.jpg": "nowhere.jpg"}, ("cannot read", "2.jpg")),
        ({**ONE, "dog": "../elsewhere"}, ("1 links that lead nowhere in a container", "dog", "cp -rlL")),
        ({**ONE, "cat/2.jpg": "{root}/cat/1.jpg"}, ("1 links", "cat/2.jpg", "cp -rL")),
    ],
)
def test_what_is_no_folder_of_images_is_refused(
    tmp_path: Path, content: dict[str, bytes | str] | bytes | None, words: tuple[str, ...]
) -> None:
    """Of a directory the content is by name: bytes of a file, or where a link leads."""
    root = tmp_path / "data"
    if isinstance(content, bytes):
        root.write_bytes(content)
    elif content is not None:
        root.mkdir()
        for name, inside in content.items():
            (root / name).parent.mkdir(exist_ok=True)
            if isinstance(inside, str):
                (root / name).symlink_to(inside.format(root=root))
            else:
                (root / name).mkdir() if name.endswith("/") else (root / name).write_bytes(inside)
    refused(f"imagefolder:{root}", tmp_path, *words)


def test_more_classes_than_the_models_have_are_refused(tmp_path: Path) -> None:
    fill(tmp_path, *(f"{number}/1.jpg" for number in range(CLASSES + 1)))
    refused(f"imagefolder:{tmp_path}", tmp_path, "1001 class folders", "1000 apart")


def test_links_inside_the_directory_are_fine(tmp_path: Path) -> None:
    fill(tmp_path, "cat/1.jpg")
    (tmp_path / "cat" / "2.jpg").symlink_to("1.jpg")
    (tmp_path / "dog").symlink_to("./dog/../cat")
    (tmp_path / "dog").unlink()
    (tmp_path / "dog").symlink_to("cat")
    assert resolve(f"imagefolder:{tmp_path}", tmp_path)[1].images == 4


@pytest.mark.parametrize("names", [["cats/1.jpg"], ["train/cats/1.jpg"], ["train/n01440764.tar"], ["n1/1.JPEG"]])
def test_imagenet_without_its_classes_is_refused(tmp_path: Path, names: list[str]) -> None:
    refused(f"imagenet:{fill(tmp_path, *names)}", tmp_path, "n01440764", "train/")
    mixed = fill(tmp_path / "mixed", "n01440764/a.JPEG", "val/b.JPEG")
    refused(f"imagenet:{mixed}", tmp_path, "no classes: val", "imagefolder:DIR")


def test_a_directory_that_may_not_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, "cat/1.jpg")

    def denied(path: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.scandir", denied)
    refused(f"imagefolder:{tmp_path}", tmp_path, "Permission denied", "who may read it")


def test_words_that_name_no_data_set_are_refused(tmp_path: Path) -> None:
    refused("photos:/x", tmp_path, "is not a data set")
    refused("synthetic", tmp_path, "--scenario synthetic")
    refused("generated", tmp_path, "no data set has been generated", "bench data make")
    fill(tmp_path, "cat/1.jpg")
    refused(f"generated:{tmp_path}", tmp_path, "no generated data set", f"imagefolder:{tmp_path}")


def generated(directory: Path, images: int = 6) -> Path:
    make(directory, images, "small", classes=3, workers=1)
    return directory


def test_a_generated_set_is_an_image_folder_of_that_name(tmp_path: Path) -> None:
    manifest = make(tmp_path / "set", 6, "small", classes=3, workers=1)
    name, found = resolve(f"generated:{tmp_path}/set", tmp_path)
    assert (name, found.kind, found.images) == ("generated", "imagefolder", 6)
    assert (found.listing_sha256, found.size_bytes) == (manifest.sha256, manifest.size_bytes)


def test_without_a_directory_the_newest_finished_set_is_taken(tmp_path: Path) -> None:
    first, second = generated(tmp_path / "data" / "z"), generated(tmp_path / "data" / "a")
    os.utime(first / MANIFEST, ns=(1, 1))
    (generated(tmp_path / "data" / "later") / MANIFEST).unlink()
    (tmp_path / "data" / "broken").mkdir()
    (tmp_path / "data" / "broken" / "plan.json").write_text("{")
    assert resolve("generated", tmp_path)[1].directory == str(second)


def test_an_interrupted_set_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    directory = generated(tmp_path / "data" / "set")
    (directory / MANIFEST).unlink()
    again = f"bench data make --images 6 --size small --classes 3 --out {directory}"
    refused("generated", tmp_path, "was interrupted", again)
    refused(f"generated:{directory}", tmp_path, "was interrupted", again)


VICTIM = "class-0001/00000001.jpg"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    make(tmp_path, 8, "small", classes=3, workers=1)
    return tmp_path


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (flip, f"{VICTIM}: other content"),
        (truncate, f"{VICTIM}: other content"),
        (lambda path: path.write_bytes(b""), f"{VICTIM}: other content"),
        (Path.unlink, f"{VICTIM}: is missing"),
        (lambda path: (path.parents[1] / PLAN).unlink(), "plan.json: is missing"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_one_file_that_changed_is_named(
    directory: Path, damage: Callable[[Path], None], line: str, workers: int
) -> None:
    damage(directory / VICTIM)
    assert verify(directory, workers) == [line]


def test_everything_that_differs_is_named_in_order(directory: Path) -> None:
    (directory / "zebra").mkdir()
    (directory / "zebra" / "1.jpg").write_bytes(b"1")
    (directory / "class-0000" / "00000000.jpg").unlink()
    flip(directory / VICTIM)
    (directory / PLAN).write_text("{}")
    missing, changed = "class-0000/00000000.jpg: is missing", f"{VICTIM}: other content"
    others = ["plan.json: other content", "zebra/1.jpg: is no part of the set"]
    assert verify(directory, workers=1) == [missing, changed, *others]


@pytest.mark.parametrize("name", ["", "nothing", "file"])
def test_what_is_no_generated_set_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match=r"holds no manifest\.json") as raised:
        verify(tmp_path / name)
    assert "bench data list" in str(raised.value.remedy)


@pytest.mark.parametrize("text", ["", "{}", '{"files": 3}', "\x00"])
def test_a_broken_manifest_is_refused(directory: Path, text: str) -> None:
    (directory / MANIFEST).write_text(text)
    with pytest.raises(RequestError, match="was not written by"):
        verify(directory)
    (directory / MANIFEST).unlink()
    with pytest.raises(RequestError, match="is not finished"):
        verify(directory)


def test_a_file_that_cannot_be_read_is_an_error_and_no_difference(directory: Path) -> None:
    (directory / "class-0000" / "lost.jpg").symlink_to("nowhere")
    with pytest.raises(BenchError, match=r"cannot read .*lost\.jpg"):
        verify(directory, workers=1)


def test_progress_comes_to_its_end(directory: Path) -> None:
    told: list[tuple[int, int]] = []
    verify(directory, 1, lambda done, of: told.append((done, of)))
    assert told == [(8, 8)]
