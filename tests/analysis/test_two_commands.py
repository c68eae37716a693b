"""Two commands on one target, ``bench run -- a --versus -- b``: planned, run, and compared by their names."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.compare.comparison import compare
from analysis.compare.convergence import log_ratios
from analysis.explain.attribution import explain
from analysis.load.records import load
from analysis.report.answers.answer import answer
from analysis.report.document import document
from commands.run.command import run as run_command
from commands.run.request_command import request_of
from scenarios.command import Command, CommandOptions
from suite.errors import RequestError
from suite.job.command import CommandJob
from suite.records.record import MetricValue
from suite.request.request import RunRequest
from suite.results.store import PLAN
from tests.analysis.conftest import Save, json_of, known, printed, timeline
from tests.suite.conftest import make_plan

BOTH = ("--target", "bare-metal", "--", "python", "a.py", "--versus", "--", "python", "b.py", "--lr", "2")
JOB = CommandJob(argv=("python", "a.py"), versus=("python", "b.py", "--lr", "2"))


def asked(*words: str) -> RunRequest:
    return request_of(run_command, [*words])


def test_the_words_around_versus_are_two_commands_and_the_request_repeats_them() -> None:
    request = asked(*BOTH)
    options = request.options(CommandOptions)
    assert (options.command, options.versus) == ("python a.py", "python b.py --lr 2")
    repeated = asked(*request.command()[2:])
    assert repeated.options(CommandOptions) == options
    assert Command.of(request).models(request) == ("a.py-versus-b.py",)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--", "a", "--versus", "b"), "stands between two commands"),
        (("--", "--versus", "--", "b"), "stands between two commands"),
        (("--", "a", "--versus", "--"), "stands between two commands"),
        (("--", "a", "--versus", "--", "b", "--versus", "--", "c"), "stands between two commands"),
        (("--versus", "b"), "needs .*command"),
        (("--target", "vm", *BOTH), "on one target, not on 2"),
    ],
)
def test_a_wrong_form_is_refused_with_the_right_one(words: tuple[str, ...], why: str) -> None:
    with pytest.raises(RequestError, match=why) as raised:
        Command.of(asked(*words))
    assert raised.value.remedy


def test_every_block_runs_both_commands_in_balanced_orders() -> None:
    plan = make_plan(targets=("bare-metal",), ablations=Command.of(asked(*BOTH)).arms(asked(*BOTH)), blocks=4)
    arms = [[(trial.target, trial.ablation) for trial in plan.trials_of(block)] for block in range(4)]
    assert all({*block} == {("bare-metal", None), ("bare-metal", "versus")} for block in arms)
    assert next(trial.trial_id for trial in plan.trials_of(0)).endswith(("bare-metal-b000", "bare-metal+versus-b000"))
    assert [JOB.argv_of(trial.ablation)[1] for trial in plan.trials()].count("b.py") == 4


@pytest.fixture
def forged(save: Save) -> Callable[..., Path]:
    """Return what saves a run of both commands, of which the second takes ``factor`` times as long."""

    def made(factor: float, blocks: int = 8, profile: str = "quick", target: str = "bare-metal", **second: Any) -> Path:
        rng = np.random.default_rng(1)
        job = {"scenario": "command", "data": "files", "command": JOB, "sizes": None, "profile": profile}
        plan = make_plan(
            **{**job, "models": (JOB.name,), "targets": (target,), "ablations": ("versus",), "blocks": blocks},
            request=asked("--profile", profile, "--blocks", str(blocks), "--target", target, *BOTH[2:]),
        )
        for trial in plan.trials():
            elapsed_s = (20.0 * factor if trial.ablation else 20.0) * math.exp(rng.normal(0, 0.004))
            changes: dict[str, Any] = {
                "elapsed_s": elapsed_s,
                "metrics": {"cpu-time": MetricValue(value=elapsed_s, unit="s", better="less")},
                "timeline": timeline(elapsed_s, elapsed_s),
                **(second if trial.ablation else {}),
            }
            names = ("trial_id", "block", "position", "target", "ablation")
            placed = {name: getattr(trial, name) for name in names}
            save(**job, **placed, model=JOB.name, throughput_per_s=None, steps=None, **changes)
        (save.path / "run" / PLAN).write_text(plan.model_dump_json())
        return save.path / "run"

    return made


@pytest.mark.parametrize("target", ["bare-metal", "vm"])
def test_the_answer_speaks_of_both_by_name_and_the_first_is_the_base(target: str, forged: Callable[..., Path]) -> None:
    comparison = compare(load([forged(1.2, target=target)]))
    found = answer(comparison)
    (row,) = found.rows
    assert (row.subject, row.word, row.over) == ("elapsed, b", "slower", "a")
    assert float(row.value) == pytest.approx(1.2, rel=0.01)
    assert found.facts[0] == f"a: python a.py; b: python b.py --lr 2; both on {target}."
    assert known(found.next).argv[-1] == "--explain"
    shown = printed(document(comparison), 80)
    assert "a.py-versus-b.py: a" in shown
    assert "bare metal" not in shown
    assert {one["target"] for one in json_of(comparison)["rows"]} == {"a", "b"}
    assert not comparison.warnings, comparison.warnings


def test_equal_commands_are_equivalent(forged: Callable[..., Path]) -> None:
    (row,) = answer(compare(load([forged(1)]))).rows
    assert row.word == "equivalent"


def test_a_command_that_fails_is_named_with_its_reason(forged: Callable[..., Path]) -> None:
    found = answer(compare(load([forged(1.2, failed="no such file", elapsed_s=None, metrics={}, timeline=None)])))
    assert (found.rows[0].subject, found.rows[0].word) == ("elapsed, b", "no number")
    assert "8 failed: no such file" in found.why


def test_a_stop_rule_looks_at_their_ratio_and_explanations_hold_them_against_each_other(
    forged: Callable[..., Path],
) -> None:
    records = load([forged(1.2)])
    (names,) = (list(ratios) for ratios in log_ratios(records).values())
    assert names == ["a.py-versus-b.py on b"]
    (one,) = explain(records, compare(records)).explanations
    assert one.target == "b"
    assert one.whole.difference_s == pytest.approx(4, rel=0.1)


def test_a_smoke_run_leads_to_one_that_decides(forged: Callable[..., Path]) -> None:
    run = forged(1.2, 1, "smoke")
    argv = known(answer(compare(load([run]))).next).argv
    request = asked(*argv[2:])
    assert request.options(CommandOptions).versus == "python b.py --lr 2"
    assert request.targets.target == ("bare-metal",)
