"""The live line, and the line of a trial that has ended."""

import io

import pytest
from rich.console import Console

from suite.job.job import Alternating
from suite.progress import SHOWN, Display, summary
from suite.records.record import MetricValue
from suite.units import format_duration
from tests.suite.conftest import make_plan, make_record


def test_a_line_has_the_first_metrics_and_how_many_more_there_are() -> None:
    def of(count: int) -> str:
        metrics = {f"metric-{number}": MetricValue(value=1.5, unit="s", better="less") for number in range(count)}
        return summary(make_record(metrics=metrics))

    assert of(SHOWN).startswith("metric-0 1.50 s, metric-1 1.50 s, metric-2 1.50 s, 10.0 images/s, 5.0 s")
    assert of(SHOWN + 9).startswith("metric-0 1.50 s, metric-1 1.50 s, metric-2 1.50 s, 9 more, 10.0 images/s, 5.0 s")


def test_a_metric_without_a_unit_has_no_blank_behind_it() -> None:
    line = summary(make_record(metrics={"perplexity": MetricValue(value=3.2, unit="", better="less")}))
    assert line.startswith("perplexity 3.20, 10.0 images/s")


def test_the_live_line_of_turns_shows_the_round_and_the_time_to_go_at_80_columns() -> None:
    shown = io.StringIO()
    display = Display(Console(file=shown, force_terminal=True, width=80))
    turns = Alternating(rounds=8, burst_steps=5)
    for number, trial in enumerate(make_plan(warmup_blocks=1).trials_of(0), start=1):
        display.clock.expect(trial, 60.0)
        if trial.warm_up:
            display.trial_started(trial.with_job(turns=turns, model="inception_v3"), number, 12)
    display.phase("round", "3 of 8")
    display.close()
    assert "[3/12] warm-up block 0, inception_v3 in turns: round 3 of 8, about " in shown.getvalue()
    assert "12 min to go" in shown.getvalue()
    assert "…" not in shown.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5, "5 s"), (89, "89 s"), (600, "10 min"), (7200, "2.0 h"), (4e5, "5 days"), (6e8, "19 years")],
)
def test_a_duration_is_told_in_the_unit_that_people_use(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
