"""Choose a timer that the host has."""

from collections.abc import Callable, Mapping

from provisioning.timers.base import Timer
from provisioning.timers.cron import Cron, Scrontab
from provisioning.timers.systemd import Systemd
from suite.errors import RequestError

TIMERS: Mapping[str, Callable[[], Timer]] = {"systemd": Systemd, "cron": Cron, "scrontab": Scrontab}
"""The timers by name, in the order in which they are tried."""


def choose(kind: str | None) -> Timer:
    """Return the timer asked for, or the first that would fire here. Raises RequestError with the reason of each."""
    made = [TIMERS[kind]()] if kind else [make() for make in TIMERS.values()]
    reasons = {timer.kind: timer.missing() or (None if kind else timer.asleep()) for timer in made}
    for timer in made:
        if reasons[timer.kind] is None:
            return timer
    why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    raise RequestError(
        f"this host has no timer to install into ({why})",
        remedy="install and start cron, or choose one with --with; --dry-run only shows the entry",
    )


def present() -> list[Timer]:
    """Return a timer of every kind that this host has, whether or not it would fire now."""
    return [timer for make in TIMERS.values() if (timer := make()).missing() is None]
