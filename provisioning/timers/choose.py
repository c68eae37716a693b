"""Choose a timer that the host has."""

from collections.abc import Callable, Mapping

from provisioning.timers.base import Timer
from provisioning.timers.cron import Cron, Scrontab
from provisioning.timers.kubernetes import Kubernetes
from provisioning.timers.systemd import Systemd
from suite.errors import RequestError

TIMERS: Mapping[str, Callable[[], Timer]] = {
    "systemd": Systemd,
    "cron": Cron,
    "scrontab": Scrontab,
    "kubernetes": Kubernetes,
}
"""The timers by name, in the order in which they are tried."""


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


def present() -> list[Timer]:
    """Return a timer of every kind that this host has, whether or not it would fire now."""
    return [timer for make in TIMERS.values() if (timer := make()).missing() is None]
