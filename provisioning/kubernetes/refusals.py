"""The refusals of a cluster's server, and its silence, as errors with a remedy."""

import json
import re

from suite.errors import MeasurementError

_QUOTA = re.compile(r"exceeded quota")
_ADMISSION = re.compile(r"admission webhook|violates PodSecurity|unable to validate against any|LimitRange|limit range")


class ApiError(MeasurementError):
    """An answer of the server that is an error. ``status`` is that of HTTP: 404 where something is not there."""

    def __init__(self, message: str, status: int, *, kind: str = "kubernetes", remedy: str | None = None) -> None:
        super().__init__(message, kind=kind, remedy=remedy)
        self.status = status


class AwayError(MeasurementError):
    """The server does not answer."""

    def __init__(self, context: str, said: str) -> None:
        super().__init__(
            f"the server of the context {context} does not answer: {said[:300]}",
            kind="kubernetes-away",
            remedy=f"see whether kubectl --context {context} version answers; then run it again",
        )


def refusal(method: str, path: str, status: int, text: str) -> ApiError:
    """Return the error for an answer of the server: what was asked, what it says, and what to do."""
    said = _said(text)
    if status == 401:
        return ApiError(
            f"the server does not accept the credentials: {said}", status, remedy="sign in to the cluster again"
        )
    if _QUOTA.search(said):
        return ApiError(said, status, kind="quota", remedy="free some of it, raise the quota, or ask for less")
    if is_admission(said):
        return ApiError(
            f"admission refused it: {said}", status, kind="admission", remedy="choose a --namespace that allows it"
        )
    if status == 403:
        # The server's own words name the verb, the resource and the namespace.
        return ApiError(said, status, remedy="give the user the role in docs/kubernetes.md")
    return ApiError(f"{method} {path}: {said} (status {status})", status)


def is_admission(said: str) -> bool:
    """Return whether a message tells that admission has refused something, which stays so, unlike a quota."""
    return bool(_ADMISSION.search(said)) and not _QUOTA.search(said)


def _said(text: str) -> str:
    """Return the message of an answer: that of a ``Status`` object where it is one."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    message = found.get("message") if isinstance(found, dict) else None
    return str(message or text.strip() or "it says nothing")[:1000]
