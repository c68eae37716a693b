"""Trials that took turns: burst against burst of the same round, apart from sequential ones, and audited."""

import math
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.audit.audit import audit
from analysis.compare.convergence import half_widths
from analysis.compare.results import Comparison, Group
from analysis.load.records import load
from analysis.report.formatting import group_lines
from suite.job.command import CommandJob
from suite.job.job import Alternating, TimeSlices
from suite.job.profiles import Sizes
from suite.records.record import Alternation, Burst, MetricValue, Steps, TrialRecord
from suite.records.usage import Conditions, Resources, Usage
from tests.analysis.conftest import Save, as_markdown, edited, json_of, judged, known, timeline

ROUNDS, STEPS, BATCH = 4, 5, 2
TURNS = Alternating(rounds=ROUNDS, burst_steps=STEPS)
SIZES = Sizes(batch=BATCH, image_px=32, warmup_steps=1, steps=ROUNDS * STEPS)
SaveTurns = Callable[..., TrialRecord]


@pytest.fixture
def save_turns(save: Save) -> SaveTurns:
    """``save_turns([0.1, 0.2], first=1.5)``: a trial whose bursts had steps of these seconds, the first step longer.

    ``clock`` is the rate of the worker's clock in its bursts, ``late_s`` when the host hears of their ends, and
    ``rest_s`` what then follows.
    """

    def _save(
        step_s: list[float],
        *,
        first: float = 1.0,
        waiting_s: float = 0.0,
        clock: float = 1.0,
        late_s: float = 0.0,
        rest_s: float = 0.0,
        **changes: Any,
    ) -> TrialRecord:
        steps = [each * (first if number == 0 else 1.0) for each in step_s for number in range(STEPS)]
        spans = [sum(steps[place : place + STEPS]) for place in range(0, len(steps), STEPS)]
        place = changes.pop("place", 0)
        bursts = [
            Burst(
                round=number,
                position=place,
                begun_s=20.0 * number + 5 * place,
                ended_s=20.0 * number + 5 * place + span_s / clock + late_s + rest_s,
                span_s=span_s,
                heard_s=span_s / clock + late_s,
                steps=STEPS,
                cpu_s=1.0,
                waiting_cpu_s=waiting_s,
                own_cpu_s=0.9,
                own_waiting_cpu_s=0.0,
                faults=0,
            )
            for number, span_s in enumerate(spans)
        ]
        whole_s = math.fsum(spans)
        values: dict[str, Any] = {
            "turns": TURNS,
            "sizes": SIZES,
            "trial_id": "-".join(str(changes.get(name)) for name in ("target", "replica", "block")),
            "throughput_per_s": BATCH * len(steps) / whole_s,
            "elapsed_s": None,
            "open_s": None,
            "steps": Steps(elapsed_s=steps, data_s=[0.0] * len(steps), compute_s=steps),
            "timeline": timeline(whole_s),
            "conditions": Conditions(interval_s=20.0 * ROUNDS - 10),
            "alternation": Alternation(instances=2, block_s=90.0, bursts=bursts),
            "resources": Resources(serving=Usage(cpu_s=1.0 * len(bursts)), worker=Usage(cpu_s=0.9 * len(bursts))),
        }
        return save(**(values | changes))

    return _save


def only(comparison: Comparison) -> Group:
    (group,) = comparison.groups
    return group


def weather(rng: np.random.Generator) -> list[float]:
    """Seconds per step in each round, which both sides of a block share."""
    return [0.1 * math.exp(rng.normal(0, 0.5)) for _ in range(ROUNDS)]


def test_bursts_are_held_against_those_of_the_same_round(save: Save, save_turns: SaveTurns) -> None:
    rng = np.random.default_rng(0)
    for block in range(6):
        shared = weather(rng)
        save_turns(shared, block=block)
        save_turns([each * 1.05 for each in shared], block=block, target="container", place=1)
    found = only(save.compare()).of_target("container")["throughput"]
    assert [found.ratio, *known(found.interval)] == pytest.approx([1 / 1.05] * 3), "the weather of the rounds has gone"


def test_what_holds_the_waiting_is_absent_and_one_block_is_no_pilot(save: Save, save_turns: SaveTurns) -> None:
    save_turns([0.1] * ROUNDS)
    save_turns([0.1] * ROUNDS, target="container", place=1)
    group = only(save.compare())
    for measured in group.of_kind("target").values():
        assert set(measured) == {"throughput", "step-tail"}
    assert [turns.best for turns in group.turns] == [None]


