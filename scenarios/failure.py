"""Reports how a job failed: what happened, in which phase, and what to do."""

import contextlib
import re
import signal
from collections.abc import Sequence
from pathlib import Path

from suite.errors import BenchError, CommandError, MeasurementError, ending, signal_of
from suite.interfaces import Node, Process
from suite.job.envelope import GIB, MEMORY_NOT_LIMITED

_LAST_WORDS_S = 5.0
_ASKED_WITHIN_S = 20.0
GROUPS = "/sys/fs/cgroup"
FROM_OUTSIDE = "from outside: its control group counts no process that was killed for want of memory"
_REMEDIES = {
    "out-of-memory": "give the targets more with --memory, or make --batch smaller",
    "killed": "see in the kernel's log who ended it; if it was for want of memory, give more with --memory",
    "timeout": "allow more with --trial-timeout, or make the job smaller with --steps or --batch",
    "data": "bench data verify looks at every file of a generated set; of your own, mend or remove what is named",
    "network": "see that the instances reach each other: --comm-timeout, the lab's rate, and what else uses the CPUs",
    "import": "a workload's file is sent alone, and imports packages of the image: put modules of yours into the file",
    "device": "bench doctor says which devices this machine has",
}


def failure_of_exit(status: int, phase: str, memory_bytes: int, node: Node) -> MeasurementError:
    """Return the failure of a worker that ended badly on a node, or without its last line."""
    number = signal_of(status)
    if number == signal.SIGKILL:
        wanted = f"it wanted more memory than its limit of {memory_bytes / GIB:.1f} GiB"
        kills = oom_kills(node)
        why = wanted if kills else f"either {wanted}, or somebody else killed it" if kills is None else FROM_OUTSIDE
        kind = "out-of-memory" if kills else "killed"
        return MeasurementError(f"the worker was killed in the phase {phase!r}; {why}", kind=kind)
    if number is not None:
        return MeasurementError(f"the worker {ending(status)} in the phase {phase!r}", kind="killed")
    how = ending(status) if status else "ended early"
    return MeasurementError(f"the worker {how} in the phase {phase!r} without saying why", kind="protocol")


def oom_kills(node: Node) -> int | None:
    """Return how many processes of an instance the kernel has killed for want of memory; None where it cannot tell.

    The control group is asked from inside; containers see theirs as the root or by its full path. A guest of the
    suite's has no group: its own kernel counts, which nobody else is in.
    """

    def read(path: str) -> str:
        try:
            answer = node.run(["cat", path], check=False, timeout_s=_ASKED_WITHIN_S)
            return answer.stdout
        except BenchError:
            return ""

    lines = read("/proc/self/cgroup").splitlines()
    groups = dict(line.split(":", 2)[1:] for line in lines if line.count(":") >= 2)
    files = []
    for controller, name in (("memory", "memory.oom_control"), ("", "memory.events")):
        group = groups.get(controller)
        if group is not None:
            files += [str(Path(GROUPS, place.strip("/"), name)) for place in (f"{controller}{group}", controller)]
    if node.facts.get("accelerator") in ("kvm", "tcg"):
        files.append("/proc/vmstat")
    if MEMORY_NOT_LIMITED in node.substitutes:
        files = []  # a group of the user's, which others are in
    counted = (re.search(r"^oom_kill (\d+)$", read(file), re.MULTILINE) for file in files)
    counts = (int(match[1]) for match in counted if match)
    return next(counts, None)


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
