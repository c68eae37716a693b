"""The line of a trial that has ended."""

from collections.abc import Callable

from suite.progress import SHOWN, summary
from suite.records.record import MetricValue, TrialRecord


def test_a_line_has_the_first_metrics_and_how_many_more_there_are(record: Callable[..., TrialRecord]) -> None:
    def of(count: int) -> str:
        metrics = {f"metric-{number}": MetricValue(value=1.5, unit="s", better="less") for number in range(count)}
        return summary(record(metrics=metrics))

    assert of(SHOWN).startswith("metric-0 1.5 s, metric-1 1.5 s, metric-2 1.5 s, 10 images/s, 5.0 s")
    assert of(SHOWN + 9).startswith("metric-0 1.5 s, metric-1 1.5 s, metric-2 1.5 s, 9 more, 10 images/s, 5.0 s")
