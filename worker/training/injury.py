"""Injuries of a job: time or memory that is added on purpose and clocked here, so that its size is known.

``bench selftest`` alone asks for them. Time is a share of a step, as the warm-up steps show it, so that an injury is as
large on a slow target as on a fast one. Measured steps alone are injured.
"""

import itertools
import mmap
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from worker.data.batches import LoaderUse
from worker.spec import StepInjury

if TYPE_CHECKING:
    import torch

    from worker.data.batches import Batch, Batches


class Injector:
    def __init__(self, injury: StepInjury, warmup_steps: int) -> None:
        self._injury = injury
        self._warmup_steps = warmup_steps
        self._begun_s: list[float] = []
        self.injected: dict[str, float] = {"seconds": 0.0, "steps": 0, "held_bytes": injury.held_bytes}
        """The injury that was added in fact, by the clock and the counts of who added it."""
        self._held = _touched(injury.held_bytes)
        self._computes = False

    def batches(self, batches: "Sequence[Batches]") -> "list[Batches]":
        """Return the batches, late ones where that is the injury. Each of them begins a step."""
        before = self._strike if self._injury.kind == "late-batch" else self._begin_step
        return [WatchedBatches(loader, before) for loader in batches]

    def attach(self, network: "torch.nn.Module") -> None:
        """Injure the computing where that is the injury: right before the first pass forward of each step.

        A step of several networks asks them by themselves, some of them more than once.
        """
        if self._injury.kind == "late-step":
            for module in (network, *network.children()):
                module.register_forward_pre_hook(lambda *_: self._compute())

    def _begin_step(self) -> None:
        self._computes = False

    def _compute(self) -> None:
        if not self._computes:
            self._computes = True
            self._strike()

    def _strike(self) -> None:
        """Add the time that is due in this step. It is called once in each, the warm-up steps included."""
        begin_s = time.monotonic()
        self._begun_s.append(begin_s)
        number = len(self._begun_s) - self._warmup_steps
        if number < 1 or number % self._injury.every:
            return
        begun_s = self._begun_s[: self._warmup_steps]
        usual_s = statistics.median(b - a for a, b in itertools.pairwise(begun_s))
        time.sleep(self._injury.share * self._injury.every * usual_s)
        self.injected["seconds"] += time.monotonic() - begin_s
        self.injected["steps"] += 1


class WatchedBatches:
    """Batches before each of which something is done."""

    def __init__(self, batches: "Batches", before: Callable[[], None]) -> None:
        self._batches = batches
        self._before = before

    def next(self) -> "Batch":
        self._before()
        return self._batches.next()

    def prepared(self, images: "torch.Tensor") -> "torch.Tensor":
        return self._batches.prepared(images)

    def taken_sha256(self) -> str:
        return self._batches.taken_sha256()

    def close(self) -> LoaderUse | None:
        return self._batches.close()


def _touched(size_bytes: int) -> mmap.mmap:
    """Return fresh memory of which every page was written to, each by a fault of its own."""
    # One page more, for memory of no bytes cannot be mapped.
    memory = mmap.mmap(-1, size_bytes + mmap.PAGESIZE)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for offset in range(0, size_bytes, mmap.PAGESIZE):
        memory[offset] = 1
    return memory
