"""Machines of an inventory: how they are reached, what keeps order there, and which of their addresses is taken."""

import ast
import base64
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioning.machines.ssh import ssh_argv
from provisioning.nodes import local_node
from provisioning.processes import program_argv
from provisioning.remote import agent
from provisioning.remote.connection import Access, RemoteAgent, marked
from provisioning.remote.content import checksums
from provisioning.remote.discovery import _discovered
from provisioning.remote.machine import QUICK_BYTES, Machine, machine
from suite import userland
from suite.errors import CommandError, MeasurementError, RequestError
from suite.inventory import Inventory, InventoryNode
from suite.process_identity import machine_id
from suite.request.request import RunRequest
from tests.provisioning.conftest import Program, make, raises
from tests.sites import inputs_of, machines

NODE = InventoryNode(name="n1", host="alice@gpu1", port=2222, ssh_config=Path("/etc/other"))


@pytest.mark.parametrize("shell", ["sh", "bash", "tcsh -f", "fish --no-config"])
def test_every_login_shell_hands_on_the_same_words(shell: str) -> None:
    if not shutil.which(shell.split()[0]):
        pytest.skip(f"{shell} is not installed")
    plain = ["a b", "$(id)", "'", "--x=*", "", "~", "{a,b}"]
    others = ["a\nb", "!x it!", "\\x2d\\", "\u00e9\n", '"', "`id`", "50%%"]
    for part in ([*plain, *others], plain):
        line = ssh_argv(["n1"], ["printf", "%s\\0", *part])[-1]
        heard = subprocess.run([*shell.split(), "-c", line], capture_output=True, text=True, check=True).stdout
        assert heard.split("\0")[:-1] == part
    agent_line = ssh_argv(["n1"], program_argv(agent, "abc.far"))[-1]
    heard = subprocess.run(
        [*shell.split(), "-c", agent_line], input="", capture_output=True, text=True, check=True
    ).stdout
    assert json.loads(heard.splitlines()[0])["number"] == agent.GREETING


@pytest.fixture
def entered(program: Program) -> Callable[[str], AbstractContextManager[Machine]]:
    """``entered(script)``: this machine as one whose login shell runs the script first."""

    @contextmanager
    def _entered(script: str) -> Iterator[Machine]:
        program("ssh", f'for last; do :; done\n{script}\nexec sh -c "$last"')
        with local_node((), None) as carrier:
            access = Access(NODE, f"{carrier.directory}/ssh")
            far = RemoteAgent(access, carrier)
            yield Machine("n1", NODE, carrier, access, far, (0,), 1)
            far.close()

    return _entered


@pytest.mark.parametrize("noise", [":", "echo Welcome; echo '{\"motd\": 1}'", "printf Welcome"])
def test_what_a_login_shell_prints_is_no_output_of_a_command(noise: str, entered: Any) -> None:
    large = b"x" * (QUICK_BYTES + 1)
    with entered(noise) as reached:
        assert reached.run(["echo", "quick"]).stdout == "quick\n"
        assert reached.run(["wc", "-c"], stdin=large).stdout == f"{len(large)}\n"
        process = reached.start(["sh", "-c", "echo one; echo two"])
        lines = process.lines(60)
        assert next(lines) == "one"
        assert [*lines, *process.lines(60)] == ["two"]
        assert process.wait(60) == 0


def test_a_machine_greets_with_the_digest_of_its_machine_id(entered: Any) -> None:
    with entered(":") as reached:
        assert reached.agent.greeting["machine_key"] == machine_id()


