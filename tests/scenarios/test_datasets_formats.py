"""Generated sets in the formats of known data sets: read back as a user's own copy is, and made by bench data."""

import json
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

import cli
from commands.data import data_make
from scenarios.datasets.resolve import resolve
from scenarios.datasets.writer import make, verify
from suite.errors import RequestError
from suite.registries import DATA_KINDS
from tests.scenarios.conftest import contents
from worker.data.kinds.kind import DataKind, DrawnSet
from worker.data.sets import FileSet, PixelSet
from worker.training.device import import_torchvision

GENERATED = [name for name in DATA_KINDS.own if DATA_KINDS.get(name).can_be_generated]
OTHERS = [name for name in GENERATED if name != "imagefolder"]
IMAGES = 20
SMALL = ("--images", "6", "--size", "small", "--workers", "1")


def made(directory: Path, name: str, images: int = IMAGES, workers: int = 1, **options: Any) -> Path:
    make(directory, images, workers=workers, name=name, **options)
    return directory


def opened(name: str, directory: Path, frame_stride: int = 1) -> Any:
    kind: DataKind = DATA_KINDS.get(name)
    return kind.open(directory, frame_stride)


def test_the_help_names_every_kind_that_can_be_generated_and_no_other() -> None:
    (option,) = (one for one in data_make.params if "--format" in one.opts)
    assert isinstance(option, click.Option)
    assert {name for name in DATA_KINDS.own if re.search(rf"\b{name}\b", option.help or "")} == set(GENERATED)


@dataclass(frozen=True, kw_only=True)
class ToyKind(DataKind):
    def paths(self, drawn: DrawnSet) -> list[str]:
        return [f"{number}.txt" for number in range(drawn.images)]

    def content(self, drawn: DrawnSet, number: int) -> bytes:
        return f"{drawn.seed} {number}".encode()

    def file_bytes(self, drawn: DrawnSet) -> int:  # noqa: ARG002
        return 10


def test_a_kind_of_another_package_can_be_generated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATA_KINDS._adopted, "toy", "their_toy:TOY")
    monkeypatch.setitem(DATA_KINDS._loaded, "toy", ToyKind(name="toy", can_be_generated=True))
    made(tmp_path, "toy", 3, seed=0)
    assert contents(tmp_path)["2.txt"] == b"0 2"
    assert verify(tmp_path, workers=1) == []


@pytest.mark.parametrize("name", GENERATED)
def test_a_set_is_whole_and_is_read_as_its_kind_and_as_a_generated_one(name: str, tmp_path: Path) -> None:
    place = tmp_path / "set"
    manifest = make(place, IMAGES, "small" if name == "imagefolder" else None, workers=1, name=name)
    assert verify(place, workers=1) == []
    own, generated = resolve(f"{name}:{place}", tmp_path), resolve(f"generated:{place}", tmp_path)
    assert (own[0], generated[0]) == (name, "generated")
    assert own[1] == generated[1]
    assert (own[1].kind, own[1].images) == (name, IMAGES)
    assert (own[1].listing_sha256, own[1].size_bytes) == (manifest.sha256, manifest.size_bytes)


@pytest.mark.parametrize("name", OTHERS)
def test_bytes_depend_on_the_seed_and_not_on_the_processes(name: str, tmp_path: Path) -> None:
    one, two, other = (
        contents(made(tmp_path / place, name, 8, workers, seed=seed))
        for place, workers, seed in (("a", 1, 0), ("b", 2, 0), ("c", 1, 1))
    )
    assert one == two
    assert one != other

    with pytest.raises(RequestError, match="another plan: images differ") as refused:
        made(tmp_path / "a", name, 9)
    assert f"--format {name} --images 8 --seed 0;" in str(refused.value.remedy)
    assert contents(tmp_path / "a") == one


def test_a_format_without_videos_has_no_stride_of_frames(tmp_path: Path) -> None:
    made(tmp_path, "mnist")
    with pytest.raises(RequestError, match="kind mnist has no videos"):
        resolve(f"generated:{tmp_path}", tmp_path, 2)


def test_torchvision_reads_the_same_mnist(tmp_path: Path) -> None:
    ours = opened("mnist", made(tmp_path, "mnist"))
    theirs = import_torchvision().datasets.MNIST(tmp_path, train=True, download=False)
    assert isinstance(ours, PixelSet)
    assert np.array_equal(ours.pixels[..., 0], theirs.data.numpy())
    assert ours.labels.tolist() == theirs.targets.tolist()
    assert (len(ours), ours.read(0).shape, ours.pixels.std() > 10) == (IMAGES, (28, 28, 1), True)


