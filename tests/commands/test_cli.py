"""The commands, without an image or a virtual machine: what is asked of the machine is answered by the test."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from importlib.metadata import EntryPoint
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import click
import psutil
import pytest
from click.shell_completion import ShellComplete

import cli
from analysis.report.provenance import run_command
from commands.paths import UserPath
from commands.run.command import RunLog, run
from commands.run.prepare import Ready, observing, ready
from commands.run.request_command import request_of
from provisioning import ledger
from provisioning.doctor import Check
from scenarios.command import CommandOptions
from suite.errors import MeasurementError, flag
from suite.job.datasets import Dataset
from suite.job.envelope import GIB, MEMORY_NOT_LIMITED
from suite.job.job import settings
from suite.job.sharing import SMALL_ALEXNET
from suite.measurable import EMULATED_CPU, OWN_USERLAND
from suite.plan import Plan
from suite.process_identity import boot_id, pid_namespace
from suite.progress import Display
from suite.registries import ENGINES, PROBES, WORKLOADS, every_registry
from suite.request.request import OPTIONS, RunRequest
from suite.results.store import Run, plan_differences, request_stop, stored_plan
from suite.targets import TARGETS
from suite.untrusted.terminal import clean_streams
from suite.version import NAMES, suite_version
from tests.commands.conftest import ONCE, SMALL, Bench, Machine, commands, ended_well, refused, short_pilot
from tests.scenarios.test_own_workload import TOY
from tests.test_rooms import REPOSITORY

CPUS = sorted(os.sched_getaffinity(0))


def test_help_imports_no_command_and_has_the_first_sentence_of_each() -> None:
    script = "import sys, cli; cli.main(['--help'], standalone_mode=False); print(*sys.modules, file=sys.stderr)"
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=Path(cli.__file__).parent
    )
    heavy = {"pydantic", "pandas", "rich", "psutil", "commands.run.command"}
    imported = set(told.stderr.split())
    assert heavy & imported == set()
    assert [name for name in imported if name.startswith("provisioning.")] == []
    shown = " ".join(told.stdout.partition("Commands:")[2].split())
    for (name, *_), command in (each for each in commands() if len(each[0]) == 1):
        assert f"{name} {command.get_short_help_str(78 - 6 - len('completion'))}" in shown


def test_lists_of_commands_tell_each_of_them_whole(bench: Bench) -> None:
    for words, command in commands():
        if isinstance(command, click.Group):
            lines = bench(*words, "--help").output.partition("\nCommands:")[2].splitlines()
            cut_off = [line for line in lines if line.endswith("...")]
            assert lines, words
            assert cut_off == [], words


def test_completion_offers_commands_options_and_choices_to_each_shell(bench: Bench) -> None:
    def offered(*words: str) -> list[str]:
        complete = ShellComplete(cli.main, {}, "bench", "_BENCH_COMPLETE")
        return [each.value for each in complete.get_completions(list(words[:-1]), words[-1])]

    assert offered("rep") == ["reproduce", "report"]
    assert offered("run", "--aggressor") == ["--aggressor", "--aggressors"]
    assert offered("run", "--engine", "") == [*ENGINES]
    assert offered("run", "--model", "a") == ["alexnet", "alexnet-small", "all"]
    assert offered("run", "--scenario", "synthetic", "--model", "alexnet-") == []
    for shell in ("bash", "zsh", "fish"):
        assert "_BENCH_COMPLETE" in ended_well(bench("completion", shell)).stdout


COMMON_WORDS = (
    *("scenario", "model", "profile", "target", "engine", "cpus", "memory", "blocks", "until", "detect", "margin"),
    *("out", "continue", "repeat-failed", "all", "dry-run", "concurrent", "wait", "json"),
)


def named_in(text: str) -> list[str]:
    return [line.split()[0].strip(",").removeprefix("--") for line in text.splitlines() if line.startswith("  --")]


@pytest.mark.parametrize(
    ("scenario", "further"),
    [
        (None, ()),
        ("serve", ("lab", "network", "comm-timeout", "command", "requests", "rates", "clients", "port", "api")),
        ("shared", ("aggressor", "aggressors")),
        ("command", ("command", "command-files", "throughput", "decimal-mark", "unit")),
    ],
)
def test_help_of_run_is_a_page_of_one_line_for_each_common_option_and_those_of_the_scenario(
    bench: Bench, scenario: str | None, further: tuple[str, ...]
) -> None:
    text = bench("run", *(("--scenario", scenario) if scenario else ()), "--help").output
    known = [name for name in COMMON_WORDS if scenario != "command" or name != "model"]
    known = [name for name in known if scenario != "shared" or name not in ("until", "detect")]
    assert named_in(text)[: len(known)] == known
    assert {*further} <= {*named_in(text)[len(known) :]}
    assert "--ablate" not in text.partition("Common options:")[2]
    rows = text.partition("Common options:")[2].split("\nbench run")[0].splitlines()
    for row, following in pairwise(rows):
        assert len(row) <= 80
        assert not (row[:4].isspace() and following[:4].isspace()), "a summary is one line"
    assert len(text.splitlines()) <= (75 if scenario == "serve" else 60)


def test_help_of_run_has_every_option_in_full_if_all_are_asked_for(bench: Bench) -> None:
    whole = bench("run", "--help", "--all").output
    assert {*named_in(whole)} >= {flag(name).removeprefix("--") for name in OPTIONS}
    assert "--profile paper|gpu|quick|smoke\n" in whole, "a type that names its choices"
    assert "One of paper" not in whole
    assert named_in(bench("run", "--all", "--help").output) == named_in(whole)
    shared = bench("run", "--scenario", "shared", "--help", "--all").output
    assert ("--aggressors" in shared, "--recipe" in shared, "--strategy" in shared) == (True, True, False)
    refused(bench("run", "--all"), "--all belongs to --help", "bench run --help --all")


def test_the_help_has_exit_codes_and_of_every_command_an_example_and_no_mark_of_its_layout(bench: Bench) -> None:
    assert ended_well(bench("--version")).output == f"bench, version {suite_version()}\n"
    assert "0 done; 1 a measurement failed; 2 the request was wrong; 130 interrupted" in bench("--help").output
    for words, _ in commands():
        result = bench(*words, "--help")
        assert (result.exit_code, bench(*words, "-h").output) == (0, result.output), words
        assert f"  {' '.join(('bench', *words))}" in result.output.partition("Examples:")[2], words
        assert re.search(r"\\b|\x08", result.output) is None, words


# ---- wrong requests


@pytest.mark.usefixtures("machine")
def test_too_many_cpus_and_too_much_memory_are_refused_with_the_arithmetic(bench: Bench) -> None:
    wanted = len(CPUS) + 1
    result = bench("run", "--target", "bare-metal", "--cpus", str(wanted))
    refused(result, f"--cpus {wanted}: this host allows CPUs", f"({len(CPUS)})", f"ask for 1 to {len(CPUS)}")
    refused(bench("run", "--target", "bare-metal", "--cpus", f"0-{CPUS[-1] + 1}"), f"no CPU {CPUS[-1] + 1}")
    has = psutil.virtual_memory().total / GIB
    result = bench("run", "--target", "bare-metal", "--memory", "900T")
    refused(result, f"921600.0 GiB of memory asked for, the host has {has:.1f} GiB", "lower --memory")


def test_a_program_behind_two_dashes_is_a_command_with_the_files_of_this_directory() -> None:
    def asked(*words: str) -> RunRequest:
        return request_of(run, [*words])

    files = asked("--profile", "smoke", "--", "python", "train.py", "--help", "a b")
    assert files == asked(
        *("--profile", "smoke", "--scenario", "command", "--command", "python train.py --help 'a b'"),
        *("--command-files", "."),
    )
    chosen = asked("--throughput", "json", "--unit", "rows", "--command-files", "mine", "--", "sh", "--", "x")
    assert (chosen.options(CommandOptions).command, chosen.options(CommandOptions).unit) == ("sh -- x", "rows")


def test_a_target_or_an_engine_that_does_not_work_is_refused_when_it_was_named(bench: Bench, machine: Machine) -> None:
    machine.usable |= {"vm": False, "podman": False}
    refused(bench("run", "--target", "vm"), "this machine cannot carry vm: vm is not there", "install vm")
    result = bench("run", "--target", "container", "--engine", "podman")
    refused(result, "--engine podman: podman is not there", "install podman")
    assert machine.events == []


def test_without_an_image_it_is_told_how_to_build_one_and_the_list_is_empty(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("provisioning.doctor.examine", Machine().examine)
    refused(bench("run", "--target", "bare-metal"), "no cpu image has been built", "bench image build")
    refused(bench("image", "verify"), "no cpu image has been built")
    assert bench("image", "list").stdout == ""
    assert json.loads(bench("image", "list", "--json").stdout) == {"schema_version": 1, "images": []}


# ---- a run on fakes


def test_a_run_measures_every_target_and_tells_where_the_records_are(
    bench: Bench, machine: Machine, here: Path
) -> None:
    said = json.loads(ended_well(bench("run", *SMALL, "--json", "--repeat", "2", "--seed", "5")).stdout)
    identity = stored_plan(here / "out").run_id
    assert (said["run_id"], said["directory"], said["failed"]) == (identity, "out", [])
    assert {path.stem for path in (here / "out/trials").glob("*.json")} == set(said["trials"])
    assert len(said["trials"]) == 2 * len(TARGETS)
    assert len([event for event in machine.events if event.startswith("measure")]) == 2 * len(TARGETS)
    plan = json.loads((here / "out/plan.json").read_text())
    assert (plan["blocks"], plan["seed"], plan["jobs"][0]["envelope"]["cpus"]) == (2, 5, CPUS[:1])
    assert plan["jobs"][0]["layers"]["accelerator"] == "tcg"
    assert plan["jobs"][0]["layers"]["image"] == "a" * 64


def test_the_numbers_of_the_profile_can_be_overridden(bench: Bench, machine: Machine, here: Path) -> None:
    words = ("--batch", "3", "--image-px", "40", "--steps", "5", "--warmup-steps", "0", "--trial-timeout", "9")
    assert bench("run", *SMALL, "--target", "vm", *words).exit_code == 0
    plan = json.loads((here / "out/plan.json").read_text())
    none = dict.fromkeys(("channels", "tokens", "depth", "epochs", "learning_rate", "settle_s", "least_s"))
    sizes = {"batch": 3, "image_px": 40, "steps": 5, "warmup_steps": 0, **none}
    assert [job["sizes"] for job in plan["jobs"]] == [sizes]
    assert plan["trial_timeout_s"] == 9
    assert len(machine.events) == 3


@pytest.mark.parametrize(
    ("model", "target", "least"), [("resnet50", "vm", 1000), ("resnet50", "container", 600), ("vae", "vm", 700)]
)
@pytest.mark.usefixtures("machine")
def test_the_limit_of_a_trial_follows_its_forecast_where_the_cpu_is_emulated(
    bench: Bench, here: Path, model: str, target: str, least: int
) -> None:
    """Beside other work, one of ResNet-50 took 265 s on a VM and more than 600 s in a container there."""
    words = ["--model", model, "--target", target, "--scenario", "synthetic", "--profile", "smoke", "--out", "out"]
    assert bench("run", *words).exit_code == 0
    limit = json.loads((here / "out/plan.json").read_text())["trial_timeout_s"]
    assert limit >= least
    assert limit == 600 or target == "vm"


def test_a_run_without_json_and_directory_tells_people_where_in_the_results_it_is(
    bench: Bench, machine: Machine, here: Path
) -> None:
    result = bench("run", *SMALL[:4], "--target", "vm")
    assert (result.exit_code, result.stdout) == (0, ""), "the audit refuses what a fake claims to have measured"
    (plan,) = (here / "results").glob("*/plan.json")
    run = plan.parent.relative_to(here)
    assert (run / "trials").is_dir()
    assert f"1 trial measured, 0 failed: {run}\n" in result.stderr
    assert f"bench compare {run}" in result.stderr
    assert machine.events[0].startswith("open")


def test_a_trial_that_fails_makes_the_exit_code_1_and_the_others_are_measured_and_the_log_has_it(
    bench: Bench, machine: Machine, here: Path
) -> None:
    assert bench("run", *SMALL, "--cpus", "999").exit_code == 2
    assert bench("run", *ONCE, "--dry-run").exit_code == 0
    assert not (here / "out").exists(), "a refused or a dry run has no log"
    machine.scenario.failing["vm"] = MeasurementError("the worker \x1b[2J died", kind="worker")
    result = bench("run", *ONCE, "--json")
    assert result.exit_code == 1
    said = json.loads(result.stdout)
    assert said["failed"] == ["synthetic-resnet50-vm-b000"]
    assert len(said["trials"]) == len(TARGETS)
    assert result.stderr.count("FAILED (worker): the worker \\u001b[2J died") == 1, "in the line of the trial"
    whole = "bench results show out/synthetic-resnet50-vm-b000"
    assert f"the first failure in full: {whole}\n" in result.stderr
    assert "worker: the worker \\u001b[2J died" in bench(*whole.split()[1:]).stdout
    log = (here / "out/bench.log").read_text()
    assert log == result.stderr
    assert bench("run", *ONCE, "--seed", "9").exit_code == 2
    assert "holds a run of another plan" in (here / "out/bench.log").read_text().removeprefix(log)


def test_a_run_that_waits_has_its_log_before_its_plan(
    bench: Bench, machine: Machine, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    @contextmanager
    def waiting(_cpus: object, note: Callable[[str], None], _busy: object) -> Iterator[None]:
        note("waiting: another bench measures")
        seen.append((here / "out/bench.log").read_text())
        yield

    monkeypatch.setattr("provisioning.neighbours.alone_on", waiting)
    assert bench("run", *ONCE, "--wait").exit_code == 0
    assert "waiting: another bench measures" in seen[0]
    assert machine.events


def test_a_run_on_a_terminal_logs_its_lines_and_not_what_is_redrawn(tmp_path: Path) -> None:
    stream = io.StringIO()
    (tmp_path / "plan.json").touch()
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(stream), clean_streams():
        patch.setenv("TERM", "xterm")
        stream.isatty = lambda: True  # type: ignore[method-assign]
        RunLog(tmp_path)
        with observing() as observer:
            assert isinstance(observer, Display)
            observer.note("CPUs 0-1 are busy")
            observer.phase("measuring")
            click.echo("printed past it", err=True)
    assert (tmp_path / "bench.log").read_text() == "CPUs 0-1 are busy\nprinted past it\n"


def test_of_all_targets_those_that_the_machine_cannot_carry_are_left_out(bench: Bench, machine: Machine) -> None:
    machine.usable["vm"] = machine.usable["container-vm"] = False
    result = ended_well(bench("run", *ONCE, "--target", "all", "--json"))
    assert len(json.loads(result.stdout)["trials"]) == 2
    assert "vm is left out: vm is not there (what to do: install vm)" in result.stderr


def test_by_default_what_is_measured_is_run_and_the_rest_is_named_with_how_to_add_it(
    bench: Bench, machine: Machine
) -> None:
    """An emulated CPU is no measurement; memory without a limit is one, with a name beside it."""
    machine.substitutes |= {"bare-metal": MEMORY_NOT_LIMITED, "vm": EMULATED_CPU, "container-vm": EMULATED_CPU}
    dry = ended_well(bench("run", *SMALL, "--profile", "smoke", "--dry-run"))
    assert "targets: bare-metal, container (docker)\n" in dry.stdout
    left_out = "left out: vm, container-vm (accelerator:tcg: not a measurement; add with --target all)\n"
    assert left_out in dry.stderr
    everything = ended_well(bench("run", *SMALL, "--profile", "smoke", "--dry-run", "--target", "all"))
    assert "targets: bare-metal, container, vm, container-vm (docker)\n" in everything.stdout
    assert "left out" not in everything.stderr
    answer = json.loads(ended_well(bench("doctor", "--json")).stdout)["answer"]
    assert answer["measurable"] == ["bare-metal", "container"]
    assert answer["path_only"] == ["vm", "container-vm"]
    assert answer["next_step"] == "bench run"


def test_a_machine_on_which_only_paths_work_runs_these_and_one_without_any_says_why(
    bench: Bench, machine: Machine
) -> None:
    machine.usable["container"] = False
    machine.substitutes |= {"bare-metal": OWN_USERLAND, "vm": EMULATED_CPU, "container-vm": EMULATED_CPU}
    dry = ended_well(bench("run", *SMALL, "--profile", "smoke", "--dry-run"))
    assert "targets: bare-metal, vm, container-vm\n" in dry.stdout
    assert "left out: container (container is not there)\n" in dry.stderr
    machine.usable |= dict.fromkeys(TARGETS, False)
    refused(bench("run", *ONCE, "--dry-run"), "cannot carry bare-metal: bare-metal is not there", "install bare-metal")


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package adds to each registry a member that fails to load."""
    for registry in every_registry():
        monkeypatch.setitem(registry._places, "torn", EntryPoint("torn", "torn_package:TORN", registry.group))


