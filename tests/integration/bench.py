"""``bench`` as its users have it, to its end or on a terminal in the background; its records, and what it leaves."""

import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import psutil

from provisioning import ledger
from provisioning.metrics.accounting import open_account
from provisioning.paths import runtime
from provisioning.processes import TOKEN
from scenarios.events import Silent
from suite.interfaces import OpenTarget, Scenario
from suite.loop import Loop
from suite.plan import Plan
from suite.records.environment import Environment
from suite.records.fields import checked_part
from suite.records.record import TrialRecord
from suite.results.store import Run
from tests.integration.machine import wait_for, workers
from worker.environment import collect

T = TypeVar("T")
REPOSITORY = Path(__file__).parents[2]
BENCH = str(Path(sys.executable).with_name("bench"))
SMALL = ("--profile", "smoke", "--steps", "1", "--warmup-steps", "0")
RUNC = ("--engine", "runc")


def on(*targets: str) -> tuple[str, ...]:
    """Return the words for targets; an engine is refused where there is no container."""
    words = [word for target in targets for word in ("--target", target)]
    return (*words, *(RUNC if any("container" in target for target in targets) else ()))


BOTH = on("bare-metal", "container")


def bench(
    *words: str,
    code: int | None = 0,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = 580,
) -> "subprocess.CompletedProcess[str]":
    """Run bench, which must end with this exit code; None: any."""
    environment = {**os.environ, **(env or {})}
    ended = subprocess.run(
        [BENCH, *words], check=False, capture_output=True, text=True, timeout=timeout_s, env=environment, cwd=cwd
    )
    assert code in (None, ended.returncode), f"{words} ended with {ended.returncode}: {ended.stdout}{ended.stderr}"
    return ended


def refusal(*words: str, env: Mapping[str, str] | None = None) -> str:
    """Return the message with which bench refuses a request, in one line."""
    return " ".join(bench(*words, code=2, env=env).stderr.split())


def measured(run: Path, *words: str, env: Mapping[str, str] | None = None, timeout_s: float = 580) -> list[TrialRecord]:
    """Have bench measure once no other bench of this machine does, and return the records of the run."""
    bench("run", *words, "--wait", "--out", str(run), env=env, timeout_s=timeout_s)
    return records_in(run)


def run_plan(plan: Plan, scenario: Scenario, opened: OpenTarget, place: Path) -> list[TrialRecord]:
    """Run the trials of a plan, without the command line, in targets that ``opened`` gives, into the run ``place``."""
    loop = Loop(scenario, opened, Run(place), Silent(), lambda: checked_part(Environment, collect()), open_account)
    return loop.run(plan)


def records_in(run: Path) -> list[TrialRecord]:
    return [TrialRecord.model_validate_json(path.read_bytes()) for path in sorted((run / "trials").glob("*.json"))]


def some(value: T | None) -> T:
    """Return what has to be there."""
    assert value is not None
    return value


def inside(record: TrialRecord) -> Environment:
    """Return what a target attested of itself."""
    return some(record.environment.target)


def by_arm(found: list[TrialRecord]) -> dict[str, TrialRecord]:
    """Return the records of a block by target and ablation."""
    return {record.target + (f"+{record.ablation}" if record.ablation else ""): record for record in found}


def records(run: Path) -> dict[str, TrialRecord]:
    return by_arm(records_in(run))


def ours() -> dict[str, list[str]]:
    """Everything of the suite's outside of its images and results that is there now, and not of tests beside these."""
    carrying = []
    beside = _held_beside()
    for process in psutil.process_iter():
        try:
            if TOKEN in process.environ() and not _beside(process.pid):
                carrying.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    # What goes while it is looked at is passed over.
    groups = [place for place, _, _ in os.walk("/sys/fs/cgroup") if Path(place).name.startswith("virtbench-")]
    files = [f"{place}/{name}" for place, _, names in os.walk(runtime()) for name in names]
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if "virtbench" in line]
    # An entry is there before its thing and longer: what came or went meanwhile stands in one of the two.
    beside |= _held_beside()
    named = (re.search(r"virtbench-[a-z0-9-]+|/.+", what) for what in beside)
    names = {found[0].strip("/") for found in named if found}
    podman = any(what.startswith("podman:") for what in beside)  # which names its mounts itself

    def theirs(path: str) -> bool:
        # gVisor's files of a container have its name and more.
        return any(f"/{name}" in path for name in names) or (podman and "/overlay-containers/" in path)

    groups, files = ([path for path in paths if not theirs(path)] for paths in (groups, files))
    mounts = [line for line in mounts if not theirs(line.split()[1])]
    entries = [path.name for path, entry in ledger._readable() if not _beside(entry.owner_pid)]
    return {
        "processes": carrying, "groups": groups, "files": files, "mounts": mounts, "ledger": entries,
        "workers": [str(process.pid) for process in workers()],
    }  # fmt: skip


def added_since(before: Mapping[str, list[str]]) -> dict[str, set[str]]:
    """Of what ``ours`` tells, that was not there then: where machines are this machine, their lab is there too."""
    now = {kind: set(found) - set(before[kind]) for kind, found in ours().items()}
    return {kind: found for kind, found in now.items() if found}


def _held_beside() -> set[str]:
    return {entry.what for _, entry in ledger._readable() if _beside(entry.owner_pid)}


def _beside(pid: int) -> bool:
    """Return whether a process is of the tests that run at the same time: of a worker of pytest."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        # A worker itself sets it later than what the kernel shows of its environment.
        itself = "exec(eval(sys.stdin.readline()))" in str(process.cmdline())
        return itself or "PYTEST_XDIST_WORKER" in process.environ()
    return False


class Running:
    """Bench in the background on a terminal, where it shows every phase of a trial; and what it has said so far."""

    def __init__(self, log: Path, *words: str) -> None:
        self.log = log
        self._terminal, other_end = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}  # so wide that nothing is cut off
        with log.open("wb", buffering=0) as file:
            self.process = subprocess.Popen(
                [BENCH, *words], stdout=file, stderr=other_end, start_new_session=True, env=environment
            )
        os.close(other_end)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        terminal = os.fdopen(self._terminal, "rb", buffering=0)
        with terminal, self.log.open("ab", buffering=0) as file, suppress(OSError):  # the other end is closed
            while said := terminal.read(1 << 16):
                file.write(said)

    def wait_until_it_says(self, text: str) -> None:
        def said() -> str:
            return self.log.read_text(errors="replace")

        wait_for(text, lambda: text in said() or self.process.poll() is not None, said, 300)
        assert text in said(), f"bench ended early: {said()}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