ISOLATING = """unshare --mount sh -c '
for list in offline isolated; do mount --bind "$1/$list" /sys/devices/system/cpu/$list || exit 77; done
exec taskset --cpu-list "$2" sh -c "$3"' sh {place} {allowed} "$last"; exit"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_machine_tells_which_of_its_cpus_are_offline_and_isolated(program: Program, tmp_path: Path) -> None:
    allowed, *_ = sorted(os.sched_getaffinity(0))
    make(tmp_path, {"offline": "8001\n", "isolated": f"{allowed},8000\n"})
    program("ssh", f"for last; do :; done\n{ISOLATING.format(place=tmp_path, allowed=allowed)}")
    with machine(NODE) as reached:
        found = _discovered(reached, None, "tcg")
        assert (found.cpus, found.isolated, found.offline) == ((allowed,), (allowed, 8000), (8001,))
    site = machines(Inventory.model_validate({"node": (NODE,)}), replace(found, cpus=(allowed, 8000, 8002)))
    run = RunRequest.of({"target": ("bare-metal",), "memory": "1M"})
    with raises(RequestError, f"on n1: --cpus .*: CPUs {allowed},8000 are isolated", "use others with --cpus"):
        site.envelopes(inputs_of(run))
    named = r"n1: cpus = '8000-8002', and it allows no CPU 8000-8002 \(8001 offline\) \(8000 isolated\)"
    with raises(RequestError, named, f"choose among {allowed}"), machine(NODE.model_copy(update={"cpus": "8000-8002"})):
        raise AssertionError("nobody may enter")


REFUSED = """echo 'Please login as the user "ubuntu" rather than the user "root".'; echo; exit 142"""


def test_what_is_printed_where_no_greeting_comes_is_the_cause(entered: Any) -> None:
    said = r'n1 .*: Please login as the user "ubuntu"'
    with raises(MeasurementError, said, "disable_root: false"), entered(REFUSED):
        raise AssertionError("nobody may enter")


@pytest.mark.parametrize(
    ("methods", "remedy"), [("keyboard-interactive", "second factor"), ("publickey,keyboard-interactive", "a key that")]
)
def test_a_second_factor_is_named_and_nobody_is_asked_for_it(methods: str, remedy: str, entered: Any) -> None:
    """After the key was taken sshd names the other methods alone."""
    asks = f"echo 'alice@gpu1: Permission denied ({methods}).' >&2; exit 255"
    assert "BatchMode=yes" in ssh_argv(["n1"], ["true"])
    with raises(MeasurementError, rf"n1 .*Permission denied \({methods}\)", remedy), entered(asks):
        raise AssertionError("nobody may enter")


@pytest.mark.parametrize("version", ["3.6", "3.7", "3.8"])
def test_a_python_that_is_too_old_is_named_with_the_version_that_is_needed(version: str, entered: Any) -> None:
    ast.parse(program_argv(agent)[3], feature_version=(3, 6))  # it comes as far as the sentence
    beside = [*Path.home().glob(f".pyenv/versions/{version}.*/bin")]
    if not beside:
        pytest.skip(f"Python {version} is not installed")
    message = f"n1 .*: python3 is Python {version} there, and 3.9 or newer is needed"
    with raises(MeasurementError, message, "install a newer Python there"), entered(f"PATH={beside[0]}:$PATH"):
        raise AssertionError("nobody may enter")


def test_a_command_that_is_not_reached_fails_with_what_is_printed(entered: Any) -> None:
    with entered(f'[ -e "$0.begun" ] && {{ {REFUSED}; }}; touch "$0.begun"') as reached:
        with pytest.raises(CommandError, match="Please login as") as raised:
            reached.run(["cat"], stdin=b"x" * (QUICK_BYTES + 1), check=False)
        assert raised.value.returncode == 142
        process = reached.start(["true"])
        assert list(process.lines(60)) == []
        assert "Please login as" in process.output_tail()


@contextmanager
def kept(token: str) -> Iterator[Any]:
    argv = [sys.executable, "-I", agent.__file__, token]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: Any, **request: object) -> dict[str, Any]:
    if request:
        process.stdin.write(json.dumps({**request, "number": 7}) + "\n")
        process.stdin.flush()
    return dict(json.loads(process.stdout.readline()))


@contextmanager
def sleeping(mark: str) -> Iterator[Any]:
    """A command with the mark, which has begun."""
    argv = marked(mark, ["sh", "-c", "echo begun; exec sleep 1000"])
    process: Any
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert [process.stdout.readline() for _ in range(2)] == [f"{mark}\n", "begun\n"]
            yield process
        finally:
            process.kill()


def test_the_keeper_ends_and_undoes_what_is_left_when_its_input_ends(tmp_path: Path) -> None:
    with kept("abc.far") as process, sleeping("abc.far.1") as left, sleeping("abc.farther") as other:
        assert set(said(process)) == {"number", "uid", "cpus", "cpu_states", "memory_bytes", "machine_key"}
        said(process, do="keep", key="1", argv=["touch", str(tmp_path / "first")])
        said(process, do="keep", key="2", argv=["cp", str(tmp_path / "first"), str(tmp_path / "second")])
        said(process, do="keep", key="3", argv=["touch", str(tmp_path / "dropped")])
        said(process, do="drop", key="3")
        process.stdin.close()
        (wrong,) = said(process)["left"]
        assert "cp" in wrong, "what was made last is undone first, and a failure is told"
        assert process.wait(60) == 0
        assert left.wait(60) == -signal.SIGKILL
        assert other.poll() is None
    assert {path.name for path in tmp_path.iterdir()} - {"run"} == {"first"}


def test_the_keeper_ends_one_command_and_no_other() -> None:
    with kept("abc.far") as process, sleeping("abc.far.1") as first, sleeping("abc.far.10") as tenth:
        said(process)
        assert said(process, do="end", mark="abc.far.1") == {"number": 7, "left": []}
        assert first.wait(60) == -signal.SIGKILL
        assert tenth.poll() is None


@pytest.mark.parametrize(
    ("argv", "returncode", "stdout"),
    [(["cat"], 0, "given"), (["false"], 1, ""), (["no-such-program"], 127, ""), (["sh", "-c", "kill -9 $$"], 137, "")],
)
def test_the_keeper_runs_short_commands_itself(argv: list[str], returncode: int, stdout: str) -> None:
    given = {"mark": "abc.far.1", "stdin": base64.b64encode(b"given").decode(), "timeout_s": 60}
    with kept("abc.far") as process:
        said(process)
        heard = said(process, do="run", argv=argv, **given)
        assert (heard["returncode"], heard["stdout"]) == (returncode, stdout)
        assert said(process, do="run", argv=["sleep", "1000"], **given | {"timeout_s": 0.2})["returncode"] is None
        assert said(process, do="find", programs=["sh", "no-such-program"])["missing"] == ["no-such-program"]


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="coreutils")
def test_the_checksums_of_a_tree_are_those_that_sha256sum_checks(tmp_path: Path) -> None:
    (tmp_path / "opt/virtbench").mkdir(parents=True)
    make(tmp_path, {name: name for name in ("plain", "a b", "back\\slash", "new\nline")})
    (tmp_path / "link").symlink_to("plain")
    digest = userland.write_manifest(str(tmp_path))
    text = checksums((tmp_path / userland.MANIFEST).read_text(), digest)
    assert len(text.splitlines()) == 5
    check = ["sha256sum", "--check", "--quiet", "--strict", "-"]
    assert subprocess.run(check, input=text, cwd=tmp_path, text=True, check=False).returncode == 0
    (tmp_path / "back\\slash").write_text("changed")
    ended = subprocess.run(check, input=text, cwd=tmp_path, text=True, check=False, capture_output=True)
    assert (ended.returncode, "slash" in ended.stdout) == (1, True)
