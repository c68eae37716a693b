"""A cluster, as the user's kubeconfig reaches it: requests and their answers as JSON, and what a refusal means.

The official client reads the kubeconfig, with every kind of authentication that it knows, and speaks TLS. Its models
are not used: they drop fields that a server of another version has, or refuse its answers.
"""

import importlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

from provisioning.batch.patience import AWAY_AT_MOST_S, AwayError, Patience
from provisioning.kubernetes.refusals import SIGN_IN, BusyError, away, refusal
from suite.errors import MeasurementError, RequestError, missing_extra, option
from suite.untrusted.terminal import keep_secret, without_secrets

Object = dict[str, Any]
Query = Mapping[str, object]
OWNER = "virtbench.dev/owner"
"""The label of everything that the suite makes in a cluster: the name in the ledger by which it is removed."""
MANAGED = {"app.kubernetes.io/managed-by": "virtbench"}
FIELD_MANAGER = "virtbench"
"""The manager under which the server records the fields that ``Cluster.apply`` sets."""
REQUEST_WITHIN_S, ANSWERS_WITHIN_S = 30.0, 5.0
RETRIED_EVERY_S = 1.0
BUSY_AT_MOST_S = 30.0
"""How long a request is repeated to a server that is there, and busy."""
AUTHENTICATION = ["BearerToken"]
_OF_PODS = re.compile(r"/log$|/proxy/")
_APPLIED = "application/apply-patch+yaml"
"""The type of a manifest for server-side apply; JSON is YAML, too."""
_PLURALS = {"NetworkPolicy": "networkpolicies", "Ingress": "ingresses"}


def client_library(module: str = "kubernetes") -> Any:  # noqa: ANN401 (an optional package, without types)
    """Return a module of the official client. Raises RequestError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise not_installed() from error


def not_installed() -> RequestError:
    return missing_extra("the Python client of Kubernetes", "kubernetes")


def quantity(value: object) -> Decimal:
    """Return the number of a quantity such as ``2``, ``1500m``, ``3G`` or ``4Gi``. Raises ValueError for another."""
    return Decimal(client_library("kubernetes.utils.quantity").parse_quantity(str(value)))


def kubeconfig() -> str:
    """Return the absolute path of the user's kubeconfig, or several between colons: the ledger keeps them."""
    paths = os.environ.get("KUBECONFIG", "").split(os.pathsep)
    absolute = []
    for path in filter(None, paths):
        expanded = Path(path).expanduser()
        absolute.append(str(expanded.absolute()))
    return os.pathsep.join(absolute) or str(Path.home() / ".kube/config")


def labels(owner: str) -> dict[str, str]:
    """Return the labels of everything that is made for an owner, which is a name of ``ledger.fresh``."""
    return {**MANAGED, OWNER: owner}


