"""What people write for shares and spans of time."""

import pytest

from suite.errors import RequestError
from suite.units import format_duration, parse_duration_s, parse_share


@pytest.mark.parametrize(("text", "value"), [("2%", 0.02), ("0.02", 0.02), (" 12.5% ", 0.125)])
def test_a_share_is_written_in_percent_or_as_a_fraction(text: str, value: float) -> None:
    assert parse_share(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "%", "-1%", "0", "100%", "2", "two", "nan", "inf%"])
def test_what_is_no_share_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse_share(text)
    assert "2%" in str(refused.value.remedy)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("0.5h", 1800)])
def test_a_span_of_time_is_written_with_its_units(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "-5s", "0s", "5 minutes", "1h30", "nan"])
def test_what_is_no_span_of_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse_duration_s(text)
    assert "30m" in str(refused.value.remedy)


def test_a_span_of_time_without_a_unit_asks_for_one() -> None:
    with pytest.raises(RequestError, match="'5' has no unit") as refused:
        parse_duration_s("5")
    assert refused.value.remedy == "write it as 5s, 5m (minutes) or 5h"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5, "5 s"), (89, "89 s"), (600, "10 min"), (7200, "2.0 h"), (4e5, "5 days"), (6e8, "19 years")],
)
def test_a_duration_is_told_in_the_unit_that_people_use(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
