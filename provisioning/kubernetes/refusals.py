"""Errors, with a remedy, for what a cluster's server refuses, and for a server that does not answer."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from pydantic import BaseModel, ValidationError

from provisioning.batch.patience import AwayError
from suite.errors import MeasurementError, RequestError, option
from suite.untrusted.terminal import without_secrets


class _Cause(NamedTuple):
    """Something that keeps pods from being made or started, recognised by a text of the server or the kubelet."""

    pattern: str
    kind: str
    meaning: str
    """An explanation; empty if the text is clear by itself."""
    remedy: str
    passes: bool = False
    """Whether clusters report it also of pods that start a moment later: it counts for one that has not started."""


SIGN_IN = "sign in to the cluster again"
_PULL = "ErrImagePull|ImagePullBackOff|InvalidImageName|Failed to pull image"
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
        r'service ?account "[^"]*" not found',
        "admission",
        "the namespace has no such service account",
        f"kubectl create serviceaccount makes it; or choose another {option('namespace')}",
    ),
    _Cause(
        "no PriorityClass with name",
        "admission",
        "a policy of the cluster names a priority class that the cluster does not have",
        f"kubectl create priorityclass makes it; or choose another {option('namespace')}",
    ),
    _Cause(
        "because it is being terminated",
        "namespace",
        "the namespace is being removed",
        f"wait until it is gone and create it again, or choose another {option('namespace')}",
    ),
    _Cause(
        r"security context constraint",
        "admission",
        "the security context constraints of OpenShift refuse it",
        f"oc adm policy add-scc-to-user gives the service account one that allows it, or choose another "
        f"{option('namespace')}",
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
        rf"(?s)(?:{_PULL}).*(toomanyrequests|429 Too Many Requests|pull rate limit)",
        "image",
        "the registry has answered too many requests of this address or account",
        "wait, sign in with a pull secret of an account with a higher limit, or use a registry of your own",
    ),
    _Cause(
        rf"(?s)(?:{_PULL}).*(no match for platform|exec format error)",
        "image",
        "the image is made for another processor than the node's",
        f"push one for the node's architecture, or choose another {option('node')}",
    ),
    _Cause(
        rf"(?s)(?:{_PULL}).*no space left on device",
        "image",
        "the node's disk is full",
        f"remove images there that nothing uses (crictl), or choose another {option('node')}",
    ),
    _Cause(
        rf"(?s)(?:{_PULL}).*(x509:|tls: )",
        "image",
        "the node does not trust the registry's certificate",
        "give the node's container runtime the certificate of the registry's authority (certs.d)",
    ),
    _Cause(
        _PULL,
        "image",
        "",
        "push it there, or give the namespace's service account a pull secret: docs/guide/kubernetes.md, The image",
    ),
    _Cause(
        "TopologyAffinityError|Topology locality",
        "kubelet",
        "the node's topology manager cannot place so many CPUs on one NUMA node",
        f"lower {option('cpus')} and {option('memory')} to a NUMA node's, or set topologyManagerPolicy: best-effort",
    ),
    _Cause(
        "SMTAlignmentError|SMT Alignment Error",
        "kubelet",
        "the node gives whole cores only (full-pcpus-only)",
        f"ask with {option('cpus')} for a multiple of its threads per core",
    ),
    _Cause(
        r"UnexpectedAdmissionError.*not enough cpus|OutOf(cpu|memory|pods|ephemeral-storage)|NodeAffinity: ",
        "kubelet",
        "the node's kubelet rejects the pod",
        f"free it there, lower {option('cpus')} and {option('memory')}, or choose another {option('node')}",
    ),
    _Cause(
        "UnexpectedAdmissionError",
        "kubelet",
        "the node's kubelet rejects the pod",
        f"kubectl describe node shows which plugin of devices or CPUs failed; or choose another {option('node')}",
    ),
    _Cause(
        "Multi-Attach error",
        "volume",
        "the volume is attached to another node",
        f"end the pod that holds it, or choose the {option('node')} on which it runs",
        passes=True,
    ),
    _Cause(
        "FailedMount|FailedAttachVolume|MountVolume.SetUp failed",
        "volume",
        "the node cannot mount a volume of the pod",
        "see kubectl describe pod; a directory of the node must be there before the run",
        passes=True,
    ),
    _Cause(
        "FailedCreatePodSandBox",
        "sandbox",
        "the node cannot make the pod's sandbox, mostly for its network",
        "see the network plugin's pods in kube-system, and the log of the node's kubelet",
        passes=True,
    ),
)
"""The first that fits counts."""
SHOWN_END = 80
"""How many characters of a long reason are shown from its beginning, and from its end."""
_BUSY = re.compile(r"failed calling webhook|too many requests|the object has been modified|etcdserver: ")
_REFUSED = {"conflict", "gated", "invalid", "unschedulable", *(cause.kind for cause in _CAUSES)}
"""The kinds of what stays so until the request or the cluster is changed."""
_REMEDIES = {
    "unschedulable": f"free what is missing, choose another {option('node')}, "
    f"or lower {option('cpus')} and {option('memory')}",
    "gated": "wait until its queue admits it (of Kueue: kubectl get workloads shows what it waits for), or choose "
    f"another {option('namespace')}",
    "evicted": "see why the node was short of it: kubectl describe node",
    "killed": f"give the targets more with {option('memory')}, or make {option('batch')} smaller",
    "node-lost": "see why: kubectl describe node",
}
"""By the kind of a fault that no text names."""


class ApiError(MeasurementError):
    """An answer of the server that is an error. ``status`` is that of HTTP: 404 where something is not there."""

    def __init__(
        self,
        message: str,
        status: int,
        *,
        kind: str = "kubernetes",
        remedy: str | None = None,
    ) -> None:
        super().__init__(message, kind=kind, remedy=remedy)
        self.status = status


class _FieldCause(BaseModel):
    """A field that the server names, such as ``.spec.type``, and its reason."""

    field: str = ""
    message: str = ""

    def __str__(self) -> str:
        reason = self.message
        if len(reason) > 2 * SHOWN_END:  # a whole template stands in its middle
            reason = f"{reason[:SHOWN_END]} … {reason[-SHOWN_END:]}"
        return f"{self.field.lstrip('.')}: {reason}"


class _Details(BaseModel):
    causes: tuple[_FieldCause, ...] = ()


class _Status(BaseModel):
    """The server's ``Status``: its answer to a request that it refuses."""

    message: str = ""
    details: _Details | None = None

    @property
    def fields(self) -> str:
        """Every field that is named, with its reason; empty if none is."""
        causes = self.details.causes if self.details else ()
        return "; ".join(str(cause) for cause in causes if cause.field)