@dataclass(frozen=True)
class Cluster:
    """One namespace of a cluster, by a context of the kubeconfig."""

    kubeconfig: str
    context: str
    namespace: str
    api: Any = field(repr=False, compare=False)
    """The ``ApiClient`` of the official client."""

    @classmethod
    def connect(cls, context: str | None = None, namespace: str | None = None, config: str | None = None) -> "Cluster":
        """Read the kubeconfig, without a request to the server. Raises RequestError.

        The kubeconfig has the defaults of ``context`` and ``namespace``.
        """
        library = client_library()
        path = config or kubeconfig()
        content = _merged(path)
        name, chosen = _chosen(content, context, path)
        configuration = library.client.Configuration()
        logged: list[str] = []
        try:
            with _logged_to(logged):
                library.config.load_kube_config(path, name, configuration)
        except Exception as error:  # whatever the plugin of a cloud's credentials raises
            raise RequestError(
                f"the credentials of the context {name} do not work: {_last_line(error)}",
                remedy=f"kubectl --context {name} get pods fails in the same way; sign in to the cluster again",
            ) from error
        if not (configuration.api_key or configuration.cert_file or configuration.username):
            user = _by_name(content, "user").get(str(chosen.get("user")), {})
            _refuse_plugin(name, user.get("exec"), logged)
        # Callers that can wait retry by themselves; for all others no answer is an error.
        configuration.retries = False
        if not configuration.verify_ssl:
            # The kubeconfig turns it off; the library would warn again with every request.
            client_library("urllib3").disable_warnings()
        api = library.client.ApiClient(configuration)
        chosen_namespace = namespace or chosen.get("namespace") or "default"
        return cls(path, name, chosen_namespace, api)

    def path(self, plural: str, name: str = "", group: str = "v1", part: str = "") -> str:
        """Return the path of a resource of the namespace: ``path("jobs", "train", "batch/v1")``."""
        begin = f"/api/{group}" if "/" not in group else f"/apis/{group}"
        parts = (begin, "namespaces", self.namespace, plural, name, part)
        return "/".join(filter(None, parts))

    def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        patience_s: float = 0.0,
        within_s: float = REQUEST_WITHIN_S,
        query: Query = MappingProxyType({}),
        host: str = "",
    ) -> Object:
        """Return the server's answer. A server that is away is asked again for ``patience_s``, and a busy one anyway.

        ``host`` is the ``Host`` of a request that the server hands on to a pod, which gets the server's own otherwise.
        Raises ApiError for what the server refuses, and AwayError where it does not answer.
        """
        patience = Patience(patience_s)
        patience_with_busy = Patience(max(patience_s, BUSY_AT_MOST_S))
        while True:
            try:
                with self._response(method, path, body, within_s, query, host) as response:
                    text = response.data.decode(errors="replace")
                    return self._parsed(path, text)
            except AwayError as error:
                patience.bear(error)
            except BusyError as error:
                patience_with_busy.bear(error)
            time.sleep(RETRIED_EVERY_S)

    def get(self, path: str, **query: object) -> Object:
        return self.request("GET", path, query=query)

    def listed(self, kind: str, labels: Mapping[str, str], patience_s: float = AWAY_AT_MOST_S) -> list[Object]:
        """Return the objects of a kind (``batch/v1/jobs``) with these labels; an empty value stands for any."""
        selectors = [f"{label}={value}" if value else label for label, value in labels.items()]
        path = self.path_of_kind(kind)
        query = {"labelSelector": ",".join(selectors)}
        answer = self.request("GET", path, patience_s=patience_s, query=query)
        return list(answer["items"])

    def delete(self, kind: str, name: str, **query: object) -> None:
        """Remove an object with what it has made. A server that is away is waited for."""
        path = f"{self.path_of_kind(kind)}/{name}"
        query = {"propagationPolicy": "Background", **query}
        self.request("DELETE", path, patience_s=AWAY_AT_MOST_S, query=query)

    def create(self, manifest: Object, **query: object) -> Object:
        """Create an object of the namespace, and return it as admission has left it."""
        return self.request("POST", self.path_of(manifest), manifest, query=query)

    def apply(self, manifest: Object, **query: object) -> Object:
        """Bring an object to its manifest by server-side apply, and return it as admission has left it.

        Other fields, and those of other managers, stay. Raises ApiError of kind ``conflict`` if another manager has
        given a field of the manifest another value.
        """
        path = f"{self.path_of(manifest)}/{manifest['metadata']['name']}"
        return self.request("PATCH", path, manifest, query={"fieldManager": FIELD_MANAGER, **query})

    def path_of_kind(self, kind: str) -> str:
        group, _, plural = kind.rpartition("/")
        return self.path(plural, group=group)

    def path_of(self, manifest: Object) -> str:
        """Return the path under which objects of this kind are created."""
        kind = manifest["kind"]
        plural = _PLURALS.get(kind, f"{kind.lower()}s")
        return self.path(plural, group=manifest["apiVersion"])

    def events(self, path: str, within_s: float, **query: object) -> Iterator[tuple[str, Object]]:
        """Yield each change of what a list holds, as type and object, until ``within_s`` are over."""
        parameters = {"watch": "true", "timeoutSeconds": max(1, round(within_s)), **query}
        with self._response("GET", path, None, within_s + REQUEST_WITHIN_S, parameters) as response:
            for line in _lines(response):
                event = self._parsed(path, line)
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise refusal("GET", path, status.get("code", 0), json.dumps(status))
                yield event["type"], event["object"]

    def log_lines(self, pod: str, container: str, within_s: float) -> Iterator[str]:
        """Yield what a container of a pod has written to its log, and what it still writes."""
        query = {"container": container, "follow": "true"}
        path = self.path("pods", pod, part="log")
        with self._response("GET", path, None, within_s, query) as response:
            yield from _lines(response)

    def websocket(self, path: str, query: Sequence[tuple[str, str]]) -> Any:  # noqa: ANN401 (as ``client_library``)
        """Open a stream to a path: ``exec`` of a pod. Raises as ``request`` does."""
        streams = client_library("kubernetes.stream.ws_client")
        _, url, headers, *_ = self._serialized("GET", path, None, list(query))
        try:
            address = streams.get_websocket_url(url)
            return streams.create_websocket(self.api.configuration, address, headers)
        except Exception as error:
            # The library of WebSockets raises an exception with ``status_code`` for an answer that is no switch.
            status = getattr(error, "status_code", None)
            if status is None:
                raise away(self.context, str(error)) from error
            raise refusal("POST", path, status, _last_line(error)) from error

    def demand(self, rights: Mapping[str, Sequence[str]]) -> None:
        """Raise RequestError unless the user has these rights, according to the server: verbs by resource.

        A resource is written as kubectl has it: ``pods``, ``pods/exec`` for a part of one, ``jobs.batch`` with a group.
        """
        for name, verbs in rights.items():
            full_name, _, part = name.partition("/")
            resource, _, group = full_name.partition(".")
            for verb in verbs:
                attributes = {
                    "namespace": self.namespace,
                    "verb": verb,
                    "group": group,
                    "resource": resource,
                    "subresource": part,
                }
                review = {
                    "apiVersion": "authorization.k8s.io/v1",
                    "kind": "SelfSubjectAccessReview",
                    "spec": {"resourceAttributes": attributes},
                }
                answer = self.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
                if not answer["status"]["allowed"]:
                    raise RequestError(
                        f"the user of the context {self.context} may not {verb} {name} in {self.namespace}",
                        remedy="give it the role in docs/guide/kubernetes.md, or choose another namespace",
                    )

    def version(self, within_s: float = ANSWERS_WITHIN_S) -> str:
        answer = self.request("GET", "/version", within_s=within_s)
        if "gitVersion" not in answer:
            raise self._other_server("/version", json.dumps(answer))
        return str(answer["gitVersion"])

    def _parsed(self, path: str, text: str) -> Object:
        """Return the object in an answer; what pods print, or answer through the proxy, may be any other ``text``."""
        with suppress(ValueError):
            answer = json.loads(text)
            if isinstance(answer, dict):
                return answer
        if _OF_PODS.search(path):
            return {"text": text}
        raise self._other_server(path, text)

    def _other_server(self, path: str, text: str) -> MeasurementError:
        words = without_secrets(text).split()
        shown = " ".join(words)[:120]
        return MeasurementError(
            f"what answers {path} is not the server of a cluster: {shown}",
            kind="kubernetes",
            remedy=f"check the address of the context {self.context} in {self.kubeconfig}; a proxy may want a sign-in",
        )

    def _serialized(self, method: str, path: str, body: Object | None, query: object, host: str = "") -> Any:  # noqa: ANN401
        headers = {"Accept": "application/json"}
        content: object = body
        if host:
            headers["Host"] = host
        if body:
            headers["Content-Type"] = "application/json"
        if method == "PATCH":
            headers["Content-Type"] = _APPLIED
            content = json.dumps(body)
        options = {
            "header_params": headers,
            "query_params": query,
            "body": content,
            "auth_settings": AUTHENTICATION,
        }
        try:
            serialized = self.api.param_serialize(method, path, **options)
        except Exception as error:  # a plugin of a cloud's credentials is asked here once more
            message = f"the credentials of the context {self.context} do not work: {_last_line(error)}"
            raise MeasurementError(message, kind="kubernetes", remedy=SIGN_IN) from error
        authorization = str(serialized[2].get("authorization", ""))
        keep_secret(authorization, authorization.partition(" ")[2])
        return serialized

    @contextmanager
    def _response(
        self,
        method: str,
        path: str,
        body: Object | None,
        within_s: float,
        query: Query,
        host: str = "",
    ) -> Iterator[Any]:
        serialized = self._serialized(method, path, body, list(query.items()), host)
        errors = client_library("urllib3.exceptions")
        try:
            called = self.api.call_api(*serialized, _request_timeout=within_s)
            with closing(called.response) as response:
                if response.status >= 400:
                    raise refusal(method, path, response.status, response.data.decode(errors="replace"))
                yield response
        except (errors.HTTPError, OSError) as error:
            raise away(self.context, str(error)) from error


