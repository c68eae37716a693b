"""A generator behind HTTP: ``POST /generate`` with the names of a data set and a model gives an image, or tokens.

The ``seed`` of a request decides what is drawn. ``GET /models`` lists the models with what their training took.
The WSGI application has fixed lists of names, bounds what it reads, and takes no path of a request: what is malformed
gets a 4xx answer with a sentence in JSON.
"""

import json
import re
import socket
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from worker.environment import collect, number, whole_usage
from worker.protocol import Events
from worker.spec import ServeSpec

MOST_BODY_BYTES = 1024
"""Two names take less than a tenth of it."""
MOST_REQUEST_BYTES = 16 << 10
IDLE_S = 120
"""How long a client may wait between two requests: at a low rate, the load generator does."""
GENERATE = "/generate"
HEALTH = "/health"
MODELS = "/models"
KEYS = {"dataset", "model"}
_METHODS = {GENERATE: "POST", HEALTH: "GET", MODELS: "GET"}
_KINDS = {GENERATE: "image/png", HEALTH: "text/plain", MODELS: "application/json"}
_PORT = "(:[0-9]{1,5})?"
LOCAL_NAMES = re.compile(rf"(localhost|127\.0\.0\.1){_PORT}")
"""The Host of a request: a site that leads here by DNS rebinding sends its own name. Ports can be forwarded ones."""
ADDRESSES = re.compile(rf"(localhost|[0-9]{{1,3}}(\.[0-9]{{1,3}}){{3}}|\[[0-9A-Fa-f:.]+\]){_PORT}")
"""The same for a server that others reach: an address is no name that a site could lead here."""
_SEEDS = range(1 << 32)
Made = bytes | Iterator[bytes]
Start = Callable[[str, list[tuple[str, str]]], object]