SYNTHETIC = [name for name in WORKLOADS.own if name != "collectives"]
"""The workloads of a training on one instance."""
Broken = pytest.mark.usefixtures("broken")


@Broken
@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("given", "what", "models"),
    [
        ({"model": "all"}, "workload", SYNTHETIC),
        ({"scenario": "probe", "probe": "all"}, "probe", PROBES.own),
        ({"scenario": "shared", "model": "all"}, "workload", [*SYNTHETIC, SMALL_ALEXNET]),
        ({"scenario": "shared", "model": "alexnet", "aggressor": "all"}, "aggressor", ["alexnet"]),
        ({"ablate": "all"}, "ablation", ["resnet50"]),
    ],
)
def test_all_leaves_out_the_member_of_another_package_that_fails_to_load(
    given: dict[str, str], what: str, models: Sequence[str]
) -> None:
    told: list[str] = []
    plan = ready(RunRequest.of({**given, "target": "bare-metal"}), told.append).plan
    assert f"left out: the {what} 'torn' cannot be loaded: ModuleNotFoundError: No module named 'torn_package'" in told
    assert list(plan.models) == [name for name in models if name != "torn"]
    assert not {"torn", "collectives"} & {*plan.ablations, *(plan.job.sharing.aggressors if plan.job.sharing else ())}


