"""Published claims: what the shipped file holds, and which verdict the records give each kind of claim.

The founding paper: a forged sweep of its plan with the values that it prints is drawn on its marks, and confirms it.
What its figures do not print (2, 3, 4 and 10) is forged within what its text says.
"""

import json
import math
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.patches import Rectangle

from analysis.compare import published
from analysis.compare.by import compare_by
from analysis.compare.comparison import compare
from analysis.compare.published import judge_claims, published_claims
from analysis.compare.results import Comparison, Effect, JudgedClaim, PublishedClaim
from analysis.figures.drawing import MARKERS
from analysis.figures.plots import Picture, pictures
from analysis.figures.reference import PAPERS_KEY, kind_of, normalised
from analysis.load.records import load
from analysis.report.answers.answer import answer
from analysis.report.document import document
from analysis.report.formatting import at_margin
from analysis.report.page import write_report
from analysis.report.rows import comparison_output
from analysis.statistics.ratios import Verdict
from suite.job.datasets import Dataset
from suite.job.distributed import DistributedJob
from suite.job.envelope import Envelope
from suite.job.lab import LabSpec
from suite.job.profiles import PROFILES, Sizes
from suite.job.sharing import Sharing, sizes_of
from suite.records.environment import Environment
from suite.records.record import AggressorInstance, MetricValue
from suite.records.usage import Conditions
from suite.request.request import RunRequest
from suite.sweep.cells import cells_of
from suite.sweep.directory import SweepDirectory
from suite.sweep.file import load_sweep
from suite.targets import TARGETS
from tests.analysis.conftest import Save, as_markdown, bench_compare, known, measured, printed
from tests.analysis.test_interference import beside
from tests.analysis.test_same_work import work
from tests.commands.conftest import Bench, Machine, bench, here, machine
from tests.jobs import plan_of

__all__ = ["bench", "here", "machine"]
Judge = Callable[..., JudgedClaim]
CONTAINER = {"where": {"target": ["container"]}}
ELAPSED_OVER_THROUGHPUT: dict[str, Any] = {
    "kind": "slow-downs",
    "metric": "elapsed",
    "over": {"metric": ["throughput"]},
}
CHANNELS: dict[str, Any] = {"kind": "jobs", "where": {"channels": ["3"]}, "over": {"channels": ["1"]}}


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judge:
    """Judges one claim, with these fields, by the records of a test."""

    def _judge(**fields: Any) -> JudgedClaim:
        claim = PublishedClaim(**{"sentence": "It costs.", "paper": "a paper A1", "advice": "bench run"} | fields)
        monkeypatch.setattr(published, "published_claims", lambda *_: [claim])
        (judged,) = judge_claims(compare(load(sorted(path.parent for path in tmp_path.glob("*/trials"))))).claims
        return judged

    return _judge


def block(save: Save, number: int, **speeds: float) -> None:
    """Save a block of targets with these speeds, which differ by up to 0.2 % from block to block."""
    for target, speed in speeds.items():
        noise = math.exp(0.001 * math.sin(number * len(target)))
        save(block=number, target=target, **measured(speed * noise))


def test_the_shipped_claims_are_few_and_each_names_what_decides_it_or_why_nothing_does() -> None:
    claims = published_claims()
    assert len(claims) <= 40
    assert len({claim.paper for claim in claims}) == len(claims)
    kinds = {"", "target", "ablation", "aggressor", "allocation", "jobs", "slow-downs", "by"}
    assert {claim.kind for claim in claims} == kinds
    for claim in claims:
        assert re.search(r"\b(doi 10\.|DOI unknown here)", claim.cited)
        assert bool(claim.where) == bool(claim.kind) == claim.advice.startswith("bench ")
        assert bool(claim.over) == (claim.kind in ("jobs", "slow-downs", "by"))
        assert bool(claim.where) == (bool(claim.between) != bool(claim.expected))
        for longer in re.findall(r"at least ([0-9.]+) % longer", claim.sentence):
            assert claim.between[0] == pytest.approx(1 + float(longer) / 100)
        for less in re.findall(r"^([0-9.]+) % less time,", claim.published or ""):
            assert claim.between[0] == pytest.approx(1 / (1 - float(less) / 100), abs=0.001)


