"""Run the blocks of a sweep one after the other as Jobs of a cluster, and receive records through the pods' logs."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from provisioning.batch import kubernetes
from provisioning.kubernetes.cluster import Cluster, Object
from provisioning.kubernetes.owned import NOT_FOUND
from provisioning.kubernetes.refusals import ApiError, AwayError
from suite.errors import BenchError, MeasurementError, RequestError
from suite.results.files import appending
from suite.sweep.file_transfer import ENDED, FILE, TransferError

SILENT_S = 10.0
"""Seconds after which a log that says nothing is opened again, and a stop is noticed."""
FOR_EVER = ("image", "runtime-class", "admission", "namespace")
"""The kinds of hindrances that no waiting removes: unlike a quota, or nodes that are full."""
MOST_LOOKS = 3
"""The log of a pod that has just ended may be empty at first."""


@dataclass
class JobExecutor:
    """See ``provisioning.batch.pool.Executor``. A Job that is there already is followed, and not made again."""

    name: str
    cluster: Cluster
    sweep: str
    """The label's value, by which the sweep's Jobs are found."""
    manifest: Callable[[int], Object]
    receive: Callable[[int, str], None]
    """Takes the block and every line of a file that comes back."""
    logs: Path
    """The directory for what the pods say besides."""
    poll_s: float
    _stopped: threading.Event = field(default_factory=threading.Event)

    def run(self, block: int) -> None:
        """See ``Executor``."""
        kubernetes.submit(self.cluster, self.manifest(block))
        self.logs.mkdir(exist_ok=True)
        taken: dict[str, list[str]] = {}
        looks_after_end = 0
        while not self._stopped.is_set():
            job = self._look(block)
            if refused := _refusal(job):
                kubernetes.remove(self.cluster, job.name)
                raise refused
            looks_after_end += job.state in ("complete", "failed")
            try:
                complete = job.begun and self._hear(block, str(job.pod), taken.setdefault(str(job.pod), []))
            except (RequestError, TransferError) as error:  # what it sends is refused here, and would be again
                kubernetes.remove(self.cluster, job.name)
                self._gone(block)
                raise type(error)(f"{job.reason}: {error.message}", remedy=error.remedy) from error
            if complete or looks_after_end > MOST_LOOKS:
                kubernetes.remove(self.cluster, job.name)
                self._gone(block)
                if complete:
                    return
                raise self._lost(job, taken.get(str(job.pod), []))
            self._stopped.wait(self.poll_s)
        raise MeasurementError("it is not followed any more", kind="stopped")

    def stop(self) -> None:
        """See ``Executor``: the Job stays, and the next run of the sweep follows it."""
        self._stopped.set()

    def _look(self, block: int) -> kubernetes.BlockJob:
        found = kubernetes.jobs(self.cluster, self.sweep, block)
        if not found:
            raise MeasurementError("its Job was removed", kind="lost", remedy="bench sweep run tries it again")
        return found[0]

    def _gone(self, block: int) -> None:
        """Wait until the name is free again: the next try has the same one."""
        while kubernetes.jobs(self.cluster, self.sweep, block) and not self._stopped.wait(self.poll_s):
            pass

    def _hear(self, block: int, pod: str, taken: list[str]) -> bool:
        """Take what is new in the pod's log until it is silent or ends; return whether the block is complete."""
        for line in self._new_lines(pod, len(taken)):
            taken.append(line if not line.startswith(FILE) else "")
            if line == ENDED:
                return True
            if line.startswith(FILE):
                self.receive(block, line)
            else:
                with appending(self.logs / f"kubernetes-{block:03d}.log", self.logs.parent) as log:
                    log.write(f"{line}\n".encode())
            if self._stopped.is_set():
                break
        return False

    def _new_lines(self, pod: str, skipped: int) -> Iterator[str]:
        try:
            for number, line in enumerate(self.cluster.log_lines(pod, SILENT_S)):
                if number >= skipped:
                    yield line
        except AwayError:  # it was silent, or the server is away: it is asked again
            return
        except ApiError as error:  # the pod has gone meanwhile
            if error.status != NOT_FOUND:
                raise

    def _lost(self, job: kubernetes.BlockJob, said: list[str]) -> BenchError:
        """Return an error in bench's own words, where the pod has said some, else in the cluster's."""
        message = next(
            (line for line in reversed(said) if line.startswith("bench: ")), job.reason or "its pod has ended"
        )[:1000]
        remedy = f"see {self.logs}"
        if f"exit code {RequestError.exit_code}" in job.reason:
            return RequestError(message, remedy=remedy)
        return MeasurementError(message, kind="lost", remedy=remedy)


def _refusal(job: kubernetes.BlockJob) -> RequestError | None:
    """Return why a Job that waits will never begin; None where it may."""
    why = job.failure or job.hindrance
    if job.begun or why is None or why.kind not in FOR_EVER:
        return None
    return RequestError(f"the pod of bench does not begin: {why.message}", remedy=why.remedy)
