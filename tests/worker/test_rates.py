"""Rates in printed lines that are long or many; ``tests.parsed`` has every usual notation, and the doubtful ones."""

import time

import pytest

from tests.worker.judged import heard
from worker.printed.reader import LONGEST_LINE_BYTES, NumberReader
from worker.printed.series import MOST_NUMBERS, RateSeries

RATE = "(?P<throughput>[0-9.,]+)"


def chosen(reader: NumberReader) -> RateSeries:
    series = reader.chosen()
    assert series is not None
    return series


@pytest.mark.parametrize(
    ("printed", "pattern", "rates"),
    [
        (f'{{"losses": [{"1, " * 5000}1], "throughput": 50}}', "json", [50]),
        ("x" * 4090 + "rate=12345 img/s", r"rate=(?P<throughput>\d+)", [12345]),
        ("x" * 3835 + "rate=12345 img/s", r"(?P<throughput>\d+) img", [12345]),
        ("x " * 4090 + "15 rows" + " y" * 9000 + " 17 rows", r"(?P<throughput>\d+) rows", [15, 17]),
    ],
)
def test_all_rates_of_a_long_line_are_heard(printed: str, pattern: str, rates: list[float]) -> None:
    series = chosen(heard(printed, pattern))
    assert (series.numbers, series.unread) == (rates, 0)


@pytest.mark.parametrize(("line", "steps"), [("Step 1500 | 12 tok/s", 1500), ("Step 1,500 | 12 tok/s", None)])
def test_a_step_that_may_be_two_numbers_is_not_heard(line: str, steps: int | None) -> None:
    assert heard(line, r"Step (?P<step>\d+).*?(?P<throughput>[\d.]+) tok/s").steps == steps


def test_more_rates_than_are_kept_are_thinned_out_evenly() -> None:
    count = 2 * MOST_NUMBERS + 3
    reader = heard("".join(f"{rate}it/s\n" for rate in range(1, count + 1)), f"{RATE}it/s")
    assert reader.throughput() == pytest.approx(count / 2, rel=1e-4)
    assert MOST_NUMBERS / 2 <= len(chosen(reader).numbers) <= MOST_NUMBERS
    assert [*reader.notes()] == [f"the command printed {count} throughputs; one in 4 is kept"]


def test_a_line_without_an_end_takes_no_memory() -> None:
    reader = NumberReader(f"{RATE} rows")
    for _ in range(5 * LONGEST_LINE_BYTES // 4096):
        reader.read(b"x " * 2048)
        assert len(reader._pending) <= LONGEST_LINE_BYTES
    reader.read(b"5 rows", ended=True)
    assert chosen(reader).numbers == [5]


@pytest.mark.parametrize(
    ("pattern", "s_per_mb"), [(None, 0.02), ("auto", 0.25), ("json", 0.25), (r"(?P<throughput>\d+) rows", 0.25)]
)
def test_a_flood_of_lines_costs_little(pattern: str | None, s_per_mb: float) -> None:
    begin_s = time.process_time()
    reader = heard("x" * 99 + "\n", pattern, times=10_000)
    assert time.process_time() - begin_s < s_per_mb
    assert reader.last