@pytest.mark.parametrize(
    ("speed", "ratio", "order", "equality"),
    [
        (8.0, "confirmed", "confirmed", "contradicted"),
        (10.0, "contradicted", "contradicted", "confirmed"),
        (12.0, "contradicted", "contradicted", "contradicted"),
    ],
)
def test_each_kind_is_judged_by_interval_and_verdict(
    save: Save, judge: Judge, speed: float, ratio: str, order: str, equality: str
) -> None:
    for number in range(6):
        block(save, number, **{"bare-metal": 10.0, "container": speed})
    assert judge(kind="target", between=[0.75, 0.85], **CONTAINER).verdict == ratio
    assert judge(kind="target", expected="slower", **CONTAINER).verdict == order
    found = judge(kind="target", expected="equivalent", **CONTAINER)
    assert found.verdict == equality
    assert [item.what for item in found.evidence] == ["resnet50 on container"]


def test_a_wide_interval_and_what_no_record_tests_are_undecided_and_what_nothing_tests_is_not_testable(
    save: Save, judge: Judge
) -> None:
    block(save, 0, **{"bare-metal": 10.0})
    found = (judge(kind="target", expected="slower", **CONTAINER).verdict, judge().verdict)
    assert found == ("undecided", "not testable")
    for number in range(6):
        block(save, number, **{"bare-metal": 10.0, "container": 8.0 + (-1) ** number})
    assert judge(kind="target", between=[0.79, 0.81], **CONTAINER).verdict == "undecided"


def test_too_few_blocks_and_disturbed_trials_decide_no_claim(save: Save, judge: Judge) -> None:
    for number in range(4):
        block(save, number, **{"bare-metal": 10.0, "container": 8.0})
    found = judge(kind="target", expected="slower", **CONTAINER)
    assert (found.verdict, found.evidence[0].text) == ("undecided", "at least 5 blocks are needed")
    busy = Conditions(interval_s=20.0, other_cpu_s=20.0)
    for number in range(6):
        for target, speed in (("bare-metal", 10.0), ("container", 8.0)):
            save(block=number, target=target, conditions=busy, **measured(speed))
    found = judge(kind="target", expected="slower", **CONTAINER)
    assert (found.verdict, found.evidence[0].text) == ("undecided", "the CPUs were busy with other work")
    (evidence,) = judge(expected="slower", **ELAPSED_OVER_THROUGHPUT, **CONTAINER).evidence
    what = "resnet50 on container over metric=throughput"
    assert (evidence.what, evidence.text) == (what, "the CPUs were busy with other work")


@pytest.mark.parametrize(("grown", "verdict"), [(1.1, "confirmed"), (1.0, "contradicted"), (0.9, "contradicted")])
def test_a_metric_is_compared_with_another_by_how_much_slower_they_are(
    save: Save, judge: Judge, grown: float, verdict: str
) -> None:
    for number in range(6):
        block(save, number, **{"bare-metal": 10.0})
        slower = measured(8.0 * math.exp(0.001 * math.sin(number))) | {"elapsed_s": 100 / 8.0 * grown}
        save(block=number, target="container", **slower)
    assert judge(expected="slower", **ELAPSED_OVER_THROUGHPUT, **CONTAINER).verdict == verdict


def test_one_ratio_that_contradicts_is_enough(save: Save, judge: Judge) -> None:
    for number in range(6):
        block(save, number, **{"bare-metal": 10.0, "container": 8.0, "vm": 10.0})
    found = judge(kind="target", expected="slower", where={"target": ["container", "vm"]})
    verdicts = [found.verdict, *(item.verdict for item in found.evidence)]
    assert verdicts == ["contradicted", "confirmed", "contradicted"]


TARGETS_AND_MODELS = {"target": ["container", "vm"], "model": ["resnet50", "alexnet", "gan*"]}


