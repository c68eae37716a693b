"""Runs on a machine of the inventory, with its own Python (3.9 or newer), for as long as the suite is connected to it.

It is that machine's ledger: it is told what is made there and how that is undone. When its standard input ends, be it
that the suite has finished, was killed, or that the network is gone, it ends the suite's processes and undoes the rest.
One line of JSON is one request, and one its answer.
"""

import base64
import contextlib
import hmac
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from provisioning.held_process import kill_held

TOKEN = b"VIRTBENCH_TOKEN="
GONE_WITHIN_S = 30.0
UNDO_WITHIN_S = 60.0
GREETING = 0
FAREWELL = -1
"""The numbers of the two messages that answer no request."""
FIRST_NAMESPACE = 0xEFFFFFFC
BEGIN = '{"number": '


def carrying(mark: str) -> list[int]:
    """Return the processes whose environment has the mark, or one below it (``TOKEN.7`` is below ``TOKEN``)."""
    pids = map(int, filter(str.isdigit, os.listdir("/proc")))
    return [pid for pid in pids if pid != os.getpid() and _carries(pid, mark)]


def _carries(pid: int, mark: str) -> bool:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    marks = []
    for entry in variables:
        if entry.startswith(TOKEN):
            marks.append(entry[len(TOKEN) :].decode())
    return any(entry == mark or entry.startswith(f"{mark}.") for entry in marks)


def end(mark: str) -> list[int]:
    """Kill them, and wait until they are gone; returns the numbers of those that stay."""
    deadline = time.monotonic() + GONE_WITHIN_S
    unseen = 0
    # One that is becoming another program shows no environment for a moment: it is looked for twice.
    while True:
        pids = carrying(mark)
        unseen = 0 if pids else unseen + 1
        if unseen == 2 or time.monotonic() > deadline:
            return pids
        for pid in pids:
            with contextlib.suppress(OSError):
                kill_held(pid, partial(_carries, pid, mark))
        time.sleep(0.01)


def undo(argv: list[str]) -> list[str]:
    """Run a command that undoes something, and return what went wrong."""
    try:
        ended = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=UNDO_WITHIN_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        return [str(error)]
    if ended.returncode:
        return [f"{' '.join(argv)}: {ended.stdout.decode(errors='replace')[-300:]}"]
    return []


def run(request: dict[str, Any]) -> dict[str, object]:
    """Run a short command to its end; the exit status is null if it ran out of time. Bytes travel as base64."""
    argv = ["env", TOKEN.decode() + request["mark"], *request["argv"]]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        argv,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        start_new_session=True,
    ) as process:
        try:
            stdin = base64.b64decode(request["stdin"])
            out, err = process.communicate(stdin, timeout=request["timeout_s"])
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            _, err = process.communicate()
            return {"returncode": None, "stdout": "", "stderr": err.decode(errors="replace")}
    status = process.returncode if process.returncode >= 0 else 128 - process.returncode
    return {"returncode": status, "stdout": out.decode(errors="replace"), "stderr": err.decode(errors="replace")}


def answer(request: dict[str, Any], undos: dict[str, list[str]]) -> dict[str, object]:
    if request["do"] == "keep":
        undos[request["key"]] = request["argv"]
    elif request["do"] == "drop":
        undos.pop(request["key"], None)
    elif request["do"] == "find":
        missing = [name for name in request["programs"] if shutil.which(name) is None]
        return {"missing": missing}
    elif request["do"] == "run":
        return run(request)
    elif request["do"] == "end":
        return {"left": end(request["mark"])}
    return {"at_s": time.time()}


def machine_key() -> "str | None":
    """Return the digest of the machine-id(5), as ``suite.process_identity.machine_id`` does; None if it has none."""
    try:
        content = Path("/etc/machine-id").read_text().strip()
        namespace = Path("/proc/self/ns/pid").stat().st_ino
        if namespace != FIRST_NAMESPACE or not re.fullmatch("[0-9a-f]{32}", content):
            return None
    except (OSError, UnicodeDecodeError):
        return None
    return hmac.new(content.encode(), b"virtbench", "sha256").hexdigest()[:16]


def cpus_in(state: str) -> str:
    """Return the kernel's list of CPUs in a state; empty where it has none."""
    try:
        return Path("/sys/devices/system/cpu", state).read_text()
    except OSError:
        return ""


def say(message: dict[str, object]) -> None:
    with contextlib.suppress(OSError):  # nobody may be listening any more
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def main(token: str) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # As ``provisioning.processes`` does on this machine: messages are parsed, and jobs are another user's.
    os.environ["LC_ALL"] = "C"
    os.umask(0o022)
    undos: dict[str, list[str]] = {}
    memory_bytes = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    cpus = sorted(os.sched_getaffinity(0))
    greeting = {
        "uid": os.getuid(),
        "cpus": cpus,
        "cpu_states": {state: cpus_in(state) for state in ("offline", "isolated")},
        "memory_bytes": memory_bytes,
        "machine_key": machine_key(),
    }
    say({"number": GREETING, **greeting})
    for line in sys.stdin:
        request = json.loads(line)
        say({"number": request["number"], **answer(request, undos)})
    failures = [f"process {pid}" for pid in end(token)]
    for key in reversed(list(undos)):
        failures += undo(undos[key])
    say({"number": FAREWELL, "left": failures})


if __name__ == "__main__":
    main(sys.argv[1])
