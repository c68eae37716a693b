"""``bench serve``: keep a generator behind HTTP on this machine, by the program that pods run."""

import os
import socket
from pathlib import Path

import click
import psutil

from commands.paths import UserPath
from provisioning.layers.userland import own_python_argv
from provisioning.nodes import local_node
from suite.errors import RequestError
from suite.job.job import Job
from suite.registries import WORKLOADS
from suite.results.runs import is_run
from suite.results.store import MODELS, Run
from suite.untrusted.parse import parse_object
from worker.spec import ServeSpec

_MOST_MEMORY_BYTES = 8 << 30


@click.command()
@click.argument("model", type=UserPath())
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=5001,
    show_default=True,
    help="Port on loopback.",
)
@click.option(
    "--threads",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Requests answered at a time.",
)
def serve(model: Path, port: int, threads: int) -> None:
    """Serve a generator that a run has kept, until Ctrl-C.

    Runs with --keep-model keep them.

    \b
    Examples:
      bench serve results/digits/models/DIGEST.pt --port 5001
      curl --data '{"dataset": "mnist", "model": "gan", "seed": 7}' http://127.0.0.1:5001/generate > image.png
    """
    job = _job_of(model)
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise RequestError(f"port {port}: {error.strerror}", remedy="give another one with --port") from error
    shape = {}
    if job.sizes:
        shape = job.sizes.model_dump(include={"image_px", "channels"})
    spec = ServeSpec(
        workload=WORKLOADS.place(job.model),
        dataset=job.data,
        model=job.model,
        model_file=str(model.resolve()),
        weights_sha256=model.stem,
        address="127.0.0.1",
        port=port,
        seed=0,
        threads=threads,
        device="cpu",
        **shape,
    )
    try:
        _run(spec)
    except KeyboardInterrupt:
        click.echo("the service has ended", err=True)


def _job_of(model: Path) -> Job:
    """Return the job of the trial that kept a model. Raises RequestError for anything else."""
    if not model.is_file():
        raise RequestError(f"no file {model}", remedy="name one in models/ of a run with --keep-model")
    run = model.resolve().parent.parent
    for record in Run(run).records() if model.resolve().parent.name == MODELS and is_run(run) else ():
        if any(kept.weights_sha256 == model.stem for kept in record.kept):
            return record.job
    raise RequestError(f"{model} is not a model that a run has kept", remedy="name one in models/ of a run")


def _run(spec: ServeSpec) -> None:
    """Run the service until it fails, which raises RequestError. It ends with this process, whose pipe it reads."""
    memory_bytes = min(_MOST_MEMORY_BYTES, psutil.virtual_memory().available)
    program = own_python_argv([str(spec.model_file)], memory_bytes, network=True)
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb", buffering=0) as orders, local_node((), None) as node:
        orders_end = os.fdopen(reading, "rb")
        process = node.start([*program, "-m", "worker", "--serve"], stdin=orders_end)
        orders.write(spec.encoded() + b"\n")
        event: dict[str, object] = {}
        for event in map(parse_object, process.lines(float("inf"))):
            if event["event"] == "built":
                click.echo(f"http://127.0.0.1:{spec.port}")
                click.echo(f"serves {spec.dataset} {spec.model}; Ctrl-C ends it", err=True)
        why = event.get("message") or process.output_tail().strip() or "the service has ended by itself"
        raise RequestError(str(why), remedy=str(event.get("remedy") or "see bench serve --help"))
