"""Forms of ``tests.parsed``: what the worker reads of requests, of printed lines, and of the place that it is in."""

import io
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from suite.job.profiles import PROFILES, check_sizes
from worker import environment
from worker.printed.reader import NumberReader
from worker.protocol import JobError, SpecError
from worker.serving.service import Service
from worker.spec import Membership, parse_spec

JOB: dict[str, Any] = {
    "workload": "worker.workloads.classifier:ALEXNET",
    "batch": 1,
    "image_px": 64,
    "warmup_steps": 1,
    "steps": 2,
    "threads": 1,
    "recipe": "reference",
    "seed": 3,
    "device": "cpu",
    "devices": 1,
    "parallel": "none",
}
GAN = {"workload": "worker.workloads.adversarial:GAN", "batch": 4, "image_px": 28, "channels": 1}
DATA = {"directory": "/mnt/data", "loader_workers": 1, "decoder": "auto"}
FOLDER, DIGITS = (f"worker.data.kinds.{name}" for name in ("imagefolder:IMAGEFOLDER", "mnist:MNIST"))
EPOCHS = {"data": {**DATA, "kind": DIGITS}, "warmup_steps": 0, "steps": 30, "epochs": 3}
KINDS: dict[str, dict[str, Any]] = {
    "job": JOB,
    "on-data": {**JOB, "data": {**DATA, "kind": FOLDER}},
    "distributed": {
        **JOB,
        "devices": 2,
        "threads": 2,
        "distributed": {"strategy": "all-reduce", "rank": 0, "workers": 2, "servers": 0, "master": "", "port": 1}
        | {"interface": "lo"},
    },
    "in-turns": {**JOB, "steps": 6, "turns": {"rounds": 3, "burst_steps": 2}},
    "generating": {**JOB, **GAN, "generate": 8},
    "keeping": {**JOB, **GAN, "keep_model": "last"},
    "epochs": {**JOB, **GAN, **EPOCHS},
}


def specification(asked: Any) -> object:
    """Return that a job of a kind with these changes can be run, or one with this text."""
    text = asked if isinstance(asked, str) else json.dumps({**KINDS[asked[0]], **asked[1]})
    try:
        return parse_spec(text) and "goes"
    except SpecError as error:
        raise ValueError(str(error)) from error


def membership(changes: Mapping[str, Any]) -> object:
    values = {"strategy": "parameter-server", "rank": 0, "workers": 2, "servers": 1, "master": "", "port": 1}
    return Membership(**{**values, "interface": "lo", **changes}) and "goes"


def sizes(asked: list[Any]) -> None:
    model, changes = asked
    check_sizes(model, PROFILES["smoke"].sizes_of(model).model_copy(update=changes), model)


def broken(_seed: int | None) -> bytes:
    raise ZeroDivisionError("a secret of the inside")


SERVICE = Service(
    {
        ("synthetic", "gan"): lambda seed: b"\x89PNG\r\n\x1a\n" + bytes(str(seed or ""), "ascii"),
        ("synthetic", "vae"): broken,
    },
    {("synthetic", "vae"): {"epoch_s": [1.5, 2.0], "steps": 7}},
)


def answered(body: bytes, *, method: str = "POST", path: str = "/generate", length: str | None = None) -> Any:
    """Return status, type and body of the service's answer to one request."""
    started: list[Any] = []
    length = str(len(body)) if length is None else length
    sent = {"CONTENT_LENGTH": length, "wsgi.input": io.BytesIO(body)}
    environ = {"PATH_INFO": path, "REQUEST_METHOD": method, "HTTP_HOST": "127.0.0.1:5001", **sent}
    (answer,) = SERVICE(environ, lambda *words: started.extend(words))
    return started[0], dict(started[1])["Content-Type"], answer


def heard(printed: str, pattern: str | None, times: int = 1) -> NumberReader:
    """Read a text in pieces that end anywhere, as a pipe gives them."""
    reader, content = NumberReader(pattern), printed.encode() * times
    reader.begin()
    for begin in range(0, len(content), 60_001):
        reader.read(content[begin : begin + 60_001])
    reader.read(b"", ended=True)
    return reader


def throughput(reader: NumberReader) -> object:
    try:
        return reader.throughput()
    except JobError as error:
        return str(error), error.remedy


def printed(asked: list[str]) -> object:
    """Return the rates that are read, and the last step if there is one; of doubtful ones the throughput and notes."""
    reader = heard(asked[0], asked[1])
    series = reader.chosen()
    rates = [float(f"{rate:.12g}") for rate in series.numbers] if series else []
    notes = [*reader.notes()]
    is_sure = series is not None and not series.unread and reader.choice != "auto"
    return rates if is_sure and not notes else (rates, throughput(reader), notes)


def doubtful(asked: list[str]) -> object:
    """Return what is said of a line among 18, and then 19, of whose rates there is no doubt."""
    line, pattern, good = asked
    few, many = (heard("\n".join([good] * count + [line]), pattern) for count in (18, 19))
    return throughput(few), throughput(many), [*many.notes()]


def shown(files: Mapping[str, str]) -> object:
    """Return what is collected where these files are the whole of /proc and /sys, without what a process knows.

    That of no name says what place it is.
    """
    with (
        TemporaryDirectory() as root,
        patch.object(environment, "ROOT", Path(root)),
        patch.object(os, "sched_getaffinity", lambda _: {0, 1}),
    ):
        for path in (Path(root, name) for name in files if name):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[str(path.relative_to(root))])
        found = environment.collect()
    own = ("cpus", "python", "libc", "allocator")
    return {name: value for name, value in found.items() if value is not None and name not in own}


READ: Mapping[str, Callable[[Any], object]] = {
    "spec": specification,
    "membership": membership,
    "sizes": sizes,
    "generate": lambda asked: answered((asked if isinstance(asked, str) else json.dumps(asked)).encode("latin-1")),
    "generators": lambda asked: answered(b"", **asked),
    "printed": printed,
    "doubtful": doubtful,
    "shown": shown,
}
