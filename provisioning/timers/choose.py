"""The timers by name, and the choice among those that the host has."""

from collections.abc import Callable, Mapping

from provisioning.timers.base import Installed, Timer
from provisioning.timers.cron import Cron
from provisioning.timers.kubernetes import KubernetesTimer
from provisioning.timers.systemd import Systemd
from suite.errors import RequestError

TIMERS: Mapping[str, Callable[[], Timer]] = {"systemd": Systemd, "cron": Cron, "kubernetes": KubernetesTimer}
"""In the order in which they are tried."""


def choose(kind: str | None) -> Timer:
    """Return the timer asked for, or the first that would fire here. Raises RequestError with the reason of each."""
    reasons: dict[str, str] = {}
    for timer in [TIMERS[kind]()] if kind else [make() for make in TIMERS.values()]:
        reason = timer.missing() or (None if kind else timer.asleep())
        if reason is None:
            return timer
        reasons[timer.kind] = reason
    why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    raise RequestError(
        f"this host has no timer to install into ({why})",
        remedy="install and start cron, or choose one with --with; --dry-run only shows the entry",
    )


def installed() -> list[tuple[Timer, Installed]]:
    """Return the entries of the suite with their timers, whether or not they would fire now."""
    timers = (make() for make in TIMERS.values())
    return [(timer, entry) for timer in timers if timer.missing() is None for entry in timer.installed()]
