"""Reports how a job failed: what happened, in which phase, and what to do."""

import contextlib
import signal
from collections.abc import Sequence

from suite.errors import CommandError, MeasurementError, ending, signal_of
from suite.interfaces import Process
from suite.job.envelope import GIB

_LAST_WORDS_S = 5.0
_REMEDIES = {
    "out-of-memory": "give the targets more with --memory, or make --batch smaller",
    "killed": "give the targets more with --memory, or make --batch smaller",
    "timeout": "allow more with --trial-timeout, or make the job smaller with --steps or --batch",
    "data": "bench data verify looks at every file of a generated set; of your own, mend or remove what is named",
    "network": "see that the instances reach each other: --comm-timeout, the lab's rate, and what else uses the CPUs",
    "device": "bench doctor says which devices this machine has",
}


def failure_of_exit(status: int, phase: str, memory_bytes: int) -> MeasurementError:
    """Return the failure of a worker that ended badly, or without its last line."""
    number = signal_of(status)
    if number == signal.SIGKILL:
        limit = f"{memory_bytes / GIB:.1f} GiB"
        why = f"most likely it wanted more memory than its limit of {limit}"
        return MeasurementError(f"the worker was killed in the phase {phase!r}; {why}", kind="killed")
    if number is not None:
        return MeasurementError(f"the worker {ending(status)} in the phase {phase!r}", kind="killed")
    how = ending(status) if status else "ended early"
    return MeasurementError(f"the worker {how} in the phase {phase!r} without saying why", kind="protocol")


def with_process(error: MeasurementError, argv: Sequence[str], process: Process) -> MeasurementError:
    """Return the failure with the command and its output; a job that failed by itself may print to its end."""
    if error.kind not in ("protocol", "timeout"):
        with contextlib.suppress(CommandError):
            process.wait(_LAST_WORDS_S)
    process.kill()
    return MeasurementError(
        error.message,
        kind=error.kind,
        command=argv,
        output_tail=process.output_tail(),
        remedy=error.remedy or _REMEDIES.get(error.kind),
    )