@Broken
@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    "words",
    [
        ("--model", "torn"),
        ("--scenario", "torn"),
        ("--scenario", "probe", "--probe", "torn"),
        ("--scenario", "shared", "--aggressor", "torn"),
        ("--ablate", "torn"),
        ("--engine", "torn", "--target", "container"),
        ("--provider", "torn", "--target", "vm"),
    ],
)
def test_a_member_that_fails_to_load_is_refused_where_it_was_named(bench: Bench, words: tuple[str, ...]) -> None:
    refused(bench("run", *SMALL, *words), "'torn' cannot be loaded", "mend or uninstall the package")


@Broken
def test_help_and_completion_load_no_member_of_another_package(bench: Bench) -> None:
    assert bench("run", "--help").exit_code == 0
    complete = ShellComplete(cli.main, {}, "bench", "_BENCH_COMPLETE")
    assert [each.value for each in complete.get_completions(["run", "--model"], "to")] == ["torn"]


def test_the_same_command_again_goes_on_unless_its_plan_is_another_or_it_is_written(
    bench: Bench, machine: Machine, here: Path
) -> None:
    assert bench("run", *ONCE).exit_code == 0
    machine.events.clear()
    again = bench("run", *ONCE, "--json")
    assert (again.exit_code, json.loads(again.stdout)["trials"]) == (0, [])
    assert machine.events == []
    refused(bench("run", *ONCE, "--seed", "9"), "holds a run of another plan: seed differ", "--out")
    with Run(here / "out").exclusive():
        refused(bench("run", *ONCE), "another bench is writing out")
    assert machine.events == []


