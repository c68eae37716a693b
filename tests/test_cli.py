"""The commands, without an image or a virtual machine: what is asked of the machine is answered by the test."""

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import psutil
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

import cli
from analysis.audit.audit import Audit
from analysis.report.provenance import run_command
from commands.run.command import run
from commands.run.prepare import Ready, ready
from commands.run.request_command import request_of
from provisioning import ledger, nodes
from provisioning.doctor import Check
from provisioning.images.image import Image
from scenarios.command import CommandOptions
from suite import __version__
from suite.errors import MeasurementError, flag
from suite.job.datasets import Dataset
from suite.job.envelope import GIB
from suite.job.job import settings
from suite.job.sharing import SMALL_ALEXNET
from suite.plan import Trial
from suite.records.environment import Environment, Environments
from suite.records.record import Steps
from suite.records.usage import Conditions, Resources, Usage
from suite.registries import ENGINES, PROBES, WORKLOADS, every_registry
from suite.request.request import OPTIONS, RunRequest
from suite.results.store import Run, plan_differences, request_stop
from suite.targets import TARGETS
from tests.analysis.conftest import timeline
from tests.scenarios.test_own_workload import TOY
from tests.suite.conftest import FakeScenario, FakeTargets, make_plan, make_record, measuring_by

Bench = Callable[..., Result]
ROOT = Path(__file__).parents[1]
CPUS = sorted(os.sched_getaffinity(0))


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """The commands set handlers, which no other test is to meet."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory and folders of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIRTBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("VIRTBENCH_DEBUG", raising=False)
    (tmp_path / "run").mkdir(mode=0o700)
    for module in (ledger, nodes):
        monkeypatch.setattr(module, "runtime", lambda: tmp_path / "run")
    return tmp_path


@pytest.fixture
def bench() -> Bench:
    """``bench("compare", "--json")``: the command's exit code, standard output and standard error."""

    def _bench(*words: str) -> Result:
        return CliRunner().invoke(cli.main, list(words), prog_name="bench")

    return _bench


def check(kind: Any, name: str, *, usable: bool = True) -> Check:
    reason, remedy = (None, None) if usable else (f"{name} is not there", f"install {name}")
    return Check(kind=kind, name=name, usable=usable, evidence="seen", reason=reason, remedy=remedy)


class Machine:
    """What the machine answers when it is examined, and what was run on it."""

    def __init__(self) -> None:
        self.usable = dict.fromkeys((*TARGETS, "docker", "podman", "runc"), True)
        self.events: list[str] = []
        self.targets = FakeTargets(self.events)
        self.scenario = FakeScenario(self.events)

    def examine(self, _named: object = None) -> list[Check]:
        kinds = {name: "target" if name in TARGETS else "engine" for name in self.usable}
        return [check(kinds[name], name, usable=usable) for name, usable in self.usable.items()]


@pytest.fixture
def unaudited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let records count that the audit refuses: the fakes claim more images than their steps make."""
    monkeypatch.setattr("analysis.audit.audit.audit", lambda records, **_: Audit((), len(records.trials)))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine that carries everything and has an image; targets and scenario are fakes."""
    made = Machine()
    image = Image(digest="a" * 64, variant="cpu", recipe_sha256="b" * 64, created_at="2026", base="debian", files={})
    monkeypatch.setattr(Image, "check", lambda _: None)
    monkeypatch.setattr("provisioning.doctor.examine", made.examine)
    monkeypatch.setattr("provisioning.sites.here.examined", lambda *_: ([], "nvml is not there", None))
    monkeypatch.setattr("commands.machine.examine_as_far_as_possible", made.examine)
    monkeypatch.setattr("provisioning.images.image.current", lambda _variant: image)
    monkeypatch.setattr("provisioning.machines.accelerator.choose", lambda _requested: ("tcg", "asked for"))
    monkeypatch.setattr("provisioning.isa.shared", lambda *_, **__: "avx2")
    monkeypatch.setattr("commands.run.prepare.Ready.prepare", lambda *_: None)
    monkeypatch.setattr("provisioning.neighbours.alone_on", lambda *_, **__: nullcontext())
    monkeypatch.setattr("commands.run.prepare.Ready.open_target", made.targets.opened)
    measuring_by(made.scenario, monkeypatch)
    return made


def commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))
        else:
            yield (*words, name)


COMMANDS = list(commands(cli.main))


def test_help_imports_no_command_and_has_the_first_sentence_of_each() -> None:
    script = "import sys, cli; cli.main(['--help'], standalone_mode=False); print(*sys.modules, file=sys.stderr)"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    heavy = {"pydantic", "pandas", "rich", "psutil", "commands.run.command", "provisioning"}
    assert heavy & set(told.stderr.split()) == set()
    context = click.Context(cli.main)
    for name in cli.main.list_commands(context):
        command = cli.main.get_command(context, name)
        assert command
        shown = " ".join(told.stdout.partition("Commands:")[2].split())
        assert f"{name} {command.get_short_help_str(78 - 6 - len('completion'))}" in shown


def test_completion_offers_commands_options_and_choices() -> None:
    def offered(*words: str) -> list[str]:
        complete = ShellComplete(cli.main, {}, "bench", "_BENCH_COMPLETE")
        return [each.value for each in complete.get_completions(list(words[:-1]), words[-1])]

    assert offered("rep") == ["reproduce", "report"]
    assert offered("run", "--aggressor") == ["--aggressor", "--aggressors", "--aggressor-batch"]
    assert offered("run", "--engine", "") == [*ENGINES]
    assert offered("run", "--model", "a") == ["alexnet", "alexnet-small", "all"]
    assert offered("run", "--scenario", "synthetic", "--model", "alexnet-") == []