def test_a_claim_about_all_is_confirmed_for_what_was_measured_and_says_how_much_was_not(
    save: Save, judge: Judge
) -> None:
    for number in range(6):
        block(save, number, **{"bare-metal": 10.0, "container": 8.0})
    found = judge(kind="target", between=[0.75, 0.85], where=TARGETS_AND_MODELS)
    assert found.verdict == "confirmed in part"
    assert found.word == "confirmed for container, resnet50; 5 of 6 not measured"
    assert found.missing[-1] == "vm, gan"
    for number in range(6):
        block(save, number, vm=8.0)
    whole = judge(kind="target", between=[0.75, 0.85], where={**TARGETS_AND_MODELS, "model": ["resnet50"]})
    assert (whole.verdict, whole.word) == ("confirmed", "confirmed")


def test_a_claim_over_others_is_about_each_of_them(save: Save, judge: Judge) -> None:
    for number in range(6):
        block(save, number, **{"bare-metal": 10.0, "container": 8.0, "vm": 9.0})
    sides = {"where": {"target": ["container"]}, "over": {"target": ["vm", "container-vm"]}}
    found = judge(kind="slow-downs", expected="slower", **sides)
    assert found.word == "confirmed for container over vm; 1 of 2 not measured"


def test_what_was_measured_of_a_claim_and_what_decides_the_rest_is_shown(save: Save) -> None:
    for number in range(6):
        for target, speed in {"bare-metal": 10.0, "container": 9.9}.items():
            save(block=number, target=target, model="alexnet", **measured(speed * (1 + 0.001 * (-1) ** number)))
    shown = printed(document(judge_claims(save.compare())), 500)
    (line,) = (line for line in shown.splitlines() if "(closer2018 L1:" in line)
    assert line.startswith("confirmed for container, alexnet; 8 of 9 not measured: Alone, with synthetic data")
    after = shown.partition("closer2018 L1:")[2].splitlines()
    assert [line.strip() for line in after[2:4]] == ["to decide it:", published_claims()[0].advice]


def epochs_in(save: Save, place: str, epoch_s: float, *models: str) -> str:
    """Save six blocks of a container in a cluster of this context, whose epochs take so long."""
    for model, block in product(models, range(6)):
        seconds = epoch_s * math.exp(0.001 * math.sin(block + len(place)))
        epoch = MetricValue(value=seconds, unit="s", better="less")
        save(place, block=block, model=model, target="container", metrics={"epoch": epoch}, **measured(10.0))
    request = RunRequest.of({"target": ("container",), "context": place})
    plan = plan_of(request=request, envelope=Envelope(cpus=(0,), memory_bytes=1 << 30, threads=1))
    (save.path / place / "plan.json").write_text(plan.model_dump_json())
    return place


GANS = ("gan", "dcgan")


@pytest.mark.parametrize("key", ["place", "context"])
@pytest.mark.parametrize(
    ("epochs", "models", "order", "less"),
    [
        ({"gke_a_b": 20.0, "ibm": 17.0, "m1": 10.0}, GANS, "confirmed", "confirmed"),
        ({"gke_a_b": 20.0, "ibm": 19.0, "m1": 10.0}, GANS, "confirmed", "contradicted"),
        ({"gke_a_b": 20.0, "ibm": 17.0, "m1": 18.0}, GANS, "contradicted", "confirmed"),
        (
            {"gke_a_b": 20.0, "ibm": 17.0},
            ("gan",),
            "confirmed for gan, gke over ibm; 5 of 6 not measured",
            "confirmed for gan, ibm over gke; 1 of 2 not measured",
        ),
        ({"gke_a_b": 20.0, "elsewhere": 17.0}, GANS, "undecided", "undecided"),
    ],
)
def test_claims_about_places_are_judged_by_the_values_of_a_key(
    save: Save, key: str, epochs: dict[str, float], models: tuple[str, ...], order: str, less: str
) -> None:
    runs = [epochs_in(save, place, epoch_s, *models) for place, epoch_s in epochs.items()]
    found = judge_claims(compare_by(save.load(*runs), (key,)))
    assert {judged.claim.paper[-2:]: judged.word for judged in found.claims} == {"C1": order, "C2": less}
    for judged in found.claims:
        for item in judged.evidence:
            assert item.text.startswith("the spread between runs is unknown"), "of one run in each place"


