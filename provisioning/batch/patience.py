"""Patience with a service that is away: a scheduler or a server that restarts, fails over, or is too busy to answer."""

import time

from suite.errors import MeasurementError
from suite.untrusted.terminal import without_secrets

AWAY_AT_MOST_S = 120.0
"""How long what runs on other machines is followed while the service that reports on it is away."""


class AwayError(MeasurementError):
    """A service does not answer, be it for a moment. ``service`` is its name in the message."""

    def __init__(self, service: str, reason: str, *, kind: str, remedy: str, away_s: float = 0.0) -> None:
        since = " does not answer"
        if away_s >= 1:
            since = f" has not answered for {away_s:.0f} s"
        super().__init__(f"{service}{since}: {without_secrets(reason.strip())[:300]}", kind=kind, remedy=remedy)
        self.service = service
        self.reason = reason

    def after(self, away_s: float) -> "AwayError":
        return AwayError(self.service, self.reason, kind=self.kind, remedy=str(self.remedy), away_s=away_s)


class Patience:
    """Bears that one service is away for a limited time. Its answers are ``answered``, their absence is to ``bear``."""

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._since_s: float | None = None

    @property
    def away(self) -> bool:
        return self._since_s is not None

    def answered(self) -> None:
        self._since_s = None

    def bear(self, error: MeasurementError) -> None:
        """Return if the service may be asked again. Raises the error with the time if it has been away too long."""
        now_s = time.monotonic()
        if self._since_s is None:
            self._since_s = now_s
        away_s = now_s - self._since_s
        if away_s < self._most_s:
            return
        if isinstance(error, AwayError):
            raise error.after(away_s) from error
        raise error
