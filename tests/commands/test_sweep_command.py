"""``bench sweep`` as its users have it, on a machine of fakes."""

import io
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from analysis.figures.reference import figure_number
from commands.data import MissingSet
from commands.reproduce.parts import PlanPart, smaller
from commands.reproduce.takes import missing_sets
from commands.sweep.backends.base import SweepEnd
from commands.sweep.command import SweepOutput
from commands.sweep.plan import PlannedOutput
from commands.sweep.resolve import resolve
from commands.sweep.status import StatusOutput, SweepDisplay, lines, matrix
from provisioning.gpus import Card
from suite.job.job import Devices
from suite.process_identity import ProcessIdentity
from suite.request.request import RunRequest
from suite.sweep.cells import cells_of, request_of
from suite.sweep.directory import SweepDirectory
from suite.sweep.file import load_sweep, plan_file
from suite.sweep.locks import LockHolder, locked
from suite.sweep.status import CellStatus, SweepStatus, TrialCounts
from tests.commands.conftest import Bench, ended_well, refused, short_pilot
from tests.suite.conftest import make_plan, make_record
from tests.suite.sweep.conftest import PLAN, REPOSITORY, make_sweep
from tests.suite.sweeping_machine import furnish, measure_nothing

CARDS = [Card(str(number), driver="580", uuid=f"GPU-{number}") for number in range(4)]
TABLE_1 = (
    *("models", "batch per device", "data format", "optimizer"),
    *("variables, single", "variables, distributed", "steps"),
)
"""The rows of the founding paper's Table 1."""
PLANS = sorted((REPOSITORY / "plans").glob("*.toml"))


