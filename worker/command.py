"""Runs a command of the user's own as a child of the worker, until it ends; what it leaves behind is ended.

The child is in the target as the worker is, with its limits and environment. The end of its output goes on to standard
error, of which the host keeps no more.
"""

import ctypes
import fcntl
import os
import re
import resource
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from suite.errors import ending, signal_of
from worker.environment import collect, number, read
from worker.printed.reader import NumberReader
from worker.protocol import Events, JobError
from worker.spec import CommandRequest
from worker.surroundings import level, usable_cpus, writable_copy

GATHERED_S = 0.01
"""After the first output the rest of a burst is awaited for so long: to wake for each line would cost the command."""
PIPE_BYTES, CHUNK_BYTES, FORWARDED_BYTES = 1 << 20, 1 << 16, 1 << 14
"""The pipe holds a burst; of what it held at once the end is forwarded."""
LEAST_PAUSE_S, PAUSE_SHARE, SAMPLING_SHARE = 0.2, 0.2, 0.002
"""The pause between samples of memory: this share of the time so far, or until samples take that share of a CPU."""
ENDS_WITHIN_S = 0.2
"""Helpers such as the resource tracker of multiprocessing end so soon after the command."""
KILLED_WITHIN_S = 5.0
_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_OWN_MODULES = str(Path(__file__).parents[1])
"""The suite's packages, which must not hide the command's."""
_PR_SET_CHILD_SUBREAPER = 36


def run(request: CommandRequest, events: Events) -> None:
    """Run the command and emit everything from ``environment`` to ``done``. Raises JobError."""
    reader = NumberReader(request.throughput, request.decimal_mark)
    substitutes = dict(level(request.tmpfs_bytes))
    with writable_copy(request.directory, request.scratch) as copy:
        events.emit("environment", environment={**collect(), "threads": request.threads}, substitutes=substitutes)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        status, ended_s, left = _run(request, copy.directory, reader, memory := TreeMemory())
    if status:
        last = reader.printed_last()
        raise JobError(f"the command {ending(status)}{last}", kind="command", remedy=_remedy(status, last))
    throughput = reader.throughput()
    series = reader.chosen()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    # A child begins with the peak of the worker, whose memory it shares until it starts its program.
    is_own = used.ru_maxrss > (number("proc/self/status", "VmHWM") or 0)
    peak_bytes = max(memory.peak_bytes, used.ru_maxrss * 1024 * is_own) or None
    cpu_s = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    usage = {
        "cpu_s": cpu_s,
        "peak_memory_bytes": peak_bytes,
        "disk_read_bytes": (used.ru_inblock - before.ru_inblock) * 512,
        "disk_written_bytes": (used.ru_oublock - before.ru_oublock) * 512,
        "minor_faults": used.ru_minflt - before.ru_minflt,
        "major_faults": used.ru_majflt - before.ru_majflt,
    }
    metrics = {"cpu-time": {"value": cpu_s, "unit": "s", "better": "less"}}
    if peak_bytes:
        metrics["peak-memory"] = {"value": peak_bytes / 1e6, "unit": "MB", "better": "less"}
    notes = [f"processes that the command left behind, now ended: {left}"] if left else []
    details = {
        "exit_status": status,
        "steps": reader.steps,
        "throughputs": series.numbers if series else None,
        "throughputs_unread": series.unread if series else 0,
        "processes_left": left,
        "working_directory": asdict(copy),
        "python_cpu_count": usable_cpus(),
        "notes": [*notes, *reader.notes()],
    }
    rate = {"throughput": throughput, "counted": series.thing if series else None}
    events.emit("metrics", t=ended_s, **rate, metrics=metrics, details=details)
    events.emit("done", usage=usage)


def _remedy(status: int, last_lines: str) -> str | None:
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


def _run(request: CommandRequest, directory: str, reader: NumberReader, memory: "TreeMemory") -> tuple[int, float, int]:
    """Return the exit status, negative for a signal, the moment of the end, and how many processes were left."""
    # Processes that lose their parent become children of this one, which can count and end them.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    child_ended, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    reader.begin()
    process = _start(request, directory)
    assert process.stdout is not None  # noqa: S101 (opened as a pipe)
    output = process.stdout.fileno()
    os.set_blocking(output, False)
    with suppress(OSError):
        fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    watched = [child_ended, output]
    try:
        while process.returncode is None:
            ready, _, _ = select.select(watched, [], [], memory.sample())
            if child_ended in ready:
                os.read(child_ended, CHUNK_BYTES)
            if output in ready:
                select.select([child_ended], [], [], GATHERED_S)
                watched = [child_ended, output] if _read(output, reader) else [child_ended]
            _reap(process)
        ended_s = time.monotonic()
    finally:
        left = _end_all(process)
    _read(output, reader)
    reader.read(b"", ended=True)
    return process.returncode, ended_s, left


