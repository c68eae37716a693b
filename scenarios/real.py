"""Training on a data set: what the job reads is decoded, cropped and normalised while it trains."""

from collections.abc import Sequence
from pathlib import Path

from scenarios.datasets import resolve as datasets
from scenarios.preemption import CHECKPOINT_BYTES
from scenarios.training import TrainingScenario
from suite.errors import RequestError, option
from suite.interfaces import Note
from suite.job.datasets import GENERATED, SYNTHETIC, Dataset
from suite.request.request import RunRequest
from suite.request.scenario import PlannedScenario


class ReadingScenario(PlannedScenario):
    """A training that reads a data set; see ``needs_data`` for whether it always does."""

    reads = True

    def data_set(self, request: RunRequest, home: Path, note: Note) -> tuple[str, Dataset | None]:
        asked = request.data.data or (GENERATED if self.needs_data else SYNTHETIC)
        if asked != SYNTHETIC:
            return datasets.resolve(asked, home, request.data.frame_stride, note)
        if self.needs_data:
            raise RequestError(
                f"{option('data')} {asked} with {option('scenario')} {self.name}",
                remedy=f"use {option('scenario')} {SYNTHETIC} for it",
            )
        return SYNTHETIC, None


class Real(ReadingScenario, TrainingScenario):
    """The paper's benchmark on real data, on one instance."""

    name = "real"
    needs_data = epochs = True

    def scratch_bytes(self, request: RunRequest, models: Sequence[str]) -> dict[str, int]:
        return dict.fromkeys(models, CHECKPOINT_BYTES) if request.measurement.preempt else {}

    def hinders_turns(self, request: RunRequest) -> tuple[str, str] | None:
        if request.data.cache == "warm":
            return None
        why = "a cold page cache is cold once, and not in every turn"
        return why, f"add {option('cache')} warm, or leave {option('design')} out"