@pytest.fixture
def bench(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("MEASURED", str(tmp_path / "measured"))
    monkeypatch.setenv("SLOW_S", "0")
    furnish(monkeypatch, tmp_path / "home")
    measure_nothing(monkeypatch)
    (tmp_path / "night.toml").write_text(PLAN)
    return bench


def change(old: str, new: str) -> None:
    path = Path("night.toml")
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_a_cell_is_the_options_of_the_same_bench_run(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.replace("blocks = 3", 'blocks = 3\naa = true\nseed = 4\nablate = ["seccomp"]'))
    sweep = load_sweep(path)
    request = request_of(sweep, cells_of(sweep)[1])
    assert request == RunRequest.of(request.given())
    assert request.given() == {
        "scenario": "synthetic",
        "model": ("alexnet",),
        "profile": "smoke",
        "target": ("bare-metal", "container"),
        "ablate": ("seccomp",),
        "cpus": "1",
        "memory": "1M",
        "blocks": 3,
        "seed": 4,
        "aa": True,
    }


@pytest.fixture
def _four_gpus(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with much memory, a data set, and four GPUs, as NVML shows them."""
    del bench  # whose machine it is
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=1 << 40))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("scenarios.datasets.resolve.resolve", lambda given, *_, **__: (given.partition(":")[0], None))
    monkeypatch.setattr("provisioning.sites.here.examined", lambda: (CARDS, None, None))


@pytest.mark.usefixtures("_four_gpus")
@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_the_plans_that_are_there_can_be_run(bench: Bench, path: Path, tmp_path: Path) -> None:
    told = json.loads(bench("sweep", "plan", str(path), "--json").stdout)
    assert told["name"] == path.stem
    assert [cell for cell in told["cells"] if cell["refused"]] == []
    assert told["paper_figures"] == [], "no plan is complete that its budget ends before"
    unlimited = tmp_path / path.name
    unlimited.write_text(re.sub(r"(?m)^total = .*$", "", path.read_text()))
    complete = json.loads(bench("sweep", "plan", str(unlimited), "--json").stdout)["paper_figures"]
    assert complete == {"paper": list(range(2, 11))}.get(path.stem, [])
    assert not (tmp_path / "results").exists(), "nothing is written"


@pytest.mark.usefixtures("_four_gpus")
def test_the_papers_plan_for_gpus_names_every_row_and_figure_and_measures_them() -> None:
    """The figures lack virtual machines alone; the sizes, devices and instances are those of Table 1."""
    path = REPOSITORY / "plans/paper-gpu.toml"
    text = path.read_text()
    figures = re.findall(r"^#   ([\d, ]+) ", text, re.MULTILINE)
    named = {int(number) for line in figures for number in re.findall(r"\d+", line)}
    assert (named, {row for row in TABLE_1 if f"\n#   {row} " in text}) == ({*range(2, 11)}, {*TABLE_1})
    jobs = [cell.ready.plan.job for cell in resolve(load_sweep(path), lambda _: None) if cell.ready]
    drawn = [(figure_number(job, metric), job.model) for job in jobs for metric in ("throughput", "elapsed")]
    bars = {(number, model) for number, model in drawn if number}
    batches = {"inception_v3": 32, "resnet50": 32, "alexnet": 512, "alexnet-small": 32}
    assert bars == {(number, model) for number in named for model in [*batches][: None if number == 10 else 3]}
    for job in jobs:
        sizes, joined, gpus = job.sizes, job.distributed, {"distributed": 4}.get(job.scenario, 2)
        assert sizes
        assert (sizes.batch, sizes.warmup_steps, sizes.steps) == (batches[job.model], 10, 100)
        assert str(job.layers.gpus).split(",") == [str(card.uuid) for card in CARDS[:gpus]]
        used = Devices(device="cuda") if job.sharing else Devices(device="cuda", devices=2, parallel="parameter-cpu")
        assert job.devices == used
        assert (joined is None) == (job.scenario != "distributed")
        if joined:
            assert joined.lab
            assert (joined.strategy, joined.workers, joined.servers) == ("parameter-server", 2, 1)
            assert (joined.lab.nodes, joined.lab.rate) == (3, "1gbit")
            assert job.global_batch == 2 * 2 * sizes.batch


def test_a_plan_that_comes_with_the_suite_goes_by_its_bare_name(bench: Bench, tmp_path: Path) -> None:
    assert json.loads(bench("sweep", "plan", "smoke", "--json").stdout)["name"] == "smoke"
    (tmp_path / "smoke").write_text((tmp_path / "night.toml").read_text())
    assert json.loads(bench("sweep", "plan", "smoke", "--json").stdout)["name"] == "night", "a file goes first"


def test_the_text_of_a_plan_is_a_plan_to_edit(bench: Bench, tmp_path: Path) -> None:
    text = ended_well(bench("sweep", "plan", "cluster", "--text")).output
    mine = tmp_path / "mine.toml"
    mine.write_text(text)
    assert load_sweep(mine) == load_sweep(plan_file(Path("cluster")))


def test_a_plan_tells_what_will_run_and_how_long_it_takes(bench: Bench) -> None:
    before = json.loads(bench("sweep", "plan", "night.toml", "--json").stdout)
    assert (before["blocks"], before["trials"], before["trials_left"]) == (3, 16, 16)
    assert before["block_s"] > 0
    assert before["total_s"] > 3 * before["block_s"]
    assert before["source"] == before["cells"][0]["source"] == "rough"
    assert "within a factor of 5: it never ran here" in bench("sweep", "plan", "night.toml").stdout
    assert before["cells"][0]["command"][:4] == ["bench", "run", "--model", "resnet50"]
    assert bench("sweep", "run", "night.toml", "--only-block", "0").exit_code == 0
    after = json.loads(bench("sweep", "plan", "night.toml", "--json").stdout)
    assert (after["trials"], after["trials_left"]) == (16, 8)
    assert after["block_s"] == pytest.approx(22, abs=2), "four fake jobs of 5 s, each opened in half a second"
    assert after["total_s"] == pytest.approx(88, abs=8), "with the warm-up block"
    said = bench("sweep", "plan", "night.toml").stdout
    assert "\n2 cells, 3 blocks, 16 trials (8 to be run) into results/night, by the engine local\n" in said
    assert re.search(r"^time: about [89]\d s, from earlier trials of this job$", said, re.MULTILINE)
    assert bench("sweep", "run", "night.toml", "--only-block", "0", "--out", "far/away/monday").exit_code == 0
    beside = json.loads(bench("sweep", "plan", "night.toml", "--out", "far/away/tuesday", "--json").stdout)
    assert beside["source"] == "records", "of the sweep beside it"


def test_what_is_refused_is_told_for_all_cells_at_once_and_nothing_is_begun(bench: Bench, tmp_path: Path) -> None:
    change('["resnet50", "alexnet"]', '["resnet50", "alexnte"]\nrecipe = ["reference", "tunned"]')
    planned = bench("sweep", "plan", "night.toml", "--json")
    reasons = [cell["refused"] for cell in json.loads(planned.stdout)["cells"]]
    assert planned.exit_code == 2
    assert reasons[0] is None
    assert "recipe 'tunned' is unknown" in reasons[1]
    assert "model 'alexnte' is unknown" in reasons[2]
    refused(bench("sweep", "run", "night.toml"), "3 of 4 cells cannot be run here", "did you mean alexnet?")
    assert not (tmp_path / "measured").exists()
    assert not (tmp_path / "results/night/sweep.json").exists()
    refused(bench("sweep", "run", "night.toml", "--dry-run"), "3 of 4 cells cannot be run here")


def test_a_changed_plan_goes_on_with_the_records_that_stay_valid(bench: Bench, tmp_path: Path) -> None:
    assert bench("sweep", "run", "night.toml", "--json").exit_code == 0
    change("blocks = 3", "blocks = 4")
    refused(bench("sweep", "run", "night.toml", "--only-block", "1"), "a sweep of another plan")
    change('"alexnet"', '"inception_v3"')
    result = ended_well(bench("sweep", "run", "night.toml", "--json"))
    assert "the plan has changed: blocks from 3 to 4; matrix" in result.stderr
    assert "1 cell kept, with records: synthetic-resnet50" in result.stderr
    assert "1 cell new: synthetic-inception-v3" in result.stderr
    assert "1 cell no longer part of it" in result.stderr
    assert json.loads(result.stdout)["measured"] == 2 + 10, "one more block, and a cell with its warm-up"
    assert len(list((tmp_path / "results/night").glob("synthetic-alexnet*/trials/*.json"))) == 8


def test_until_goes_on_until_every_cell_is_narrow(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analysis.statistics.sequential.EXTRA_BLOCKS", 2)
    change("blocks = 3", 'until = "5%"\nmax_blocks = 30')
    result = ended_well(bench("sweep", "run", "night.toml", "--json"))
    assert result.stderr.count("every interval is within 5.0%") == 2
    assert json.loads(result.stdout)["measured"] == 2 * 2 * (5 + 2 + 1), "the fakes are as steady as can be"
    status = json.loads(bench("sweep", "status", "results/night", "--json").stdout)
    assert status["state"] == "complete"
    assert [cell["converged"] for cell in status["cells"]] == [True, True]
    assert [arm["missing"] for cell in status["cells"] for arm in cell["arms"].values()] == [0] * 4
    assert json.loads(bench("sweep", "run", "night.toml", "--json").stdout)["measured"] == 0


def test_detect_plans_a_cell_from_its_own_pilot(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    short_pilot(monkeypatch)
    change("blocks = 3", 'detect = "5%"\nmax_blocks = 30')
    change('"resnet50", "alexnet"', '"resnet50"')
    result = ended_well(bench("sweep", "run", "night.toml", "--json"))
    assert result.stderr.count("its pilot plans 10 blocks to detect 5.00%") == 1
    assert json.loads(result.stdout)["measured"] == 2 * (10 + 1), "the fakes are as steady as can be"
    for record in Path("results/night").glob("*/trials/*-bare-metal-b009.json"):
        record.unlink()
    assert json.loads(bench("sweep", "run", "night.toml", "--json").stdout)["measured"] == 1, "it was not complete"
    assert json.loads(bench("sweep", "status", "results/night", "--json").stdout)["state"] == "complete"


def test_compare_and_status_take_a_sweep_that_was_run_and_another_machine_does_not_go_on_with_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench("sweep", "run", "night.toml").exit_code == 0
    # The fakes say that they took 5 s when they took none, which the audit refuses.
    whole = json.loads(bench("compare", "results/night", "--force", "--json").stdout)
    cells = json.loads(Path("results/night/sweep.json").read_text())["cells"]
    # As DIR/* names them, but in the order of the plan: sums differ in their last digit with the order.
    each = [*(f"results/night/{name}" for name in cells), "results/night/sweep.json"]
    assert json.loads(bench("compare", *each, "--force", "--json").stdout) == whole
    assert "resnet50" in json.dumps(whole)
    assert "alexnet" in json.dumps(whole)
    monkeypatch.setattr("provisioning.isa.shared", lambda *_, **__: "default")
    refused(bench("sweep", "run", "night.toml"), "holds a run of another plan: cpu_capability differ")
    result = bench("sweep", "status")
    assert "night: complete" in result.stdout
    assert "4/4" in result.stdout
    told = json.loads(bench("sweep", "status", "--json").stdout)
    name = told["cells"][0]["cell_id"]
    assert told["half_widths"][name] == {"resnet50 on container": pytest.approx(0)}
    path = Path("results/night/sweep.json")
    path.write_text(path.read_text().replace('"kind": "local"', '"kind": "moon"'))
    result = bench("sweep", "status")
    assert "night: complete" in result.stdout
    assert "the queue cannot be seen from here: no sweep backend 'moon'" in result.stdout


def test_an_engine_that_is_local_has_no_keys_of_its_own(bench: Bench) -> None:
    change("[envelope]", '[engine]\npartition = "long"\n\n[envelope]')
    refused(bench("sweep", "run", "night.toml"), "unknown key engine.partition")


def test_the_json_of_a_sweep_can_be_read_by_the_models(bench: Bench) -> None:
    planned = PlannedOutput.model_validate_json(bench("sweep", "plan", "night.toml", "--json").stdout)
    ended = SweepOutput.model_validate_json(bench("sweep", "run", "night.toml", "--json").stdout)
    assert (ended.measured, ended.failed, ended.ended_early) == (planned.trials_left, [], None)
    # A stream of lines: one for each change, and one at least.
    (line,) = bench("sweep", "status", "--watch", "--json").stdout.splitlines()
    status = StatusOutput.model_validate_json(line)
    assert status.state == "complete"
    assert {*status.half_widths} == {cell.cell_id for cell in planned.cells}


def test_a_dry_run_is_for_readers_writes_nothing_and_a_plan_is_for_programs(bench: Bench, tmp_path: Path) -> None:
    result = bench("sweep", "run", "night.toml", "--dry-run", "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["remedy"] == "see bench sweep plan night.toml --json"
    assert "bench sweep plan night.toml --json" in result.stderr
    assert bench("sweep", "run", "night.toml", "--dry-run").exit_code == 0
    assert not (tmp_path / "results").exists()
    assert not (tmp_path / "measured").exists()


@pytest.mark.usefixtures("_four_gpus")
def test_reproduce_lists_every_paper_with_its_plans_and_what_they_take(bench: Bench) -> None:
    listed = ended_well(bench("reproduce"))
    planned = {path.stem: paper for path in PLANS if (paper := load_sweep(path).paper)}
    assert {line.partition(":")[0] for line in listed.stdout.splitlines() if line[0] != " "} == {*planned.values()}
    assert "doi 10.5220/0006680603760383" in listed.stdout
    commands = [line.split()[1:] for line in listed.stdout.splitlines() if line.startswith("  bench ")]
    assert len(commands) >= len(planned)
    for words in commands:
        ended_well(bench(*words, "--dry-run"))


def test_reproduce_measures_a_paper_and_judges_its_claims(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The fakes say that they took 5 s when they took none, which the audit refuses.
    monkeypatch.setattr("commands.compare.show.audited", lambda records, **_: records)
    monkeypatch.setattr("commands.compare.show._draw", lambda *_: [])
    monkeypatch.setattr(
        "commands.reproduce.parts.load_sweep", lambda file: load_sweep(file).model_copy(update={"blocks": 2})
    )
    words = ("reproduce", "gan-on-kubernetes", "--profile", "smoke", "--target", "bare-metal", "--out", "own")
    measured = ended_well(bench(*words))
    assert (tmp_path / "own/sweep.json").is_file()
    assert measured.stdout.startswith("Published claims"), "its plan compares nothing with bare metal"
    assert set(re.findall(r"\((\S+) [A-Z]\d+[:;)]", measured.stdout)) == {"gan-on-kubernetes"}
    assert "bench compare own --by channels" in measured.stdout
    lines = (tmp_path / "measured").read_text().splitlines()
    assert {line.split()[0] for line in lines} == {"smoke"}
    monkeypatch.setattr("commands.reproduce.command.compare", lambda **_: None)
    assert bench(*words).exit_code == 0
    assert (tmp_path / "measured").read_text().splitlines() == lines, "what was measured is kept"


def test_a_part_of_a_paper_has_the_models_and_blocks_that_are_named(bench: Bench) -> None:
    words = ("reproduce", "gan-on-kubernetes", "--plan", "channels", "--dry-run", "--model", "dcgan", "--blocks", "5")
    planned = ended_well(bench(*words)).stdout
    assert planned.startswith("4 cells, 24 trials"), "two numbers of channels and of pixels; a warm-up block"
    sets = ended_well(bench("reproduce", "distributed-gan", "--dry-run", "--model", "dcgan", "--blocks", "1")).stdout
    assert sets.startswith("3 cells, 6 trials")
    assert "it decides no claim: a verdict takes 5 blocks" in sets
    waiting = ended_well(bench("reproduce", "gan-on-kubernetes", "--plan", "gan-sets", "--dry-run"))
    assert waiting.stdout.startswith(
        "4 cells; all wait for data that it makes first; their time is unknown until then\n"
    )
    assert "Dry run: nothing was started" in waiting.stderr
    shared = ended_well(
        bench("reproduce", "closer2018", "--dry-run", "--model", "alexnet-small", "--blocks", "5")
    ).stdout
    assert shared.startswith("1 cell, ")
    words = ("reproduce", "closer2018", "--dry-run", "--scenario", "shared", "--model", "alexnet", "--blocks", "1")
    assert ended_well(bench(*words)).stdout.startswith("1 cell, ")
    for option, value in (("--model", "resnet50"), ("--scenario", "moon")):
        other = bench("reproduce", "gan-on-kubernetes", option, value, "--dry-run")
        refused(other, f"{option} '{value}' is in no cell", "choose among")


def test_data_is_generated_first_and_cells_that_cannot_run_are_named_and_left_out(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    monkeypatch.setattr("commands.compare.show.audited", lambda records, **_: records)
    monkeypatch.setattr("commands.compare.show._draw", lambda *_: [])
    monkeypatch.setattr(MissingSet, "make", lambda data_set: made.append(data_set.command))
    words = ("reproduce", "closer2018", "--profile", "smoke", "--model", "alexnet", "--blocks", "1", "--out", "own")
    dry = ended_well(bench(*words, "--dry-run")).stdout
    command = re.findall(r"first it runs (bench data make --images \d+)", dry)
    assert "2 of the cells wait for data that it makes first: their trials come on top" in dry
    assert "it decides no claim: the smoke profile is no measurement" in dry
    assert "refused" not in dry, "what waits for its data is not refused"
    assert not made
    done = bench(*words, "--target", "bare-metal")
    assert made == command
    assert "left out: real-" in done.stderr, "the fakes have made no data"
    assert "bench data make" in done.stderr
    cells = [path.name for path in (tmp_path / "own").iterdir() if path.is_dir()]
    assert any(name.startswith("synthetic-") for name in cells)
    assert not any(name.startswith("real-") for name in cells)


def test_no_data_are_made_for_a_plan_none_of_whose_other_cells_can_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    monkeypatch.setattr(MissingSet, "make", lambda data_set: made.append(data_set.command))
    words = ("reproduce", "closer2018", "--plan", "paper-gpu")
    dry = bench(*words, "--dry-run")
    assert (dry.exit_code, dry.stdout.startswith("16 cells; nothing can run here: device cuda")) == (2, True)
    refused(bench(*words), "no data are made, for no other cell of paper-gpu can run here", "bench data make --images")
    assert made == []


def test_the_part_that_fits_an_hour_has_a_model_that_the_claims_of_the_paper_are_about(bench: Bench) -> None:
    listed = ended_well(bench("reproduce")).stdout
    models = re.findall(r"bench reproduce distributed-gan .*--model (\S+)", listed)
    assert set(models) <= {"dcgan"}, "no claim is about its resnet50, whose blocks are shorter"


@pytest.mark.usefixtures("bench")
def test_the_sets_that_a_plan_lacks_have_the_images_of_its_largest_cell(tmp_path: Path) -> None:
    plans = {path.stem: load_sweep(path) for path in PLANS}
    paper = plans["paper"]
    assert [*missing_sets(paper)] == ["generated"]
    part = smaller(paper, PlanPart(models=("resnet50",)))
    assert missing_sets(paper)["generated"].images > missing_sets(part)["generated"].images > 0
    assert missing_sets(plans["allocation"]) == {}
    sets = plans["gan-sets"]
    assert [data_set.command for data_set in missing_sets(sets).values()] == [
        "bench data make --format mnist --out data/mnist --images 1000",
        "bench data make --format cifar10 --out data/cifar10 --images 1000",
    ]
    missing_sets(sets)["mnist:data/mnist"].make()
    assert [*missing_sets(sets)] == ["cifar10:data/cifar10"]
    assert (tmp_path / "data/mnist").is_dir()


def test_a_part_of_a_plan_has_the_cells_of_the_whole_one() -> None:
    """Their names too: what a part has measured is not measured again by the whole plan."""
    for path in PLANS:
        whole = load_sweep(path)
        cells = {cell.cell_id: cell.settings for cell in cells_of(whole)}
        for key in ("scenario", "model"):
            for value in {str(settings[key]) for settings in cells.values() if key in settings}:
                named = (value,)
                part = smaller(whole, PlanPart(scenarios=named) if key == "scenario" else PlanPart(models=named))
                expected = [cell_id for cell_id, settings in cells.items() if settings.get(key) == value]
                assert [cell.cell_id for cell in cells_of(part)] == expected
                assert part.name == f"{whole.name}-{value}".replace("_", "-")


def test_a_plan_that_its_budget_ends_early_names_its_blocks() -> None:
    told = {}
    for hours in (1, 7, 13, 25):
        planned = PlannedOutput.model_construct(blocks=10, total_s=20 * 3600.0, budget_s=hours * 3600.0)
        told[hours] = planned.early_end
    assert "within the first of 10 blocks: no figure is complete" in told[1]
    assert "after about 3 of 10 blocks; no figure has the 5 blocks of a verdict by then" in told[7]
    assert "after about 6 of 10 blocks; every figure then has these" in told[13]
    assert told[25] == ""


def test_a_rerun_is_compared_with_a_pack_of_earlier_records(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commands.compare.show.audited", lambda records, **_: records)
    monkeypatch.setattr("commands.reproduce.rerun.audited", lambda records, **_: records)
    monkeypatch.setattr("commands.results.pack.recompute", lambda *_: {})
    monkeypatch.setattr("commands.compare.show._draw", lambda *_: [])
    words = ("reproduce", "gan-on-kubernetes", "--profile", "smoke", "--model", "gan", "--blocks", "2")
    ended_well(bench(*words, "--out", "before"))
    ended_well(bench("results", "pack", "before", "--out", "before.tar.gz"))
    again = ended_well(bench(*words, "--out", "after", "--expect", "before.tar.gz"))
    shown = again.stdout.partition("after compared with before.tar.gz")[2]
    assert "Whether the rerun agrees with the earlier records is open (margin 2 %)" in shown
    assert "smoke run: not a measurement" in shown
    assert "source=rerun" in shown
    refused(bench(*words, "--out", "third", "--expect", "nothing.tar.gz"), "nothing.tar.gz cannot be unpacked")
    refused(bench(*words, "--out", "third", "--expect", "nowhere"), "nowhere holds no run with a plan")
    assert not Path("third").exists()


def test_a_pack_of_other_jobs_or_of_the_same_runs_is_refused_before_anything_is_measured(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commands.compare.show.audited", lambda records, **_: records)
    monkeypatch.setattr("commands.reproduce.rerun.audited", lambda records, **_: records)
    monkeypatch.setattr("commands.results.pack.recompute", lambda *_: {})
    monkeypatch.setattr("commands.compare.show._draw", lambda *_: [])
    words = ("reproduce", "gan-on-kubernetes", "--profile", "smoke", "--blocks", "1")
    ended_well(bench(*words, "--model", "gan", "--out", "before"))
    ended_well(bench("results", "pack", "before", "--out", "before.tar.gz"))
    measured = (tmp_path / "measured").read_text()
    for dry in ((), ("--dry-run",)):
        expecting = ("--expect", "before.tar.gz", *dry)
        other = "before.tar.gz has no job of this plan: the one that is most alike has model gan against dcgan"
        refused(bench(*words, "--model", "dcgan", "--out", "third", *expecting), other, "choose it")
        refused(bench(*words, "--model", "gan", "--out", "before", *expecting), "they agree with themselves", "--out")
    quick = ("reproduce", "gan-on-kubernetes", "--profile", "quick", "--blocks", "1", "--model", "gan")
    refused(bench(*quick, "--expect", "before.tar.gz"), "profile smoke against quick")
    assert not Path("third").exists()
    assert (tmp_path / "measured").read_text() == measured


def test_a_part_of_a_paper_that_ends_early_goes_on_with_its_own_command(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commands.sweep.command._run", lambda *_: SweepEnd(made=(), reason="the budget is spent"))
    monkeypatch.setattr("commands.reproduce.command._show_all", lambda *_: None)
    words = ("reproduce", "gan-on-kubernetes", "--profile", "smoke", "--model", "gan", "--blocks", "2")
    ended = ended_well(bench(*words))
    assert f"ended early: the budget is spent; go on with: bench {' '.join(words)}\n" in ended.stderr


@pytest.mark.parametrize("words", ["--model alexnet", "--plan paper", "--blocks 5", "--expect x.tar.gz"])
def test_options_of_a_paper_need_one(bench: Bench, words: str) -> None:
    option, *_ = words.split()
    refused(bench("reproduce", *words.split()), f"{option} needs a paper", "closer2018")


@pytest.mark.parametrize("words", ["--profile fast", "--target moon"])
def test_a_dry_run_of_a_paper_shows_why_it_is_refused(bench: Bench, words: str) -> None:
    done = bench("reproduce", "closer2018", *words.split(), "--dry-run")
    assert (done.exit_code, f"'{words.split()[1]}' is unknown" in done.output) == (2, True)


ME = ProcessIdentity(host="node1", boot_id="b", pid=7, started_ticks=1.0)


def status(**changes: object) -> SweepStatus:
    arms = {
        "bare-metal": TrialCounts(done=3),
        "container": TrialCounts(done=1, failed=1, running=1),
        "vm": TrialCounts(missing=3),
    }
    cells = (CellStatus(cell_id="a-cell", settings={}, arms=arms),)
    values = {"name": "night", "directory": "out", "state": "running", "cells": cells, "running": ()}
    return SweepStatus.model_validate({**values, "blocks_left": (1, 2), "left_s": 600.0, **changes})


def shown(what: object) -> str:
    stream = io.StringIO()
    Console(file=stream, width=120).print(what)
    return stream.getvalue()


def test_the_matrix_has_every_target_of_every_cell() -> None:
    widths = {"a-cell": {"resnet50 on container": 0.021, "resnet50 on vm": None, "resnet50 on container-vm": 0.5}}
    text = shown(matrix(status(), widths))
    assert "night: running" in text
    assert text.splitlines()[1].split() == ["cell", "bare-metal", "container", "vm"]
    assert text.splitlines()[2].split() == ["a-cell", "3/3", "1/3,", "1", "failed", "running", "±2.1%", "0/3"]


def test_what_is_run_and_what_is_left_is_told() -> None:
    holder = LockHolder(name="block-001", owner=ME, cell="a-cell", trial="t", number=5, of=9)
    idle = LockHolder(name="sweep", owner=ME)
    assert lines(status(running=(holder, idle))) == [
        "now: trial 5 of 9, t of a-cell, by process 7 on node1",
        "left: 3 trials in 2 blocks, time 10 min",
        "1 trial failed: see their records",
    ]
    assert "time unknown" in lines(status(left_s=None))[0]
    assert lines(status(left_source="rough", blocks_left=(1,)))[0] == "left: 3 trials in 1 block, time 10 min, ROUGH"
    assert lines(status(blocks_left=(), cells=())) == []


def test_the_live_matrix_follows_the_trials_stays_in_the_end_and_writes_nothing_while_it_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("suite.progress.Allowance.left", lambda _: True)  # on a busy machine, drawing takes too long
    (cell,) = cells_of(sweep := make_sweep(matrix={"model": ["resnet50"]}, blocks=3))
    directory = SweepDirectory(tmp_path)
    directory.accept(sweep, [cell])
    run = directory.cell(cell.cell_id, 0)
    run.begin(plan := make_plan(targets=("bare-metal",), blocks=3))
    stream = io.StringIO()
    display = SweepDisplay(Console(file=stream, force_terminal=True, width=120), tmp_path)
    with locked(tmp_path, "block-000") as lock:
        for number, trial in enumerate(plan.trials(), start=1):
            lock.update(cell=cell.cell_id, trial=trial.trial_id)
            display.trial_started(trial, number, 3)
            display.phase("measuring")
            before = stream.getvalue()
            assert cell.cell_id in before
            assert f"[{number}/3] block {trial.block}, resnet50 on" in before
            assert f"{number - 1}/3 running" in shown(display._matrix)
            # Neither a thread nor a timer: only what is said makes it write.
            assert display._live.auto_refresh is False
            assert stream.getvalue() == before
            record = make_record(trial_id=trial.trial_id, block=trial.block, target="bare-metal", open_s=1.0)
            run.save(record)
            lock.update(cell=None, trial=None)
            display.trial_finished(record)
            assert f"{number}/3" in shown(display._matrix)
            assert f"{number}/3 running" not in shown(display._matrix)
    display.close()
    assert "10.0 images/s" in stream.getvalue()
    assert "3/3" in stream.getvalue().rpartition("images/s")[2], "it stays on the terminal"


def test_a_dry_run_of_a_sweep_lists_cells_time_and_place_and_that_its_budget_ends_it_before(bench: Bench) -> None:
    change("blocks = 3", 'blocks = 3\nbudget.total = "20s"')
    done = ended_well(bench("sweep", "run", "night.toml", "--dry-run"))
    planned = ended_well(bench("sweep", "plan", "night.toml"))
    assert done.stdout == planned.stdout
    assert "on bare-metal, container; a block: " in done.stdout
    assert "into results/night, by the engine local" in done.stdout
    assert "incomplete: the budget of 20 s ends it within the first of 3 blocks: no figure is complete" in done.stdout
    told = PlannedOutput.model_validate_json(bench("sweep", "plan", "night.toml", "--json").stdout)
    assert told.budget_s == 20.0
    assert told.early_end
    change('budget.total = "20s"', 'budget.total = "9d"')
    assert "incomplete" not in ended_well(bench("sweep", "run", "night.toml", "--dry-run")).stdout
