"""Judging a self-test from made records: what is there is found, what is not there is not."""

import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from analysis.load.records import load
from analysis.report.certificate import cells_of, certificate_document
from analysis.report.elements import line
from analysis.report.page import write_report
from analysis.report.terminal import Terminal
from analysis.selftest.judging import judge, speaks_for
from suite.job.profiles import Sizes
from suite.records.environment import Environment, Environments
from suite.records.record import Steps
from suite.registries import INJURIES
from suite.results.store import Run
from suite.selftest.certificate import CertifiedMachine, InjuryFinding
from suite.targets import TARGETS
from tests.suite.conftest import make_plan
from tests.suite.test_selftest import certificate

SIZES = Sizes(batch=2, image_px=32, warmup_steps=5, steps=30)
SPAN_S, LATE_S = 6.0, 0.6667
Steady = Callable[[float, float], dict[str, Any]]


def timed(span_s: float, late_s: float = 0.0, phase: str = "compute_s") -> dict[str, Any]:
    """Fields of a record whose measured steps took so long, ``late_s`` of it in one phase by an injury."""
    steps = {"elapsed_s": [span_s / 30] * 30, "data_s": [1e-4] * 30, "compute_s": [(span_s - late_s) / 30] * 30}
    steps[phase] = [value + late_s / 30 for value in steps[phase]]
    return {
        "sizes": SIZES,
        "throughput_per_s": 60 / span_s,
        "elapsed_s": 10 + span_s,
        "steps": Steps.model_validate(steps),
    }


def sweep(
    save: Any, tmp_path: Path, injured: Callable[[float], dict[str, Any]], *, noise: float = 0.003
) -> InjuryFinding:
    """Ten blocks of a container as it is, as it is again, and with late steps. Returns the finding on these."""
    names = ("nothing", "late-steps")
    Run(tmp_path / "run").begin(make_plan(targets=("container",), blocks=10, ablations=names, sizes=SIZES))
    rng = np.random.default_rng(2)

    def drawn() -> float:
        return SPAN_S * math.exp(rng.normal(0, noise))

    for block in range(10):
        save(block=block, target="container", **timed(drawn()))
        save(block=block, target="container", ablation="nothing", **timed(drawn()))
        save(block=block, target="container", ablation="late-steps", **injured(drawn()))
    found = {one.injury: one for one in judge(tmp_path / "run").findings}
    assert found["nothing"].found
    return found["late-steps"]


def late(span_s: float, phase: str = "compute_s", seconds: float = LATE_S, clocked: float | None = None) -> Any:
    details = {"injected": {"seconds": seconds if clocked is None else clocked}}
    return {**timed(span_s + seconds, seconds, phase), "details": details}


def test_an_injury_is_found_in_size_place_and_verdict(tmp_path: Path, save: Any) -> None:
    found = sweep(save, tmp_path, late)
    assert found.found
    assert (found.grown, found.verdict, found.blocks) == ("compute", "slower", 10)
    assert found.truth == pytest.approx((0.9, 0.9), rel=0.001)
    assert line(cells_of(found)[-1]) == "found"
    smallest = judge(tmp_path / "run").smallest
    assert 0.001 < smallest["throughput"] < 0.01


def test_the_names_of_a_certificate_are_whole_at_80_columns() -> None:
    injury: dict[str, Any] = {
        "scenario": "distributed",
        "summary": "",
        "metric": "throughput",
        "witness": "",
        "blocks": 10,
    }
    measured: dict[str, Any] = {
        "truth": (0.905, 0.912),
        "ratio": 0.907,
        "interval": (0.899, 0.915),
        "verdict": "undecided",
    }
    names = [(target, name) for target in TARGETS for name in INJURIES]
    findings = [
        InjuryFinding(
            target=target, injury=name, grown="communicate", note="too small for 10 blocks", **injury, **measured
        )
        for target, name in names
    ]
    console = Console(width=80, file=io.StringIO())
    console.print(Terminal(certificate_document(certificate(*findings))))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert [tuple(line.split()[:2]) for line in lines if line.split()[:1] in [[name] for name in INJURIES]] == [
        (name, target) for target, name in names
    ]
    assert max(map(len, lines)) <= 80
    for word in ("undecided", "communicate", "throughput"):
        assert word in console.file.getvalue()


def test_an_injury_that_is_not_applied_is_not_found(tmp_path: Path, save: Any) -> None:
    found = sweep(save, tmp_path, lambda span_s: late(span_s, seconds=0.0, clocked=LATE_S))
    assert (found.found, found.size, found.verdict_right) == (False, False, False)
    assert line(cells_of(found)[-1]) == "missed: size, verdict"


def test_an_injury_that_nobody_has_seen_is_not_found_either(tmp_path: Path, save: Any) -> None:
    found = sweep(save, tmp_path, lambda span_s: late(span_s, clocked=0.0))
    assert (found.found, found.judged, found.truth) == (False, True, None)
    assert "it was not there in 10 of 10 blocks, by the worker's clock" in found.note


def test_an_injury_of_another_size_or_in_another_phase_is_missed(tmp_path: Path, save: Any) -> None:
    found = sweep(save, tmp_path, lambda span_s: late(span_s, clocked=2 * LATE_S))
    assert (found.size, found.place, found.verdict_right, found.found) == (False, True, True, False)
    found = sweep(save, tmp_path, lambda span_s: late(span_s, phase="data_s"))
    assert (found.size, found.place, found.grown, found.found) == (True, False, "data", False)


def test_what_the_blocks_are_too_few_for_is_neither_found_nor_missed(tmp_path: Path, save: Any) -> None:
    found = sweep(save, tmp_path, late, noise=0.2)
    assert (found.verdict, found.judged, found.found) == ("undecided", False, False)
    assert line(cells_of(found)[-1]) == "too small for 10 blocks"


def test_trials_that_failed_are_no_finding(tmp_path: Path, save: Any) -> None:
    found = sweep(save, tmp_path, lambda _: {"failed": "no memory"})
    assert (found.found, found.judged) == (False, True)
    assert found.note == "its trials failed: no memory"


def test_what_differs_where_nothing_was_done_is_a_miss(tmp_path: Path, save: Any) -> None:
    Run(tmp_path / "run").begin(make_plan(targets=("container",), blocks=3, ablations=("nothing",), sizes=SIZES))
    for block in range(3):
        save(block=block, target="container", **timed(SPAN_S + block / 100))
        save(block=block, target="container", ablation="nothing", **timed(1.2 * SPAN_S))
    (found,) = judge(tmp_path / "run").findings
    assert (found.found, found.judged, found.verdict) == (False, True, "slower")


def test_a_certificate_speaks_for_runs_on_the_same_machine_and_image_alone(tmp_path: Path, save: Any) -> None:
    place = Environment(hostname="h", cpu_model="c", kernel="k", userland_sha256="a" * 64)
    save(environment=Environments(host=place, target=place))
    records = load([tmp_path / "run"])
    same = {"hostname": "h", "cpu_model": "c", "kernel": "k", "image": "a" * 64}
    made = certificate().model_copy(update={"machine": CertifiedMachine(**same)})
    assert speaks_for(made, records)
    for name in same:
        assert not speaks_for(made.model_copy(update={"machine": CertifiedMachine(**{**same, name: "other"})}), records)
    page = write_report(records, tmp_path / "report.html", certificate=made).read_text()
    assert made.line() in page.replace("&#39;", "'")
    assert "Positive control" not in write_report(records, tmp_path / "report.html").read_text()