def test_help_of_run_begins_with_what_most_people_need_and_can_be_of_one_scenario(bench: Bench) -> None:
    whole = bench("run", "--help").output
    options = [line.split()[0].strip(",") for line in whole.splitlines() if line.startswith("  --")]
    common = ["scenario", "model", "profile", "target", "engine", "cpus", "memory", "blocks", "until", "detect"]
    common += ["margin", "out", "continue", "dry-run", "concurrent", "wait", "json"]
    assert options[: len(common)] == [f"--{name}" for name in common]
    assert set(options) >= {flag(name) for name in OPTIONS}
    shared = bench("run", "--scenario", "shared", "--help").output
    assert "--aggressor-batch" in shared
    assert "--strategy" not in shared
    assert "--fio-job" not in shared


def test_the_version_is_told(bench: Bench) -> None:
    result = bench("--version")
    assert (result.exit_code, result.output) == (0, f"bench, version {__version__}\n")


def test_all_commands_are_there() -> None:
    assert {("doctor",), ("image", "build"), ("image", "verify"), ("image", "list"), ("run",)} < set(COMMANDS)
    assert {("compare",), ("clean",), ("completion",)} < set(COMMANDS)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_the_help_of_every_command_has_an_example_of_it(bench: Bench, words: tuple[str, ...], option: str) -> None:
    result = bench(*words, option)
    assert result.exit_code == 0
    assert "Examples:" in result.output
    assert f"  {' '.join(('bench', *words))}" in result.output.partition("Examples:")[2]


def test_the_help_tells_the_exit_codes(bench: Bench) -> None:
    assert "0 done; 1 a measurement failed; 2 the request was wrong; 130 interrupted" in bench("--help").output


# ---- wrong requests


