"""The page that asks services for images: the same seed of each place, side by side with time and memory."""

import io
import json
import re
import socket
import threading
import time
import tomllib
from base64 import b64encode
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from flask import Blueprint, render_template, request
from PIL import Image
from pydantic import BaseModel, Field, TypeAdapter

from commands.web.app import settings
from suite.errors import RequestError
from suite.part import Count, Seconds
from suite.results.files import read_small
from suite.untrusted.parse import parse_object

PAGES = Blueprint("generate", __name__)
WITHIN_S = 10.0
MOST_BYTES = 4 << 20
MOST_PX = 2048
"""The bounds of an answer, and of each side of its image."""
_Name = Annotated[str, Field(max_length=100)]
_Url = Annotated[str, Field(pattern=r"^http://([A-Za-z0-9.-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?/?$")]


class ServedModel(BaseModel):
    """A model that a service has, and the seconds that the epochs of its training took."""

    dataset: _Name
    model: _Name
    epoch_s: Annotated[tuple[Seconds, ...], Field(max_length=100_000)] = ()


class ServedModels(BaseModel):
    """The answer of ``GET /models``."""

    models: Annotated[tuple[ServedModel, ...], Field(max_length=1000)]
    memory_bytes: Count | None = None


def read_services(path: Path) -> Mapping[str, str]:
    """Return the addresses of a file of services by their places. Raises RequestError."""
    try:
        table = tomllib.loads(read_small(path).decode())
        return TypeAdapter(dict[_Name, _Url]).validate_python(table)
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a table of addresses"
        raise RequestError(f"--services {path}: {why}", remedy='write vm = "http://127.0.0.1:5001" for each') from error


def _asked(url: str, path: str, body: bytes | None = None) -> tuple[bytes, float | None]:
    """Return the answer of a service, and the milliseconds that it took by its own clock. Raises RequestError."""
    address = urlsplit(url)
    begin_s = time.monotonic()
    try:
        connection = HTTPConnection(str(address.hostname), address.port or 80, timeout=WITHIN_S)
        with closing(connection) as peer:
            peer.connect()
            # The timeout is of each read alone; a service could send a byte in each.
            watchdog = threading.Timer(WITHIN_S, peer.sock.shutdown, [socket.SHUT_RDWR])
            watchdog.start()
            try:
                peer.request("POST" if body else "GET", path, body)
                answer = peer.getresponse()
                content = answer.read(MOST_BYTES)
            finally:
                watchdog.cancel()
    except (OSError, HTTPException, ValueError) as error:
        waited_s = time.monotonic() - begin_s
        if waited_s >= WITHIN_S:
            why = f"no answer within {WITHIN_S:g} s"
        else:
            why = f"no answer: {error}"
        raise RequestError(why) from error
    if answer.status != 200:
        raise RequestError(f"the answer to {path} is {answer.status}: it is not a service of this suite")
    timing = answer.headers.get("Server-Timing", "")
    generated = re.search(r"\bgenerate;dur=([0-9]{1,9}(?:\.[0-9]{1,6})?)(?![0-9.])", timing)
    took_ms = float(generated[1]) if generated else None
    return content, took_ms


def _shown(content: bytes) -> str:
    """Return the pixels of a PNG, and nothing else that it holds, as a PNG in base64. Raises RequestError."""
    png = io.BytesIO()
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            if max(image.size) > MOST_PX:
                raise ValueError(f"it is larger than {MOST_PX} px")
            pixels = image.convert("RGB").tobytes()
            copy = Image.frombytes("RGB", image.size, pixels)
            copy.save(png, "PNG")
    except Exception as error:  # (Pillow raises what it likes for a damaged file)
        raise RequestError("the answer is not a PNG that can be shown") from error
    return b64encode(png.getvalue()).decode()


def _row(url: str, name: str, seed: int) -> Mapping[str, Any]:
    """Return what a service offers and, if a model is chosen, its image with its times and memory; or the problem."""
    offered: dict[str, ServedModel] = {}
    try:
        listed, _ = _asked(url, "/models")
        served = ServedModels.model_validate(parse_object(listed))
        offered = {f"{entry.dataset} {entry.model}": entry for entry in served.models}
        if name and name not in offered:
            raise RequestError(f"it does not serve {name}")
        if not name:
            return {"offered": offered}
        model = offered[name]
        body = json.dumps({"dataset": model.dataset, "model": model.model, "seed": seed})
        content, took_ms = _asked(url, "/generate", body.encode())
        return {
            "offered": offered,
            "image": _shown(content),
            "epoch_s": model.epoch_s,
            "took_ms": took_ms,
            "memory_bytes": served.memory_bytes,
        }
    except RequestError as error:
        return {"offered": offered, "problem": error.message}
    except ValueError:
        return {"offered": offered, "problem": "the answer to /models is no list: it is not a service of this suite"}


@PAGES.get("/generate")
def generate() -> str:
    """Show the form and, if a model is chosen, what each service makes of the seed."""
    name = request.args.get("model", "")
    seed = request.args.get("seed", 0, int)
    services = settings().services
    seed %= 1 << 32
    with ThreadPoolExecutor(len(services) or 1) as pool:
        answers = pool.map(lambda url: _row(url, name, seed), services.values())
        rows = dict(zip(services, answers, strict=True))
    offered = set[str]()
    for row in rows.values():
        offered.update(row["offered"])
    return render_template(
        "generate.html.j2",
        name=name,
        seed=seed,
        rows=rows,
        offered=sorted(offered),
    )
