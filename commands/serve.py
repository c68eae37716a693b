"""``bench serve``: keep a generator behind HTTP on this machine, by the program that pods run."""

import os
import pickletools
import socket
import zipfile
from pathlib import Path

import click
import psutil

from provisioning.layers.userland import own_python_argv
from provisioning.nodes import local_node
from suite.errors import RequestError
from suite.job.datasets import SYNTHETIC
from suite.registries import WORKLOADS
from suite.results.files import open_regular
from suite.results.runs import is_run
from suite.results.store import MODELS, Run
from suite.untrusted.parse import parse_object
from worker.spec import ServeSpec

_MOST_PICKLE_BYTES, _MOST_MEMORY_BYTES = 1 << 20, 8 << 30


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--port", type=click.IntRange(1, 65535), default=5001, show_default=True, help="Port on loopback.")
@click.option("--model", help="The generator in the file. Default: as the run that kept it has it.")
@click.option("--dataset", help="Name of its data set in requests. Default: that of the run, else synthetic.")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Requests answered at a time.")
def serve(file: Path, port: int, model: str | None, dataset: str | None, threads: int) -> None:
    """Serve a kept generator on this machine until Ctrl-C.

    FILE is a model that a run has kept (--keep-model) or a pipeline has trained. No code in it is run.

    \b
    Examples:
      bench serve results/night/models/DIGEST.pt
      bench serve gan-mnist.pt --model gan --dataset mnist --port 5002
      curl --data '{"dataset": "synthetic", "model": "gan", "seed": 7}' http://127.0.0.1:5001/generate > image.png
    """
    image_px, channels = _shape(file)
    kept_model, kept_dataset = _names(file)
    name, data = model or kept_model, dataset or kept_dataset
    if name not in WORKLOADS or not WORKLOADS.get(name).makes_images:
        able = ", ".join(word for word in WORKLOADS.own if WORKLOADS.get(word).makes_images)
        raise RequestError(f"{file}: no generator {name or 'is named'}", remedy=f"give --model with one of {able}")
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise RequestError(f"port {port}: {error.strerror}", remedy="give another one with --port") from error
    spec = ServeSpec(
        workload=WORKLOADS.place(name),
        dataset=data,
        model=name,
        model_file=str(file.resolve()),
        image_px=image_px,
        channels=channels,
        seed=0,
        threads=threads,
        device="cpu",
        address="127.0.0.1",
        port=port,
    )
    try:
        _run(spec)
    except KeyboardInterrupt:
        click.echo("the service has ended", err=True)


def _run(spec: ServeSpec) -> None:
    """Run the service until it fails, which raises RequestError. It ends with this process, whose pipe it reads."""
    memory_bytes = min(_MOST_MEMORY_BYTES, psutil.virtual_memory().available)
    program = own_python_argv([str(spec.model_file)], memory_bytes, network=True)
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb", buffering=0) as orders, local_node((), None) as node:
        process = node.start([*program, "-m", "worker", "--serve"], stdin=os.fdopen(reading, "rb"))
        orders.write(spec.encoded() + b"\n")
        event: dict[str, object] = {}
        for event in map(parse_object, process.lines(float("inf"))):
            if event["event"] == "built":
                click.echo(f"http://127.0.0.1:{spec.port}")
                click.echo(f"it serves {spec.dataset} {spec.model}; Ctrl-C ends it", err=True)
        why = event.get("message") or process.output_tail().strip() or "the service has ended by itself"
        raise RequestError(str(why), remedy=str(event.get("remedy") or "see bench serve --help"))


def _shape(file: Path) -> tuple[int, int]:
    """Return width and channels of the images of a model, without running anything in its file. Raises RequestError."""
    try:
        with open(file, "rb", opener=open_regular) as content, zipfile.ZipFile(content) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
            with archive.open(name) as pickled:
                codes = [*pickletools.genops(pickled.read(_MOST_PICKLE_BYTES))]
        words = [value for code, value, _ in codes if value is not None and "PUT" not in code.name]
        image_px, channels = (int(words[words.index(key) + 1]) for key in ("image_px", "channels"))
    except (OSError, ValueError, TypeError, LookupError, zipfile.BadZipFile) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a model that this suite has written"
        raise RequestError(f"{file}: {why}", remedy="name a file of models/ of a run with --keep-model") from error
    return image_px, channels


def _names(file: Path) -> tuple[str, str]:
    """Return the model and the data set of a file by the records of the run that kept it; no model without one."""
    run = file.resolve().parent.parent
    if file.resolve().parent.name == MODELS and is_run(run):
        for record in Run(run).records():
            if any(kept.weights_sha256 == file.stem for kept in record.kept):
                return record.job.model, record.job.data
    return "", SYNTHETIC
