"""Processes of this machine: starting them so that they can be found again, and ending them.

Every process that the suite starts carries a token in its environment, and so do its children and theirs. The token is
in the ledger before the first of them exists; whoever carries it belongs to the suite.
"""

import inspect
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NamedTuple

import psutil

from provisioning import held_process
from provisioning.bounded_output import BoundedProcess, PipeTail
from provisioning.held_process import kill_held
from suite.errors import BenchError, CommandError, RequestError, option
from suite.interfaces import Node
from suite.registries import ENGINES
from suite.untrusted.terminal import clean

TOKEN = "VIRTBENCH_TOKEN"  # noqa: S105 (a marker, no secret)
GONE_WITHIN_S = 20.0
_VERSION = re.compile(r"^(?:[\w-]+:? )?(?:version )?((?:v?\d|release-)\S*(?: \(\w+\))?)$")


def carrying(token: str) -> list[psutil.Process]:
    """Return the processes that carry the token, except this one. A zombie has no environment: it has ended."""
    carriers = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(TOKEN) == token:
                carriers.append(process)
        except psutil.Error:
            continue
    return carriers


def end_all(token: str) -> None:
    """Kill every process that carries the token and wait until it is gone. Raises CommandError if one stays."""
    deadline = time.monotonic() + GONE_WITHIN_S
    unseen = 0
    # One that is becoming another program shows no environment for a moment: it is looked for twice.
    while unseen < 2:
        carriers = carrying(token)
        if carriers and time.monotonic() > deadline:
            raise CommandError(["kill"], None, f"processes {[p.pid for p in carriers]} do not end")
        for process in carriers:
            kill_held(process.pid, process.is_running)
        psutil.wait_procs(carriers, timeout=0.1)  # no longer: one that nobody collects stays, and has ended
        unseen = 0 if carriers else unseen + 1
        if unseen == 1:
            time.sleep(0.01)


def popen_settings(without: Collection[str] = (), **variables: str) -> dict[str, Any]:
    """Return the settings of ``subprocess`` for a program whose output is parsed: its messages are in English.

    Ctrl-C in the terminal reaches the suite alone, which then ends its children in order.
    """
    environment = {name: value for name, value in os.environ.items() if name not in without}
    environment.update(variables, LC_ALL="C")
    return {"env": environment, "start_new_session": True}


def run_apart(
    argv: Sequence[str], timeout_s: float, *, text: str = "", without: Collection[str] = ()
) -> "subprocess.CompletedProcess[str]":
    """Run a program of this machine to its end where no node is open, with ``text`` as its input.

    It runs ``without`` these variables. Raises CommandError after ``timeout_s``, and OSError for a program that cannot
    be started.
    """
    try:
        return subprocess.run(
            argv,
            check=False,
            input=text,
            capture_output=True,
            timeout=timeout_s,
            encoding="utf-8",
            errors="surrogateescape",  # a crontab is written back as it was, whatever the session's encoding is
            **popen_settings(without),
        )
    except subprocess.TimeoutExpired:
        raise CommandError(argv, None, f"it did not end within {timeout_s:g} s") from None


