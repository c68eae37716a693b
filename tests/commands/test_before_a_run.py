"""What ``bench run`` says before it runs, what it refuses, and what it says while it runs and when it is cut off."""

import html
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import product
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from commands.compare.output import RunOutput
from commands.run.forecast import Forecast
from commands.run.outlook import Outlook
from commands.run.steps import announcement
from commands.web import start
from provisioning import neighbours
from provisioning.doctor import Diagnosis
from suite import progress
from suite.errors import MeasurementError, RequestError
from suite.job.job import Alternating
from suite.measurable import EMULATED_CPU
from suite.plan import Detection, Plan, Trial
from suite.process_identity import ProcessIdentity
from suite.progress import Lines
from suite.request.parts import BURST_STEPS
from suite.request.request import RunRequest
from suite.results.store import Run, stored_plan
from suite.targets import TARGETS
from suite.units import format_duration
from tests.commands.conftest import SMALL, Bench, Machine, ended_well, refused
from tests.integration.bench import REPOSITORY, some
from tests.scenarios.pictures import folder
from tests.scenarios.test_own_workload import TOY
from tests.suite.conftest import make_plan
from tests.test_web import browser, post
from tests.test_web_start import hidden

TWO = ("--target", "bare-metal", "--target", "vm")
DECIDED = (*SMALL, *TWO, "--until", "decided", "--margin", "5%")
ALONE_ON = neighbours.alone_on


def trial_lines(said: str) -> list[str]:
    return [line for line in said.splitlines() if line.startswith("[")]


# ---- before it runs


def test_a_dry_run_starts_and_writes_nothing_and_never_says_unknown(bench: Bench, machine: Machine, here: Path) -> None:
    result = ended_well(bench("run", *SMALL, *TWO, "--blocks", "4", "--dry-run"))
    assert machine.events == []
    assert not (here / "out").exists()
    assert "trials: 10, the first block to warm up" in result.stdout
    assert "ROUGH" in result.stdout
    assert "unknown" not in result.stdout + result.stderr
    assert re.search(r"^time: about \d", result.stdout, re.MULTILINE)
    assert re.search(r"^disk: [\d.]+ MB for records in out \(", result.stdout, re.MULTILINE)
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_the_forecast_counts_kept_models_by_those_of_earlier_runs(bench: Bench, machine: Machine, here: Path) -> None:
    assert machine.events == []
    words = ("--model", "gan", "--scenario", "synthetic", "--keep-model", "last", "--profile", "smoke", *TWO)
    asked = ("run", *words, "--blocks", "3", "--dry-run", "--json", "--out", "out")
    assert "kept models" not in ended_well(bench(*asked)).stdout
    shutil.copytree(REPOSITORY / "tests/samples/runs/kept", here / "results/kept")
    (here / "results/kept/models").mkdir(exist_ok=True)
    (space,) = [each for each in json.loads(ended_well(bench(*asked)).stdout)["disk"] if "models" in each["what"]]
    assert space["size_bytes"] >= 6 * 6065673


def test_the_forecast_counts_the_copy_of_a_directory_and_checkpoints(
    bench: Bench, machine: Machine, here: Path
) -> None:
    def disk(*words: str) -> dict[str, int]:
        asked = ("run", *words, "--target", "bare-metal", "--blocks", "2", "--dry-run", "--json", "--out", "out")
        spaces = json.loads(ended_well(bench(*asked)).stdout)["disk"]
        return {space["what"]: space["size_bytes"] for space in spaces}

    (here / "mine").mkdir()
    (here / "mine/train.py").write_bytes(bytes(3 << 20))
    command = ("--scenario", "command", "--command", "python train.py", "--command-files", "mine")
    assert disk(*command)["the copy of the directory, while it runs"] >= 3 << 20
    assert "what a trial writes" not in disk(*SMALL)
    assert disk(*SMALL, "--checkpoint", "on", "--checkpoint-every", "2")["what a trial writes"] > 1 << 20
    assert machine.events == []


