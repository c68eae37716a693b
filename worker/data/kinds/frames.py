"""Frames of UCF101 (Soomro et al. 2012), extracted from its videos, with its official lists.

The lists and the folders are where its two archives put them; the frames of ``UCF-101/CLASS/VIDEO.avi`` lie in
``UCF-101/CLASS/VIDEO/``, in the order of the numbers in their names.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from worker.data.kinds.kind import DataKind, DataSetError, DrawnSet, held_out, read_list
from worker.data.kinds.pictures import jpeg, scene
from worker.data.sets import IMAGE_SUFFIXES, FileSet
from worker.workloads.workload import CLASSES

VIDEOS = "UCF-101"
LISTS = "ucfTrainTestlist"
LIST = f"{LISTS}/trainlist01.txt"
"""The training videos of the first of the three official splits."""
_TEST_LIST = f"{LISTS}/testlist01.txt"
_CLASS_LIST = f"{LISTS}/classInd.txt"
_SIZE_PX = (320, 240)
_STEP_PX = 4
_FRAMES = 16
"""The frames of a generated video; the last one to train on may have fewer."""
_CLASSES = 101
_GROUPS = {"train": range(8, 26), "test": range(1, 8)}
"""The groups of videos that the first of UCF101's splits trains on, and tests with."""
_LINE = re.compile(r"([^/.\s][^/\s]*/[^/.\s][^/\s]*)\.avi (\d{1,4})")
_NUMBERS = re.compile(rb"(\d+)")
_REMEDY = f"name the directory that holds {LIST} and, for each of its videos, the frames in {VIDEOS}/CLASS/VIDEO/*.jpg"


@dataclass(frozen=True, kw_only=True)
class Frames(DataKind):
    """Frames of videos, as images."""

    def open(self, root: Path, frame_stride: int) -> FileSet:
        """Return the frames of the training videos. Raises DataSetError where a video has none."""
        if not (root / LIST).is_file():
            raise DataSetError(f"there is no {root / LIST}", remedy=_REMEDY)
        names = list[bytes]()
        labels = list[int]()
        without = list[str]()
        for video, label in _videos(root / LIST):
            frames = _frames(root / VIDEOS / video)[::frame_stride]
            names += [f"{VIDEOS}/{video}/".encode() + frame for frame in frames]
            labels += [label] * len(frames)
            if not frames:
                without.append(video)
        if without:
            lacking = f"{len(without)} videos of {root / LIST} have no frames, such as {without[0]}"
            raise DataSetError(lacking, remedy=_REMEDY)
        return FileSet.of(root, names, labels)

    def paths(self, drawn: DrawnSet) -> list[str]:
        """Return the frames to train on, those to test with, and the three lists."""
        frames = (
            f"{VIDEOS}/{_generated_video(part, frame // _FRAMES)}/{frame % _FRAMES + 1:06d}.jpg"
            for part, count in {"train": drawn.images, "test": held_out(drawn.images)}.items()
            for frame in range(count)
        )
        return [*frames, LIST, _TEST_LIST, _CLASS_LIST]

    def content(self, drawn: DrawnSet, number: int) -> bytes:
        """Draw a frame: of every video a view that moves over one scene."""
        tested = held_out(drawn.images)
        which = number - drawn.images - tested
        if which >= 0:
            return _generated_list(which, -(-drawn.images // _FRAMES), -(-tested // _FRAMES)).encode()
        first = 0 if number < drawn.images else drawn.images
        video, frame = divmod(number - first, _FRAMES)
        width, height = _SIZE_PX
        size = (width + _STEP_PX * _FRAMES, height)
        view = scene(drawn.seed, first + video, size)
        left = _STEP_PX * frame
        return jpeg(view.crop((left, 0, left + width, height)))

    def file_bytes(self, drawn: DrawnSet) -> int:  # noqa: ARG002
        return 48_000


def _videos(path: Path) -> list[tuple[str, int]]:
    """Return each video without its suffix, and its label from 0 up; the list's begin with 1."""

    def parse(line: str) -> tuple[str, int] | None:
        match = _LINE.fullmatch(line)
        if match and 1 <= int(match[2]) <= CLASSES:
            return (match[1], int(match[2]) - 1)
        return None

    videos = read_list(path, parse, "CLASS/VIDEO.avi LABEL", _REMEDY)
    if not videos:
        raise DataSetError(f"{path} names no videos", remedy=_REMEDY)
    return videos


def _frames(video: Path) -> list[bytes]:
    """Return the frames of a video in the order of their numbers, which may lack leading zeros."""
    if not video.is_dir():
        return []
    suffixes = tuple(map(str.encode, IMAGE_SUFFIXES))
    frames = [name for name in os.listdir(os.fsencode(video)) if name.lower().endswith(suffixes)]
    visible = (frame for frame in frames if not frame.startswith(b"."))
    return sorted(
        visible, key=lambda name: [part.zfill(20) if part.isdigit() else part for part in _NUMBERS.split(name)]
    )


def _generated_video(part: str, number: int) -> str:
    """Return the path of a video of the training or the test, as in the lists, without its suffix."""
    name = _class(number % _CLASSES)
    clip, group = divmod(number // _CLASSES, len(_GROUPS[part]))
    return f"{name}/v_{name}_g{_GROUPS[part][group]:02d}_c{clip + 1:02d}"


def _generated_list(which: int, training: int, tests: int) -> str:
    """Return the list of so many training videos, of so many test videos, or of the classes."""
    lists = (
        [f"{_generated_video('train', number)}.avi {number % _CLASSES + 1}" for number in range(training)],
        [f"{_generated_video('test', number)}.avi" for number in range(tests)],
        [f"{number + 1} {_class(number)}" for number in range(_CLASSES)],
    )
    return "".join(f"{line}\n" for line in lists[which])


def _class(number: int) -> str:
    return f"Generated{number + 1:03d}"


FRAMES = Frames(name="frames", has_videos=True, can_be_generated=True)
