"""A command of the user's own, run by the worker as a program on this machine."""

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from provisioning.layers.userland import own_environment
from provisioning.nodes import local_node
from scenarios.command import Command
from suite.errors import MeasurementError
from suite.interfaces import Instance, Measurement
from suite.job.command import CommandJob
from suite.plan import Trial
from tests.scenarios.conftest import HereNode

Run = Callable[..., Measurement]


@pytest.fixture
def run(trial: Trial, here: HereNode, observer: Any, tmp_path: Path) -> Run:
    """Run a Python program, or other words, in a directory of its own."""

    def measured(program: str = "", *argv: str, throughput: str | None = None) -> Measurement:
        (tmp_path / "train.py").write_text(program)
        here.data, here.userland = str(tmp_path), "/"
        command = CommandJob(argv=argv or ("python", "train.py", "--epochs", "2"), throughput=throughput)
        planned = trial.with_job(scenario="command", model=command.name, sizes=None, command=command)
        return Command().measure(planned, [Instance(here)], observer, nullcontext())

    return measured


def failure(run: Run, *words: str, throughput: str | None = None) -> MeasurementError:
    with pytest.raises(MeasurementError) as raised:
        run(*words, throughput=throughput)
    return raised.value


def test_time_memory_and_exit_status_are_measured_of_any_command(run: Run, observer: Any) -> None:
    measured = run("import time; held = b'x' * (64 << 20); time.sleep(0.5); [i * i for i in range(10 ** 6)]")
    assert measured.throughput_per_s is None
    assert measured.metrics["peak-memory"].value > 64
    assert measured.timeline is not None
    assert measured.usage is not None
    assert 0 < measured.metrics["cpu-time"].value < measured.elapsed_s
    assert measured.metrics["cpu-time"].value == measured.usage.cpu_s
    assert 0.5 < (measured.timeline.measured_s or 0) < measured.elapsed_s
    assert measured.details["exit_status"] == 0
    assert measured.environment.threads == 1
    assert [name for name, _ in observer.phases] == ["attesting", "launching", "preparing", "measuring", "finishing"]


def test_the_throughput_is_the_median_of_what_a_pattern_finds_and_the_step_its_last(run: Run) -> None:
    lines = [f"step {step} (loss nan): {rate} tokens/s" for step, rate in ((10, "1,200.5"), (20, "9"), (30, "800"))]
    program = f"print('warming up: 7 of 9'); print({chr(10).join(lines)!r}); print('0 tokens/s')"
    measured = run(program, throughput=r"(?:step (?P<step>\d+).*: )?(?P<throughput>[\d.,]+) tokens/s")
    assert measured.throughput_per_s == 800
    assert measured.details["throughputs"] == [1200.5, 9, 800]
    assert measured.details["steps"] == measured.last_step == 30


def test_of_lines_that_are_json_objects_the_keys_are_read_from_both_outputs(run: Run) -> None:
    said = ['{"throughput": 5, "step": 1}', '{"throughput": "x"}', "[1]", '{"throughput": NaN}', '{"throughput": true}']
    progress = '50 %\r{"throughput": 7}'
    program = f"import sys; print({chr(10).join(said)!r}, flush=True); sys.stderr.write({progress!r})"
    measured = run(program, throughput="json")
    assert measured.details["throughputs"] in ([5, 7], [7, 5])
    assert (measured.throughput_per_s, measured.details["steps"]) == (6, 1)
    assert run("print(1)").last_step is None


def facts(run: Run, tmp_path: Path, *words: str) -> dict[str, Any]:
    """Return the surroundings as a command finds them, which it writes to a place outside of its own."""
    program = f"""
import getpass, json, os, resource, shutil, sys
limits = [resource.getrlimit(each) for each in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_CORE)]
with open({str(tmp_path.parent / "said")!r}, "w") as said:
    json.dump({{"argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ), "user": getpass.getuser(),
        "limits": limits, "python": shutil.which("python")}}, said)
print(sys.stdin.read() or "nothing to read")
"""
    run(program, "python", "train.py", *words)
    said: dict[str, Any] = json.loads((tmp_path.parent / "said").read_text())
    return said


def test_the_command_has_the_jobs_environment_and_no_shell(run: Run, tmp_path: Path) -> None:
    said = facts(run, tmp_path, "$HOME; *")
    assert said["argv"] == ["$HOME; *"]
    assert said["env"]["OMP_NUM_THREADS"] == "1"
    assert said["env"]["HOME"] == "/tmp"
    assert "PYTHONPATH" not in said["env"], "the worker's own modules are not the command's"