def test_a_run_of_both_says_which_each_number_is_from(save: Save, save_turns: SaveTurns) -> None:
    for block in range(3):
        for place, target in enumerate(("bare-metal", "container")):
            save(block=block, target=target, throughput_per_s=10.0 * (1 - 0.5 * place))
            save_turns([0.1 * (1 + place)] * ROUNDS, block=block, target=target, place=place)
    variants = {group.job.variant: group for group in save.compare().groups}
    in_turns = f"steps={ROUNDS * STEPS}, design=alternating, rounds=4, burst_steps=5"
    assert sorted(variants) == [in_turns, "steps=3, design=sequential"]
    for group in variants.values():
        found = group.of_target("container")["throughput"]
        assert (found.ratio, found.blocks) == pytest.approx((0.5, 3))
    assert set(half_widths(save.load())) == {"resnet50 on container", "resnet50 on container, alternating"}


def test_the_levels_of_variation_are_told(save: Save, save_turns: SaveTurns) -> None:
    rng = np.random.default_rng(1)
    for block in range(40):
        shared, own = weather(rng), rng.normal(0, 0.02)
        save_turns(shared, block=block)
        varied = [each * math.exp(own + rng.normal(0, 0.01)) for each in shared]
        save_turns(varied, block=block, target="container", place=1)
    group = only(save.compare())
    (turns,) = group.turns
    assert (turns.target, turns.blocks, turns.components.instance) == ("container", 40, None)
    assert math.sqrt(known(turns.components.burst)) == pytest.approx(0.01, rel=0.2)
    assert math.sqrt(known(turns.components.block)) == pytest.approx(0.02, rel=0.3)
    (line,) = [line for line in group_lines(group) if "in turns" in line]
    assert line.startswith("container in turns, 40 blocks: its ratio varies by 0.9")
    assert "from block to block, each with new instances" in line
    # Handing over costs nothing here, so bursts are of one step; starting a pair takes most of a block, so there are
    # more rounds, sqrt(89 s / 0.2 s x 0.009^2 / 0.018^2).
    assert line.endswith("as a pilot they suggest --rounds 10 --burst-steps 1")
    told = json_of(save.compare())["groups"][0]["turns"]
    assert [(one["target"], one["blocks"], one["best"]["rounds"]) for one in told] == [("container", 40, 10)]
    assert "container in turns" in as_markdown(save.compare())


def test_a_target_that_computes_while_it_waits_is_warned_of_and_over_half_a_percent_of_it_has_no_verdict(
    save: Save, save_turns: SaveTurns
) -> None:
    for block in range(8):
        save_turns([0.1] * ROUNDS, block=block)
        save_turns([0.2] * ROUNDS, block=block, target="container", place=1, waiting_s=0.004)
        save_turns([0.2] * ROUNDS, block=block, target="vm", place=1, waiting_s=0.006)
    comparison = save.compare()
    (warning,) = [each for each in comparison.warnings if each.kind == "waiting-computes"]
    assert "vm in 8 of 8 trials (up to 0.6" in warning.where, warning.where
    group = only(comparison)
    container, vm = (judged(group.of_target(target)["throughput"]) for target in ("container", "vm"))
    assert container.withheld == ()
    assert "the target took CPU time while other jobs had their turns" in vm.withheld[0]


def clock_drift(save: Save) -> tuple[str, tuple[str, ...]]:
    """What the comparison says of the clock of a VM in turns: the warning, and why it has no verdict."""
    comparison = save.compare()
    warned = [each.where for each in comparison.warnings if each.kind == "clock-drift"]
    return "; ".join(warned), judged(only(comparison).of_target("vm")["throughput"]).withheld


def in_blocks(save_turns: SaveTurns, *, blocks: int = 6, **of_vm: Any) -> None:
    for block in range(blocks):
        save_turns([0.1] * ROUNDS, block=block, late_s=0.0003, rest_s=0.006)
        vm = {"rest_s": 0.006, **of_vm}
        save_turns([0.1 * vm.get("clock", 1.0)] * ROUNDS, block=block, target="vm", place=1, clock_ratio=1.0, **vm)


@pytest.mark.parametrize(
    ("clock", "late_s", "rest_s", "apart"),
    [
        (0.5, 0.0003, 0.006, "49 %"),
        (0.97, 0.0003, 0.006, "2.4 %"),
        (1.03, 0.0003, 0.006, "2.4 %"),
        # It says that it has ended, and works on while it rests.
        (1.0, 0.0003, 0.5, "46 %"),
    ],
)
def test_a_clock_that_is_wrong_in_bursts_and_right_over_the_whole_job_is_marked_and_decides_nothing(
    save: Save, save_turns: SaveTurns, clock: float, late_s: float, rest_s: float, apart: str
) -> None:
    in_blocks(save_turns, clock=clock, late_s=late_s, rest_s=rest_s)
    warned, withheld = clock_drift(save)
    assert warned == f"vm in 6 of 6 trials (up to {apart} apart)"
    assert "went at different rates" in withheld[0]


