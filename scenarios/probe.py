"""Probes: one cost of a layer at a time (disk, memory, network, CPU, system calls, start-up), without training.

A trial's model is the name of its probe, and its profile says how much is measured.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager

from scenarios.probe_job import run_probe
from scenarios.probe_startup import run_startup
from suite.errors import MeasurementError, RequestError
from suite.interfaces import Instance, Measurement, Node, Observer
from suite.plan import Trial
from worker.probes.jobfile import FILE_MIB, JobFileError, needed_bytes, parse

DISK, STARTUP = "disk", "startup"
PROBES: tuple[str, ...] = (DISK, "memory", "network", "cpu", "syscall", STARTUP)
SPARE = 1.5
"""Of the room for the disk probe: metadata of the file system, and journal."""


class Probe:
    """One probe on one target."""

    name = "probe"

    def __init__(self, *, device: str = "cpu", fio_job: str | None = None, **_of_training: object) -> None:
        """``fio_job`` is the text of a job file for the disk probe. Raises RequestError when it cannot be run."""
        self._device = device
        self._fio_job = fio_job
        if fio_job is not None:
            _files_bytes("smoke", fio_job)  # what is wrong with it is told before anything is started

    def measure(
        self,
        trial: Trial,
        instances: Sequence[Instance],
        observer: Observer,
        account: AbstractContextManager[object],
    ) -> Measurement:
        """Raises MeasurementError when the probe does not come to its end."""
        (instance,) = instances
        node = instance.node
        if trial.job.model not in PROBES:
            raise MeasurementError(
                f"no probe {trial.job.model!r}", kind="probe", remedy=f"choose among {', '.join(PROBES)}"
            )
        if trial.job.model == STARTUP:
            return run_startup(trial, node, observer, account, self._device)
        if trial.job.model == DISK:
            self._check_room(trial, node)
        job = self._fio_job if trial.job.model == DISK else None
        return run_probe(trial, node, observer, account, device=self._device, job=job)

    def _check_room(self, trial: Trial, node: Node) -> None:
        """Refused alike on every target: a directory of bare metal would have room where the disk of a VM has none."""
        needed = _files_bytes(trial.job.profile, self._fio_job)
        if node.data is None or (trial.scratch_bytes or 0) < needed:
            have = f"{(trial.scratch_bytes or 0) / 1e6:.0f} MB are planned" if node.data else "there is no data volume"
            raise MeasurementError(
                f"the disk probe writes {needed / 1e6:.0f} MB, and on {node.name} {have}",
                kind="probe",
                remedy="make size= in the job file smaller, or run it with bench run, which plans the room",
            )


def scratch_bytes(probes: Sequence[str], profile: str, fio_job: str | None = None) -> int | None:
    """The room that the probes need to write; None where none of them writes. Raises RequestError on a bad job file."""
    return int(_files_bytes(profile, fio_job) * SPARE) if DISK in probes else None


def _files_bytes(profile: str, fio_job: str | None) -> int:
    if fio_job is None:
        return FILE_MIB[profile] << 20
    try:
        return needed_bytes(parse(fio_job), profile)
    except JobFileError as error:
        raise RequestError(f"--fio-job: {error}", remedy="correct the job file") from None
