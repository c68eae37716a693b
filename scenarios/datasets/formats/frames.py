"""Frames of videos, in the folders and lists of UCF101: of every video a view that moves over one scene."""

from dataclasses import dataclass

from scenarios.datasets.formats.format import SetFormat, held_out
from scenarios.datasets.manifest import SetPlan
from scenarios.datasets.pictures import jpeg, scene
from worker.data.kinds.frames import LIST, LISTS, VIDEOS

_SIZE_PX, _STEP_PX = (320, 240), 4
_FRAMES = 16
"""The frames of a video; the last one to train on may have fewer."""
_CLASSES = 101
_GROUPS = {"train": range(8, 26), "test": range(1, 8)}
"""The groups of videos that the first of UCF101's splits trains on, and tests with."""
_TEST_LIST, _CLASS_LIST = f"{LISTS}/testlist01.txt", f"{LISTS}/classInd.txt"


@dataclass(frozen=True, kw_only=True)
class FramesFormat(SetFormat):
    """The frames to train on, those to test with, and the three lists."""

    def files(self, plan: SetPlan) -> int:
        return self._frames(plan) + 3

    def path(self, plan: SetPlan, index: int) -> str:
        if (place := index - self._frames(plan)) >= 0:
            return (LIST, _TEST_LIST, _CLASS_LIST)[place]
        part, number = ("train", index) if index < plan.images else ("test", index - plan.images)
        return f"{VIDEOS}/{_video(part, number // _FRAMES)}/{number % _FRAMES + 1:06d}.jpg"

    def content(self, plan: SetPlan, index: int) -> bytes:
        if (place := index - self._frames(plan)) >= 0:
            return self._list(plan, place).encode()
        first = 0 if index < plan.images else plan.images
        video, frame = divmod(index - first, _FRAMES)
        width, height = _SIZE_PX
        view = scene(plan.seed, first + video, (width + _STEP_PX * _FRAMES, height))
        left = _STEP_PX * frame
        return jpeg(view.crop((left, 0, left + width, height)))

    def _list(self, plan: SetPlan, place: int) -> str:
        training, tests = -(-plan.images // _FRAMES), -(-held_out(plan.images) // _FRAMES)
        lists = (
            [f"{_video('train', number)}.avi {number % _CLASSES + 1}" for number in range(training)],
            [f"{_video('test', number)}.avi" for number in range(tests)],
            [f"{number + 1} {_class(number)}" for number in range(_CLASSES)],
        )
        return "".join(f"{line}\n" for line in lists[place])

    def _frames(self, plan: SetPlan) -> int:
        return plan.images + held_out(plan.images)

    def file_bytes(self, plan: SetPlan) -> int:  # noqa: ARG002
        return 48_000


def _class(number: int) -> str:
    return f"Generated{number + 1:03d}"


def _video(part: str, number: int) -> str:
    """Return the path of a video of the training or the test, as in the lists, without its suffix."""
    name = _class(number % _CLASSES)
    clip, group = divmod(number // _CLASSES, len(_GROUPS[part]))
    return f"{name}/v_{name}_g{_GROUPS[part][group]:02d}_c{clip + 1:02d}"


FRAMES = FramesFormat()