@pytest.mark.parametrize(
    ("late_s", "rest_s"),
    [(0.0003, 0.006), (0.002, 0.006), (0.0003, 0.011), (0.0003, 0.03)],
)
def test_the_way_of_a_line_and_threads_that_spin_on_are_no_wrong_clock(
    save: Save, save_turns: SaveTurns, late_s: float, rest_s: float
) -> None:
    in_blocks(save_turns, late_s=late_s, rest_s=rest_s)
    assert clock_drift(save) == ("", ())


def test_a_wrong_clock_in_few_trials_is_named_and_costs_no_verdict(save: Save, save_turns: SaveTurns) -> None:
    in_blocks(save_turns, blocks=9, late_s=0.0003)
    save_turns([0.1] * ROUNDS, block=9, late_s=0.0003, rest_s=0.006)
    save_turns([0.05] * ROUNDS, block=9, target="vm", place=1, clock=0.5, late_s=0.0003, rest_s=0.006)
    warned, withheld = clock_drift(save)
    assert (warned[:20], withheld) == ("vm in 1 of 10 trials", ())


@pytest.mark.parametrize(("first", "ratio"), [(1.0, 0.8), (3.0, 1.0)])
def test_first_steps_are_left_out_if_and_only_if_switching_costs(
    save: Save, save_turns: SaveTurns, first: float, ratio: float
) -> None:
    rng = np.random.default_rng(2)
    for block in range(6):
        shared = [each * math.exp(rng.normal(0, 0.001)) for each in [0.1] * ROUNDS]
        save_turns(shared, block=block, first=1 + rng.normal(0, 0.01))
        slower = 1.0 if first > 1 else 1 / 0.8
        save_turns([each * slower for each in shared], block=block, first=first, target="container", place=1)
    group = only(save.compare())
    assert group.of_target("container")["throughput"].ratio == pytest.approx(ratio, rel=0.01)
    assert any("left out" in line for line in group_lines(group)) == (first > 1)


def test_the_second_bare_metal_is_held_against_the_first(save: Save, save_turns: SaveTurns) -> None:
    for block, replica in product(range(3), range(2)):
        save_turns([0.1] * ROUNDS, block=block, replica=replica, place=replica)
    group = only(save.compare())
    assert next(iter(group.of_kind("again").values()))["throughput"].ratio == pytest.approx(1.0)
    assert [(one.target, one.blocks) for one in group.turns] == [("bare-metal again", 3)]


def turns_findings(run: Path) -> list[str]:
    return [one.what for one in audit(load([run])).refused if one.kind == "turns"]


def of_burst(number: int = 1, **changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda one: one["alternation"]["bursts"][number].update(changes)


def of_part(name: str, **changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda one: one[name].update(changes)


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda one: one["alternation"]["bursts"].pop(), "skipped"),
        (of_burst(steps=4), "skipped"),
        (of_burst(own_cpu_s=None), "skipped"),
        (of_burst(round=7), "its 4 turns are not one of each of the job's 4"),
        (of_burst(position=2), "a turn after those of all 2 instances"),
        (of_burst(position=0), "are not those of its 2 instances"),
        (of_burst(span_s=9.0), "took 9 s, longer than its turn of 0.5 s"),
        (of_burst(span_s=0.6), "took 0.6 s, longer than its turn of 0.5 s"),
        (of_burst(heard_s=0.3), "took 0.5 s, longer than its turn of 0.3 s"),
        (of_burst(heard_s=0.6), "reported after 0.6 s, later than that of"),
        (of_burst(3, ended_s=75.0), "took 0.5 s, with 9.5 s of its turn beside it"),
        (of_burst(cpu_s=9.0), "its bursts make 12.0 of serving_cpu_s"),
        (of_burst(cpu_s=0.0), "took 0.5 s and 0 CPU s (cpu_s)"),
        (of_burst(own_cpu_s=0.0), "took 0.5 s and 0 CPU s (own_cpu_s)"),
        (of_burst(own_cpu_s=99.0), "took 0.5 s and 99 CPU s (own_cpu_s)"),
        (of_burst(waiting_cpu_s=None), "and not between them"),
        (of_burst(begun_s=20.1), "had begun one"),
        (of_part("job", turns=None), "it took turns, and its job has none"),
        (of_part("alternation", instances=16), "are not those of its 16 instances"),
        (of_part("alternation", block_s=80.0), "did not take their turns together"),
        (of_part("conditions", interval_s=10.0), "its counters enclose 10 s"),
        (of_part("timeline", imports_s=200.0), "its timeline has"),
        (lambda one: one.update(started_at="2026-01-01T03:00:00+00:00"), "did not take their turns together"),
    ],
)
def test_turns_that_contradict_themselves_are_refused(
    save: Save, save_turns: SaveTurns, edit: Callable[[dict[str, Any]], object], why: str
) -> None:
    save_turns([0.1] * ROUNDS)
    record = save_turns([0.1] * ROUNDS, target="container", place=1)
    assert turns_findings(save.path / "run") == []
    edited(save.path / "run/trials" / f"{record.trial_id}.json", edit)
    if why == "skipped":
        assert "skipped-record" in {warning.kind for warning in save.load().warnings}
    else:
        assert any(why in found for found in turns_findings(save.path / "run"))


