"""``bench kubernetes pipeline``: a generator that is trained in a cluster and served there."""

import json
import re
import signal
from collections.abc import Callable

import click
from pydantic import ValidationError

from commands.kubernetes.lifecycle import RIGHTS, PipelinePart, address_of, ask, ensure, follow, parts_of, remove
from commands.kubernetes.manifests import NAME, PORT, Pipeline, service, training
from commands.lazy import SuggestingGroup
from commands.output import Output
from provisioning.kubernetes.cluster import Cluster
from suite.errors import RequestError
from suite.job.envelope import parse_bytes
from suite.job.profiles import PROFILES, check_sizes
from suite.registries import WORKLOADS

_REMEDIES = {
    "name": "write lower-case letters, digits and hyphens: faces",
    "image": "write it by its digest: registry.example.org/virtbench@sha256:…",
}


class PipelineOutput(Output):
    """A pipeline as the cluster has it."""

    name: str
    context: str
    namespace: str
    parts: list[PipelinePart]
    """The objects that are there; none where the pipeline is not up."""
    address: str | None
    """Where pods of the namespace reach the service; None until it answers."""


@click.group(cls=SuggestingGroup)
def kubernetes() -> None:
    """Train a generator in a Kubernetes cluster and serve it there.

    \b
    Examples:
      bench kubernetes pipeline up --image NAME@sha256:…
    """


@kubernetes.group(cls=SuggestingGroup)
def pipeline() -> None:
    """Create, show or remove a pipeline: a claim, a training Job, and a Deployment with a Service.

    \b
    Examples:
      bench kubernetes pipeline up --image NAME@sha256:… --model gan
      bench kubernetes pipeline status
      bench kubernetes pipeline down --claim
    """


def _named(_context: click.Context, _option: click.Parameter, name: str) -> str:
    """Return the name of a pipeline, which must be safe in a label selector. Raises RequestError."""
    if not re.fullmatch(NAME, name):
        raise RequestError(f"--name {name!r} is not a name of a pipeline", remedy=_REMEDIES["name"])
    return name


def _place(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say which pipeline, and in which cluster."""
    for option in (
        click.option("--namespace", help="Namespace. Default: the kubeconfig's."),
        click.option("--context", help="Context of the kubeconfig. Default: the current one."),
        click.option(
            "--name",
            default="pipeline",
            show_default=True,
            callback=_named,
            help="Prefix of the names of all objects.",
        ),
    ):
        command = option(command)
    return command


@pipeline.command()
@_place
@click.option("--image", required=True, metavar="NAME@sha256:…", help="The suite's image in a registry, by its digest.")
@click.option("--model", default="gan", show_default=True, help="The generator.")
@click.option(
    "--profile", default="quick", show_default=True, type=click.Choice(list(PROFILES)), help="Sizes and steps."
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Random seed of the weights.")
@click.option("--cpus", default=1, show_default=True, type=click.IntRange(1), help="CPUs of each pod.")
@click.option("--memory", default="2G", show_default=True, help="Memory of each pod.")
@click.option("--claim", default="20G", show_default=True, help="Size of the volume.")
@click.option(
    "--access-mode",
    default="ReadWriteOnce",
    show_default=True,
    type=click.Choice(["ReadWriteOnce", "ReadWriteMany"]),
    help="Access mode of the volume: pods of one node, or of all nodes.",
)
@click.option("--storage-class", help="Class of the volume. Default: the cluster's.")
@click.option("--dry-run", is_flag=True, help="Print the manifests for kubectl apply, without contacting a cluster.")
def up(context: str | None, namespace: str | None, dry_run: bool, **given: str) -> None:
    """Train a generator in a cluster, serve it, and request one test image. Existing objects are reused.

    The pipeline stays until down removes it. An existing claim is used unchanged.

    \b
    Examples:
      bench kubernetes pipeline up --image NAME@sha256:… --model dcgan --storage-class fast
      bench kubernetes pipeline up --image NAME@sha256:… --dry-run > pipeline.json
    """
    requested = _checked(**given)
    if dry_run:
        items = [*training(requested), *service(requested)]
        click.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2))
        return
    cluster = Cluster.connect(context, namespace)
    cluster.demand(RIGHTS)
    try:
        _bring_up(cluster, requested)
    except KeyboardInterrupt:
        _note("interrupted: the objects stay in the cluster, and the training goes on there")
        _note("follow it again with the same command; remove it with bench kubernetes pipeline down")
        click.get_current_context().exit(128 + signal.SIGINT)


def _checked(model: str, profile: str, memory: str, claim: str, **given: object) -> Pipeline:
    """Return the requested pipeline. Raises RequestError."""
    able = [name for name in WORKLOADS.own if WORKLOADS.get(name).makes_images]
    if model not in able:
        raise RequestError(f"--model {model}: the image holds no such generator", remedy=f"use {' or '.join(able)}")
    sizes = PROFILES[profile].sizes_of(model)
    check_sizes(model, sizes, model)
    amounts = {"memory_bytes": parse_bytes(memory), "claim_bytes": parse_bytes(claim)}
    try:
        return Pipeline.model_validate({"model": model, "sizes": sizes, **amounts, **given})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        raise RequestError(
            f"--{name} {first['input']!r}: {first['msg']}",
            remedy=_REMEDIES.get(name, "see bench kubernetes pipeline up --help"),
        ) from None


def _bring_up(cluster: Cluster, requested: Pipeline) -> None:
    for stage in (training(requested), service(requested)):
        for manifest in stage:
            ensure(cluster, manifest)
        # The last of each is what the others are for. A ReadWriteOnce volume is on one node at a time: so one by one.
        follow(cluster, requested.name, stage[-1], _note)
    hindrance = ask(cluster, requested)
    _note(f"not reachable from here: {hindrance}" if hindrance else "the service returned a test image")
    click.echo(f"inside the cluster: {address_of(cluster, requested.name)}")
    forward = f"kubectl --context {cluster.context} -n {cluster.namespace} port-forward"
    click.echo(f"from here: {forward} service/{requested.name}-serve {PORT}")


@pipeline.command()
@_place
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(name: str, context: str | None, namespace: str | None, as_json: bool) -> None:
    """Show the objects and the address of a pipeline.

    \b
    Examples:
      bench kubernetes pipeline status
      bench kubernetes pipeline status --name faces --json
    """
    cluster = Cluster.connect(context, namespace)
    parts = list(parts_of(cluster, name))
    answers = any(part.kind == "Deployment" and part.state == "ready" for part in parts)
    address = address_of(cluster, name) if answers else None
    if as_json:
        PipelineOutput(
            name=name, context=cluster.context, namespace=cluster.namespace, parts=parts, address=address
        ).tell()
        return
    for part in parts:
        click.echo(f"{part.kind} {part.name}: {part.state} {part.reason}".rstrip())
    click.echo(f"inside the cluster: {address}" if address else "it does not answer" if parts else "nothing is there")


@pipeline.command()
@_place
@click.option("--claim", is_flag=True, help="Also remove the claim with the model.")
def down(name: str, context: str | None, namespace: str | None, claim: bool) -> None:
    """Remove exactly the objects with the labels of a pipeline. The claim with the model needs --claim.

    \b
    Examples:
      bench kubernetes pipeline down
      bench kubernetes pipeline down --name faces --claim
    """
    removed = remove(Cluster.connect(context, namespace), name, claim=claim)
    click.echo("\n".join(f"removed {item}" for item in removed) or "nothing is there")


def _note(text: str) -> None:
    click.echo(text, err=True)
