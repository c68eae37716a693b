import shutil
import subprocess

import pytest

from provisioning.timers.base import parse_schedule
from suite.errors import RequestError

FORMS = [
    ("02:00 daily", "0 2 * * *", "*-*-* 02:00:00"),
    ("23:59 mon,wed", "59 23 * * 1,3", "Mon,Wed *-*-* 23:59:00"),
    ("2:05 SUN,fri,fri", "5 2 * * 5,7", "Fri,Sun *-*-* 02:05:00"),
    ("hourly", "0 * * * *", "*-*-* *:00:00"),
    ("1h", "0 * * * *", "*-*-* *:00:00"),
    ("1m", "* * * * *", "*-*-* *:*:00"),
    ("30m", "*/30 * * * *", "*-*-* *:0/30:00"),
    ("60m", "0 * * * *", "*-*-* *:00:00"),
    ("6h", "0 */6 * * *", "*-*-* 0/6:00:00"),
    ("24h", "0 0 * * *", "*-*-* 00:00:00"),
    ("  02:00   daily ", "0 2 * * *", "*-*-* 02:00:00"),
]


@pytest.mark.parametrize(("text", "cron", "on_calendar"), FORMS)
def test_a_form_becomes_the_same_moments_for_cron_and_for_systemd(text: str, cron: str, on_calendar: str) -> None:
    schedule = parse_schedule(text)
    assert (schedule.cron, schedule.on_calendar) == (cron, on_calendar)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
@pytest.mark.parametrize("on_calendar", sorted({form[2] for form in FORMS}))
def test_systemd_understands_every_form(on_calendar: str) -> None:
    done = subprocess.run(["systemd-analyze", "calendar", on_calendar], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "",
        "daily",
        "24:00 daily",
        "02:60 daily",
        "02:00",
        "02:00 noon",
        "02:00 mon,",
        "0m",
        "7m",
        "5h",
        "25h",
        "1d",
        "* * * * *",
    ],
)
def test_what_is_not_understood_is_refused_with_examples(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_schedule(text)
    assert caught.value.remedy