def start_detached(argv: Sequence[str], log: Path, heading: str = "") -> None:
    """Start a program that outlives this process, with its output in a new file below a heading. Raises OSError."""
    with log.open("xb") as output:
        output.write(heading.encode())
        output.flush()
        # It is nobody's child, so that it stays no zombie: setsid(1) starts it and ends.
        words = ["setsid", "--fork", *argv]
        nothing = subprocess.DEVNULL
        subprocess.run(
            words,
            check=False,
            stdin=nothing,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


_REFUSES_OLD_PYTHONS = """import sys
if sys.version_info < (3, 9):
    sys.exit("python3 is Python %d.%d there, and 3.9 or newer is needed" % sys.version_info[:2])
"""
"""Stands before every program: an older Python may not get as far as a line of it."""
_HELD_IMPORT = "from provisioning.held_process import kill_held\n"


def program_argv(module: ModuleType, *words: str) -> list[str]:
    """Return the command that runs a module of this package on any node, by its own Python (3.9 or newer).

    The module imports nothing but the standard library and ``kill_held``; the words are its ``sys.argv[1:]``.
    """
    source = inspect.getsource(module).replace(_HELD_IMPORT, inspect.getsource(held_process))
    return ["python3", "-I", "-c", _REFUSES_OLD_PYTHONS + source, *words]


class Program(NamedTuple):
    name: str
    package: str
    """The package, as Debian calls it; empty where Debian has none."""
    purpose: str = ""
    """Why this machine needs it, whichever engine and provider a run names; empty if it does not."""
    on_machines: bool = False
    """Whether every machine of an inventory needs it."""


PROGRAMS = (
    Program("taskset", "util-linux", "pinning"),
    Program("bwrap", "bubblewrap", "bare metal in the image's tree", on_machines=True),
    *(Program(name, "cgroup-tools") for name in ("cgcreate", "cgset")),
    Program("cgexec", "cgroup-tools", "bare metal under the envelope", on_machines=True),
    Program("ch-run", "charliecloud"),
    Program("docker", "docker.io"),
    Program("mke2fs", "e2fsprogs", "building images"),
    Program("tune2fs", "e2fsprogs"),
    *(Program(name, "iproute2", on_machines=True) for name in ("bridge", "ip")),
    Program("tc", "iproute2"),
    Program("virsh", "libvirt-clients"),
    Program("mmdebstrap", "mmdebstrap", "building images where no container registry is in reach"),
    *(Program(name, "openssh-client") for name in ("ssh", "ssh-keygen")),
    Program("sysctl", "procps", on_machines=True),
    Program("qemu-system-x86_64", "qemu-system-x86"),
    *(Program(name, "util-linux", on_machines=True) for name in ("nsenter", "setpriv")),
    Program("unshare", "util-linux"),
    Program("tar", "tar", on_machines=True),
    Program("apptainer", ""),
    *(Program(name, name) for name in ("cpio", "podman", "runc", "runsc")),
)
"""What a machine needs: the programs that the suite starts, read by doctor and discovery, and held against the Makefile
and docs/guide/distributed.md by a test."""
PACKAGES = {program.name: program.package for program in PROGRAMS}


def packages_of(*programs: str) -> dict[str, str]:
    return {program: PACKAGES[program] for program in programs}


def check_answer(program: str, answer: str, place: str) -> None:
    """Raise BenchError for another program under this name: how it answers ``--version`` begins with its own name.

    podman-docker, alternatives of distributions and people put others there. An empty answer is judged by the caller.
    """
    first_word = answer.lstrip().partition(" ")[0]
    own_name = first_word.removesuffix(":")
    if own_name and own_name.lower() != program.rpartition("/")[2]:
        shown = clean(answer.strip().splitlines()[0][:80])
        others = ""
        if own_name in ENGINES.own:
            others = f", or use {option('engine')} {own_name}"
        raise BenchError(
            f"{program} on {place} is another program, which answers: {shown}",
            remedy=f"put {program} itself first on PATH{others}",
        )


def version_in(answer: str) -> str | None:
    """Return the version in the first line of an answer to ``--version``; None for a program that was built without.

    What follows in parentheses (``(setuid)``) belongs to it; further lines are of other things, such as ``spec: 1.0``.
    """
    first_line = answer.strip().partition("\n")[0]
    for version in _VERSION.findall(first_line):
        return str(version)
    return None


def build_of(program: str, node: Node) -> str:
    """Return what stands for the version of a program that was built without one: the digest of its file."""
    path = node.run(["which", program], check=False).stdout.strip()
    answer = node.run(["sha256sum", "--", path], check=False)
    digest = answer.stdout[:12]
    return ", sha256 ".join(filter(None, ["unknown", digest]))


def installing(program: str) -> str:
    if program not in PACKAGES:
        return "install it, or add its directory to PATH"
    if not PACKAGES[program]:
        return "install it as its project says, for Debian has no package of it; or add its directory to PATH"
    return f"install it: package {PACKAGES[program]}; in a checkout: make setup"


class LocalProcess(BoundedProcess):
    def __init__(self, argv: Sequence[str], popen: "subprocess.Popen[bytes]", stderr: PipeTail) -> None:
        self.argv = list(argv)
        self.popen = popen
        self._stderr = stderr

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        token: str,
        stdin: bytes | IO[bytes],
        cwd: str = "/",
        stdout: IO[bytes] | None = None,
    ) -> "LocalProcess":
        """Start the command.

        ``stdin`` is all of its input, or the reading end of a pipe. ``stdout`` is the writing end of a pipe, and there
        are no ``lines`` then. The ends of pipes belong to the child from now on.
        """
        words = list(argv)
        source = tempfile.TemporaryFile() if isinstance(stdin, bytes) else stdin  # noqa: SIM115 (closed right below)
        reading, writing = os.pipe()
        with ExitStack() as on_failure, source, stdout or nullcontext(), os.fdopen(writing, "wb") as stderr:
            on_failure.callback(os.close, reading)
            if isinstance(stdin, bytes):
                source.write(stdin)
                source.seek(0)
            try:
                popen = subprocess.Popen(
                    words,
                    stdin=source,
                    stdout=stdout or subprocess.PIPE,
                    stderr=stderr,
                    cwd=cwd,
                    umask=0o022,  # jobs, another user's, read what it makes, such as the files of a control group
                    **popen_settings(**{TOKEN: token}),
                )
            except FileNotFoundError as error:
                raise RequestError(f"{argv[0]} is not installed", remedy=installing(argv[0])) from error
            except OSError as error:
                raise CommandError(argv, error.errno, f"cannot start {argv[0]}: {error.strerror}") from error
            on_failure.pop_all()
        return cls(words, popen, PipeTail(reading))

    def lines(self, timeout_s: float) -> Iterator[str]:
        assert self.popen.stdout is not None  # noqa: S101 (opened as a pipe below)
        return self._bounded(self.popen.stdout, timeout_s)

    def wait(self, timeout_s: float) -> int:
        try:
            return self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise CommandError(self.argv, None, self.output_tail()) from None

    def running(self) -> bool:
        return self.popen.poll() is None

    def kill(self) -> None:
        if self.popen.poll() is None:
            # Its session, so that no grandchild keeps the pipes open.
            os.killpg(self.popen.pid, signal.SIGKILL)
            self.popen.wait()

    def output_tail(self) -> str:
        return self._stderr.text()

    def close(self) -> None:
        self.kill()
        if self.popen.stdout:
            self.popen.stdout.close()
