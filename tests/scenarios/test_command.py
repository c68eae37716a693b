"""A command of the user's own, run by the worker as a program on this machine."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from provisioning.layers.userland import own_environment
from provisioning.nodes import local_node
from scenarios.command import Command
from suite.interfaces import Instance, Measurement
from suite.job.command import CommandJob
from suite.plan import Trial
from suite.request.request import RunRequest
from tests.scenarios.conftest import REPOSITORY, HereNode, failure

RATE = "(?P<throughput>[0-9.,]+)"


@pytest.fixture
def run(trial: Trial, here: HereNode, observer: Any, tmp_path: Path) -> Callable[..., Measurement]:
    """Run a Python program, or other words, in a directory of its own."""

    def measured(program: str = "", *argv: str, throughput: str | None = None, decimal_mark: Any = None) -> Measurement:
        (tmp_path / "train.py").write_text(program)
        here.data, here.userland = str(tmp_path), "/"
        words = argv or ("python", "train.py", "--epochs", "2")
        command = CommandJob(argv=words, throughput=throughput, decimal_mark=decimal_mark)
        planned = trial.with_job(scenario="command", model=command.name, sizes=None, command=command)
        return scenario.measure(planned, [Instance(here)], observer, nullcontext())

    scenario = Command()
    return measured


def test_each_trial_of_two_commands_runs_its_own(trial: Trial, here: HereNode, observer: Any, tmp_path: Path) -> None:
    for name, rate in (("a", 3), ("b", 5)):
        (tmp_path / f"{name}.py").write_text(f"print('{rate} rows/s')")
    here.data, here.userland = str(tmp_path), "/"
    command = CommandJob(argv=("python", "a.py"), versus=("python", "b.py"), throughput="auto")
    planned = trial.with_job(scenario="command", model=command.name, sizes=None, command=command)
    for arm, rate in ((None, 3), ("versus", 5)):
        of_arm = planned.model_copy(update={"ablation": arm})
        assert Command().measure(of_arm, [Instance(here)], observer, nullcontext()).throughput_per_s == rate


def test_time_memory_and_exit_status_are_measured_of_any_command(run: Any, observer: Any) -> None:
    measured = run("import time; held = b'x' * (64 << 20); time.sleep(0.5); [i * i for i in range(10 ** 6)]")
    assert measured.throughput_per_s is None
    assert measured.metrics["peak-memory"].value > 64
    assert 0 < measured.metrics["cpu-time"].value < measured.elapsed_s
    assert measured.metrics["cpu-time"].value == measured.usage.cpu_s
    assert 0.5 < (measured.timeline.measured_s or 0) < measured.elapsed_s
    assert measured.details["exit_status"] == 0
    assert measured.environment.threads == 1
    assert [name for name, _ in observer.phases] == ["attesting", "launching", "preparing", "measuring", "finishing"]


def test_the_throughput_is_the_median_of_what_a_pattern_finds_and_the_step_its_last(run: Any) -> None:
    lines = [f"step {step} (loss nan): {rate} tokens/s" for step, rate in ((10, "1,200.5"), (20, "9"), (30, "800"))]
    program = f"print('warming up: 7 of 9'); print({chr(10).join(lines)!r}); print('0 tokens/s')"
    measured = run(program, throughput=r"(?:step (?P<step>\d+).*: )?(?P<throughput>[\d.,]+) tokens/s")
    assert measured.throughput_per_s == 800
    assert measured.details["throughputs"] == [1200.5, 9, 800]
    assert measured.details["steps"] == measured.last_step == 30


def test_of_lines_that_are_json_objects_the_keys_are_read_from_both_outputs(run: Any) -> None:
    said = ['{"throughput": 5, "step": 1}', '{"other": "x"}', "[1]", '{"throughput": null}', "{}"]
    progress = '50 %\r{"throughput": 7}'
    program = f"import sys; print({chr(10).join(said)!r}, flush=True); sys.stderr.write({progress!r})"
    measured = run(program, throughput="json")
    assert measured.details["throughputs"] in ([5, 7], [7, 5])
    assert (measured.throughput_per_s, measured.details["steps"]) == (6, 1)
    assert run("print(1)").last_step is None


def test_rates_that_cannot_be_read_fail_the_trial_or_are_named(run: Any, observer: Any) -> None:
    message = "1 of {} printed throughputs cannot be read, such as in: 1,234 rows"
    program = "[print('5 rows') for _ in range({})]; print('1,234 rows')"
    error = failure(run, program.format(18), throughput=f"{RATE} rows")
    assert (error.kind, error.message) == ("command", message.format(19))
    measured = run(program.format(19), throughput=f"{RATE} rows")
    assert (len(measured.details["throughputs"]), measured.details["throughputs_unread"]) == (19, 1)
    assert observer.notes[-1].endswith(message.format(20))


def test_a_missing_module_is_answered_with_an_image_of_ones_own(run: Any) -> None:
    error = failure(run, "import no_such_module.inner")
    assert "no_such_module is not among them" in str(error.remedy)
    assert "docs/guide/own-image.md" in str(error.remedy)
    assert failure(run, "raise SystemExit(3)").remedy is None


def test_python_counts_the_cpus_of_the_envelope(run: Any) -> None:
    usable = len(os.sched_getaffinity(0))
    measured = run(f"import os; assert os.environ['PYTHON_CPU_COUNT'] == '{usable}'")
    assert measured.details["python_cpu_count"] == usable
    counts = [name for name in measured.substitutes if name.startswith("cpu-count:")]
    differs = sys.version_info < (3, 13) and os.cpu_count() != usable
    assert counts == ([f"cpu-count:{os.cpu_count()}"] if differs else [])


@pytest.mark.parametrize(
    "printed", ["Iteration 0 (0 iter/s, 6.71s/10 iters)", "2026-01-01 10:00:00 tokens/s not yet known", "loss 8.2"]
)
def test_without_a_rate_the_elapsed_time_decides_and_a_note_says_it_once(printed: str, run: Any, observer: Any) -> None:
    measured = run(f"print({printed!r})", throughput="auto")
    assert (measured.throughput_per_s, measured.counted) == (None, None)
    assert measured.elapsed_s > 0
    assert [note for note in observer.notes if "none" in note and "the elapsed time decides" in note]


def test_the_record_has_what_the_throughput_counts_and_several_rates_are_named_once(run: Any, observer: Any) -> None:
    measured = run("print('1.2k img/s')", throughput="auto")
    assert (measured.throughput_per_s, measured.counted) == (1200, "images")
    for times in (1, 3):
        assert run(f"print('5 img/s, 5 tok/s\\n' * {times})", throughput="auto").throughput_per_s is None
    named = [note for note in observer.notes if "images/s (once, median 5), tokens/s (once, median 5)" in note]
    assert len(named) == 1 == sum("tokens/s (" in note for note in observer.notes)
    assert run("print('12,345 img/s')", throughput="auto", decimal_mark="point").throughput_per_s == 12345


LEAVES = """
import subprocess, sys, time
left = subprocess.Popen([sys.executable, "-c", "import time; print('child', flush=True); time.sleep(600)"], **OPTIONS)
open(PLACE, "w").write(str(left.pid))
time.sleep(1)
print("100 images/s", flush=True)
"""


@pytest.mark.parametrize("options", ["{}", "{'start_new_session': True, 'stdout': subprocess.DEVNULL}"])
def test_the_trial_ends_with_its_process_and_ends_and_counts_what_that_has_left(
    options: str, run: Any, observer: Any, tmp_path: Path
) -> None:
    place = tmp_path.parent / "left"
    measured = run(LEAVES.replace("OPTIONS", options).replace("PLACE", repr(str(place))), throughput=f"{RATE} images/s")
    assert 1 < (measured.timeline.measured_s or 0) < 2
    assert measured.elapsed_s < 5
    assert (measured.throughput_per_s, measured.details["processes_left"]) == (100, 1)
    assert any(note.endswith("processes that the command left behind, now ended: 1") for note in observer.notes)
    assert not Path("/proc", place.read_text(), "stat").exists()
    helped = "import time\nfrom multiprocessing.shared_memory import SharedMemory\n"
    helped += "used = SharedMemory(create=True, size=9)\ntime.sleep(1)\nused.unlink()"
    assert run(helped).details["processes_left"] == 0, "helpers that end by themselves are not counted"


def test_orphans_are_found_by_their_session_where_no_subreaper_is_known() -> None:
    program = """
