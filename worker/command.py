"""Runs a command of the user's own as a child of the worker, in one piece or in turns.

The child is in the target as the worker is, with its limits and environment.
"""

import re
import resource
import signal
from dataclasses import asdict
from typing import Any, TextIO

from suite.errors import ending, signal_of
from worker.environment import collect, number
from worker.printed.reader import NumberReader
from worker.program import ProgramRun
from worker.protocol import Events, JobError
from worker.slices import Slices
from worker.spec import CommandRequest
from worker.surroundings import level, usable_cpus, writable_copy

_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")


def run(request: CommandRequest, events: Events, orders: TextIO) -> None:
    """Run the command and emit everything from ``environment`` to ``done``. Raises JobError.

    A command that takes turns is given each by one of the ``orders``.
    """
    reader = NumberReader(request.throughput, request.decimal_mark)
    substitutes = dict(level(request.tmpfs_bytes))
    with writable_copy(request.directory, request.scratch) as copy:
        facts = {**collect(), "threads": request.threads}
        events.emit("environment", environment=facts, substitutes=substitutes)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        slices = None
        if request.slice_s:
            slices = Slices(request.slice_s, orders, events)
            slices.await_first()
        program = ProgramRun(request, copy.directory, reader)
        ended = slices.run(program) if slices else program.to_its_end()
    if ended.status:
        last = reader.printed_last()
        remedy = remedy_of(ended.status, last)
        raise JobError(f"the command {ending(ended.status)}{last}", kind="command", remedy=remedy)
    throughput = reader.throughput()
    series = reader.chosen()
    usage = usage_since(before, program.memory.peak_bytes)
    metrics = {"cpu-time": {"value": usage["cpu_s"], "unit": "s", "better": "less"}}
    if usage["peak_memory_bytes"]:
        metrics["peak-memory"] = {"value": usage["peak_memory_bytes"] / 1e6, "unit": "MB", "better": "less"}
    left = len(ended.left)
    notes = [f"processes that the command left behind, now ended: {left}"] if left else []
    details = {
        "exit_status": ended.status,
        "steps": reader.steps,
        "throughputs": series.numbers if series else None,
        "throughputs_unread": series.unread if series else 0,
        "processes_left": left,
        "working_directory": asdict(copy),
        "python_cpu_count": usable_cpus(),
        **(slices.counts() if slices else {}),
        "notes": [*notes, *reader.notes()],
    }
    rate = {"throughput": throughput, "counted": series.thing if series else None}
    # Others may have had turns after its last one.
    over_s = slices.over_s if slices else ended.ended_s
    events.emit("metrics", t=over_s, **rate, metrics=metrics, details=details)
    events.emit("done", usage=usage)


def usage_since(before: resource.struct_rusage, sampled_bytes: int) -> dict[str, Any]:
    """Return what the program and its children have used since ``before``; their peak of memory was also sampled."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    # A child begins with the peak of the worker, whose memory it shares until it starts its program.
    is_own = used.ru_maxrss > (number("proc/self/status", "VmHWM") or 0)
    return {
        "cpu_s": used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime,
        "peak_memory_bytes": max(sampled_bytes, used.ru_maxrss * 1024 * is_own) or None,
        "disk_read_bytes": (used.ru_inblock - before.ru_inblock) * 512,
        "disk_written_bytes": (used.ru_oublock - before.ru_oublock) * 512,
        "minor_faults": used.ru_minflt - before.ru_minflt,
        "major_faults": used.ru_majflt - before.ru_majflt,
    }


def remedy_of(status: int, last_lines: str) -> str | None:
    """Return what to do about a command that failed; None if its own words must do."""
    if signal_of(status) == signal.SIGKILL:
        return "give the targets more with --memory"
    module = _MISSING_MODULE.search(last_lines)
    if module:
        return (
            f"the targets have the image's modules, not this machine's, and {module[1]} is not among them: build an "
            "image of your own that has it, and name it with --image (docs/guide/own-image.md)"
        )
    return None
