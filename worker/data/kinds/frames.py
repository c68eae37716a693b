"""Frames of UCF101 (Soomro et al. 2012), extracted from its videos, with its official lists.

The lists and the folders are where its two archives put them; the frames of ``UCF-101/CLASS/VIDEO.avi`` lie in
``UCF-101/CLASS/VIDEO/``, in the order of their names.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from worker.data.kinds.kind import MOST_LIST_BYTES, DataKind, DataSetError, read_bounded
from worker.data.sets import IMAGE_SUFFIXES, FileSet
from worker.workloads.workload import CLASSES

VIDEOS, LISTS = "UCF-101", "ucfTrainTestlist"
LIST = f"{LISTS}/trainlist01.txt"
"""The training videos of the first of the three official splits."""
_LINE = re.compile(r"([^/.\s][^/\s]*/[^/.\s][^/\s]*)\.avi (\d{1,4})")
_REMEDY = f"name the directory that holds {LIST} and, for each of its videos, the frames in {VIDEOS}/CLASS/VIDEO/*.jpg"


@dataclass(frozen=True, kw_only=True)
class Frames(DataKind):
    """Frames of videos, as images."""

    def open(self, root: Path, frame_stride: int) -> FileSet:
        """Return the frames of the training videos. Raises DataSetError where a video has none."""
        if not (root / LIST).is_file():
            raise DataSetError(f"there is no {root / LIST}", remedy=_REMEDY)
        names: list[bytes] = []
        labels: list[int] = []
        without: list[str] = []
        for video, label in _videos(root / LIST):
            frames = _frames(root / VIDEOS / video)[::frame_stride]
            names += [f"{VIDEOS}/{video}/".encode() + frame for frame in frames]
            labels += [label] * len(frames)
            if not frames:
                without.append(video)
        if without:
            told = f"{len(without)} videos of {root / LIST} have no frames, such as {without[0]}"
            raise DataSetError(told, remedy=_REMEDY)
        return FileSet.of(root, names, labels)


def _videos(path: Path) -> list[tuple[str, int]]:
    """Return each video without its suffix, and its label from 0 up; the list's begin with 1."""
    found = []
    text = read_bounded(path, _REMEDY, MOST_LIST_BYTES).decode(errors="replace")
    for number, line in enumerate(text.split("\n"), start=1):
        match = _LINE.fullmatch(line.strip())
        if match and 1 <= int(match[2]) <= CLASSES:
            found.append((match[1], int(match[2]) - 1))
        elif line.strip():
            raise DataSetError(f"{path}:{number}: {line[:60]!r} is not CLASS/VIDEO.avi LABEL", remedy=_REMEDY)
    if not found:
        raise DataSetError(f"{path} names no videos", remedy=_REMEDY)
    return found


def _frames(video: Path) -> list[bytes]:
    if not video.is_dir():
        return []
    suffixes = tuple(map(str.encode, IMAGE_SUFFIXES))
    frames = os.listdir(os.fsencode(video))
    return sorted(frame for frame in frames if frame.lower().endswith(suffixes) and not frame.startswith(b"."))


FRAMES = Frames(name="frames", has_videos=True)