def test_torchvision_reads_the_same_cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = opened("cifar10", made(tmp_path, "cifar10", 23))
    kind = import_torchvision().datasets.CIFAR10
    # It compares digests with those of the original, and there is but one original.
    monkeypatch.setattr(kind, "_check_integrity", lambda _: True)
    monkeypatch.setitem(kind.__init__.__globals__, "check_integrity", lambda *_: True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy has renamed what the pickles of 2009 ask for
        theirs = kind(tmp_path, train=True)
    assert isinstance(ours, PixelSet)
    assert np.array_equal(ours.pixels, theirs.data)
    assert ours.labels.tolist() == theirs.targets
    assert theirs.classes[9] == "truck"
    assert len(ours) == 23


def test_faces_are_parted_by_the_list(tmp_path: Path) -> None:
    faces = opened("celeba", made(tmp_path, "celeba"))
    lines = (tmp_path / "list_eval_partition.txt").read_text().splitlines()
    assert (lines[0], lines[IMAGES], lines[-1]) == ("000001.jpg 0", "000021.jpg 1", "000026.jpg 2")
    assert isinstance(faces, FileSet)
    names = [faces.name(index) for index in (0, IMAGES - 1)]
    assert names == [f"img_align_celeba/{number}.jpg" for number in ("000001", "000020")]


def test_of_every_video_one_frame_in_so_many_is_taken(tmp_path: Path) -> None:
    made(tmp_path, "frames", 40)  # two videos of 16 frames, and one of 8
    assert [len(opened("frames", tmp_path, stride)) for stride in (1, 3, 16)] == [40, 6 + 6 + 3, 3]
    frames = opened("frames", tmp_path, 3)
    assert [frames.name(index).rpartition("/")[2] for index in range(7)] == [
        f"{number:06d}.jpg" for number in (1, 4, 7, 10, 13, 16, 1)
    ]
    assert frames.labels.tolist() == [0] * 6 + [1] * 6 + [2] * 3
    assert resolve(f"frames:{tmp_path}", tmp_path, 3)[1].frame_stride == 3
    tested = (tmp_path / "ucfTrainTestlist" / "testlist01.txt").read_text().splitlines()
    assert not {frames.name(index).split("/")[2] for index in range(15)} & {Path(line).stem for line in tested}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("VIRTBENCH_HOME", str(tmp_path / "home"))
    return lambda *words: CliRunner().invoke(cli.main, ["data", *words], prog_name="bench")


def test_made_in_the_suites_folder_it_is_listed_and_verified(data: Any, tmp_path: Path) -> None:
    assert (data("list").stdout, json.loads(data("list", "--json").stdout)["sets"]) == ("", [])
    place = tmp_path / "home" / "data" / "small-6"
    made = data("make", *SMALL)
    assert (made.exit_code, made.stdout) == (0, f"{place}\n")
    assert "drawing: 6 of 6" in made.stderr
    assert "--data generated\n" in made.stderr
    assert str(place) in data("list").stdout
    assert data("verify").stdout == f"{place} is whole\n"
    (place / "class-0002" / "00000002.jpg").write_bytes(b"cut")
    told = data("verify", str(place), "--workers", "1")
    assert (told.exit_code, told.stdout) == (1, "class-0002/00000002.jpg: other content\n")
    assert "1 differences" in told.stderr
    assert data("make", *SMALL).exit_code == 2


def test_machines_are_told_the_same(data: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = json.loads(data("make", *SMALL, "--out", str(out), "--json").stdout)
    assert (made["directory"], made["images"], made["seed"]) == (str(out), 6, 0)
    assert "files" not in made
    verified = json.loads(data("verify", str(out), "--json").stdout)
    assert verified == {"schema_version": 1, "directory": str(out), "differences": []}
    data("make", *SMALL)
    (listed,) = json.loads(data("list", "--json").stdout)["sets"]
    assert listed["sha256"] == made["sha256"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("make", "--images", "0"), "--images 0"),
        (("make", "--images", "many"), "many"),
        (("make", "--size", "smal"), "did you mean small?"),
        (("make", "--images", "2", "--out", "/dev/null"), "cannot make /dev/null"),
        (("verify",), "bench data make"),
        (("verify", "/nowhere"), "/nowhere holds no manifest.json"),
    ],
)
def test_a_wrong_request_is_told_with_exit_code_2(data: Any, words: tuple[str, ...], told: str) -> None:
    result = data(*words)
    assert result.exit_code == 2
    assert told in result.stderr
