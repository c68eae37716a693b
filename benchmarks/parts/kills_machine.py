"""The processes and other things of the benches that this process has started, and of no others."""

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from pydantic import ValidationError

from provisioning.images.build import built
from provisioning.ledger import LedgerEntry
from provisioning.paths import MARK, home, runtime, state
from provisioning.processes import carrying

PR_SET_CHILD_SUBREAPER = 36


class Family:
    """The descendants of this process that were started inside of this context, those whose parents have ended too."""

    def __enter__(self) -> "Family":
        """Become the parent of orphans: a monitor that detaches itself from a bench stays a descendant."""
        self._others = set(psutil.Process().children(recursive=True))
        _adopt_orphans(True)
        return self

    def __exit__(self, *_: object) -> None:
        _adopt_orphans(False)

    def members(self) -> list[psutil.Process]:
        """Return those that have not ended. A zombie has."""
        found = []
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                if process not in self._others and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def victims(self, kind: str) -> list[psutil.Process]:
        """Return the members that are such a victim."""
        found = []
        for process in self.members():
            with suppress(psutil.Error, OSError):
                if VICTIMS[kind](process):
                    found.append(process)
        return found

    def bury(self, *children: int) -> None:
        """Reap the orphans that have ended, as process 1 would; ``children`` are waited for elsewhere."""
        for process in psutil.Process().children():
            with suppress(psutil.Error, ChildProcessError):
                ended = process.status() == psutil.STATUS_ZOMBIE
                if ended and process.pid not in children and process not in self._others:
                    os.waitpid(process.pid, os.WNOHANG)


def _adopt_orphans(adopt: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot become the parent of orphans")


def _is_worker(process: psutil.Process) -> bool:
    return process.cmdline()[1:3] == ["-m", "worker"]


def _is_first(process: psutil.Process) -> bool:
    """Say whether it is process 1 of a process namespace below this one."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    numbers = next(line.split()[1:] for line in lines if line.startswith("NSpid:"))
    return len(numbers) > 1 and numbers[-1] == "1"


def _called(*names: str) -> Callable[[psutil.Process], bool]:
    return lambda process: process.name() in names


VICTIMS: dict[str, Callable[[psutil.Process], bool]] = {
    "worker": _is_worker,
    "container": _is_first,
    "monitor": _called("conmon", "podman", "runc", "runsc"),
    "guest": _called("qemu-system-x86_64", "qemu-system-x86"),
    "ssh": _called("ssh"),
}
"""What may be killed beside the suite itself."""


def entries(owner: int) -> dict[str, LedgerEntry]:
    """Return what a bench has in the ledger now, by the entry's file."""
    found = {}
    for path in home().glob("ledger/*.json"):
        with suppress(OSError, ValidationError):
            entry = LedgerEntry.model_validate_json(path.read_bytes())
            if entry.owner_pid == owner:
                found[str(path)] = entry
    return found


def left(owner: int, made: Iterable[LedgerEntry]) -> list[str]:
    """Return what is still there of a bench that has ended; ``made`` is what was in its ledger on the way."""
    found = [f"ledger entry {path}" for path in entries(owner)]
    places = (home(), *home().glob("*/"), *home().glob("images/*/"))
    found += [str(path) for place in places for path in place.glob(f".virtbench.*-{owner}-*.tmp")]
    named = {re.split("[/:]", entry.what)[-1]: entry for entry in made if entry.kind != "run-directory"}
    found += [f"{entry.kind} {entry.what}" for name, entry in named.items() if name in _names()]
    tokens = [entry.what for entry in named.values() if entry.kind == "processes"]
    found += [f"process {process.pid}" for token in tokens for process in carrying(token)]
    return found + _forgotten_by_podman()


HELD = ("blocks", "scratch", "snapshots", "hired")
"""The directories of a home that are empty while no bench runs."""
NAMES = re.compile(r"\.making-.+|\.virtbench.+\.tmp|\..+\.unfinished")
"""Names of what is only half made."""


@contextmanager
def own_place() -> Iterator[Path]:
    """Yield a directory with a home, which shares this checkout's image, and a TMPDIR; both are the environment's.

    Nothing is in them but what benches of this script have made. Raises SystemExit without an image.
    """
    image = built("cpu")
    if image is None:
        sys.exit("no image of this checkout: bench image build")
    kept = image.directory  # it is asked of the home, which is another one below
    before = {name: os.environ.pop(name, None) for name in ("VIRTBENCH_HOME", "TMPDIR")}
    # Links of a file hold within a file system alone.
    with tempfile.TemporaryDirectory(prefix="kills-", dir=kept.parents[2]) as name:
        place = Path(name)
        (place / "tmp").mkdir()
        os.environ.update(VIRTBENCH_HOME=str(place / "home"), TMPDIR=str(place / "tmp"))
        subprocess.run(["cp", "--archive", "--link", str(kept), str(state("images"))], check=True)
        try:
            yield place
        finally:
            for variable, value in before.items():
                del os.environ[variable]
                if value is not None:
                    os.environ[variable] = value


def forgotten() -> list[str]:
    """Return the files that are left in the home and in TMPDIR, while no bench of this home runs."""
    found = list((home() / "ledger").glob("*.json"))
    for part in HELD:
        found += [path for path in (home() / part).glob("*") if path.name != MARK]
    for directory in (home(), *home().glob("*/")):
        found += [path for path in directory.iterdir() if NAMES.fullmatch(path.name)]
    return [f"file {path}" for path in (*found, *Path(os.environ["TMPDIR"]).iterdir())]


def _forgotten_by_podman() -> list[str]:
    """Return the control groups of containers that podman does not know any more."""
    known = set(_said("podman", "ps", "--all", "--no-trunc", "--format={{.ID}}").split())
    places = [re.search("/libpod-([0-9a-f]{64})$", place) for place, _, _ in os.walk("/sys/fs/cgroup")]
    return [f"control group libpod-{each}" for each in sorted({place[1] for place in places if place} - known)]


def _names() -> set[str]:
    """Return the names of the control groups, namespaces, mounts, containers and directories that are there now."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    places = [
        place for top in ("/sys/fs/cgroup", str(runtime()), str(home() / "scratch")) for place, _, _ in os.walk(top)
    ]
    places += [str(path) for path in (*home().glob("*"), *home().glob("*/.*"), *home().glob("images/*/.*"))]
    listed = json.loads(_said("ip", "-json", "netns") or "[]")
    containers = [_said(engine, "ps", "--all", "--format={{.Names}}").split() for engine in ("podman", "docker")]
    return {
        *(Path(path).name for path in (*mounts, *places)),
        *(each["name"] for each in listed),
        *(name for names in containers for name in names),
    }


def _said(*argv: str) -> str:
    if shutil.which(argv[0]) is None:
        return ""
    return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=120).stdout