SLICE_S = 0.5


@pytest.fixture
def save_command(save_turns: SaveTurns) -> SaveTurns:
    """``save_command(2.2)``: a trial of a command that took turns, and ran for so many seconds in slices of time."""

    def _save(ran_s: float, **changes: Any) -> TrialRecord:
        slices = math.ceil(ran_s / SLICE_S)
        spans = [SLICE_S] * (slices - 1) + [ran_s - SLICE_S * (slices - 1)]
        place = changes.get("place", 0)
        bursts = [
            Burst(
                round=number,
                position=place,
                begun_s=2.0 * number + place,
                ended_s=2.0 * number + place + span_s,
                span_s=span_s,
                heard_s=span_s,
                steps=0,
                cpu_s=0.5,
                waiting_cpu_s=0.0,
                own_cpu_s=0.4,
                own_waiting_cpu_s=0.0,
                faults=0,
            )
            for number, span_s in enumerate(spans)
        ]
        values: dict[str, Any] = {
            "scenario": "command",
            "model": "train.py",
            "command": CommandJob(argv=("python", "train.py")),
            "turns": TimeSlices(slice_s=SLICE_S),
            "sizes": None,
            "unit": "units",
            "throughput_per_s": None,
            "elapsed_s": ran_s,
            "metrics": {"cpu-time": MetricValue(value=0.3 * slices, unit="s", better="less")},
            "steps": None,
            "timeline": timeline(ran_s),
            "conditions": Conditions(interval_s=9.5),
            "alternation": Alternation(instances=2, block_s=90.0, bursts=bursts),
            "resources": Resources(serving=Usage(cpu_s=0.5 * slices), worker=Usage(cpu_s=0.3 * slices)),
        }
        return save_turns([0.1] * ROUNDS, **(values | changes))

    return _save


def test_commands_in_turns_are_compared_by_the_time_in_which_they_ran(save: Save, save_command: SaveTurns) -> None:
    for block in range(6):
        save_command(2.0, block=block)
        save_command(2.2, block=block, target="container", place=1)
    comparison = save.compare()
    group = only(comparison)
    assert group.of_target("container")["elapsed"].ratio == pytest.approx(1.1)
    assert group.turns == (), "nothing is known of their steps"
    assert turns_findings(save.path / "run") == []
    assert [str(finding) for finding in audit(load([save.path / "run"])).refused] == []


def test_the_start_of_a_command_is_in_its_elapsed_time_and_not_between_its_counters(
    save: Save, save_command: SaveTurns
) -> None:
    started_s = {"elapsed_s": 9.8, "timeline": timeline(2.2, elapsed_s=9.8)}
    save_command(2.2, **started_s)
    save_command(2.2, target="container", place=1, **started_s)
    assert [str(finding) for finding in audit(load([save.path / "run"])).refused] == []


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (of_burst(steps=3), "its slices of time have steps"),
        (of_burst(round=2), "its 5 turns are not one of each round"),
        (of_burst(span_s=0.3), "its burst 1 took 0.3 s, and a slice is 0.5 s"),
        (of_burst(span_s=0.7), "took 0.7 s, longer than its turn of 0.5 s"),
        (of_burst(cpu_s=0.7), "its bursts make 2.7 of serving_cpu_s"),
        (of_burst(begun_s=2.4, ended_s=2.9), "had begun one"),
        (of_part("timeline", measured_s=3.0), "3 s in its timeline"),
        (of_part("job", turns=None), "it took turns, and its job has none"),
        (lambda one: one.update(alternation=None), "it is ok and has no turns"),
        (lambda one: one.update(elapsed_s=None), "it is ok and has no elapsed time"),
    ],
)
def test_slices_of_time_that_contradict_themselves_are_refused(
    save: Save, save_command: SaveTurns, edit: Callable[[dict[str, Any]], object], why: str
) -> None:
    save_command(2.2)
    record = save_command(2.2, target="container", place=1)
    edited(save.path / "run/trials" / f"{record.trial_id}.json", edit)
    findings = [finding.what for finding in audit(load([save.path / "run"])).refused]
    assert any(why in finding for finding in findings), findings
