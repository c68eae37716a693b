"""Errors, with a remedy, for what a cluster's server refuses, and for a server that does not answer."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from suite.errors import MeasurementError, RequestError, option
from suite.untrusted.terminal import without_secrets


class _Cause(NamedTuple):
    """Something that keeps pods from being made or started, recognised by a text of the server or the kubelet."""

    pattern: str
    kind: str
    meaning: str
    """An explanation; empty if the text is clear by itself."""
    remedy: str


SIGN_IN = "sign in to the cluster again"
_CAUSES = (
    _Cause(
        r'(?i)runtimeclass\S* "[^"]*" not found|no runtime for "[^"]*" is configured',
        "runtime-class",
        "the cluster, or the node, does not have this runtime class",
        f"name one of kubectl get runtimeclasses with {option('runtime_class')}, or leave it out",
    ),
    _Cause(
        r'namespaces? "[^"]*" not found',
        "namespace",
        "the namespace is missing",
        f"create it with kubectl create namespace, or choose another {option('namespace')}",
    ),
    _Cause("exceeded quota", "quota", "", "free some of it, raise the quota, or ask for less"),
    _Cause(
        "failed quota: .*must specify",
        "admission",
        "the namespace's quota counts what no pod of the suite asks for",
        f"give the namespace a LimitRange with a default of it, or choose another {option('namespace')}",
    ),
    _Cause(
        r"(maximum|minimum) \S+ usage per |max limit to request ratio per |LimitRange|limit range",
        "admission",
        "a LimitRange of the namespace refuses it",
        f"ask for what it allows, by kubectl describe limitrange, with {option('cpus')} and {option('memory')}, "
        f"or choose another {option('namespace')}",
    ),
    _Cause(
        # What a user may not do is no matter of admission, and reads: ``is forbidden: User "u" cannot get ...``.
        r'admission webhook|violates PodSecurity|unable to validate against any|"[^"]*" is forbidden: (?!User )',
        "admission",
        "admission refused it",
        f"choose a {option('namespace')} that allows it",
    ),
    _Cause(
        # The kubelet hides from the pod whether the image is there: the words are the same either way.
        r"(?s)ErrImageNeverPull|(ErrImagePull|ImagePullBackOff|Failed to pull image).*\blocalhost/",
        "image",
        "the node does not have this image, or its kubelet (Kubernetes 1.35 or newer) refuses it, though ctr lists it, "
        "because it has pulled the same image from a registry before (KubeletEnsureSecretPulledImages)",
        f"import it; if it is there, name it as the registry does ({option('registry')}; --image of a pipeline; image "
        "of [engine]), or set imagePullCredentialsVerificationPolicy: NeverVerify in the node's kubelet: "
        "docs/guide/kubernetes.md, The image",
    ),
    _Cause(
        "ErrImagePull|ImagePullBackOff|InvalidImageName|Failed to pull image",
        "image",
        "",
        "push it there, or give the namespace's service account a pull secret: docs/guide/kubernetes.md, The image",
    ),
)
"""The first that fits counts."""
_REFUSED = {"invalid", "unschedulable", *(cause.kind for cause in _CAUSES)}
"""The kinds of what stays so until the request or the cluster is changed."""
_REMEDIES = {
    "unschedulable": f"free what is missing, choose another {option('node')}, "
    f"or lower {option('cpus')} and {option('memory')}",
    "evicted": "see why the node was short of it: kubectl describe node",
    "killed": f"give the targets more with {option('memory')}, or make {option('batch')} smaller",
    "node-lost": "see why: kubectl describe node",
}
"""By the kind of a fault that no text names."""


class ApiError(MeasurementError):
    """An answer of the server that is an error. ``status`` is that of HTTP: 404 where something is not there."""

    def __init__(self, message: str, status: int, *, kind: str = "kubernetes", remedy: str | None = None) -> None:
        super().__init__(message, kind=kind, remedy=remedy)
        self.status = status


class AwayError(MeasurementError):
    def __init__(self, context: str, reason: str) -> None:
        super().__init__(
            f"the server of the context {context} does not answer: {without_secrets(reason)[:300]}",
            kind="kubernetes-away",
            remedy=f"see whether kubectl --context {context} version answers; then run it again",
        )


def refusal(method: str, path: str, status: int, text: str) -> ApiError:
    """Return the error for an answer of the server: the request, the reason without secrets, and a remedy."""
    text = without_secrets(text)
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    # A ``Status`` object has a message.
    message = answer.get("message") if isinstance(answer, dict) else None
    reason = str(message or text.strip() or "no reason given")[:1000]
    if status == 401:
        return ApiError(f"the server does not accept the credentials: {reason}", status, remedy=SIGN_IN)
    if cause := cause_of(reason):
        message, remedy = cause.marked
        return ApiError(message, status, kind=cause.kind, remedy=remedy)
    if status == 422:
        return ApiError(f"the server rejects it: {reason}", status, kind="invalid", remedy="change what it names")
    if status == 403:
        # The server's own words name the verb, the resource and the namespace.
        unknown = 'User "system:anonymous"' in reason
        role = "give the user the role in docs/guide/kubernetes.md"
        return ApiError(reason, status, remedy=SIGN_IN if unknown else role)
    return ApiError(f"{method} {path}: {reason} (status {status})", status)


def cause_of(text: str) -> MeasurementError | None:
    """Return the cause that these words of a server, a kubelet or an event have, with its remedy; None for others."""
    for pattern, kind, meaning, remedy in _CAUSES:
        if re.search(pattern, text):
            return MeasurementError(f"{meaning}: {text}" if meaning else text, kind=kind, remedy=remedy)
    return None


def fault(kind: str, message: str) -> MeasurementError:
    """Return the error for the cause that the message names, else one of this kind, with its remedy."""
    return cause_of(message[:1000]) or MeasurementError(message[:1000], kind=kind, remedy=_REMEDIES.get(kind))


@contextmanager
def refused_as_request() -> Iterator[None]:
    """Raise RequestError, before anything is measured, if the cluster would refuse the same request again."""
    try:
        yield
    except MeasurementError as error:
        if error.kind not in _REFUSED:
            raise
        message, remedy = error.marked
        raise RequestError(message, remedy=remedy) from error