def _start(request: CommandRequest, directory: str) -> subprocess.Popen[bytes]:
    variables = dict(os.environ)
    modules = variables.pop("PYTHONPATH", "").split(os.pathsep)
    packages = [path for path in modules if path not in ("", _OWN_MODULES)]
    if packages:  # an adopted image names them so
        variables["PYTHONPATH"] = os.pathsep.join(packages)
    programs = Path(sys.executable).parent  # where scripts find python if this is no image's
    variables |= {"HOME": str(Path(directory).parent), "PATH": f"{os.environ['PATH']}:{programs}"}
    variables["PYTHON_CPU_COUNT"] = str(usable_cpus())  # of Python 3.13 and newer
    program, *words = request.argv
    # The interpreter that has torch: an image may call it python3 alone.
    program = sys.executable if program in ("python", "python3") else program
    try:
        return subprocess.Popen(
            [program, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=variables,
            cwd=directory,
        )
    except OSError as error:
        raise JobError(
            f"{program} cannot be started in the target: {error.strerror}",
            kind="command",
            remedy="name a program of the image, or one of the directory given with --command-files",
        ) from error


def _read(output: int, reader: NumberReader) -> bool:
    """Read what the pipe holds, and forward the end of it. Returns False if nobody can write any more."""
    tail, chunk = b"", b"-"
    with suppress(BlockingIOError):
        for _ in range(PIPE_BYTES // CHUNK_BYTES + 1):
            if not (chunk := os.read(output, CHUNK_BYTES)):
                break
            tail = (tail + chunk)[-FORWARDED_BYTES:]
            reader.read(chunk)
    sys.stderr.buffer.write(tail)
    sys.stderr.buffer.flush()
    return bool(chunk)


def _descendants() -> list[int]:
    """Return the processes that come from this one and still run, by their parent or the session that it leads.

    gVisor knows no subreaper: there an orphan becomes a child of the first process.
    """
    above: dict[int, set[str]] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        state, parent, _, session = (read(f"proc/{pid}/stat") or "Z 0 0 0").rpartition(")")[2].split()[:4]
        if state not in ("Z", "X"):
            above[int(pid)] = {parent, session}
    tree = [os.getpid()]
    for member in tree:
        tree += [pid for pid, ids in above.items() if str(member) in ids and pid not in tree]
    return tree[1:]


def _reap(command: subprocess.Popen[bytes]) -> None:
    with suppress(ChildProcessError):
        while (child := os.waitpid(-1, os.WNOHANG))[0]:
            if child[0] == command.pid:
                command.returncode = os.waitstatus_to_exitcode(child[1])


def _end_all(command: subprocess.Popen[bytes]) -> int:
    """End what the command has left behind. Returns how many processes did not end by themselves."""
    begin_s, count = time.monotonic(), 0
    while (left := _descendants()) and time.monotonic() - begin_s < KILLED_WITHIN_S:
        if time.monotonic() - begin_s > ENDS_WITHIN_S:
            count = count or len(left)
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    _reap(command)
    return count


class TreeMemory:
    """Samples the memory of all processes of the command together.

    Pages that several share count once, as the kernel divides them. A control group would count the page cache, too,
    and a guest has none.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._begin_s = time.monotonic()
        self._due_s = self._begin_s + LEAST_PAUSE_S

    def sample(self) -> float:
        """Take a sample if it is due. Returns the seconds until the next one."""
        if (now_s := time.monotonic()) >= self._due_s:
            begin_s, pids = time.thread_time(), _descendants()
            kib = (number(f"proc/{pid}/smaps_rollup", "Pss") or number(f"proc/{pid}/status", "VmRSS") for pid in pids)
            self.peak_bytes = max(self.peak_bytes, 1024 * sum(filter(None, kib)))
            pause_s = (time.thread_time() - begin_s) / SAMPLING_SHARE
            self._due_s = now_s + max(LEAST_PAUSE_S, min(pause_s, PAUSE_SHARE * (now_s - self._begin_s)))
        return max(0.0, self._due_s - now_s)