class _RefusedError(Exception):
    """The answer to a request that cannot be met."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True)
class Service:
    """The generators by the names of their data set and model.

    Each call of one, with a seed or None, gives a new image as PNG, or yields the tokens of a new sequence, which are
    sent as they come.
    """

    generators: Mapping[tuple[str, str], Callable[[int | None], Made]]
    trained: Mapping[tuple[str, str], Mapping[str, object]] = field(default_factory=dict)
    """What the training of a model took, as far as its file tells."""
    local: bool = False
    """Whether it answers requests for a name of this host alone."""
    names: Collection[str] = ()
    """The names, in lower case, that it answers to besides addresses."""

    def __call__(self, environ: Mapping[str, Any], start: Start) -> Iterable[bytes]:
        begin_s = time.perf_counter()
        headers = []
        try:
            body = self._answered(environ)
            if not isinstance(body, bytes):
                start("200 OK", [("Content-Type", "text/plain")])
                return body
            status = HTTPStatus.OK
            kind = _KINDS[environ["PATH_INFO"]]
            headers = [("Server-Timing", f"generate;dur={1000 * (time.perf_counter() - begin_s):.3f}")]
        except _RefusedError as error:
            status = error.status
            kind = "application/json"
            body = _said(str(error))
        except Exception:  # noqa: BLE001 (the reason is for who runs the service, and not for who asks)
            traceback.print_exc()
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            kind = "application/json"
            body = _said("nothing could be made")
        headers += [("Content-Type", kind), ("Content-Length", str(len(body)))]
        start(f"{status.value} {status.phrase}", headers)
        return [body]

    def _answered(self, environ: Mapping[str, Any]) -> Made:
        path = environ.get("PATH_INFO", "")
        method = environ["REQUEST_METHOD"]
        host = environ.get("HTTP_HOST", "")
        why = refusal(host, environ.get("HTTP_ORIGIN"), local=self.local, names=self.names)
        if why:
            raise _RefusedError(HTTPStatus.FORBIDDEN, why)
        if path not in _METHODS:
            raise _RefusedError(HTTPStatus.NOT_FOUND, f"only {' and '.join(_METHODS)} are here")
        if method != _METHODS[path]:
            raise _RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, f"{path} takes {_METHODS[path]} alone")
        if path == MODELS:
            models = [{**self.trained.get(key, {}), "dataset": key[0], "model": key[1]} for key in self.generators]
            resident_kib = number("proc/self/status", "VmRSS")
            return json.dumps({"models": models, "memory_bytes": resident_kib and 1024 * resident_kib}).encode()
        if path == GENERATE:
            return self._generated(_body(environ))
        return b""

    def _generated(self, body: bytes) -> Made:
        try:
            request = json.loads(body)
        except (ValueError, RecursionError):
            raise _RefusedError(HTTPStatus.BAD_REQUEST, "the body is not JSON") from None
        if not isinstance(request, dict) or {*request, "seed"} != {*KEYS, "seed"}:
            names = " and ".join(sorted(KEYS))
            raise _RefusedError(HTTPStatus.BAD_REQUEST, f"the body is an object with {names}, and perhaps seed")
        seed = request.get("seed")
        if not (seed is None or (type(seed) is int and seed in _SEEDS)):
            raise _RefusedError(HTTPStatus.UNPROCESSABLE_ENTITY, f"seed is a whole number below {len(_SEEDS)}")
        for offered, name in (({key[0] for key in self.generators}, "dataset"), (self._models(request), "model")):
            if not isinstance(request[name], str) or request[name] not in offered:
                said = ", ".join(sorted(offered))
                raise _RefusedError(HTTPStatus.UNPROCESSABLE_ENTITY, f"{name} is unknown; there are: {said}")
        return self.generators[request["dataset"], request["model"]](seed)

    def _models(self, asked: Mapping[str, object]) -> set[str]:
        return {model for dataset, model in self.generators if dataset == asked["dataset"]}


def refusal(host: str, origin: str | None, *, local: bool, names: Collection[str] = ()) -> str | None:
    """Return why a request is refused: another site's, or one for another name; None if it is not.

    A ``local`` server answers to the names of this host, any other to addresses and its ``names``.
    """
    known = LOCAL_NAMES if local else ADDRESSES
    if not known.fullmatch(host) and re.sub(f"{_PORT}$", "", host.lower()) not in names:
        return "this server has another name: use the address that was printed when it was started"
    if origin not in (None, f"http://{host}"):
        return "another site sent this request; nothing was done"
    return None


def _body(environ: Mapping[str, Any]) -> bytes:
    try:
        length = int(environ.get("CONTENT_LENGTH") or "")
    except ValueError:
        raise _RefusedError(HTTPStatus.LENGTH_REQUIRED, "the request has no Content-Length") from None
    if not 0 <= length <= MOST_BODY_BYTES:
        raise _RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{MOST_BODY_BYTES} bytes are the most of a body")
    body: bytes = environ["wsgi.input"].read(length)
    return body


def _said(why: str) -> bytes:
    return json.dumps({"error": why}).encode()


def run(spec: ServeSpec, events: Events, wait: Callable[[], object]) -> None:
    """Serve until ``wait`` returns, and emit everything from ``imported`` to ``done``.

    As many requests are worked on at once as there are threads, and each computes on one: threads of torch for each of
    them would take the CPUs from each other.
    """
    # Here and not above: what asks a service needs none of them, and torch is a part of the cold start that is timed.
    from worker.serving.generator import Generator
    from worker.serving.http_server import BoundedServer
    from worker.training.device import open_devices, prepare

    events.emit("imported")
    events.emit("environment", environment={**collect(), **prepare(1, spec.device), "threads": spec.threads})
    (device,) = open_devices(spec.device, 1)
    specs = (spec, *spec.others)
    generators = {(served.dataset, served.model): Generator.loaded(served, device) for served in specs}
    service = Service(
        {key: served.tokens if served.shape.tokens else served for key, served in generators.items()},
        {key: served.training for key, served in generators.items()},
        local=spec.address == "127.0.0.1",
        names=spec.names,
    )
    listener = socket.create_server((spec.address, spec.port))
    server = BoundedServer(service, listener, threads=spec.threads, most_bytes=MOST_REQUEST_BYTES, idle_s=IDLE_S)
    threading.Thread(target=server.run, daemon=True).start()
    events.emit("built")
    wait()
    events.emit("done", usage=whole_usage())