def test_claims_about_places_stand_in_every_form_of_by_and_nowhere_by_another_key(save: Save, tmp_path: Path) -> None:
    runs = [tmp_path / epochs_in(save, place, epoch_s, *GANS) for place, epoch_s in {"gke": 20.0, "ibm": 17.0}.items()]
    words: tuple[str | Path, ...] = (*runs, "--by", "place", "--claims", "--force")
    shown = " ".join(bench_compare(*words).stdout.split())
    assert "confirmed: Training on IBM Kubernetes Service takes 15 % less time per epoch" in shown
    assert "gan on container, place=ibm over place=gke: epoch 0.850x" in shown
    told = json.loads(bench_compare(*words, "--json").stdout)["published"]
    assert [row["verdict"] for row in told] == ["confirmed in part", "confirmed"]
    over_models = judge_claims(compare_by(save.load("gke", "ibm"), ("model",)))
    assert {judged.verdict for judged in over_models.claims} == {"undecided"}


def of_channels(save: Save, blocks: int = 6, **changes: Any) -> None:
    for number in range(blocks):
        for channels, speed in ((1, 10.0), (3, 8.0 * math.exp(0.001 * (-1) ** number))):
            fields = {"batch": 2, "image_px": 28, "channels": channels, "warmup_steps": 1, "steps": 3}
            sizes = Sizes.model_validate(fields)
            save(f"of-{channels}", block=number, model="dcgan", sizes=sizes, **measured(speed), **changes)


def test_two_jobs_are_compared_as_two_samples(save: Save, judge: Judge) -> None:
    of_channels(save)
    found = judge(expected="slower", **CHANNELS)
    (evidence,) = found.evidence
    assert (found.verdict, evidence.what) == ("confirmed", "dcgan on bare-metal (channels=3) over channels=1")
    assert known(evidence.effect).ratio == pytest.approx(0.8, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "why"), [({"blocks": 4}, "at least 5 blocks are needed"), ({"profile": "smoke"}, "")]
)
def test_two_jobs_decide_no_more_than_their_trials_do(
    save: Save, judge: Judge, change: dict[str, Any], why: str
) -> None:
    of_channels(save, **change)
    found = judge(expected="slower", **CHANNELS)
    assert (found.verdict, why in found.evidence[0].text) == ("undecided", True)


@pytest.mark.parametrize(("weights", "verdict"), [("ab" * 32, "confirmed"), ("cd" * 32, "contradicted")])
def test_equal_weights_are_an_equality(save: Save, judge: Judge, weights: str, verdict: str) -> None:
    save(**work())
    save(target="vm", **work(weights=weights))
    judged = judge(kind="target", expected="equivalent", metric="weights", where={"target": ["vm"]})
    assert judged.verdict == verdict
    assert (judged.evidence[0].text == "the same, bit for bit") == (verdict == "confirmed"), "not: weights weights"


@pytest.fixture
def comparison(save: Save) -> Comparison:
    for number in range(6):
        block(save, number, **{"bare-metal": 10.0, "container": 8.0})
    return judge_claims(save.compare())


def test_terminal_markdown_page_and_json_hold_the_same_verdicts(comparison: Comparison, tmp_path: Path) -> None:
    verdicts = [judged.verdict for judged in comparison.claims]
    assert set(verdicts) == {"contradicted", "undecided", "not testable", "confirmed in part"}
    words = [judged.word for judged in comparison.claims]
    shown = printed(document(comparison), 500)
    page = write_report(load([tmp_path / "run"]), tmp_path / "report.html", claims=True).read_text()
    for pattern, text in (
        (r"^([a-z][a-z0-9 ,;-]*): .*\((?:clo|gan|res|dis|inf)[a-z0-9-]+ [A-Z]\d+", shown),
        (r"^- ([a-z][a-z0-9 ,;-]*): .*\((?:clo|gan|res|dis|inf)[a-z0-9-]+ [A-Z]\d+", as_markdown(comparison)),
        (r"<strong>([a-z][a-z0-9 ,;-]*):</strong> .*\((?:clo|gan|res|dis|inf)[a-z0-9-]+ [A-Z]\d+", page),
    ):
        assert sorted(re.findall(pattern, text, re.MULTILINE)) == sorted(words)
    told = json.loads(comparison_output(comparison).model_dump_json())["published"]
    assert [row["verdict"] for row in told] == verdicts
    assert "  to decide it:\nbench sweep run channels\n" in shown, "a line that can be pasted"
    places = [shown.index(f"({judged.claim.paper}") for judged in comparison.claims if judged.verdict == "contradicted"]
    others = [shown.index(f"({judged.claim.paper}") for judged in comparison.claims if judged.verdict == "undecided"]
    assert max(places) < min(others), "what is decided comes first"