def test_a_dry_run_foretells_from_earlier_trials_of_this_machine(bench: Bench, machine: Machine) -> None:
    words = (*SMALL[:4], *TWO, "--blocks", "2")
    assert bench("run", *words, "--out", "results/before").exit_code == 0
    machine.events.clear()
    told = json.loads(bench("run", *words, "--dry-run", "--json").stdout)
    assert (told["schema_version"], told["trials"], told["trials_left"]) == (1, 4, 4)
    assert {name: guess["source"] for name, guess in told["targets"].items()} == dict.fromkeys(
        ("bare-metal", "vm"), "records"
    )
    assert told["seconds"] == pytest.approx(4 * 5.5 + 4, abs=3), "four trials of 5.5 s, and what is around them"
    longer = json.loads(bench("run", *words, "--steps", "900", "--dry-run", "--json").stdout)
    assert {guess["source"] for guess in longer["targets"].values()} == {"similar"}
    assert longer["seconds"] > 2 * told["seconds"], "more steps take longer"
    assert machine.events == []


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("chosen", "limit_s"), [((), 600 + 1000), (("--trial-timeout", "700"), 700)])
def test_a_trial_may_take_as_long_as_its_rates_do_beyond_the_profiles_limit(
    bench: Bench, here: Path, chosen: Sequence[str], limit_s: int
) -> None:
    rates = ("--profile", "smoke", "--requests", "100", "--rates", "0.1", "--port", "8000")
    bench("run", "--out", "out", *rates, *chosen, "--target", "bare-metal", "--", "true")  # no server listens
    assert some(stored_plan(here / "out")).trial_timeout_s == limit_s


@pytest.mark.usefixtures("machine")
def test_a_dry_run_says_when_an_open_ended_run_ends_and_what_is_left_of_another(bench: Bench, here: Path) -> None:
    said = bench("run", *DECIDED, "--budget", "900h", "--dry-run").stdout
    assert "when every comparison is decided at a margin of 5%, 100 blocks are measured, or 900h are spent" in said
    assert re.search(r"^time: about .* to .*", said, re.MULTILINE)
    assert bench("run", *SMALL, *TWO, "--blocks", "2").exit_code == 0
    next((here / "out/trials").glob("*-vm-b001.json")).unlink()
    assert "trials: 4, 1 still to be run" in bench("run", "--continue", "out", "--dry-run").stdout


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("words", "added"),
    [
        *product(("--until decided", "--detect 2%", "--design alternating", "--design both", "--aa"), [True]),
        *product(("", "--design alternating --ablate seccomp"), [False]),
    ],
)
def test_bare_metal_is_added_where_ratios_are_needed_and_that_is_printed(bench: Bench, words: str, added: bool) -> None:
    result = ended_well(bench("run", *SMALL, "--target", "container", *words.split(), "--dry-run"))
    assert (f"--target bare-metal is added: {words.partition(' ')[0]} needs ratios to it" in result.stderr) == added
    assert f"targets: {'bare-metal, ' * added}container (docker)" in result.stdout