import subprocess, sys, time
from worker.process_tree import descendants
from worker.program import _end_all
parent = subprocess.Popen([sys.executable, "-c", "import subprocess; subprocess.Popen(['sleep', '600'])"])
parent.wait()
print(len(descendants()), len(_end_all(parent)), len(descendants()))
"""
    argv = [sys.executable, "-c", program]
    assert subprocess.check_output(argv, cwd=REPOSITORY, start_new_session=True, text=True) == "1 1 0\n"


def test_the_peak_of_memory_is_that_of_all_processes_together(run: Any) -> None:
    program = """
import multiprocessing, time
shared = bytearray(b"x") * (100 << 20)
def hold():
    held = bytearray(b"x") * (100 << 20)
    time.sleep(1.5)
children = [multiprocessing.get_context("fork").Process(target=hold) for _ in range(3)]
[child.start() for child in children]
[child.join() for child in children]
"""
    assert 400 < run(program).metrics["peak-memory"].value < 520
    assert 0 < run("", "sleep", "0.5").metrics["peak-memory"].value < 5, "that of the command, not of the worker"
    assert "peak-memory" not in run("", "true").metrics, "it has ended before a sample"


def test_the_command_finds_the_same_surroundings_everywhere_and_no_shell(run: Any, tmp_path: Path) -> None:
    program = f"""