def test_claims_of_which_nothing_was_measured_come_last_and_one_command_decides_several(comparison: Comparison) -> None:
    shown = printed(document(comparison), 500)
    measured = [row.claim.paper for row in comparison.claims if row.evidence]
    unmeasured = [row.claim.paper for row in comparison.claims if row.verdict == "undecided" and not row.evidence]
    assert max(shown.index(f"({paper}") for paper in measured) < min(shown.index(f"({paper}") for paper in unmeasured)
    advices = [row.claim.advice for row in comparison.claims if row.claim.paper in unmeasured]
    several = next(advice for advice in advices if advices.count(advice) > 1)
    first, *_ = several.split("; ")
    assert shown.count(f"to decide them:\n{first}\n") == 1


def test_without_the_option_no_claim_is_shown_and_csv_has_none(comparison: Comparison, tmp_path: Path) -> None:
    for words, claims in (((), 0), (("--claims",), len(comparison.claims))):
        told = json.loads(bench_compare(tmp_path / "run", "--json", "--force", *words).stdout)
        assert len(told["published"]) == claims
    refused = bench_compare(tmp_path / "run", "--claims", "--csv", "--force")
    assert "--claims" in str(refused.exception) + refused.output


COMMANDS = dict.fromkeys(text for claim in published_claims() if claim.where for text in claim.advice.split("; "))
OF_THE_READER = (
    "hosts.toml: No such file",
    "lies on a file system without a disk of its own",
    "of memory asked for",
    "there is no CLAIM/PATH",
    "there is no PATH",
)
"""Refusals of what only the reader has."""


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_of_every_claim_is_accepted(bench: Bench, machine: Machine, here: Path, command: str) -> None:
    words = shlex.split(command.removeprefix("bench "))
    if "generated" in words:
        assert bench("data", "make", "--images", "1024", "--size", "small").exit_code == 0
    result = bench(*(["sweep", "plan", *words[2:]] if words[0] == "sweep" else [*words, "--dry-run"]))
    assert result.exit_code == 0 or any(text in result.stderr for text in OF_THE_READER), result.stderr
    assert (machine.events, list(here.glob("results*"))) == ([], [])


PLAN = Path(__file__).parents[2] / "plans/paper.toml"
ALONE = {
    ("synthetic", "throughput"): (1.0, 0.995, 0.93, 0.88),
    ("synthetic", "elapsed"): (1.0, 1.01, 1.12, 1.18),
    ("real", "throughput"): (1.0, 1.0, 0.97, 0.95),
}
"""Ratios to bare metal by target, of figures without numbers."""
ADDED = {
    "inception_v3": (0.19, 0.15, 0.10, 0.135),
    "resnet50": (0.19, 0.15, 0.10, 0.135),
    "alexnet": (0.685, 0.5, 0.35, 0.42),
    "alexnet-small": (0.16, 0.09, 0.05, 0.08),
}
"""What each victim's elapsed time grows by beside AlexNet, by target."""
SWITCHED = (4.0, 1.5, 1.1, 1.2)
"""The involuntary switches of a victim beside AlexNet over those alone, by target."""
LAB = LabSpec.model_validate({"nodes": 3, "rate": "1gbit"})
BASE = {"inception_v3": 57.0, "resnet50": 52.0, "alexnet": 284.0, "alexnet-small": 284.0}
REAL_BASE = {"inception_v3": 54.0, "resnet50": 46.0, "alexnet": 282.0}
"""The throughput of bare metal in figures 6 and 8."""


def forged_ratio(job: Mapping[str, Any], target: str, metric: str) -> float:
    return ratio(job, target, metric)


