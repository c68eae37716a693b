"""Judging a self-test from made records: what is there is found, what is not there is not."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.report.elements import line
from analysis.selftest.judging import cells_of, certificate_document, judge, speaks_for
from suite.job.profiles import Sizes
from suite.records.environment import Environment, Environments
from suite.records.fields import checked_part
from suite.records.record import Steps
from suite.registries import INJURIES
from suite.results.store import Run
from suite.selftest.certificate import CertifiedMachine, InjuryFinding
from suite.targets import TARGETS
from tests.analysis.conftest import Save, printed
from tests.suite.conftest import make_plan
from tests.suite.judged import certificate

SIZES = Sizes(batch=2, image_px=32, warmup_steps=5, steps=30)
SPAN_S, LATE_S = 6.0, 0.6667


def timed(span_s: float, late_s: float = 0.0, phase: str = "compute_s") -> dict[str, Any]:
    """Fields of a record whose measured steps took so long, ``late_s`` of it in one phase by an injury."""
    steps = {"elapsed_s": [span_s / 30] * 30, "data_s": [1e-4] * 30, "compute_s": [(span_s - late_s) / 30] * 30}
    steps[phase] = [value + late_s / 30 for value in steps[phase]]
    speed = {"throughput_per_s": 60 / span_s, "elapsed_s": 10 + span_s}
    return {"sizes": SIZES, "steps": checked_part(Steps, steps), **speed}


def sweep(save: Save, injured: Callable[[float], dict[str, Any]], *, noise: float = 0.003) -> InjuryFinding:
    """Ten blocks of a container as it is, as it is again, and with late steps. Returns the finding on these."""
    names = ("nothing", "late-steps")
    Run(save.path / "run").begin(make_plan(targets=("container",), blocks=10, ablations=names, sizes=SIZES))
    rng = np.random.default_rng(2)

    def drawn() -> float:
        return SPAN_S * math.exp(rng.normal(0, noise))

    for block in range(10):
        save(block=block, target="container", **timed(drawn()))
        save(block=block, target="container", ablation="nothing", **timed(drawn()))
        save(block=block, target="container", ablation="late-steps", **injured(drawn()))
    found = {one.injury: one for one in judge(save.path / "run").findings}
    assert found["nothing"].found
    return found["late-steps"]


def late(span_s: float, phase: str = "compute_s", seconds: float = LATE_S, clocked: float | None = None) -> Any:
    details = {"injected": {"seconds": seconds if clocked is None else clocked}}
    return {**timed(span_s + seconds, seconds, phase), "details": details}


def test_an_injury_is_found_in_size_place_and_verdict(tmp_path: Path, save: Save) -> None:
    found = sweep(save, late)
    assert (found.found, found.grown, found.verdict, found.blocks) == (True, "compute", "slower", 10)
    assert found.truth == pytest.approx((0.9, 0.9), rel=0.001)
    assert line(cells_of(found)[-1]) == "found"
    assert 0.001 < judge(tmp_path / "run").smallest["throughput"] < 0.01


def test_the_names_of_a_certificate_are_whole_at_80_columns() -> None:
    values: dict[str, Any] = {"scenario": "distributed", "summary": "", "witness": "", "blocks": 10}
    values |= {"metric": "throughput", "truth": (0.905, 0.912), "ratio": 0.907, "interval": (0.899, 0.915)}
    values |= {"verdict": "undecided", "grown": "communicate", "note": "too small for 10 blocks"}
    names = [(target, name) for target in TARGETS for name in INJURIES]
    findings = [InjuryFinding(target=target, injury=name, **values) for target, name in names]
    text = printed(certificate_document(certificate(*findings)), 80)
    lines = text.splitlines()
    assert [tuple(line.split()[:2]) for line in lines if line.split()[:1] in [[name] for name in INJURIES]] == [
        (name, target) for target, name in names
    ]
    assert max(map(len, lines)) <= 80
    assert [word for word in ("undecided", "communicate", "throughput") if word not in text] == []


@pytest.mark.parametrize(
    ("injured", "noise", "facts", "told"),
    [
        (
            partial(late, seconds=0.0, clocked=LATE_S),
            0.003,
            {"size": False, "verdict_right": False},
            "missed: size, verdict",
        ),
        (partial(late, clocked=0.0), 0.003, {"truth": None}, "it was not there in 10 of 10 blocks, by the worker's"),
        (partial(late, clocked=2 * LATE_S), 0.003, {"size": False, "place": True, "verdict_right": True}, "missed"),
        (partial(late, phase="data_s"), 0.003, {"size": True, "place": False, "grown": "data"}, "missed"),
        (late, 0.2, {"verdict": "undecided", "judged": False}, "too small for 10 blocks"),
        (lambda _: {"failed": "no memory"}, 0.003, {}, "its trials failed: no memory"),
    ],
    ids=["not applied", "not seen", "another size", "another phase", "too small", "failed"],
)
def test_an_injury_that_was_not_there_or_is_not_seen_is_not_found_with_the_reason(
    save: Save, injured: Callable[[float], dict[str, Any]], noise: float, facts: dict[str, Any], told: str
) -> None:
    found = sweep(save, injured, noise=noise)
    expected = {"found": False, "judged": True} | facts
    assert {name: getattr(found, name) for name in expected} == expected
    assert told in f"{line(cells_of(found)[-1])} {found.note}"


def test_what_differs_where_nothing_was_done_is_a_miss(tmp_path: Path, save: Save) -> None:
    Run(tmp_path / "run").begin(make_plan(targets=("container",), blocks=3, ablations=("nothing",), sizes=SIZES))
    for block in range(3):
        save(block=block, target="container", **timed(SPAN_S + block / 100))
        save(block=block, target="container", ablation="nothing", **timed(1.2 * SPAN_S))
    (found,) = judge(tmp_path / "run").findings
    assert (found.found, found.judged, found.verdict) == (False, True, "slower")


def test_a_certificate_speaks_for_runs_on_the_same_machine_and_image_alone(save: Save) -> None:
    place = Environment(hostname="h", cpu_model="c", kernel="k", userland_sha256="a" * 64)
    save(environment=Environments(host=place, target=place))
    records = save.load()
    same = {"hostname": "h", "cpu_model": "c", "kernel": "k", "image": "a" * 64}
    made = certificate().model_copy(update={"machine": CertifiedMachine(**same)})
    assert speaks_for(made, records)
    for name in same:
        assert not speaks_for(made.model_copy(update={"machine": CertifiedMachine(**{**same, name: "other"})}), records)
    assert made.line() in save.page(certificate=made).replace("&#39;", "'")
    assert "Positive control" not in save.page()
