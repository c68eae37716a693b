"""What the integration tests share: the real machine, checked once, and a docker daemon of the tests' own."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

import psutil
import pytest

from provisioning.doctor import Check, examine
from provisioning.engines.docker import DAEMON
from provisioning.images import build
from provisioning.images.image import Image, current
from provisioning.nodes import IMAGE_PYTHON
from provisioning.paths import home
from suite.errors import CommandError
from suite.interfaces import Node
from suite.job.envelope import GIB, Envelope

SSHD = Path("/usr/sbin/sshd")
ENVELOPE = Envelope(cpus=tuple(sorted(os.sched_getaffinity(0)))[:2], memory_bytes=GIB, threads=1)


@cache
def checks() -> dict[tuple[str, str], Check]:
    return {(check.kind, check.name): check for check in examine()}


def require(kind: str, name: str) -> None:
    """Skip, with the printed reason, what this machine cannot carry."""
    check = checks()[kind, name]
    if not check.usable:
        pytest.skip(f"this machine has no usable {kind} {name}: {check.reason}")


def require_fast_guests() -> None:
    """Skip where guests are emulated, which takes minutes; VIRTBENCH_EMULATED_FULL=1 runs it all the same."""
    kvm = checks()["accelerator", "kvm"]
    if not kvm.usable and not os.environ.get("VIRTBENCH_EMULATED_FULL"):
        pytest.skip(f"an emulated guest takes minutes here, see VIRTBENCH_EMULATED_FULL: {kvm.reason}")


def require_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: control groups, namespaces and the docker daemon of the tests")


def require_sshd() -> None:
    if not SSHD.exists():
        pytest.skip("sshd is not installed (make setup-test)")
    # Every sshd wants it, and an init script would make it. It stays: other tests' daemons may be using it.
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)


def require_chromium() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    return found


def require_space() -> None:
    """Skip where no image can be built. Asked anew each time: the tests before may have filled the disk."""
    if (free := shutil.disk_usage(home()).free) < build.NEEDED_BYTES:
        pytest.skip(f"{free >> 30} GiB free in {home()}, building an image needs {build.NEEDED_BYTES >> 30}")


def require_image() -> Image:
    require("image", "cpu")
    return current()


def require_root_and_image() -> Image:
    require_root()
    return require_image()


def wait_for(what: str, true: Callable[[], object], said: Callable[[], object], within_s: float = 120) -> None:
    """Wait until it is true; a test fails by what is said if it does not come."""
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, f"{what} did not come: {said()}"
        time.sleep(0.05)


def words_of(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):  # it has just ended
        return process.cmdline() or [""]
    return [""]


def workers() -> list[psutil.Process]:
    """Return the workers of jobs: engines carry their words too, and unit tests have some with another interpreter."""
    found = []
    for process in psutil.process_iter():  # whose info the bench in another thread may replace
        words = words_of(process)
        if words[0] == IMAGE_PYTHON[0] and "worker" in words and "--attest" not in words:
            found.append(process)
    return found


@contextmanager
def docker_daemon(*words: str) -> Iterator[str]:
    """A daemon of the tests' own on a socket; the user's, where there is one, is left alone."""
    require_root()
    if shutil.which("dockerd") is None:
        pytest.skip("dockerd is not installed (make setup-test)")
    # Not below pytest's own directory: a socket's path has 108 bytes at most, and the store needs a real disk.
    place = Path(tempfile.mkdtemp(prefix="vb-docker-", dir="/var/tmp"))
    argv = [*DAEMON, *words]
    argv[argv.index("--data-root") + 1] = str(place / "data")
    argv[argv.index("--exec-root") + 1] = str(place / "exec")
    argv[argv.index("--pidfile") + 1] = str(place / "pid")
    host, said = f"unix://{place}/docker.sock", place / "log"
    asked = ["docker", "--host", host, "version"]
    with said.open("w") as log:
        daemon = subprocess.Popen([*argv, "--host", host], stdout=log, stderr=log, start_new_session=True)
    try:
        wait_for("dockerd", lambda: not subprocess.run(asked, capture_output=True).returncode, said.read_text)
        yield host
    finally:
        daemon.terminate()
        daemon.wait(120)
        shutil.rmtree(place, ignore_errors=True)


def check_commands(node: Node) -> None:
    """Check that words, input, output and exit status of a command pass as they are."""
    words = ["two words", "semi;colon", "$HOME `id` $(id)", "quote\"s and 'quotes'", "new\nline", "", "*", "ümlaut"]
    said = node.run(["printf", "%s\\0", *words]).stdout
    assert said.removesuffix("\n").split("\0") == [*words, ""]
    content = bytes(range(32, 127)) * 2000
    assert node.run(["sha256sum"], stdin=content).stdout.split()[0] == sha256(content).hexdigest()
    assert node.run(["sh", "-c", "exit 7"], check=False).returncode == 7
    with pytest.raises(CommandError) as failure:
        node.run(["ls", "/no/such/place"])
    assert "/no/such/place" in failure.value.output_tail
    assert "/no/such/place" in failure.value.command[-1]