def forged_growth(target: str) -> float:
    return SWITCHED[TARGETS.index(target)]


def ratio(job: Mapping[str, Any], target: str, metric: str) -> float:
    scenario = job["scenario"]
    key = (scenario, kind_of(job["data"]), job["model"], target, metric)
    return normalised().get(key) or ALONE.get((scenario, metric), (1.0,) * 4)[TARGETS.index(target)]


def job_of(settings: Mapping[str, Any], images_of_set: int) -> dict[str, Any]:
    """The parts of a job in which the cells of the plan differ."""
    scenario, data = settings["scenario"], settings.get("data", "synthetic")
    images = Dataset(kind="imagefolder", sha256="d" * 64, images=images_of_set, size_bytes=10**9)
    more: dict[str, Any] = {"dataset": images, "page_cache": "warm"} if data != "synthetic" else {}
    if scenario == "distributed":
        given = DistributedJob(strategy=settings["strategy"], workers=2, servers=1, network="host", lab=LAB)
        more["distributed"] = given
    if scenario == "shared":
        aggressor = settings["aggressor"]
        workloads = {aggressor: sizes_of(PROFILES["paper"], aggressor, {})}
        more["sharing"] = Sharing(aggressors=(aggressor,), workloads=workloads)
    sizes = sizes_of(PROFILES["paper"], settings["model"], {})
    return {"scenario": scenario, "model": settings["model"], "data": data, "profile": "paper", "sizes": sizes, **more}


def forge(directory: Path, save: Save, *scenarios: str, blocks: int = 5, images: int = 150_000) -> Path:
    """Save the records of a sweep of the plan, every cell a run of one model; return its directory."""
    sweep = load_sweep(PLAN)
    cells = [cell for cell in cells_of(sweep) if cell.settings["scenario"] in scenarios]
    SweepDirectory(directory / "paper").accept(sweep, cells)
    for cell in cells:
        job = job_of(cell.settings, images)
        base = (REAL_BASE if job["data"] != "synthetic" else BASE)[job["model"]]
        for block in range(blocks):
            drift = math.exp(0.3 * math.sin(block))  # of the machine, which the cells of a block share
            for target in TARGETS:
                noise = math.exp(1e-4 * math.sin(block * len(target + cell.cell_id)))
                speed = base * forged_ratio(job, target, "throughput") * drift * noise
                elapsed_s = 200 * forged_ratio(job, target, "elapsed") / drift / noise
                for aggressor in (None, *(job["sharing"].aggressors if "sharing" in job else ())):
                    grown = 1 + ADDED[job["model"]][TARGETS.index(target)] if aggressor else 1.0
                    values: dict[str, Any] = {"throughput_per_s": speed / grown, "elapsed_s": elapsed_s * grown}
                    if "sharing" in job:
                        idle = AggressorInstance(environment=Environment())
                        values["aggressors"] = [beside(10.0, 5.0) if aggressor else idle]
                        switches = 1000 * noise * (forged_growth(target) if aggressor else 1.0)
                        values["details"] = {"measured_usage": {"involuntary_switches": switches}}
                    name = f"{target}-{aggressor or ''}-{block}"
                    run = f"paper/{cell.cell_id}"
                    save(run, trial_id=name, block=block, target=target, aggressor=aggressor, **values, **job)
    return directory / "paper"


