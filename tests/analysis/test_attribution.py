import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.explain.explanation import Explanation
from analysis.load.records import load
from analysis.report.waterfall import explanation_document
from suite.records.record import Steps, Timeline
from tests.analysis.conftest import explained_by, printed

PHASES = (
    "opening",
    "launch",
    "imports",
    "build",
    "warm-up",
    "data",
    "copy",
    "compute",
    "communicate",
    "teardown",
    "exit",
)


def trial(rng: np.random.Generator, injured: str = "", by_s: float = 0.0) -> dict[str, Any]:
    """Fields of a record with noise everywhere, and ``by_s`` more seconds in one phase."""
    base = {name: 0.5 * float(rng.lognormal(0, 0.01)) for name in PHASES}
    if injured:
        base[injured] += by_s
    columns = {f"{name}_s": [base[name] / 4] * 4 for name in ("data", "copy", "compute", "communicate")}
    step = [sum(column[place] for column in columns.values()) for place in range(4)]
    measured = sum(step) + 0.001
    timeline = Timeline(
        launch_s=base["launch"],
        imports_s=base["imports"],
        build_s=base["build"],
        warmup_s=base["warm-up"],
        measured_s=measured,
        teardown_s=base["teardown"],
        exit_s=base["exit"],
    )
    elapsed = measured + sum(base[name] for name in ("launch", "imports", "build", "warm-up", "teardown", "exit"))
    return {
        "open_s": base["opening"],
        "elapsed_s": elapsed,
        "timeline": timeline,
        "steps": Steps.model_validate({"elapsed_s": step, **columns}),
    }


def explained(path: Path) -> Explanation:
    (one,) = explained_by(load([path])).explanations
    return one


@pytest.mark.parametrize("injured", PHASES)
def test_an_injury_is_put_on_its_phase(tmp_path: Path, save: Any, injured: str) -> None:
    rng = np.random.default_rng(1)
    for block in range(6):
        save(block=block, **trial(rng))
        save(block=block, target="vm", **trial(rng, injured, 1.0))
    one = explained(tmp_path / "run")
    found = {part.name: part for part in one.parts}
    assert found[injured].difference_s >= 0.9 * 1.0
    interval = found[injured].interval
    assert interval
    assert interval[0] < 1.0 < interval[1]
    others = [part.difference_s for part in one.parts if part.name != injured]
    assert max(map(abs, others)) < 0.05


def test_of_bare_metal_measured_twice_both_trials_count(tmp_path: Path, save: Any) -> None:
    rng = np.random.default_rng(1)
    slow, quick, own = trial(rng, "data", 2.0), trial(rng), trial(rng, "data", 1.0)
    save(replica=1, **slow)  # whose file comes first
    save(**quick)
    save(target="container", **own)
    one = explained(tmp_path / "run")
    found = {part.name: part for part in one.parts}
    assert found["data"].difference_s == pytest.approx(0.0, abs=0.05)
    assert one.whole.baseline_s == pytest.approx(
        0.5 * sum(side["open_s"] + side["elapsed_s"] for side in (slow, quick))
    )
    assert sum(part.difference_s for part in one.parts) == pytest.approx(one.whole.difference_s)


def test_the_parts_and_what_is_unexplained_sum_to_the_whole(tmp_path: Path, save: Any) -> None:
    rng = np.random.default_rng(1)
    for block in range(3):
        save(block=block, **trial(rng))
        hidden = trial(rng)
        save(block=block, target="vm", **(hidden | {"elapsed_s": hidden["elapsed_s"] + 2.0}))
    one = explained(tmp_path / "run")
    assert sum(part.difference_s for part in one.parts) == pytest.approx(one.whole.difference_s)
    assert one.parts[-1].name == "unexplained"
    assert one.parts[-1].difference_s == pytest.approx(2.0, abs=0.01)


def test_a_part_that_one_side_does_not_have_stays_unexplained(tmp_path: Path, save: Any) -> None:
    rng = np.random.default_rng(2)
    save(**(trial(rng) | {"timeline": None}))
    save(target="vm", **trial(rng))
    one = explained(tmp_path / "run")
    assert [part.name for part in one.parts] == ["opening", "data", "copy", "compute", "communicate", "unexplained"]
    assert one.whole.interval is None