def refused(result: Result, *words: str) -> None:
    """The command ended with 2 and a message of one line with the words in it, before anything was started."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    for word in words:
        assert word in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("option", "wrong", "nearest"),
    [
        ("--target", "container-wm", "container-vm"),
        ("--model", "resnet05", "resnet50"),
        ("--profile", "smok", "smoke"),
        ("--engine", "dokcer", "docker"),
        ("--scenario", "syntetic", "synthetic"),
        ("--recipe", "tunned", "tuned"),
        ("--accel", "kmv", "kvm"),
        ("--device", "cud", "cuda"),
        ("--parallel", "dpp", "ddp"),
        ("--isa", "sharde", "shared"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(bench: Bench, option: str, wrong: str, nearest: str) -> None:
    refused(bench("run", option, wrong), repr(wrong), f"did you mean {nearest}?", "choose among")


def test_a_name_like_no_other_is_refused_with_all_of_them(bench: Bench) -> None:
    result = bench("run", "--target", "moon")
    refused(result, "'moon'", "choose among bare-metal, container, vm, container-vm, all")
    assert "did you mean" not in result.stderr


@pytest.mark.parametrize("value", ["0", "-1"])
@pytest.mark.parametrize(
    "option",
    [
        *("--threads", "--blocks", "--repeat", "--batch", "--image-px", "--steps", "--trial-timeout", "--devices"),
        *("--min-blocks", "--max-blocks"),
    ],
)
def test_zero_and_negative_numbers_are_refused(bench: Bench, option: str, value: str) -> None:
    refused(bench("run", option, value), value, "give a number from 1 up")


@pytest.mark.parametrize("option", ["--warmup-steps", "--seed"])
def test_a_number_that_may_be_zero_may_not_be_negative(bench: Bench, option: str) -> None:
    refused(bench("run", option, "-1"), f"{option} -1", "give a number from 0 up")


def test_what_is_no_number_is_refused(bench: Bench) -> None:
    refused(bench("run", "--steps", "many"), "--steps", "many")


@pytest.mark.usefixtures("machine")
def test_too_many_cpus_are_refused_with_the_arithmetic(bench: Bench) -> None:
    wanted = len(CPUS) + 1
    result = bench("run", "--target", "bare-metal", "--cpus", str(wanted))
    refused(result, f"--cpus {wanted}: this host allows CPUs", f"({len(CPUS)})", f"ask for 1 to {len(CPUS)}")
    refused(bench("run", "--target", "bare-metal", "--cpus", f"0-{CPUS[-1] + 1}"), f"no CPU {CPUS[-1] + 1}")


@pytest.mark.usefixtures("machine")
def test_too_much_memory_is_refused_with_the_arithmetic(bench: Bench) -> None:
    has = psutil.virtual_memory().total / GIB
    result = bench("run", "--target", "bare-metal", "--memory", "900T")
    refused(result, f"921600.0 GiB of memory asked for, the host has {has:.1f} GiB", "lower --memory")


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("text", ["much", "0", "-4G", "0.5"])
def test_what_is_no_amount_of_memory_is_refused(bench: Bench, text: str) -> None:
    refused(bench("run", "--target", "bare-metal", "--memory", text), repr(text), "write it as 512M or 4G")


@pytest.mark.usefixtures("machine")
def test_more_threads_than_cpus_are_refused(bench: Bench) -> None:
    result = bench("run", "--target", "bare-metal", "--cpus", "1", "--threads", "2")
    refused(result, "--threads 2 on 1 CPUs", "ask for 1 to 1")


COLLECTIVES = ("--scenario", "distributed", "--model", "collectives")
GAN = ("--scenario", "distributed", "--model", "gan")
SPLIT = ("--scenario", "distributed", "--strategy", "split")
AGGRESSIVE = ("--scenario", "shared", "--memory", "2G", "--cpus", "0-1", "--aggressor")


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--image-px", "16"), "resnet50 cannot take images of 16 px"),
        (("--gpus", "0,x"), "--gpus: 'x' is not an index or UUID of a GPU"),
        (("--device", "cuda"), "nvml is not there"),
        (("--until", "2%", "--blocks", "3"), "exclude each other"),
        (("--until", "200%"), "is not a share"),
        (("--detect", "2%", "--blocks", "3"), "--detect and --blocks exclude each other"),
        (("--detect", "2%", "--until", "2%"), "--detect and --until exclude each other"),
        (("--detect", "2", "--target", "all"), "is not a share"),
        (("--detect", "2%", "--target", "bare-metal"), "--detect needs ratios"),
        (("--until", "2%", "--budget", "soon"), "is not a span of time"),
        (("--ablate", "seccomp"), "none of bare-metal has it"),
        (("--ablate", "secomp"), "did you mean seccomp?"),
        (("--ablate", "huge-pages", "--recipe", "tuned"), "has them already"),
        (("--profile", "gpu"), "--profile gpu needs --device cuda"),
        (("--profile", "gpu", "--device", "cuda", "--scenario", "probe"), "needs --scenario synthetic or real"),
        (("--profile", "gpu", "--device", "cuda", "--scenario", "distributed"), "needs --scenario synthetic or real"),
        (("--profile", "gpu", "--device", "cuda", "--design", "both"), "--profile gpu needs --design sequential"),
        (("--profile", "gpu", "--device", "cuda", "--parallel", "ddp"), "needs --parallel none or parameter-cpu"),
        (("--ablate", "channels-last", "--recipe", "tuned"), "has them already"),
        (("--ablate", "channels-last", "--model", "transformer"), "channels-last: transformer has no images"),
        (("--ablate", "channels-last", "--scenario", "probe"), "channels-last is about the images of a training"),
        (("--data", "generated"), "with --scenario synthetic"),
        (("--cache", "warm"), "--cache does not apply to --scenario synthetic"),
        (("--scenario", "real", "--data", "imagenet:/nowhere"), "/nowhere"),
        (("--scenario", "real", "--data", "coco:/d"), "is not a data set"),
        (("--workers", "3"), "--workers does not apply to --scenario synthetic"),
        (("--aggressor", "disk"), "--aggressor does not apply to --scenario synthetic"),
        (("--aggressors", "2"), "--aggressors does not apply to --scenario synthetic"),
        (("--bare-metal-cpus", "equal"), "--bare-metal-cpus does not apply to --scenario synthetic"),
        (("--scenario", "shared", "--aggressor", "dsk"), "did you mean disk?"),
        (("--scenario", "shared"), "a victim and 1 aggressors share 0.0 GiB: 0.00 GiB each, and each needs 0.62 GiB"),
        (("--scenario", "shared", "--until", "2%"), "--until does not apply to --scenario shared"),
        (("--model", "collectives"), "collectives cannot be trained in the scenario synthetic"),
        ((*AGGRESSIVE, "collectives"), "collectives cannot be trained in the scenario shared"),
        (COLLECTIVES, "between workers, which --strategy parameter-server does not have it do"),
        ((*COLLECTIVES, "--strategy", "all-reduce", "--workers", "1"), "between workers, which --workers 1 does not"),
        ((*GAN, "--strategy", "parameter-server"), "parameter servers update by plain gradient descent, and gan has"),
        ((*SPLIT, "--model", "vae"), "vae has no generator and discriminator that --strategy split"),
        ((*SPLIT, "--model", "alexnet"), "alexnet has no generator and discriminator"),
        ((*SPLIT, "--model", "progressive-gan"), "progressive-gan has no generator and discriminator"),
        ((*SPLIT, "--model", "gan", "--workers", "3"), "one for the discriminator, not 3"),
        ((*SPLIT, "--model", "gan", "--ps", "1"), "--ps and --strategy split exclude each other"),
        (("--model", "alexnet-small"), "--model alexnet-small is not for --scenario synthetic"),
        (("--fio-job", "job.fio"), "--fio-job does not apply to --scenario synthetic"),
        (("--scenario", "probe", "--fio-job", "nowhere.fio"), "nowhere.fio cannot be read"),
        (("--warmup-blocks", "-1"), "give a number from 0 up"),
        (("--",), "no program behind --"),
        (("--scenario", "real", "--", "true"), "a program behind -- and --scenario real exclude each other"),
        (("--scenario", "command", "--command", "true", "--", "true"), "behind -- and --command exclude each other"),
        (("--", "A=1", "true"), "A=1 is set by a shell"),
    ],
)
def test_options_that_cannot_be_served_are_refused(bench: Bench, words: tuple[str, ...], said: str) -> None:
    refused(bench("run", "--target", "bare-metal", "--memory", "1M", *words), said, "what to do:")


def test_a_program_behind_two_dashes_is_a_command_with_the_files_of_this_directory() -> None:
    def asked(*words: str) -> RunRequest:
        return request_of(run, [*words])

    files = asked("--profile", "smoke", "--", "python", "train.py", "--help", "a b")
    assert files == asked(
        *("--profile", "smoke", "--scenario", "command", "--command", "python train.py --help 'a b'"),
        *("--command-files", ".", "--throughput-pattern", "auto"),
    )
    chosen = asked("--throughput-pattern", "json", "--unit", "rows", "--command-files", "mine", "--", "sh", "--", "x")
    assert (chosen.options(CommandOptions).command, chosen.options(CommandOptions).unit) == ("sh -- x", "rows")


def test_a_target_that_the_machine_cannot_carry_is_refused_when_it_was_named(bench: Bench, machine: Machine) -> None:
    machine.usable["vm"] = False
    refused(bench("run", "--target", "vm"), "this machine cannot carry vm: vm is not there", "install vm")
    assert machine.events == []


def test_an_engine_that_does_not_work_is_refused(bench: Bench, machine: Machine) -> None:
    machine.usable["podman"] = False
    result = bench("run", "--target", "container", "--engine", "podman")
    refused(result, "--engine podman: podman is not there", "install podman")


def test_without_an_image_it_is_told_how_to_build_one(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("provisioning.doctor.examine", Machine().examine)
    refused(bench("run", "--target", "bare-metal"), "no cpu image has been built", "bench image build")
    refused(bench("image", "verify"), "no cpu image has been built")
    refused(bench("image", "verify", "abcdefabcdef"), "no image 'abcdefabcdef'")


def test_an_error_is_a_traceback_where_it_is_asked_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTBENCH_DEBUG", "1")
    result = bench("run", "--target", "moon")
    assert type(result.exception).__name__ == "RequestError"


# ---- a run on fakes

SMALL = ("--memory", "1M", "--cpus", "1", "--out", "out")


def test_a_run_measures_every_target_and_tells_where_the_records_are(
    bench: Bench, machine: Machine, here: Path
) -> None:
    result = bench("run", *SMALL, "--json", "--repeat", "2", "--seed", "5")
    assert result.exit_code == 0, result.stderr
    said = json.loads(result.stdout)
    assert (said["run_id"], said["directory"], said["failed"]) == ("out", "out", [])
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
    none = dict.fromkeys(("channels", "tokens", "depth", "epochs", "settle_s", "least_s"))
    sizes = {"batch": 3, "image_px": 40, "steps": 5, "warmup_steps": 0, **none}
    assert [job["sizes"] for job in plan["jobs"]] == [sizes]
    assert plan["trial_timeout_s"] == 9
    assert len(machine.events) == 3


@pytest.mark.parametrize(
    ("model", "target", "least"), [("resnet50", "vm", 1000), ("resnet50", "container", 600), ("vae", "vm", 700)]
)
def test_the_limit_of_a_trial_follows_its_forecast_where_the_cpu_is_emulated(
    bench: Bench, machine: Machine, here: Path, model: str, target: str, least: int
) -> None:
    """Beside other work, one of ResNet-50 took 265 s on a VM and more than 600 s in a container there."""
    del machine
    words = ["--model", model, "--target", target, "--scenario", "synthetic", "--profile", "smoke", "--out", "out"]
    assert bench("run", *words).exit_code == 0
    limit = json.loads((here / "out/plan.json").read_text())["trial_timeout_s"]
    assert limit >= least
    assert limit == 600 or target == "vm"


def test_a_run_without_json_tells_the_same_to_people(bench: Bench, machine: Machine) -> None:
    result = bench("run", *SMALL, "--target", "vm")
    assert (result.exit_code, result.stdout) == (0, ""), "the audit refuses what a fake claims to have measured"
    assert "1 trial measured, 0 failed: out" in result.stderr
    assert "bench compare out" in result.stderr
    assert machine.events[0].startswith("open")


def test_a_run_without_a_directory_goes_to_the_results(bench: Bench, machine: Machine, here: Path) -> None:
    assert bench("run", *SMALL[:4], "--target", "vm").exit_code == 0
    (plan,) = (here / "results").glob("*/plan.json")
    assert (plan.parent / "trials").is_dir()
    assert machine.events


def test_of_all_targets_those_that_the_machine_cannot_carry_are_left_out(bench: Bench, machine: Machine) -> None:
    machine.usable["vm"] = machine.usable["container-vm"] = False
    result = bench("run", *SMALL, "--target", "all", "--json")
    assert result.exit_code == 0
    assert len(json.loads(result.stdout)["trials"]) == 2
    assert "vm is left out: vm is not there (what to do: install vm)" in result.stderr


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


def test_a_trial_that_fails_makes_the_exit_code_1_and_the_others_are_measured(bench: Bench, machine: Machine) -> None:
    machine.scenario.failing["vm"] = MeasurementError("the worker died", kind="worker")
    result = bench("run", *SMALL, "--json")
    assert result.exit_code == 1
    said = json.loads(result.stdout)
    assert said["failed"] == ["synthetic-resnet50-vm-b000"]
    assert len(said["trials"]) == len(TARGETS)
    assert "FAILED (worker): the worker died" in result.stderr
    whole = "bench results show out/synthetic-resnet50-vm-b000"
    assert f"the first failure in full: {whole}\n" in result.stderr
    assert "worker: the worker died" in bench(*whole.split()[1:]).stdout


def test_the_same_command_again_goes_on_and_another_plan_is_refused(bench: Bench, machine: Machine) -> None:
    assert bench("run", *SMALL).exit_code == 0
    machine.events.clear()
    again = bench("run", *SMALL, "--json")
    assert (again.exit_code, json.loads(again.stdout)["trials"]) == (0, [])
    assert machine.events == []
    refused(bench("run", *SMALL, "--seed", "9"), "holds a run of another plan: seed differ", "--out")


def test_a_run_that_somebody_else_is_writing_is_refused(bench: Bench, machine: Machine, here: Path) -> None:
    with Run(here / "out").exclusive():
        refused(bench("run", *SMALL), "another bench is writing out")
    assert machine.events == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_run_in_order_with_130(
    bench: Bench, machine: Machine, here: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    measure = machine.scenario.measure

    def interrupted(trial: Trial, *rest: Any) -> Any:
        if trial.position == 1:
            os.kill(os.getpid(), number)
        return measure(trial, *rest)

    monkeypatch.setattr(machine.scenario, "measure", interrupted)
    result = bench("run", *SMALL)
    assert result.exit_code == cli.INTERRUPTED == 130
    assert "what was measured is kept" in result.stderr
    assert signal.getsignal(number) == signal.SIG_IGN, "a further one does not change the exit code"
    assert len(list((here / "out/trials").glob("*.json"))) == 1
    assert machine.events[-1].startswith("close"), "the target was closed"
    assert list((here / "home/ledger").glob("*.json")) == []


def test_a_run_that_is_asked_to_stop_ends_after_its_trial_and_goes_on_later(
    bench: Bench, machine: Machine, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = machine.scenario.measure

    def stopping(trial: Trial, *rest: Any) -> Any:
        assert ledger.LedgerEntry.model_validate_json(next((here / "home/ledger").glob("*.json")).read_text())
        if trial.position == 1:
            request_stop(here / "out")
        return measure(trial, *rest)

    monkeypatch.setattr(machine.scenario, "measure", stopping)
    stopped = bench("run", *SMALL, "--json")
    assert (stopped.exit_code, len(json.loads(stopped.stdout)["trials"])) == (0, 2)
    assert "stopped, as it was asked to; go on with: bench run --continue out" in stopped.stderr
    monkeypatch.setattr(machine.scenario, "measure", measure)
    again = bench("run", "--continue", "out", "--json")
    assert (again.exit_code, len(json.loads(again.stdout)["trials"])) == (0, len(TARGETS) - 2)


def test_a_request_to_stop_that_comes_while_a_run_gets_ready_is_heard_and_an_older_one_is_not(
    bench: Bench, here: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine
    (here / "out").mkdir()
    request_stop(here / "out")
    os.utime(here / "out/.stop", (1, 1))
    assert bench("run", *SMALL).exit_code == 0
    shutil.rmtree(here / "out")
    prepare = Ready.prepare

    def stopped(made: Ready, *rest: Any) -> None:
        request_stop(here / "out")
        prepare(made, *rest)

    monkeypatch.setattr(Ready, "prepare", stopped)
    done = bench("run", *SMALL, "--json")
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
    result = bench("run", *SMALL)
    assert result.exit_code == cli.INTERRUPTED
    assert "these are left: cgroup virtbench-0123456789ab (virtbench-0123456789ab is busy)" in result.stderr
    assert "bench clean" in result.stderr
    assert "everything started is ended" not in result.stderr


def test_want_of_memory_in_bench_itself_is_a_message(
    bench: Bench, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(machine, "examine", full)
    monkeypatch.setattr("provisioning.doctor.examine", full)
    result = bench("run", *SMALL)
    assert result.exit_code == 1
    assert "bench: this process has no memory left" in result.stderr
    assert "what to do" in result.stderr


@pytest.mark.usefixtures("unaudited")
def test_until_goes_on_block_by_block_until_the_most(bench: Bench, machine: Machine, here: Path) -> None:
    two = ("--target", "bare-metal", "--target", "vm")
    result = bench("run", *SMALL, *two, "--until", "2%", "--max-blocks", "2", "--min-blocks", "2")
    assert result.exit_code == 0, result.stderr
    assert len([event for event in machine.events if event.startswith("measure")]) == 2 + 4, "a warm-up block first"
    assert "stopped after 2 blocks" in result.stderr
    assert json.loads((here / "out/plan.json").read_text())["blocks"] == 2


@pytest.mark.usefixtures("machine", "unaudited")
def test_a_run_until_that_was_killed_in_its_last_block_finishes_it(bench: Bench, here: Path) -> None:
    words = ("--target", "bare-metal", "--target", "vm", "--until", "2%", "--max-blocks", "2", "--min-blocks", "2")
    assert bench("run", *SMALL, *words).exit_code == 0
    (lost,) = (here / "out/trials").glob("*-vm-b001.json")
    lost.unlink()
    result = bench("run", *SMALL, *words)
    assert result.exit_code == 0, result.stderr
    assert lost.exists()
    assert "stopped after 2 blocks" in result.stderr


@pytest.mark.usefixtures("machine")
def test_no_block_is_decided_on_by_records_that_the_audit_refuses(bench: Bench) -> None:
    two = ("--target", "bare-metal", "--target", "vm")
    for asked in (("--until", "2%"), ("--detect", "2%")):
        result = bench("run", "--memory", "1M", "--cpus", "1", "--out", asked[0].strip("-"), *two, *asked)
        assert result.exit_code == 2
        assert "the audit refuses every record" in result.stderr
        assert "stopped after" not in result.stderr


DETECT = ("--target", "bare-metal", "--target", "vm", "--detect", "2%")


@pytest.mark.usefixtures("unaudited")
def test_detect_plans_all_blocks_once_from_the_first_ones(bench: Bench, machine: Machine, here: Path) -> None:
    result = bench("run", *SMALL, *DETECT)
    assert result.exit_code == 0, result.stderr
    assert "10 blocks first, as a pilot" in result.stderr
    assert "about 20 blocks in all" in result.stderr, "the fakes are as steady as can be"
    assert len([event for event in machine.events if event.startswith("measure")]) == 2 + 2 * 20
    plan = json.loads((here / "out/plan.json").read_text())
    assert (plan["blocks"], plan["detection"]["source"], plan["detection"]["measured"]) == (20, "pilot", 10)


@pytest.mark.usefixtures("machine", "unaudited")
def test_a_run_to_detect_that_was_killed_keeps_what_was_planned(bench: Bench, here: Path) -> None:
    assert bench("run", *SMALL, *DETECT).exit_code == 0
    lost = [record for record in (here / "out/trials").glob("*.json") if record.stem[-4:] in ("b003", "b019")]
    for record in lost:
        record.unlink()
    assert (
        "trials: 42, the first block to warm up, 4 still to be run"
        in bench("run", "--continue", "out", "--dry-run").stdout
    )
    result = bench("run", *SMALL, *DETECT)
    assert result.exit_code == 0, result.stderr
    assert "blocks first" not in result.stderr
    assert "about 20 blocks in all" in result.stderr
    assert len(lost) == 4
    assert all(record.exists() for record in lost)


@pytest.mark.usefixtures("machine", "unaudited")
def test_detect_plans_from_earlier_runs_that_are_alike(bench: Bench, here: Path) -> None:
    assert bench("run", *SMALL, *DETECT, "--out", "results/before").exit_code == 0
    result = bench("run", *SMALL, *DETECT, "--out", "results/after")
    assert result.exit_code == 0, result.stderr
    assert "(20 earlier blocks: the standard deviation of resnet50 on vm is 0 % from block to block)" in result.stderr
    assert json.loads((here / "results/after/plan.json").read_text())["blocks"] == 5
    other = bench("run", *SMALL, *DETECT, "--batch", "3", "--max-blocks", "2", "--out", "results/other")
    assert "2 blocks first, as a pilot" in other.stderr, "of another job"


@pytest.mark.usefixtures("unaudited")
def test_detect_begins_no_block_after_its_budget(bench: Bench, machine: Machine) -> None:
    result = bench("run", *SMALL, *DETECT, "--budget", "0.000001s")
    assert result.exit_code == 0, result.stderr
    assert "stopped after the warm-up: the budget is spent; to go on: bench run --continue out" in result.stderr
    assert len([event for event in machine.events if event.startswith("measure")]) == 2


# ---- a run repeated

DATASET = Dataset(kind="imagefolder", directory="/set", sha256="ab" * 32, images=900, size_bytes=4000)


@pytest.mark.parametrize(
    "asked",
    [
        {"model": "all", "until": "2%", "max_blocks": 9, "budget": "1h", "aa": True},
        {"detect": "2%", "min_blocks": 12, "max_blocks": 40},
        {"recipe": "tuned", "batch": 3, "warmup_steps": 0, "trial_timeout": 9, "isa": "native", "seed": 5, "blocks": 4},
        {"target": ["bare-metal", "container"], "engine": "podman", "ablate": ["seccomp", "isa"], "warmup_blocks": 2},
        {"model": ["./my_model.py", "./my_model.py:TOY"], "profile": "smoke"},
        {"scenario": "real", "data": "generated", "cache": "warm", "loader_workers": 0, "decoder": "pillow"},
        {"scenario": "real", "data": "frames:/ucf", "frame_stride": 2},
        {"scenario": "probe", "probe": ["cpu", "disk"], "fio_job": "my.fio", "cpus": "1"},
        {"scenario": "command", "command": "python train.py 'a b'", "command_files": "mine", "seed": 4},
        {"scenario": "command", "command": "true", "throughput_pattern": "json", "unit": "rows", "threads": 1},
        {"scenario": "distributed", "target": "bare-metal"},
        {"scenario": "distributed", "target": "vm", "strategy": "all-reduce", "workers": 3, "comm_timeout": 7},
        {"scenario": "distributed", "target": "container", "network": "overlay", "lab": "nodes=4,rate=1gbit", "ps": 2},
        {"scenario": "shared", "target": "bare-metal", "profile": "smoke"},
        {"scenario": "shared", "target": "bare-metal", "aggressor": ["disk", "alexnet"], "aggressor_batch": 3},
    ],
    ids=lambda asked: "-".join(map(str, asked.values())).replace(" ", ""),
)
@pytest.mark.usefixtures("machine")
def test_the_command_of_a_plan_makes_an_equal_plan(
    asked: dict[str, object], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "my.fio").write_text("[one]\nrw=read\nsize=1m\n")
    (here / "my_model.py").write_text(TOY)
    (here / "mine").mkdir()
    (here / "mine/train.py").write_text("pass")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=1 << 40))
    monkeypatch.setattr("scenarios.datasets.resolve.resolve", lambda given, *_: (given.partition(":")[0], DATASET))
    first = ready(RunRequest.of(asked), print).plan
    monkeypatch.chdir("/")
    again = ready(request_of(run, run_command(first)[2:]), print).plan
    assert plan_differences(first, again) == []
    assert run_command(again) == run_command(first)


COURSE = {
    "blocks": 5,
    "until": "2%",
    "margin": "5%",
    "detect": "2%",
    "warmup_blocks": 3,
    "budget": "1h",
    "aa": True,
    "min_blocks": 4,
    "max_blocks": 50,
    "trial_timeout": 77,
    "comm_timeout": 88,
    "namespace": "lab",
    "registry": "registry.example/team",
    "containerd": "/run/containerd/other.sock",
    "context": "minikube",
    "node": "n1,n2",
}


def test_the_options_that_change_no_meaning_are_known() -> None:
    assert {name for name, option in OPTIONS.items() if not option.about.meaning} == set(COURSE)


@pytest.mark.parametrize("name", COURSE)
@pytest.mark.usefixtures("machine")
def test_an_option_of_the_course_leaves_the_comparison_key_as_it_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=1 << 40))
    usual = {"scenario": "distributed", "target": ["bare-metal", "vm"]}
    needed = {"until": "2%"} if name in ("min_blocks", "max_blocks", "budget") else {}
    before, after = (
        ready(RunRequest.of(usual | more), lambda _: None).plan for more in ({}, {**needed, name: COURSE[name]})
    )
    assert [settings(job) for job in after.jobs] == [settings(job) for job in before.jobs]
    assert (after.targets, after.ablations, after.seed) == (before.targets, before.ablations, before.seed)


# ---- compare


@pytest.fixture
def run_of_two(here: Path) -> Path:
    """Two blocks in which the VM has half the throughput of bare metal."""
    run = Run(here / "results/20260101T000000-1")
    plan = run.begin(make_plan(targets=("bare-metal", "vm"), blocks=2))
    seen = Environment(userland_sha256="a" * 64, torch_cpu_capability="AVX2")
    for number, trial in enumerate(plan.trials()):
        sizes, step_s = trial.job.sizes, 0.1 if trial.target == "bare-metal" else 0.2
        assert sizes is not None
        spent_s = [step_s] * sizes.steps
        machine = {"accelerator": "tcg", "hypervisor": "QEMU"} if trial.target == "vm" else {}
        made = make_record(
            trial_id=trial.trial_id,
            run_id=run.run_id,
            started_at=f"2026-01-01T00:{number:02d}:00+00:00",
            target=trial.target,
            block=trial.block,
            position=trial.position,
            seed=trial.seed,
            throughput_per_s=sizes.batch / step_s,
            steps=Steps(elapsed_s=spent_s, data_s=[0.0] * sizes.steps, compute_s=spent_s),
            timeline=timeline(sum(spent_s), 5.0),
            conditions=Conditions(interval_s=5.0),
            resources=Resources(worker=Usage(cpu_s=1.0)),
            open_s=1.0,
            opening={"container": 1.0},
            environment=Environments(host=seen, target=seen.model_copy(update=machine)),
        )
        run.save(made.model_copy(update={"job": trial.job}))
    return run.directory


def test_an_empty_directory_has_nothing_to_compare(bench: Bench, here: Path) -> None:
    (here / "empty").mkdir()
    refused(bench("compare", "empty"), "no usable record in empty", "bench run")
    refused(bench("compare", "gone"), "no directory gone")


def test_without_any_run_there_is_no_latest_one_to_compare(bench: Bench) -> None:
    refused(bench("compare"), "no run in results/", "bench run --target all")


def test_the_comparison_is_json_for_machines(bench: Bench, run_of_two: Path) -> None:
    result = bench("compare", str(run_of_two), "--json")
    assert result.exit_code == 0, result.stderr
    assert '"vm"' in result.stdout
    assert json.loads(result.stdout)


def test_the_comparison_is_csv_with_a_row_for_each_target(bench: Bench, run_of_two: Path) -> None:
    result = bench("compare", str(run_of_two), "--csv")
    assert result.exit_code == 0, result.stderr
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert {row["target"] for row in rows} == {"bare-metal", "vm"}


def test_the_comparison_is_a_table_in_markdown(bench: Bench, run_of_two: Path) -> None:
    result = bench("compare", str(run_of_two), "--markdown")
    assert result.exit_code == 0, result.stderr
    rows = [line for line in result.stdout.splitlines() if line.startswith("|")]
    assert any("bare-metal" in row for row in rows)
    assert any("0.50" in row and "vm" in row for row in rows), "half of bare metal"


def test_the_latest_run_is_compared_by_default_and_drawn(bench: Bench, run_of_two: Path) -> None:
    result = bench("compare")
    assert result.exit_code == 0, result.stderr
    assert "bare-metal" in result.stdout
    told = json.loads(bench("compare", "--json").stdout)["answer"]
    words = " ".join(result.stdout.split())
    subject, _, number = told["lines"][0].rpartition(", ")[0].partition(": ")
    assert words.startswith(f"{subject} {number}")
    assert [words.count(part) for part in (number, f"why: {told['why']}", "next: ")] == [1] * 3
    drawn = {path.suffix for path in (run_of_two / "plots").iterdir()}
    assert drawn == {".png", ".svg"}
    assert f"drawn: {Path('results') / run_of_two.name / 'plots'}" in result.stderr


def test_a_limit_on_the_change_needs_two_runs(bench: Bench, run_of_two: Path) -> None:
    refused(bench("compare", str(run_of_two), "--fail-above", "5%"), "--fail-above compares a run with older ones")


# ---- the other commands


def test_the_doctor_answers_machines_with_every_field(bench: Bench, machine: Machine) -> None:
    machine.usable["vm"] = False
    result = bench("doctor", "--json")
    assert result.exit_code == 0
    said = json.loads(result.stdout)
    assert said["schema_version"] == 1
    keys = ("kind", "name", "usable", "evidence", "reason", "remedy", "substitute")
    assert {tuple(each) for each in said["checks"]} == {keys}
    assert said["answer"]["measurable"] == ["bare-metal", "container", "container-vm"]
    assert said["answer"]["absent"] == ["vm"]
    by_name = {each["name"]: each for each in said["checks"]}
    assert by_name["container"] == {
        "kind": "target",
        "name": "container",
        "usable": True,
        "evidence": "seen",
        "reason": None,
        "remedy": None,
        "substitute": None,
    }
    assert (by_name["vm"]["usable"], by_name["vm"]["reason"]) == (False, "vm is not there")
    assert by_name["vm"]["remedy"] == "install vm"


def test_programs_of_the_system_are_found_where_debian_leaves_them_out_of_a_users_path(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games")
    assert bench("completion", "bash").exit_code == 0
    assert {"/usr/sbin", "/sbin"} <= set(os.environ["PATH"].split(os.pathsep))
    assert os.environ["PATH"].startswith("/usr/local/bin:"), "a user's own programs come first"


def test_the_doctor_answers_people_with_reasons_and_remedies(bench: Bench, machine: Machine) -> None:
    machine.usable["vm"] = False
    result = bench("doctor")
    assert result.exit_code == 0
    assert "vm is not there; install vm" in " ".join(result.stdout.split())
    assert " ".join(result.stdout.split()).startswith(
        "Can be measured here: bare-metal, container (docker, podman, runc), container-vm. "
        "Does not work: vm (vm is not there). "
        "Next: bench run --target bare-metal --target container"
    )


def test_the_doctor_ends_with_1_where_no_target_works(bench: Bench, machine: Machine) -> None:
    machine.usable = dict.fromkeys(machine.usable, False)
    result = bench("doctor")
    assert result.exit_code == 1
    assert result.stdout.startswith("Can be measured here: nothing.")
    assert "Next: install bare-metal" in result.stdout
    assert bench("doctor", "--json").exit_code == 1


def test_the_rows_that_take_several_lines_come_last(
    bench: Bench, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = Check(kind="accelerator", name="kvm", usable=True, evidence="word " * 60)
    monkeypatch.setattr("commands.machine.examine_as_far_as_possible", lambda: [long, *machine.examine()])
    lines = bench("doctor").stdout.splitlines()
    place = next(number for number, line in enumerate(lines) if "accelerator kvm" in line)
    assert all(line.split(maxsplit=1)[0] not in ("yes", "no") for line in lines[place + 1 :])


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (("--engine", "runsc"), "did you mean gvisor?"),
        (("--model", "gpt2"), "did you mean transformer?"),
        (("--target", "docker"), "did you mean container?"),
        (("python", "train.py"), "bench run -- python train.py"),
    ],
)
def test_what_people_mean_by_other_words_is_suggested(bench: Bench, words: tuple[str, ...], remedy: str) -> None:
    refused = bench("run", *words, "--dry-run")
    assert (refused.exit_code, remedy in refused.output) == (2, True), refused.output


def test_clean_says_that_nothing_was_left(bench: Bench) -> None:
    result = bench("clean")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "nothing was left behind\n", "")


def test_clean_names_what_it_removed(bench: Bench, here: Path) -> None:
    left = here / "home/left-0123456789ab"
    left.mkdir(parents=True)
    (here / "home/ledger").mkdir()
    entry = {"kind": "directory", "what": str(left), "boot_id": "before", "owner_pid": 1, "owner_started": 0}
    (here / "home/ledger/a.json").write_text(json.dumps(entry))
    assert bench("clean", "--dry-run").stdout == f"would be removed: directory {left}\n"
    assert left.exists()
    result = bench("clean")
    assert (result.exit_code, result.stdout) == (0, f"removed: directory {left}\n")
    assert not left.exists()


def test_clean_ends_with_1_when_something_stays(bench: Bench, here: Path) -> None:
    (here / "home/ledger").mkdir(parents=True)
    (here / "home/ledger/a.json").write_text("{}")
    result = bench("clean")
    assert result.exit_code == 1
    assert "not an entry of this suite's ledger" in result.stderr
    assert "what to do:" in result.stderr


def test_without_images_the_list_is_empty(bench: Bench) -> None:
    assert bench("image", "list").stdout == ""
    assert json.loads(bench("image", "list", "--json").stdout) == {"schema_version": 1, "images": []}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_of_each_shell_is_a_script_for_bench(bench: Bench, shell: str) -> None:
    result = bench("completion", shell)
    assert result.exit_code == 0
    assert "_BENCH_COMPLETE" in result.stdout


def test_an_unknown_shell_is_refused(bench: Bench) -> None:
    refused(bench("completion", "cmd"), "cmd")


def test_no_help_shows_a_mark_of_its_own_layout() -> None:
    def walk(command: click.Command, context: click.Context) -> Iterator[str]:
        yield command.get_help(context)
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                each = command.get_command(context, name)
                assert each
                yield from walk(each, click.Context(each, parent=context, info_name=name))

    shown = list(walk(cli.main, click.Context(cli.main, info_name="bench")))
    assert len(shown) > 20
    assert [text for text in shown if "\\b" in text or "\b" in text] == []