class BusyError(ApiError):
    """An answer after which the same request may succeed a moment later: nothing of it was done."""


def away(context: str, reason: str) -> AwayError:
    return AwayError(
        f"the server of the context {context}",
        reason,
        kind="kubernetes-away",
        remedy=f"see whether kubectl --context {context} version answers; then run it again",
    )


def refusal(method: str, path: str, status: int, text: str) -> ApiError:
    """Return the error for an answer of the server: the request, the reason without secrets, and a remedy."""
    text = without_secrets(text)
    try:
        answer = _Status.model_validate_json(text)
    except ValidationError:  # a proxy on the way answers in its own words
        answer = _Status()
    reason = (answer.message or text.strip() or "no reason given")[:1000]
    if status == 401:
        return ApiError(f"the server does not accept the credentials: {reason}", status, remedy=SIGN_IN)
    cause = cause_of(reason)
    if cause:
        message, remedy = cause.marked
        return ApiError(message, status, kind=cause.kind, remedy=remedy)
    if status in (409, 429, 500, 503) and _BUSY.search(reason):
        remedy = "the cluster is busy, or one of its webhooks is down: see kubectl get events; then run it again"
        return BusyError(f"{method} {path}: {reason} (status {status})", status, remedy=remedy)
    if rejected := _rejected(status, answer.fields, reason):
        return rejected
    if status == 403:
        # The server's own words name the verb, the resource and the namespace.
        unknown = 'User "system:anonymous"' in reason
        role = "give the user the role in docs/guide/kubernetes.md"
        return ApiError(reason, status, remedy=SIGN_IN if unknown else role)
    return ApiError(f"{method} {path}: {reason} (status {status})", status)


def _rejected(status: int, fields: str, reason: str) -> ApiError | None:
    """Return the error for fields that the server rejects, or that another manager holds; None for other refusals."""
    if status == 422:
        message = f"the server rejects it: {fields or reason}"
        return ApiError(message, status, kind="invalid", remedy="change what it names")
    if status == 409 and fields:
        # ``conflict with "kubectl-edit" using v1`` follows each field.
        message = f"another manager has given a field another value: {fields}"
        return ApiError(message, status, kind="conflict", remedy="undo that change with kubectl edit")
    return None


def cause_of(text: str, *, lasting: bool = False) -> MeasurementError | None:
    """Return the cause that these words of a server, a kubelet or an event have, with its remedy; None for others.

    ``lasting`` leaves out those that may pass by themselves.
    """
    for cause in _CAUSES:
        if re.search(cause.pattern, text):
            if lasting and cause.passes:
                return None
            message = f"{cause.meaning}: {text}" if cause.meaning else text
            return MeasurementError(message, kind=cause.kind, remedy=cause.remedy)
    return None


def fault(kind: str, message: str) -> MeasurementError:
    """Return the error for the cause that the message names, else one of this kind, with its remedy."""
    text = message[:1000]
    return cause_of(text) or MeasurementError(text, kind=kind, remedy=_REMEDIES.get(kind))


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