def test_a_failed_trial_stays_when_its_run_goes_on_and_is_repeated_on_request(bench: Bench, machine: Machine) -> None:
    refused(bench("run", *ONCE, "--repeat-failed"), "--repeat-failed is for a run that exists", "--continue")
    machine.scenario.failing["vm"] = MeasurementError("the worker died", kind="worker")
    assert bench("run", *ONCE).exit_code == 1
    machine.scenario.failing.clear()
    kept = bench("run", "--continue", "out", "--json")
    assert (kept.exit_code, json.loads(kept.stdout)["trials"]) == (0, [])
    assert "1 failed trial kept (--repeat-failed repeats them): they count as failed" in kept.stderr
    again = bench("run", "--continue", "out", "--repeat-failed", "--json")
    assert (again.exit_code, json.loads(again.stdout)["trials"]) == (0, ["synthetic-resnet50-vm-b000"])
    shown = json.loads(bench("results", "show", "out/synthetic-resnet50-vm-b000", "--json").stdout)
    assert (shown["outcome"]["status"], shown["failed_attempts"]) == ("ok", 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_run_in_order_with_130(
    bench: Bench, machine: Machine, here: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    machine.during_the_second_trial(lambda: os.kill(os.getpid(), number), monkeypatch)
    result = bench("run", *ONCE)
    assert result.exit_code == cli.INTERRUPTED == 130
    assert "what was measured is kept" in result.stderr
    assert signal.getsignal(number) == signal.SIG_IGN, "a further one does not change the exit code"
    assert len(list((here / "out/trials").glob("*.json"))) == 1
    assert machine.events[-1].startswith("close"), "the target was closed"
    assert list((here / "home/ledger").glob("*.json")) == []


def test_a_run_that_is_asked_to_stop_ends_after_its_trial_and_goes_on_later(
    bench: Bench, machine: Machine, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop() -> None:
        assert ledger.LedgerEntry.model_validate_json(next((here / "home/ledger").glob("*.json")).read_text())
        request_stop(here / "out")

    with monkeypatch.context() as patch:
        machine.during_the_second_trial(stop, patch)
        stopped = bench("run", *ONCE, "--json")
    assert (stopped.exit_code, len(json.loads(stopped.stdout)["trials"])) == (0, 2)
    assert "stopped, as it was asked to; go on with: bench run --continue out" in stopped.stderr
    again = bench("run", "--continue", "out", "--json")
    assert (again.exit_code, len(json.loads(again.stdout)["trials"])) == (0, len(TARGETS) - 2)


def test_a_request_to_stop_that_comes_while_a_run_gets_ready_is_heard_and_an_older_one_is_not(
    bench: Bench, here: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine
    for moment_s in (1, time.time() + 3600):  # the clock has been set back since
        (here / "out").mkdir()
        request_stop(here / "out")
        os.utime(here / "out/.stop", (moment_s, moment_s))
        done = bench("run", *ONCE, "--json")
        assert (done.exit_code, json.loads(done.stdout)["trials"] != []) == (0, True)
        shutil.rmtree(here / "out")
    prepare = Ready.prepare

    def stopped(made: Ready, *rest: Any) -> Ready:
        request_stop(here / "out")
        return prepare(made, *rest)

    monkeypatch.setattr(Ready, "prepare", stopped)
    done = bench("run", *ONCE, "--json")
    assert (done.exit_code, json.loads(done.stdout)["trials"]) == (0, [])


def test_what_could_not_be_removed_after_ctrl_c_is_named_with_what_removes_it(
    bench: Bench, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stuck(what: str) -> None:
        raise OSError(f"{what} is busy")

    def interrupted(*_: Any) -> None:
        with ledger.holding("cgroup", "virtbench-0123456789ab"):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setitem(ledger.KINDS, "cgroup", ledger.LedgerKind(".*", stuck))
    monkeypatch.setattr(machine.scenario, "measure", interrupted)
    result = bench("run", *ONCE)
    assert result.exit_code == cli.INTERRUPTED
    assert "these are left: cgroup virtbench-0123456789ab (virtbench-0123456789ab is busy)" in result.stderr
    assert "bench clean" in result.stderr
    assert "everything started is ended" not in result.stderr


def test_want_of_memory_in_bench_itself_is_a_message_and_an_error_a_traceback_if_asked_for(
    bench: Bench, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "examine", full := Mock(side_effect=MemoryError))
    monkeypatch.setattr("provisioning.doctor.examine", full)
    result = bench("run", *ONCE)
    assert (result.exit_code, "what to do" in result.stderr) == (1, True)
    assert "bench: this process has no memory left" in result.stderr
    monkeypatch.setenv("VIRTBENCH_DEBUG", "1")
    assert type(bench("run", "--target", "moon").exception).__name__ == "RequestError"


@pytest.mark.usefixtures("unaudited")
def test_until_goes_on_block_by_block_until_the_most_and_finishes_a_last_one_that_was_killed(
    bench: Bench, machine: Machine, here: Path
) -> None:
    words = ("run", *SMALL, "--target", "bare-metal", "--target", "vm", "--until", "2%", "--max-blocks", "2")
    result = ended_well(bench(*words))
    assert len([event for event in machine.events if event.startswith("measure")]) == 2 + 4, "a warm-up block first"
    assert "stopped after 2 blocks" in result.stderr
    assert json.loads((here / "out/plan.json").read_text())["blocks"] == 2

    (lost,) = (here / "out/trials").glob("*-vm-b001.json")
    lost.unlink()
    result = ended_well(bench(*words))
    assert lost.exists()
    assert "stopped after 2 blocks" in result.stderr


@pytest.mark.usefixtures("machine")
def test_no_block_is_decided_on_by_records_that_the_audit_refuses(bench: Bench) -> None:
    for way in ("until", "detect"):
        words = ("--target", "bare-metal", "--target", "vm", f"--{way}", "2%", "--max-blocks", "2", "--out", way)
        result = bench("run", *SMALL[:4], *words)
        refused(result, "the audit refuses every record")
        assert "stopped after" not in result.stderr


DETECT = ("--target", "bare-metal", "--target", "vm", "--detect", "2%")


@pytest.mark.usefixtures("unaudited")
def test_detect_plans_once_from_its_pilot_or_earlier_runs_and_keeps_to_it_after_a_kill(
    bench: Bench, machine: Machine, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short_pilot(monkeypatch)
    out = here / "results/before"
    words = ("run", *SMALL[:4], *DETECT, "--out", "results/before")
    result = ended_well(bench(*words))
    assert "5 blocks first, as a pilot" in result.stderr
    assert "about 10 blocks in all" in result.stderr, "the fakes are as steady as can be"
    assert len([event for event in machine.events if event.startswith("measure")]) == 2 + 2 * 10
    plan = json.loads((out / "plan.json").read_text())
    assert (plan["blocks"], plan["detection"]["source"], plan["detection"]["measured"]) == (10, "pilot", 5)
    lost = [record for record in (out / "trials").glob("*.json") if record.stem[-4:] in ("b003", "b009")]
    for record in lost:
        record.unlink()
    dry = bench("run", "--continue", "results/before", "--dry-run").stdout
    assert "trials: 22, the first block to warm up, 4 still to be run" in dry
    result = ended_well(bench(*words))
    assert "blocks first" not in result.stderr
    assert "about 10 blocks in all" in result.stderr
    assert [record.exists() for record in lost] == [True] * 4
    result = ended_well(bench("run", *SMALL[:4], *DETECT, "--out", "results/after"))
    assert "(10 earlier blocks: the standard deviation of resnet50 on vm is 0 % from block to block)" in result.stderr
    assert json.loads((here / "results/after/plan.json").read_text())["blocks"] == 5
    other = bench("run", *SMALL[:4], *DETECT, "--batch", "3", "--max-blocks", "2", "--out", "results/other")
    assert "2 blocks first, as a pilot" in other.stderr, "of another job"


@pytest.mark.usefixtures("unaudited")
def test_detect_begins_no_block_after_its_budget(bench: Bench, machine: Machine) -> None:
    result = ended_well(bench("run", *SMALL, *DETECT, "--budget", "0.000001s"))
    assert "stopped after the warm-up: the budget is spent; to go on: bench run --continue out" in result.stderr
    assert len([event for event in machine.events if event.startswith("measure")]) == 2


# ---- a run repeated

DATASET = Dataset(kind="imagefolder", directory="/set", sha256="ab" * 32, images=900, size_bytes=4000)


@pytest.mark.parametrize(
    "asked",
    [
        {"model": ["./my_model.py", "./my_model.py:TOY"], "profile": "smoke", "blocks": 4, "warmup_blocks": 2},
        {"scenario": "real", "data": "frames:/ucf", "frame_stride": 2, "loader_workers": 0, "decoder": "pillow"},
        {"scenario": "command", "command": "python train.py 'a b'", "command_files": "mine", "seed": 4},
        {"scenario": "distributed", "target": "vm", "strategy": "all-reduce", "workers": 3, "comm_timeout": 7},
    ],
    ids=["own workloads", "a data set", "a command with its files", "several instances"],
)
@pytest.mark.usefixtures("machine")
def test_the_command_of_a_plan_makes_an_equal_plan(
    asked: dict[str, object], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "my_model.py").write_text(TOY)
    (here / "mine").mkdir()
    (here / "mine/train.py").write_text("pass")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=1 << 40))
    monkeypatch.setattr(
        "scenarios.datasets.resolve.resolve", lambda given, *_, **__: (given.partition(":")[0], DATASET)
    )
    first = ready(RunRequest.of(asked), print).plan
    monkeypatch.chdir("/")
    again = ready(request_of(run, run_command(first)[2:]), print).plan
    assert plan_differences(first, again) == []
    assert run_command(again) == run_command(first)


COURSE: dict[str, object] = {"blocks": 5, "until": "2%", "margin": "5%", "detect": "2%", "warmup_blocks": 3}
COURSE |= {"budget": "1h", "aa": True, "max_blocks": 50, "trial_timeout": 77, "comm_timeout": 88, "namespace": "lab"}
COURSE |= {"registry": "registry.example/team", "containerd": "/run/other.sock", "context": "minikube", "node": "n1,n2"}
"""The options of the course of a run, each with a value."""


@pytest.mark.usefixtures("machine")
def test_an_option_of_the_course_leaves_the_comparison_key_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=1 << 40))

    def plan(**more: object) -> Plan:
        return ready(RunRequest.of({"scenario": "distributed", "target": ["bare-metal", "vm"], **more}), print).plan

    assert {name for name, option in OPTIONS.items() if not option.about.meaning} == set(COURSE)
    before = plan()
    for name, value in COURSE.items():
        after = plan(**({"until": "2%"} if name in ("max_blocks", "budget") else {}), **{name: value})
        assert [settings(job) for job in after.jobs] == [settings(job) for job in before.jobs], name
        assert (after.targets, after.ablations, after.seed) == (before.targets, before.ablations, before.seed), name


# ---- compare


@pytest.fixture
def stored(here: Path) -> Path:
    """A run of bare metal and a container, as it was measured."""
    return Path(shutil.copytree(REPOSITORY / "tests/samples/runs/synthetic-podman", here / "results/20260101T000000-1"))


def test_help_and_version_are_found_under_the_names_that_others_give_them(bench: Bench) -> None:
    assert bench("-V").stdout == bench("--version").stdout
    assert bench("help", "compare").stdout == bench("compare", "--help").stdout
    assert bench("help").stdout == bench("--help").stdout


def test_an_empty_directory_has_nothing_to_compare(bench: Bench, here: Path) -> None:
    (here / "empty").mkdir()
    refused(bench("compare", "empty"), "empty holds no run", "bench results list")


def test_the_latest_run_is_compared_by_default_and_drawn(bench: Bench, stored: Path) -> None:
    result = ended_well(bench("compare"))
    assert "bare-metal" in result.stdout
    told = json.loads(bench("compare", "--json").stdout)["answer"]
    words = " ".join(result.stdout.split())
    subject, _, number = told["lines"][0].rpartition(", ")[0].partition(": ")
    assert words.startswith(f"{subject} {number}")
    assert [words.count(part) for part in (number, f"why: {told['why']}", "next:")] == [1] * 3
    drawn = {path.suffix for path in (stored / "plots").iterdir()}
    assert drawn == {".png", ".svg"}
    assert f"drawn: {Path('results') / stored.name / 'plots'}" in result.stderr


def test_a_directory_of_runs_is_audited_as_its_runs_are(bench: Bench, stored: Path) -> None:
    of_run = bench("audit", str(stored), "--json")
    of_results = bench("audit", "results", "--json")
    assert of_run.exit_code == of_results.exit_code == 0
    assert json.loads(of_results.stdout)["records"] == json.loads(of_run.stdout)["records"] > 0


def test_a_later_run_without_a_record_is_named_and_not_compared_in_silence(bench: Bench, stored: Path) -> None:
    later = Path("results/later")
    later.mkdir()
    (later / "plan.json").write_bytes((stored / "plan.json").read_bytes())
    named = f"{later} is newer and has no record yet: this is results/{stored.name}"
    for words in (("compare", "--json"), ("results", "show"), ("audit",)):
        assert named in bench(*words).stderr
    os.utime(later / "plan.json", ns=(1, 1))
    heard = bench("compare", "--json").stderr
    assert "is newer" not in heard
    assert f"results/{stored.name}: written last of 2 runs in results/" in heard
    shutil.rmtree(later)
    assert "written last" not in bench("compare", "--json").stderr, "no other could be meant"


# ---- the other commands


def test_the_doctor_answers_programs_and_people_with_reasons_and_remedies(bench: Bench, machine: Machine) -> None:
    machine.usable["vm"] = False
    said = json.loads(ended_well(bench("doctor", "--json")).stdout)
    answer, (vm,) = said["answer"], (each for each in said["checks"] if each["name"] == "vm")
    assert (said["schema_version"], answer["absent"]) == (1, ["vm"])
    assert answer["measurable"] == ["bare-metal", "container", "container-vm"]
    assert (vm["usable"], vm["reason"], vm["remedy"]) == (False, "vm is not there", "install vm")
    shown = " ".join(ended_well(bench("doctor")).stdout.split())
    assert "vm is not there; install vm" in shown
    assert shown.startswith(
        "Can be measured here: bare-metal, container (docker, podman, runc), container-vm. "
        "Does not work: vm (vm is not there). "
        "Next: bench run "
    )


def test_programs_of_the_system_are_found_where_debian_leaves_them_out_of_a_users_path(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games")
    assert bench("completion", "bash").exit_code == 0
    assert {"/usr/sbin", "/sbin"} <= set(os.environ["PATH"].split(os.pathsep))
    assert os.environ["PATH"].startswith("/usr/local/bin:"), "a user's own programs come first"


def test_the_doctor_puts_long_rows_last_and_ends_with_1_where_no_target_works(
    bench: Bench, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = Check(kind="accelerator", name="kvm", usable=True, evidence="word " * 60)
    monkeypatch.setattr("commands.machine.examine_as_far_as_possible", lambda: [long, *machine.examine()])
    lines = bench("doctor").stdout.splitlines()
    place = next(number for number, line in enumerate(lines) if "accelerator kvm" in line)
    assert all(line.split(maxsplit=1)[0] not in ("yes", "no") for line in lines[place + 1 :])
    machine.usable = dict.fromkeys(machine.usable, False)
    result = bench("doctor")
    assert result.exit_code == 1
    assert result.stdout.startswith("Can be measured here: nothing.")
    assert "Next: install bare-metal" in result.stdout
    assert bench("doctor", "--json").exit_code == 1


def test_clean_names_what_it_removed_and_ends_with_1_when_something_stays(bench: Bench, here: Path) -> None:
    left = here / "home/left-0123456789ab"
    left.mkdir(parents=True)
    (here / "home/ledger").mkdir()
    owner = {"owner_pid": 2**22 + 1, "owner_started": 0, "owner_namespace": pid_namespace()}
    entry = {"kind": "directory", "what": str(left), "boot_id": boot_id(), **owner}
    (here / "home/ledger/a.json").write_text(json.dumps(entry))
    assert bench("clean", "--dry-run").stdout == f"would be removed: directory {left}\n"
    assert left.exists()
    assert ended_well(bench("clean")).stdout == f"removed: directory {left}\n"
    assert not left.exists()
    (here / "home/ledger/a.json").write_text("{}")
    result = bench("clean")
    assert result.exit_code == 1
    assert "not an entry of this suite's ledger" in result.stderr
    assert "what to do:" in result.stderr


def test_a_path_is_never_the_file_minus_and_its_home_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert UserPath().convert("~/night", None, None) == Path("/home/me/night")
    assert UserPath().convert("./-", None, None) == Path("-")
    with pytest.raises(click.BadParameter, match="does not stand for standard output"):
        UserPath().convert("-", None, None)


@pytest.mark.parametrize("words", [("run", "--help"), ("compare", "--help")], ids=" ".join)
def test_modules_of_the_users_that_have_the_names_of_the_suites_hide_none(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text("x = 1")
    program = [sys.executable, "-m", "virtbench", *words]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(cli.__file__).parent}"}
    ended = subprocess.run(program, check=False, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert (ended.returncode, ended.stderr) == (0, "")
