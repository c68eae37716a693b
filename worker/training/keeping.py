"""Kept models: the network that makes the images, as it is at the end of a training or of each epoch.

The copies stay in memory while steps are measured, and are said after the last, each in one line of the protocol.
"""

import io
from base64 import b64encode
from typing import Any

import torch

from worker.protocol import Events, JobError
from worker.serving.generator import model_content
from worker.spec import Spec
from worker.weights import weights_sha256

LONGEST_TEXT_BYTES, MOST_TEXT_BYTES = 31 << 20, 60 << 20
"""The bounds of one line and of all that a job says, less what stands around a model."""
_STEP_TEXT_BYTES = 320
"""The text of one step with all its phases and losses."""


class ModelKeeper:
    """Keeps the models of one training, in the format of ``serving.generator.write_model``. Raises JobError."""

    def __init__(self, spec: Spec, network: torch.nn.Module) -> None:
        self._spec, self._copies = spec, list[dict[str, Any]]()
        self._network = network.get_submodule(spec.load_workload().image_network)
        size_bytes, count = len(self._text()), (spec.epochs or 1) if self.each else 1
        room_bytes = MOST_TEXT_BYTES - _STEP_TEXT_BYTES * spec.steps
        if size_bytes > LONGEST_TEXT_BYTES or count * size_bytes > room_bytes:
            message = (
                f"{count} models of {size_bytes / 2**20:.1f} MiB are {count * size_bytes / 2**20:.1f} MiB as text; one "
                f"may have {LONGEST_TEXT_BYTES >> 20} MiB, and all beside {spec.steps} steps {room_bytes >> 20} MiB"
            )
            raise JobError(message, kind="model", remedy="keep the last one, or train smaller images or fewer epochs")

    @property
    def each(self) -> bool:
        return self._spec.keep_model == "each"

    def keep(self, epoch: int | None, training_s: float) -> None:
        """Copy the network as it is after so many epochs and seconds of training."""
        weights = weights_sha256(self._network)
        self._copies.append({"epoch": epoch, "training_s": training_s, "weights_sha256": weights, "text": self._text()})

    def keep_last(self, training_s: float) -> None:
        """Copy the network after the last step, unless that of each epoch is kept."""
        if not self.each:
            self.keep(self._spec.epochs, training_s)

    def emit(self, events: Events) -> None:
        """Say every copy, the first epoch's first."""
        for copy in self._copies:
            events.emit("model", **copy)

    def _text(self) -> str:
        file = io.BytesIO()
        torch.save(model_content(self._spec.shape, self._network), file)
        return b64encode(file.getvalue()).decode()