@pytest.fixture(scope="module")
def founding(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    place = tmp_path_factory.mktemp("founding")
    return judge_claims(compare(load([forge(place, Save(place), "synthetic", "real", "distributed", "shared")])))


def test_every_claim_of_the_paper_is_confirmed_by_its_printed_values(founding: Comparison) -> None:
    of_paper = {judged.claim.paper.split()[1]: judged for judged in founding.claims if PAPERS_KEY in judged.claim.paper}
    # Its conclusion has "less than 10 %", and its text 15 %: values between the two confirm the text alone.
    conclusion = of_paper.pop("L21")
    assert conclusion.verdict == "contradicted"
    contradicting = {item.what for item in conclusion.evidence if item.verdict == "contradicted"}
    assert contradicting == {f"{model} on container-vm" for model in REAL_BASE}
    evidence = [(name, item) for name, one in of_paper.items() for item in one.evidence]
    assert [(name, item) for name, item in evidence if item.verdict != "confirmed"] == []
    assert {judged.verdict for judged in of_paper.values()} == {"confirmed"}
    assert len(of_paper) == 22


def test_with_bare_metal_and_a_container_in_a_vm_swapped_the_order_is_contradicted(
    tmp_path: Path, save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claims on order, equality and trend, each by the printed values of another target."""
    swapped = {"bare-metal": "container-vm", "container-vm": "bare-metal", "container": "vm", "vm": "container"}

    def swapped_ratio(job: Mapping[str, Any], target: str, metric: str) -> float:
        return ratio(job, swapped[target], metric)

    monkeypatch.setattr(f"{__name__}.forged_ratio", swapped_ratio)
    directory = forge(tmp_path, save, "synthetic", "real", "distributed")
    judged = judge_claims(compare(load([directory])), PAPERS_KEY).claims
    verdicts = {one.claim.paper.split()[1]: one.verdict for one in judged}
    assert {verdicts[name] for name in ("L18", "L19", "L20", "L22")} == {"contradicted"}
    assert verdicts["L21"] == "confirmed", "every target is faster than the slowest"


def test_with_switches_that_grow_most_elsewhere_the_papers_explanation_of_figure_10_is_contradicted(
    tmp_path: Path, save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    swapped = {"bare-metal": "vm", "vm": "bare-metal"}
    monkeypatch.setattr(f"{__name__}.SWITCHED", tuple(SWITCHED[TARGETS.index(swapped.get(t, t))] for t in TARGETS))
    judged = judge_claims(compare(load([forge(tmp_path, save, "shared")])), PAPERS_KEY).claims
    verdicts = {one.claim.paper.split()[1]: one.verdict for one in judged}
    assert (verdicts["L13"], verdicts["L23"]) == ("confirmed", "contradicted")


def test_the_claims_of_one_paper_are_judged_alone(founding: Comparison) -> None:
    judged = judge_claims(founding, "resource-aware-gan").claims
    assert {one.claim.paper.split()[0] for one in judged} == {"resource-aware-gan"}


def test_models_and_victims_are_combined_across_the_cells_of_a_sweep(founding: Comparison) -> None:
    over_models = {
        (arm.job.scenario, arm.job.data, arm.target): measured["throughput"]
        for arm, measured in founding.of_kind("models").items()
    }
    alone = [("synthetic", "synthetic"), ("real", "generated")]
    jobs = [*alone, *(("distributed", data) for _, data in alone)]
    found = {key for key in over_models if key[0] != "shared"}
    assert found == {(*job, target) for job in jobs for target in TARGETS[1:]}
    vm = over_models["distributed", "synthetic", "vm"]
    assert (len(vm.members), vm.blocks) == (3, 5)
    assert vm.ratio == pytest.approx((44 / 57 * 39 / 52 * 247 / 284) ** (1 / 3), rel=1e-3)
    ranked = [one for one in founding.contrasts if one.kind == "isolation"]
    assert [one.target for one in ranked] == ["vm", "container-vm", "container", "bare-metal"]
    assert {(len(one.members), one.blocks) for one in ranked} == {(4, 5)}


def test_runs_alone_share_no_blocks(tmp_path: Path, save: Save) -> None:
    directory = forge(tmp_path, save, "shared")
    assert answer(compare(load([directory]))).rows, "a shared sweep alone is answered"
    (directory / "sweep.json").unlink()
    found = compare(load([path for path in directory.iterdir() if path.is_dir()]))
    assert len(found.of_kind("aggressor")) == 16
    assert not [one for one in found.contrasts if one.kind in ("models", "isolation") and one.ratio]


def marks(axes: Axes) -> list[tuple[float, float]]:
    points = (np.asarray(one.get_offsets()) for one in axes.collections if isinstance(one, PathCollection))
    return [(float(x), float(y)) for drawn in points for x, y in drawn]


def patches(axes: Axes, *, dotted: bool) -> list[Rectangle]:
    found = [one for one in axes.patches if isinstance(one, Rectangle) and one.get_width() and one.get_height()]
    return [one for one in found if (one.get_linestyle() == ":") == dotted]


def measured_marks(axes: Axes) -> dict[float, float]:
    """Return the height of each measured mark by its place on the axis: of bars, and of the dots of ratios."""
    heights = {one.get_x() + one.get_width() / 2: one.get_height() for one in patches(axes, dotted=False)}
    for line in axes.lines:
        if line.get_marker() in (*MARKERS.values(), "P"):
            heights |= dict(zip(np.asarray(line.get_xdata()), np.asarray(line.get_ydata()), strict=True))
    return heights


def test_figures_2_to_10_show_the_printed_values_on_the_papers_marks(founding: Comparison) -> None:
    drawn: dict[int, Picture] = {}
    for job in founding.jobs:
        for one in pictures(founding, job, normalised()):
            number = one.drawing.number
            assert one.stem.startswith(f"figure-{number}-{job.scenario}-" if number else f"{job.scenario}-")
            titles = (one.caption, one.drawing.chart.axes[0].get_title(loc="left"))
            assert [text.startswith(f"Figure {number}: ") for text in titles] == [number is not None] * 2
            drawn |= {number: one} if number else {}
    scenarios = ("synthetic", "synthetic", "real", "real", *["distributed"] * 4, "shared")
    metrics = (*("throughput", "elapsed") * 4, "elapsed")
    shown = {number: (one.stem.split("-")[2], one.stem.split("-")[-1]) for number, one in drawn.items()}
    assert shown == dict(zip(range(2, 11), zip(scenarios, metrics, strict=True), strict=True))
    marked, outlined = {}, {}
    for number, picture in drawn.items():
        axes = picture.drawing.chart.axes[0]
        bars = measured_marks(axes)
        for x, y in marks(axes):
            assert min(abs(x - middle) + abs(y - height) for middle, height in bars.items()) < 0.1, (number, x, y)
        for box in patches(axes, dotted=True):
            right, top = box.get_x() + box.get_width(), box.get_y() + box.get_height()
            (height,) = (height for middle, height in bars.items() if box.get_x() < middle < right)
            assert box.get_y() < height < top, (number, box)
        marked[number], outlined[number] = len(marks(axes)), len(patches(axes, dotted=True))
        labels = {text.get_text() for legend in picture.drawing.chart.legends for text in legend.get_texts()}
        assert any("by its text" in text for text in labels) == bool(outlined[number])
        assert ("Lin, Pai and Chou 2018" in labels) == bool(marked[number])
    assert marked == {number: 9 if 5 <= number <= 9 else 0 for number in range(2, 11)}
    assert outlined == {2: 9, 3: 9, 4: 0, 5: 0, 6: 0, 7: 0, 8: 0, 9: 0, 10: 14}


@pytest.mark.parametrize(("images", "numbers"), [(600, set()), (56_319, set()), (56_320, {4, 5})])
def test_only_a_set_as_large_as_the_steps_need_gives_a_figure_its_number(
    tmp_path: Path, save: Save, images: int, numbers: set[int]
) -> None:
    comparison = compare(load([forge(tmp_path, save, "real", blocks=5, images=images)]))
    drawn = {one.drawing.number for job in comparison.jobs for one in pictures(comparison, job, normalised())}
    assert drawn - {None} == numbers
    said = f"imagefolder of {images:,} images, digest dddddddd"
    assert said in answer(comparison).where


def test_the_verdict_beside_a_claim_names_its_margin_and_asks_for_no_blocks() -> None:
    verdict = Verdict("undecided", 0.2, more_blocks=387, margin=0.02)
    effect = Effect(ratio=0.987, blocks=5, interval=(0.944, 1.03), verdict=verdict)
    assert at_margin(effect) == "0.987x (0.944 to 1.030), undecided at 2 %"
    withheld = replace(effect, verdict=replace(verdict, name=None))
    assert at_margin(withheld) == "0.987x (0.944 to 1.030), no verdict"
    alone = replace(effect, blocks=1, interval=None)
    assert at_margin(alone) == "0.987x (1 block)"