def _merged(path: str) -> Object:
    """Return what a kubeconfig, or several together, hold. Raises RequestError for one that cannot be read."""
    loader = client_library("kubernetes.config.kube_config")
    try:
        merger = loader.KubeConfigMerger(path)
    except Exception as error:
        raise RequestError(f"{path}: {_last_line(error)}", remedy="see kubectl config view") from error
    if merger.config is None:
        raise RequestError(f"there is no kubeconfig at {path}", remedy="set KUBECONFIG to the file that kubectl uses")
    merged: Object = merger.config.value
    # As kubectl does, the first file that has one decides; the library takes the last.
    currents = [each.get("current-context") for each in merger.config_files.values()]
    merged["current-context"] = next(filter(None, currents), None)
    return merged


def _by_name(content: Object, kind: str) -> dict[str, Object]:
    items_of_kind = content.get(f"{kind}s")
    items = (getattr(item, "value", item) for item in items_of_kind or ())
    return {item["name"]: item.get(kind) or {} for item in items}


def _chosen(content: Object, context: str | None, path: str) -> tuple[str, Object]:
    """Return the name of the context, by default of the current one, and the context. Raises RequestError."""
    contexts = _by_name(content, "context")
    name = str(context or content.get("current-context") or "")
    if name not in contexts:
        message = f"no context {name!r} in {path}" if name else f"{path} has no current context"
        use = f"use {option('context')} with one of: {', '.join(contexts)}"
        raise RequestError(message, remedy=use if contexts else "kubectl config view")
    return name, contexts[name]