def test_the_command_finds_the_same_surroundings_everywhere(run: Run, tmp_path: Path) -> None:
    said = facts(run, tmp_path)
    assert said["user"] == "virtbench"
    assert said["limits"] == [[16384, 16384], [8 << 20, 8 << 20], [0, 0]]
    assert said["python"], "scripts of a shell find it, too"


def test_the_command_works_in_a_copy_that_goes_with_the_trial(run: Run, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/input").write_text("5 rows")
    (tmp_path / "data/latest").symlink_to("input")
    program = """
import pathlib, os
pathlib.Path("out").mkdir()
pathlib.Path("out/checkpoint.pt").write_text("epoch 1")
assert os.readlink("data/latest") == "input"
with open("data/latest", "a") as file:
    file.write("/s")
print(pathlib.Path("data/input").read_text(), os.getcwd())
"""
    measured = run(program, throughput=r"(?P<throughput>\d+) rows/s")
    assert measured.throughput_per_s == 5
    copy = measured.details["working_directory"]
    assert copy == {"directory": copy["directory"], "copied_bytes": len(program) + 6, "linked": 0}
    assert copy["directory"].startswith("/tmp/work-")
    assert not Path(copy["directory"]).exists()
    assert {path.name for path in tmp_path.rglob("*")} == {"train.py", "data", "input", "latest"}
    assert (tmp_path / "data/input").read_text() == "5 rows"


def test_without_files_the_command_works_in_an_empty_directory_that_it_may_write_to(run: Run, here: HereNode) -> None:
    measured = run("", "sh", "-c", "pwd; ls -A; mkdir out && echo 3 rows", throughput=r"(?P<throughput>\d+) rows")
    assert measured.throughput_per_s == 3
    assert here.data is not None


def test_outside_of_an_image_the_copy_is_in_the_directory_of_the_node(trial: Trial, observer: Any) -> None:
    words = ("sh", "-c", "pwd; echo $HOME >where; cat where")
    planned = trial.with_job(scenario="command", model="sh", sizes=None, command=CommandJob(argv=words))
    with local_node((0,), None) as node:
        inside = own_environment(node, (0,))
        measured = Command().measure(planned, [Instance(inside)], observer, nullcontext())
        assert Path(measured.details["working_directory"]["directory"]).parent == Path(node.directory)
        assert list(Path(node.directory).iterdir()) == []


def test_whatever_cannot_be_levelled_is_a_substitute(run: Run) -> None:
    shared_mib = shutil.disk_usage("/dev/shm").total >> 20
    assert run("").substitutes == (f"shared-memory:{shared_mib}MiB",), "this machine's, and not that of a target"


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("print('epoch 1'); raise SystemExit(3)", "the command ended with exit status 3; it printed last: epoch 1"),
        ("raise SystemExit(3)", "the command ended with exit status 3; it has printed nothing"),
        ("import os; os.kill(os.getpid(), 9)", "the command was ended by SIGKILL"),
        ("nothing + 1", "NameError: name 'nothing' is not defined"),
    ],
)
def test_a_command_that_fails_is_told_with_what_it_printed_last(program: str, message: str, run: Run) -> None:
    error = failure(run, program)
    assert message in error.message
    assert error.kind == "command"


def test_the_end_of_its_output_is_in_the_failure(run: Run) -> None:
    error = failure(run, "print('first'); [print('line', i) for i in range(100)]; import sys; sys.exit('the reason')")
    assert error.output_tail.splitlines()[-1] == "the reason"
    assert "line 98" in error.output_tail


def test_a_command_that_prints_no_throughput_is_told_with_what_it_printed_last(run: Run) -> None:
    error = failure(run, "print('a'); print('12 images')", throughput=r"(?P<throughput>\d+) tokens")
    assert error.message == "the command has printed no throughput; it printed last: a | 12 images"
    assert error.remedy == "correct --throughput-pattern, or leave it out"


def test_a_program_that_is_not_there_is_told(run: Run) -> None:
    error = failure(run, "", "no-such-program", "--epochs", "1")
    assert error.message == "no-such-program cannot be started in the target: No such file or directory"
    assert "--command-files" in str(error.remedy)


def test_a_pattern_that_does_not_come_to_its_end_ends_the_trial(run: Run) -> None:
    error = failure(run, "print('a' * 60)", throughput="(a+)+(?P<throughput>b)")
    assert error.message == "--throughput-pattern searched one line for more than 1 s"


def test_endless_lines_take_no_memory_and_no_time(run: Run) -> None:
    measured = run("print('x ' * (8 << 20) + '5 rows'); print('3 rows')", throughput=r"(?P<throughput>\d+) rows")
    assert measured.details["throughputs"] == [3]