@pytest.mark.usefixtures("machine", "unaudited")
def test_engines_are_compared_in_the_same_blocks(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commands.run.validate.refuse_ablation", lambda *_: None)
    words = (*SMALL, "--target", "container", "--engine", "podman", "--engine", "runc", "--blocks", "2")
    dry = bench("run", *words, "--dry-run")
    assert "targets: container (podman)\n  container also: by runc\n" in dry.stdout, dry.stderr
    assert bench("run", *words).exit_code == 0
    rows = json.loads(bench("compare", "out", "--json", "--force").stdout)["rows"]
    row = next(row for row in rows if (row["kind"], row["metric"]) == ("ablation", "throughput"))
    assert (row["target"], row["ablation"], row["ratio"]) == ("container", "runc", pytest.approx(1.0))


BLOCKS: dict[str, Any] = {"difference": 0.02, "needed": 34, "blocks": 34, "detectable": 0.0199}
PLANNED = Detection(**BLOCKS, source="pilot", measured=10, ratio="resnet50 on vm", deviation=0.055)


def test_the_blocks_that_a_difference_takes_their_time_and_the_reason_are_announced() -> None:
    assert announcement(PLANNED, 4200) == (
        "about 34 blocks in all, 70 min more, detect a difference of 2 % with a chance of 80 % "
        "(pilot of 10 blocks: the standard deviation of resnet50 on vm is 5.5 % from block to block)"
    )
    assert announcement(PLANNED, None).startswith("about 34 blocks in all detect")
    for needed, takes in ((340, "takes about 340 blocks"), (None, "takes more blocks than can")):
        capped = PLANNED.model_copy(update={"needed": needed, "blocks": 100, "detectable": 0.037})
        text = announcement(capped, 60)
        assert takes in text
        assert "100 blocks, 60 s more, detect 3.7 %: give more with --max-blocks, or a larger --detect" in text


# ---- two runs on the same CPUs


@pytest.fixture(autouse=True)
def cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPUs of these tests are not those of a bench that runs meanwhile."""
    monkeypatch.setattr(neighbours, "NAME", f"virtbench-test-{os.getpid()}")


def let_in(cpus: Sequence[int], busy: neighbours.Busy | None = None) -> list[str]:
    """Be alone on the CPUs for a moment; return what is noted."""
    told: list[str] = []
    with ALONE_ON(cpus, told.append, busy):
        pass
    return told


@pytest.fixture
def other_bench() -> Iterator["subprocess.Popen[str]"]:
    """Another process that holds CPU 0."""
    hold = (
        "import sys; from contextlib import ExitStack; from provisioning import neighbours\n"
        f"neighbours.NAME = {neighbours.NAME!r}\n"
        "stack = ExitStack(); neighbours._held(stack, 0); print('held', flush=True); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", hold, "bench", "\x1b[31m"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_run_on_the_same_cpus_is_refused_and_names_the_first(other_bench: "subprocess.Popen[str]") -> None:
    with pytest.raises(RequestError, match=f"process {other_bench.pid} .* measures on CPUs 0 now") as error:
        let_in([0, 1])
    assert "\x1b" not in error.value.message
    assert {"--concurrent", "--wait,"} < set(str(error.value.remedy).split())
    (told,) = let_in([0, 1], "share")
    assert told.endswith("measures on CPUs 0, too: the two disturb each other")
    let_in([1])
    assert let_in([]) == [], "a run on other machines alone holds no CPU here, and tells no load"


SQUATS = """
import os, socket, sys
os.setuid(4242)
taken = socket.socket(socket.AF_UNIX)
taken.bind(sys.argv[1])
if sys.argv[2] == "listens":
    taken.listen()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@pytest.mark.parametrize("how", ["listens", "is silent"])
def test_another_user_who_takes_the_name_of_a_lock_stops_no_run(how: str) -> None:
    argv = [sys.executable, "-c", SQUATS.replace("sys.argv[1]", repr(f"\0{neighbours.NAME}-0")), "x", how]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as squatter:
        assert squatter.stdout
        assert squatter.stdout.readline() == "held\n"
        told = let_in([0])
        squatter.kill()
    assert ("user 4242" in told[0]) == (how == "listens")


def test_a_run_waits_for_the_other_and_holds_nothing_meanwhile(other_bench: "subprocess.Popen[str]") -> None:
    told: list[str] = []

    def note(text: str) -> None:
        told.append(text)
        with ExitStack() as stack:
            assert neighbours._held(stack, 1) is None, "CPU 1 is free while it waits for CPU 0"
        other_bench.kill()
        other_bench.wait()

    with ALONE_ON([1, 0], lambda text: None if told else note(text), "wait"), ExitStack() as stack:
        assert neighbours._held(stack, 1), "both are held now"
    assert re.fullmatch(rf"waiting: process {other_bench.pid} \(.*\) measures on CPUs 0", told[0])


def _ended(function: Callable[[Any], Any], gone: str) -> Callable[[Any], Any]:
    def look(path: Any) -> Any:
        if os.fspath(path) == gone:
            raise FileNotFoundError(gone)
        return function(path)

    return look


def test_a_lock_whose_queue_is_full_is_held_all_the_same(
    other_bench: "subprocess.Popen[str]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plan.json").write_text(make_plan().model_dump_json())
    with ExitStack() as stack, suppress(BlockingIOError):
        while True:  # more enquiries than the queue holds
            asking = stack.enter_context(socket.socket(socket.AF_UNIX))
            asking.setblocking(False)
            asking.connect(f"\0{neighbours.NAME}-0")
    for name in ("listdir", "scandir"):  # the first process to be looked at has just ended
        monkeypatch.setattr(os, name, _ended(getattr(os, name), "/proc/1/fd"))
    with pytest.raises(RequestError, match=f"process {other_bench.pid} "):
        let_in([0])
    owner = ProcessIdentity.own().model_copy(update={"pid": other_bench.pid})
    entry = SimpleNamespace(kind="run-directory", what=str(tmp_path), owner=owner)
    monkeypatch.setattr("provisioning.ledger.living", lambda: [entry])
    told: list[str] = []

    def note(text: str) -> None:
        told.append(text)
        other_bench.kill()
        other_bench.wait()

    with ALONE_ON([0], note, "wait"):
        assert re.fullmatch(r"waiting: process .* measures on CPUs 0, for about [0-9]+ s more", told[0])


def test_waiting_asks_once_who_measures_and_then_only_looks_whether_it_still_does(
    other_bench: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked again, a bench with a full queue would be looked for among all processes of the machine, twice a second."""
    asking = Mock(wraps=neighbours._holder)
    monkeypatch.setattr(neighbours, "LOOK_S", 0.01)
    monkeypatch.setattr(neighbours, "_holder", asking)
    ending = threading.Timer(0.3, other_bench.kill)
    ending.start()
    let_in([0], "wait")
    ending.join()
    assert asking.call_count == 1


def test_a_run_holds_its_cpus_and_lets_them_go(bench: Bench, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("provisioning.neighbours.alone_on", ALONE_ON)
    measure = machine.scenario.measure

    def second(trial: Trial, *rest: Any) -> Any:
        with pytest.raises(RequestError, match="measures on CPUs"):
            let_in(trial.job.envelope.cpus)
        return measure(trial, *rest)

    monkeypatch.setattr(machine.scenario, "measure", second)
    assert bench("run", *SMALL, "--target", "vm").exit_code == 0
    assert bench("run", *SMALL, "--target", "vm").exit_code == 0


def test_load_is_told_before_the_first_trial() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            os.sched_setaffinity(busy.pid, {min(os.sched_getaffinity(0))})
            told = let_in([min(os.sched_getaffinity(0))])
        finally:
            busy.kill()
    assert re.match(r"CPUs \d+ are \d+ % busy with other work: .*; what is measured now is disturbed", told[0])


# ---- while it runs


def test_without_a_terminal_there_is_one_line_for_a_trial(bench: Bench, machine: Machine) -> None:
    result = bench("run", *SMALL, "--blocks", "3")
    lines = trial_lines(result.stderr)
    assert len(lines) == len([event for event in machine.events if event.startswith("measure")]) == 16
    assert [line.partition("]")[0] for line in lines] == [f"[{number}/16" for number in range(1, 17)]
    assert len(result.stderr.splitlines()) <= 16 + 3 + 4, "a line for each block, and a few around them"
    assert not any("measuring" in line for line in lines)


@pytest.mark.usefixtures("machine", "unaudited")
def test_after_each_block_the_interval_the_blocks_and_the_time_to_go_of_the_whole_are_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress.Allowance, "left", lambda _: True)
    said = bench("run", *SMALL, *TWO, "--blocks", "6").stderr
    told = [line for line in said.splitlines() if line.startswith("after ")]
    assert len(told) == 5, "after the last one comes the answer"
    assert told[0].startswith("after 1 of 6 blocks: not yet measured: 1 block of 5; about ")
    assert told[-1].startswith("after 5 of 6 blocks: resnet50 on vm 1.000 (1.000 to 1.000); about ")
    assert "to go" not in trial_lines(said)[-1], "the whole is done"


@pytest.mark.usefixtures("machine", "unaudited")
def test_until_decided_ends_at_the_first_look_that_decides_by_a_margin_that_comparisons_keep(
    bench: Bench, here: Path
) -> None:
    result = ended_well(bench("run", *DECIDED))
    assert "stopped after 5 blocks: every comparison is decided at a margin of 5.0%" in result.stderr
    plan = json.loads((here / "out/plan.json").read_text())
    assert (plan["blocks"], plan["margin"]) == (5, 0.05)
    for words, margin in (((), 0.05), (("--margin", "1%"), 0.01)):
        rows = json.loads(bench("compare", "out", "--json", "--force", *words).stdout)["rows"]
        assert {row["margin"] for row in rows} - {None} == {margin}
    result = ended_well(bench("run", "--continue", "out"))
    assert result.stderr.count("are there already") == 1, "it is said once"
    assert "12 of 12 trials are there already and are kept" in result.stderr


@pytest.mark.usefixtures("machine", "unaudited")
def test_a_run_ends_with_the_answer_in_the_json_of_its_model(bench: Bench) -> None:
    words = ("run", *SMALL, *TWO, "--blocks", "1", "--json")
    dry = Forecast.model_validate_json(bench(*words, "--dry-run").stdout)
    told = RunOutput.model_validate_json(bench(*words).stdout)
    assert {*told.trials} == {trial.trial_id for trial in dry.plan.trials()}
    assert dry.targets.keys() == {"bare-metal", "vm"}
    assert told.answer
    assert [*told.answer.facts] == ["All targets computed the same weights, bit for bit."]
    shown = " ".join(bench("run", "--continue", "out").stdout.split())
    assert shown.startswith(told.answer.lines[0].partition(":")[0])


# ---- when it is cut off


def test_ctrl_c_says_how_to_go_on_and_nothing_but_a_stop_rule_goes_with_that(
    bench: Bench, machine: Machine, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        machine.during_the_second_trial(lambda: os.kill(os.getpid(), signal.SIGINT), patch)
        cut_off = bench("run", *SMALL, *TWO, "--blocks", "2", "--seed", "3")
    assert (cut_off.exit_code, "go on with: bench run --continue out" in cut_off.stderr) == (130, True)
    refused(bench("run", "--continue", "out", "--seed", "9", "--out", "else"), "--seed, --out would change it")
    refused(bench("run", "--continue", "out", "--blocks", "1"), "--blocks 1: the run has 2 blocks")
    refused(bench("run", "--continue", "out", "--budget", "1h"), "--budget and --blocks exclude each other")
    result = ended_well(bench("run", "--continue", "out"))
    assert len(list((here / "out/trials").glob("*.json"))) == 4
    assert "1 of 4 trials are there already and are kept" in result.stderr


def trials_of(directory: Path) -> list[str]:
    return sorted(path.stem[-4:] for path in (directory / "trials").glob("*-vm-*.json"))


@pytest.mark.usefixtures("machine", "unaudited")
def test_a_spent_budget_ends_a_run_and_its_forecast_and_more_extends_it(bench: Bench, here: Path) -> None:
    spent = bench("run", *DECIDED, "--budget", "0.000001s")
    assert "stopped after the warm-up: the budget is spent" in spent.stderr
    assert trials_of(here / "out") == ["w000"]
    dry = bench("run", "--continue", "out", "--dry-run").stdout
    assert "trials: 2, the first block to warm up, 0 still to be run" in dry
    assert "stopped after the warm-up" in bench("run", "--continue", "out").stderr
    assert trials_of(here / "out") == ["w000"]
    assert "stopped after 3 blocks" in bench("run", "--continue", "out", "--blocks", "3").stderr
    longer = bench("run", "--continue", "out", "--budget", "1h", "--max-blocks", "9")
    assert "stopped after 5 blocks: every comparison is decided" in longer.stderr
    assert trials_of(here / "out") == [*(f"b00{block}" for block in range(5)), "w000"]
    refused(bench("run", "--continue", "out", "--until", "2%"), "--until cannot replace --until decided")


@pytest.mark.usefixtures("machine")
def test_a_run_is_extended_to_more_blocks_without_a_warm_up_after_the_fact(bench: Bench, here: Path) -> None:
    assert bench("run", *SMALL, *TWO, "--blocks", "2").exit_code == 0
    result = ended_well(bench("run", "--continue", "out", "--blocks", "4"))
    assert trials_of(here / "out") == ["b000", "b001", "b002", "b003"]
    assert "4 of 8 trials are there already" in result.stderr


def test_a_forecast_in_the_middle_of_a_run_keeps_to_the_budget(tmp_path: Path) -> None:
    plan, printed = make_plan(blocks=40, warmup_blocks=1), io.StringIO()
    outlook = Outlook(Lines(printed), plan, Run(tmp_path))
    for trial in plan.trials_of(1):
        outlook.clock.expect(trial, 60.0)
    assert outlook.blocks_in_budget(0) == 40
    outlook.deadline_s = time.monotonic() + 16.5 * 60
    first = next(plan.trials_of(0))
    outlook.trial_started(first, 1, 6)
    assert outlook.clock.left() == ", about 18 min to go", "the warm-up and five blocks"
    assert (outlook.blocks_in_budget(9), outlook.blocks_in_budget(39)) == (16, 40)
    outlook.deadline_s = time.monotonic() - 1
    assert outlook.blocks_in_budget(9) == 10
    assert outlook.spent("10 blocks")
    outlook.note("train.py left a process")
    assert printed.getvalue() == "stopped after 10 blocks: the budget is spent\ntrain.py left a process\n"


def test_the_time_to_go_keeps_to_the_budget_while_no_block_was_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [1000.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    clock = progress.Clock()
    clock.deadline_s = now_s[0] + 100
    first = next(make_plan(blocks=40, warmup_blocks=1).trials_of(0))
    clock.started(first, 1, 1000)
    now_s[0] += 10
    clock.finished(first.trial_id)
    assert clock.left() == f", about {format_duration(90 + 10)} to go"
    clock.deadline_s = None
    assert clock.left() == f", about {format_duration(999 * 10)} to go"


def test_only_a_run_can_be_continued(bench: Bench, machine: Machine, here: Path) -> None:
    refused(bench("run", "--continue", "nowhere"), "no run in nowhere")
    assert bench("run", *SMALL, *TWO, "--blocks", "1").exit_code == 0
    plan = Run(here / "out").plan()
    assert plan
    (here / "out/plan.json").write_text(plan.model_copy(update={"request": None}).model_dump_json())
    refused(bench("run", "--continue", "out"), "has no stored request")
    (here / "sweep.json").write_text("{}")
    refused(bench("run", "--continue", "out"), "out is a cell of a sweep")
    assert machine.events


@pytest.mark.usefixtures("machine")
def test_the_job_has_what_a_workload_declares_and_its_unit_with_the_sizes_that_count_it(
    bench: Bench, here: Path
) -> None:
    def planned(model: str, *words: str) -> dict[str, Any]:
        out = f"of-{Path(model).name}"
        ended_well(bench("run", "--model", model, *TWO, "--profile", "smoke", "--out", out, *words))
        (job,) = json.loads((here / out / "plan.json").read_text())["jobs"]
        return {**job, "sizes": {name: value for name, value in job["sizes"].items() if value is not None}}

    (here / "usual.py").write_text(TOY)
    (here / "drawn.py").write_text(TOY.replace('name="toy"', 'name="toy", reproducible=False'))
    assert [planned(f"./{name}.py")["reproducible"] for name in ("usual", "drawn")] == [None, False]
    draws = "    def draw(self, batch, shape, generator):\n        raise NotImplementedError\n\n    def"
    source = TOY.replace("    def", draws, 1).replace("(4, 8)", "512")
    (here / "tokens.py").write_text(source.replace('name="toy"', 'name="toy", unit="tokens"'))
    job = planned("./tokens.py")
    assert (job["unit"], job["sizes"]["batch"], "image_px" in job["sizes"]) == ("tokens", 512, False)
    folder(here / "set", images=8)
    words = ("--model", "./tokens.py", "--profile", "smoke", "--scenario", "real", "--data", f"imagefolder:{here}/set")
    refused(bench("run", *TWO, *words), "has no images, and reads no")
    job = planned("transformer", "--tokens", "8")
    assert job["unit"] == "tokens"
    assert job["sizes"] == {"batch": 32, "tokens": 8, "depth": 2, "warmup_steps": 1, "steps": 2}


def test_a_run_of_a_workload_in_a_file_goes_on_only_with_that_file(bench: Bench, machine: Machine, here: Path) -> None:
    file, plan = here / "my_model.py", here / "out/plan.json"
    file.write_text(TOY)
    assert bench("run", "--model", "./my_model.py", *TWO, "--profile", "smoke", "--out", "out").exit_code == 0
    assert [event for event in machine.events if "my_model.py" in event]
    assert "2 of 2 trials are there already" in bench("run", "--continue", "out").stderr
    plan.chmod(0o666)
    refused(bench("run", "--continue", "out"), "others may write it, and it can make bench run commands")
    plan.chmod(0o600)
    file.write_text("open('imported', 'w')")
    refused(bench("run", "--continue", "out"), "my_model.py is not what out was begun with")
    file.write_text(TOY)
    file.chmod(0o666)
    refused(bench("run", "--continue", "out"), "the workload")
    assert not (here / "imported").exists(), "what another plan names is not even imported"


def test_the_named_disturbers_add_up_to_the_whole() -> None:
    assert neighbours._disturbers(0.5, {"python3": 0.3, "qemu": 0.15}) == ": python3 (30 %), qemu (15 %), others (5 %)"
    # They ran on other CPUs, too: no number of theirs is a part of the whole.
    assert neighbours._disturbers(0.5, {"python3": 0.7}) == ": python3"
    assert neighbours._disturbers(0.5, {}) == ""


def planned_by_default(bench: Bench, *words: str) -> tuple[RunRequest, Plan, str]:
    """Return the request and the plan of a run that was planned, and what was printed for people."""
    result = ended_well(bench("run", *SMALL, "--dry-run", "--json", *words))
    plan = Forecast.model_validate_json(result.stdout).plan
    assert plan.request
    return plan.request, plan, result.stderr


@pytest.fixture
def emulating(machine: Machine) -> None:
    """A machine whose virtual machines are emulated."""
    machine.substitutes |= {"vm": EMULATED_CPU, "container-vm": EMULATED_CPU}


@pytest.mark.usefixtures("emulating")
def test_the_bursts_of_short_steps_last_unless_they_are_given_or_nothing_is_decided(bench: Bench) -> None:
    in_turns = ("--model", "vae", "--design", "alternating")

    def steps_of_bursts(*words: str) -> int:
        _, plan, _ = planned_by_default(bench, *in_turns, *words)
        assert isinstance(plan.job.turns, Alternating)
        assert plan.job.sizes
        assert plan.job.sizes.steps == plan.job.turns.rounds * plan.job.turns.burst_steps
        return plan.job.turns.burst_steps

    assert steps_of_bursts() > BURST_STEPS
    assert steps_of_bursts("--burst-steps", "3") == 3
    assert steps_of_bursts("--target", "bare-metal", "--target", "vm") == BURST_STEPS
    assert steps_of_bursts("--profile", "smoke") == BURST_STEPS


@pytest.mark.usefixtures("emulating")
def test_a_run_that_says_nothing_of_its_end_is_decided_in_turns_within_a_budget(bench: Bench) -> None:
    request, plan, printed = planned_by_default(bench)
    repetitions = request.repetitions
    assert (repetitions.until, repetitions.margin, repetitions.budget) == ("decided", "5%", "10m")
    assert (plan.targets, plan.margin, plan.warmup_blocks) == (("bare-metal", "container"), 0.05, 1)
    assert isinstance(plan.job.turns, Alternating)
    assert plan.job.turns.burst_steps == BURST_STEPS, "ResNet-50's steps are long"
    assert "in turns, until decided at 5 %, at most 10 min; --blocks 5 for a fixed number" in printed


def untouched(page: str) -> dict[str, list[str]]:
    """Return what a browser sends of the form of options that nobody has touched."""
    form = page[page.index('<form id="options"') :]
    sent: dict[str, list[str]] = {}
    for tag in re.findall(r"<input ([^>]*)>", form):
        given = {name: html.unescape(text) for name, text in re.findall(r'([a-z]+)="([^"]*)"', tag)}
        if given.get("type") not in ("checkbox", "radio") or " checked" in tag:
            sent.setdefault(given["name"], []).append(given.get("value", "on"))
    for name, options in re.findall(r'<select name="([^"]+)".*?>(.*?)</select>', form, re.DOTALL):
        every = re.findall(r'<option(?: value="([^"]*)")?( selected)?>([^<]*)', options)
        value, _, text = next((one for one in every if one[1]), every[0])
        sent[name] = ["" if text == "default" else value or text]
    return sent


@pytest.mark.usefixtures("emulating", "unaudited")
def test_the_untouched_form_of_the_web_ends_in_a_verdict(
    bench: Bench, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr("commands.run.deciding.leaves_turns_to_the_run", lambda _: False)  # the fakes take none
    diagnosis = Diagnosis((), (), (), ("Can be measured here: all.",), "bench run")
    monkeypatch.setattr(start, "examined", lambda: start.Examined(diagnosis, ()))
    monkeypatch.setattr(start, "run_apart", lambda *_: CompletedProcess([], 0, "time: about 3 min\n", ""))
    monkeypatch.setattr(start, "start_detached", lambda argv, *_: started.append(argv))
    (here / "results").mkdir()
    client = browser(here / "results")
    checked = client.get("/start/check", query_string=untouched(client.get("/start").text)).text
    post(client, "/start", **hidden(checked))
    ((*_, command, out, run),) = started
    assert (command, out) == ("run", "--out"), "whatever the run chooses by itself is not named"
    result = ended_well(bench(command, out, run))
    assert "every comparison is decided at a margin of 5.0%" in result.stderr
    assert re.search(r"^container \S+ +1\.000x bare metal .* equivalent", result.stdout, re.MULTILINE), result.stdout


@pytest.mark.usefixtures("emulating")
@pytest.mark.parametrize(
    ("words", "repetitions", "turns"),
    [
        ("--blocks 2", {"until": None, "blocks": 2}, False),
        ("--until 2%", {"until": "2%", "margin": None, "budget": None}, False),
        ("--profile smoke", {"until": None, "blocks": None}, False),
        ("--target container", {"until": None, "blocks": None}, False),
        ("--target all", {"until": None, "blocks": None}, False),
        ("--budget 1h", {"until": "decided", "budget": "1h"}, True),
        ("--margin 2%", {"until": "decided", "margin": "2%"}, True),
        ("--aa", {"until": "decided", "aa": True}, True),
        ("--steps 5", {"until": "decided"}, False),
        ("--design sequential", {"until": "decided"}, False),
        ("--ablate seccomp", {"until": "decided"}, False),
        ("--scenario command --command true", {"until": "decided", "budget": "30m"}, True),
        ("--scenario command --command true --throughput auto", {"until": "decided"}, False),
        ("--scenario probe --probe syscall", {"until": "decided"}, False),
    ],
)
def test_what_was_asked_for_is_kept_and_what_cannot_take_turns_takes_none(
    bench: Bench, words: str, repetitions: dict[str, object], turns: bool
) -> None:
    request, plan, _ = planned_by_default(bench, *words.split())
    assert {name: getattr(request.repetitions, name) for name in repetitions} == repetitions
    assert bool(plan.job.turns) == turns


@pytest.mark.usefixtures("emulating")
def test_targets_that_are_no_measurement_are_named_as_the_reason_for_one_block(bench: Bench) -> None:
    assert "1 block: vm, container-vm cannot be measured here" in planned_by_default(bench, "--target", "all")[2]
    refused(bench("run", *SMALL, "--target", "all", "--budget", "1h"), "--budget needs something to decide")


@pytest.mark.usefixtures("emulating")
@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("", "whether container is within 5 % of bare-metal, slower, or faster"),
        ("--blocks 10", "whether container is within 2 % of bare-metal, slower, or faster"),
        ("--blocks 10 --target all", "whether container is within 2 % of bare-metal, slower, or faster"),
        ("--blocks 4", "nothing: it has 4 blocks, and a verdict takes 5"),
        ("--profile smoke --blocks 10", "nothing: the smoke profile only shows that everything works"),
        ("--blocks 9 --target bare-metal", "nothing: it takes bare-metal and another target, both measured here"),
        ("--blocks 9 --target bare-metal --ablate pinning", "whether "),
    ],
)
def test_what_a_run_can_decide_is_said_before(bench: Bench, words: str, text: str) -> None:
    assert f"decides: {text}" in ended_well(bench("run", *SMALL, "--dry-run", *words.split())).stdout


@pytest.mark.usefixtures("emulating")
def test_a_budget_that_holds_no_verdict_is_said_before(bench: Bench) -> None:
    dry = ended_well(bench("run", *SMALL, "--dry-run", "--budget", "1s")).stdout
    assert "decides: nothing: the budget holds about 0 blocks, and a verdict takes 5" in dry
    assert "no verdict" not in ended_well(bench("run", *SMALL, "--dry-run")).stdout


@pytest.mark.usefixtures("emulating")
@pytest.mark.parametrize(
    ("words", "limit_s"),
    [
        ("", 300),
        ("--budget 12m", 360),
        ("--budget 5h", 1800),
        ("--trial-timeout 900", 900),
        ("--blocks 2", 1800),
        ("--budget 5m --scenario command --command true", 1800),
    ],
)
def test_a_stuck_trial_is_given_up_within_the_budget(bench: Bench, words: str, limit_s: int) -> None:
    words = f"--profile quick --target bare-metal --target container {words}"
    assert planned_by_default(bench, *words.split())[1].trial_timeout_s == limit_s


@pytest.mark.usefixtures("machine", "unaudited")
def test_a_run_that_continues_has_the_trial_limit_of_its_beginning(bench: Bench, here: Path) -> None:
    limits = []
    begun = (*SMALL, "--target", "container", "--until", "decided", "--budget", "12m", "--max-blocks", "1")
    for words in (begun, ("--continue", "out", "--max-blocks", "2")):
        ended_well(bench("run", *words))
        limits.append(stored_plan(here / "out").trial_timeout_s)
    ended_well(bench("run", "--continue", "out", "--budget", "20m", "--max-blocks", "3"))
    assert [*limits, stored_plan(here / "out").trial_timeout_s] == [360, 360, 360]


def test_a_run_that_is_decided_by_default_stops_where_every_trial_fails(bench: Bench, machine: Machine) -> None:
    machine.targets.failing |= dict.fromkeys(TARGETS, MeasurementError("no"))
    result = bench("run", *SMALL, "--target", "bare-metal", "--target", "container")
    assert result.exit_code == 1
    assert "stopped after the warm-up: every trial has failed\n" in result.stderr
    assert len(machine.events) <= 4


def test_a_run_that_starves_names_the_load_and_the_remedy(bench: Bench, machine: Machine) -> None:
    machine.targets.failing |= dict.fromkeys(TARGETS, MeasurementError("late", kind="timeout"))
    result = bench("run", *SMALL, "--target", "bare-metal", "--target", "container")
    why = r"stopped after the warm-up: every trial has failed to end in time; the load of this machine is [0-9.]+: "
    assert re.search(why + "stop what else runs, or give more with --budget", result.stderr), result.stderr