@contextmanager
def _logged_to(texts: list[str]) -> Iterator[None]:
    """Append what the client library logs, which would be printed between the lines of a command."""
    handler = logging.Handler()
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


def _refuse_plugin(context: str, plugin: Object | None, logged: Sequence[str]) -> None:
    """Raise RequestError for a plugin of a kubeconfig, such as a cloud's, which gave no credentials.

    The library has logged why, and gone on without.
    """
    if not plugin:
        return
    program = str(plugin.get("command"))
    why = "is not installed"
    remedy = plugin.get("installHint") or f"install {program}, which the cloud provides"
    if "/" in program or shutil.which(program):
        said = without_secrets("; ".join(logged))
        why = f"has given none: {' '.join(said.split())[-300:]}"
        remedy = f"kubectl --context {context} get pods shows why; {SIGN_IN}"
    raise RequestError(f"the credentials of the context {context} come from {program}, which {why}", remedy=remedy)


def _lines(response: Any) -> Iterator[str]:  # noqa: ANN401 (as ``client_library``)
    return (line.decode(errors="replace") for raw in response if (line := raw.rstrip(b"\n")))


def _last_line(error: Exception) -> str:
    lines = without_secrets(str(error)).strip().splitlines()
    return (lines or [type(error).__name__])[-1][:300]