import getpass, json, os, resource, shutil, sys
limits = [resource.getrlimit(each) for each in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_CORE)]
with open({str(tmp_path.parent / "said")!r}, "w") as said:
    json.dump({{"argv": sys.argv[1:], "env": dict(os.environ), "user": getpass.getuser(), "limits": limits,
        "python": shutil.which("python")}}, said)
print(sys.stdin.read() or "nothing to read")
"""
    run(program, "python", "train.py", "$HOME; *")
    said = json.loads((tmp_path.parent / "said").read_text())
    assert said["argv"] == ["$HOME; *"]
    assert (said["env"]["OMP_NUM_THREADS"], said["env"]["HOME"]) == ("1", "/tmp")
    assert "PYTHONPATH" not in said["env"], "the worker's own modules are not the command's"
    assert said["user"] == "virtbench"
    assert said["limits"] == [[16384, 16384], [8 << 20, 8 << 20], [0, 0]]
    assert said["python"], "scripts of a shell find it, too"


def test_the_packages_of_an_adopted_image_are_the_commands_and_the_suites_are_not(
    run: Any, here: HereNode, tmp_path: Path
) -> None:
    site = tmp_path.parent / "site"
    site.mkdir()
    (site / "their_package.py").write_text("rate = 5")
    interpreter, python_path = here.python
    here.python = (interpreter, f"{python_path}:{site}")
    program = "import sys, their_package as one; print(one.rate, 'it/s', not {'worker', 'suite'} & sys.modules.keys())"
    assert run(program, throughput=r"(?P<throughput>\d+) it/s True").throughput_per_s == 5


def test_a_directory_without_files_is_none(tmp_path: Path) -> None:
    asked = RunRequest.of({"command": "python -m package", "command_files": tmp_path})
    (tmp_path / "empty").mkdir()
    assert Command.of(asked).data_set(asked, tmp_path, print) == ("none", None)


def test_the_command_works_in_a_copy_that_goes_with_the_trial(run: Any, tmp_path: Path) -> None:
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
    empty = run("", "sh", "-c", "mkdir out && echo 3 rows", throughput=r"(?P<throughput>\d+) rows")
    assert empty.throughput_per_s == 3, "without files it may write, too"


def test_outside_of_an_image_the_copy_is_in_the_directory_of_the_node(trial: Trial, observer: Any) -> None:
    words = ("sh", "-c", "pwd; echo $HOME >where; cat where")
    planned = trial.with_job(scenario="command", model="sh", sizes=None, command=CommandJob(argv=words))
    with local_node((0,), None) as node:
        measured = Command().measure(planned, [Instance(own_environment(node, (0,)))], observer, nullcontext())
        assert Path(measured.details["working_directory"]["directory"]).parent == Path(node.directory)
        assert list(Path(node.directory).iterdir()) == []


def test_whatever_cannot_be_levelled_is_a_substitute(run: Any) -> None:
    shared_mib = shutil.disk_usage("/dev/shm").total >> 20
    substitutes = [name for name in run("").substitutes if not name.startswith("cpu-count:")]
    assert substitutes == [f"shared-memory:{shared_mib}MiB"], "this machine's, and not that of a target"


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("print(2); import sys; sys.exit('the reason')", "the command ended with exit status 1"),
        ("print('epoch 1'); raise SystemExit(3)", "the command ended with exit status 3; it printed last: epoch 1"),
        ("raise SystemExit(3)", "the command ended with exit status 3; it has printed nothing"),
        ("import os; os.kill(os.getpid(), 9)", "the command was ended by SIGKILL"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGRTMIN + 3)", "the command was ended by SIGRTMIN+3"),
        ("raise SystemExit(137)", "the command was ended by SIGKILL"),
        ("import os; _, width = os.popen('stty size').read().split()", "not enough values to unpack"),  # no terminal
        ("nothing + 1", "NameError: name 'nothing' is not defined"),
    ],
)
def test_a_command_that_fails_is_told_with_what_it_printed_last(program: str, message: str, run: Any) -> None:
    error = failure(run, program)
    assert message in error.message
    assert error.kind == "command"
    assert (error.remedy == "give the targets more with --memory") == ("SIGKILL" in message)
    assert ("the reason" in error.output_tail.splitlines()) == ("the reason" in program)


@pytest.mark.parametrize(
    ("words", "throughput", "message", "remedy"),
    [
        (
            ["print('a'); print('12 images')"],
            r"(?P<throughput>\d+) tokens",
            "the command has printed no throughput; it printed last: a | 12 images",
            "correct --throughput, or leave it out",
        ),
        (["", "no-such-program"], None, "no-such-program cannot be started in the target: No such", "--command-files"),
        (["print('a' * 60)"], "(a+)+(?P<throughput>b)", "--throughput searched one line for more than 1 s", ""),
    ],
)
def test_a_command_or_a_pattern_that_cannot_work_is_told(
    words: list[str], throughput: str | None, message: str, remedy: str, run: Any
) -> None:
    error = failure(run, *words, throughput=throughput)
    assert message in error.message
    assert remedy in str(error.remedy)