def test_what_may_not_be_compared_is_not_explained_unless_forced(tmp_path: Path, save: Any) -> None:
    rng = np.random.default_rng(3)
    save(**trial(rng))
    save(target="vm", capability="AVX512", substitutes=["accelerator:tcg"], **trial(rng))
    records = load([tmp_path / "run"])
    assert explained_by(records).explanations == ()
    (one,) = explained_by(records, force=True).explanations
    assert one.notes == ("accelerator:tcg", "forced: CPU capability AVX512 against AVX2")


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_waterfall_is_readable_on_every_terminal(tmp_path: Path, save: Any, width: int) -> None:
    rng = np.random.default_rng(5)
    for block in range(2):
        save(block=block, **trial(rng))
        save(block=block, target="container-vm", **trial(rng, "data", 1.0))
    found = explained_by(load([tmp_path / "run"]))
    text = printed(explanation_document(found), width)
    for word in (*PHASES, "unexplained", "whole", "p95", "jitter"):
        assert word in text
    assert max(map(len, text.splitlines())) <= width
    assert json.loads(json.dumps([asdict(one) for one in found.explanations]))[0]["target"] == "container-vm"


def waterfall(path: Path) -> str:
    return printed(explanation_document(explained_by(load([path]))), 80)


def test_no_share_is_told_of_a_whole_that_may_be_zero(tmp_path: Path, save: Any) -> None:
    rng = np.random.default_rng(6)
    for block in range(5):
        save(block=block, **trial(rng))
        save(block=block, target="container", **trial(rng))
        save("apart", block=block, **trial(rng))
        save("apart", block=block, target="container", **trial(rng, "compute", 2.0))
    one = explained(tmp_path / "run")
    assert one.whole.interval
    assert one.whole.interval[0] < 0 < one.whole.interval[1]
    assert [line for line in waterfall(tmp_path / "run").splitlines() if line.endswith(" %")] == []
    shares = [line.split()[-2:] for line in waterfall(tmp_path / "apart").splitlines() if line.endswith(" %")]
    assert ["100", "%"] in shares
    save("single", **trial(rng))
    save("single", target="container", **trial(rng, "compute", 2.0))
    assert not any(line.endswith(" %") for line in waterfall(tmp_path / "single").splitlines()), (
        "one block says nothing"
    )


def test_where_nothing_can_be_explained_it_says_so(tmp_path: Path, save: Any) -> None:
    save()
    assert waterfall(tmp_path / "run").startswith("Nothing to explain: no training on another target")


def test_the_opening_is_parted_into_its_phases(tmp_path: Path, save: Any) -> None:
    rng = np.random.default_rng(7)
    for block in range(3):
        own, base = trial(rng), trial(rng)
        save(block=block, **base, opening={"tree": base["open_s"]})
        phases = {"boot": own["open_s"] - 0.1, "container": 0.1}
        save(block=block, target="container-vm", **own, opening=phases)
    one = explained(tmp_path / "run")
    (opening,) = (part for part in one.parts if part.name == "opening")
    assert [phase.name for phase in opening.phases] == ["tree", "boot", "container"]
    assert sum(phase.difference_s for phase in opening.phases) == pytest.approx(opening.difference_s)
    assert opening.phases[2].baseline_s == 0
    lines = waterfall(tmp_path / "run").splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("opening"))
    assert [line.split()[0] for line in lines[place + 1 : place + 4]] == ["tree", "boot", "container"]


def test_the_phases_of_a_workload_stand_by_name_below_computing(tmp_path: Path, save: Any) -> None:
    for target, generator_s in (("bare-metal", 0.1), ("vm", 0.4)):
        phases = {"discriminator": [0.2] * 3, "generator": [generator_s] * 3}
        columns = {"elapsed_s": [0.6] * 3, "data_s": [0.0] * 3, "compute_s": [0.6] * 3, "phases": phases}
        save(target=target, steps=Steps.model_validate(columns))
    (compute,) = (part for part in explained(tmp_path / "run").parts if part.name == "compute")
    assert {one.name: round(one.difference_s, 6) for one in compute.phases} == {"discriminator": 0.0, "generator": 0.9}
