"""``bench kubernetes pipeline``: generators that are trained in a cluster and served there."""

import json
import math
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import click
from pydantic import ValidationError

from commands.kubernetes import lifecycle
from commands.kubernetes.lifecycle import PipelinePart, address_of
from commands.kubernetes.manifests import DATASET, NAME, PORT, Pipeline, PipelineModel, service, training
from commands.lazy import SuggestingGroup
from commands.output import Output
from provisioning.kubernetes.claims import ON_CLAIM
from provisioning.kubernetes.cluster import Cluster
from provisioning.kubernetes.owned import demand_claim
from suite.errors import RequestError
from suite.job.datasets import shape_of
from suite.job.envelope import parse_bytes
from suite.job.profiles import PROFILES
from suite.job.sharing import sizes_of
from suite.registries import DATA_KINDS, WORKLOADS
from suite.units import parse_duration_s

_note = partial(click.echo, err=True)
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
    """Train generators in a Kubernetes cluster and serve them there.

    \b
    Examples:
      bench kubernetes pipeline up --image NAME@sha256:…
    """


@kubernetes.group(cls=SuggestingGroup)
def pipeline() -> None:
    """Create, show or remove a pipeline of generators.

    It is a claim, Jobs that train, and a Deployment with a Service.

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
    command = click.option("--namespace", help="Namespace. Default: the kubeconfig's.")(command)
    command = click.option("--context", help="Context of the kubeconfig. Default: the current one.")(command)
    name = click.option(
        "--name",
        default="pipeline",
        show_default=True,
        callback=_named,
        help="Prefix of the names of all objects.",
    )
    return name(command)


@pipeline.command()
@_place
@click.option("--image", required=True, metavar="NAME@sha256:…", help="The suite's image in a registry, by its digest.")
@click.option(
    "--model",
    multiple=True,
    default=["gan"],
    show_default=True,
    help="A generator; repeat it for several.",
)
@click.option(
    "--data",
    multiple=True,
    metavar="KIND:CLAIM/PATH",
    help="Train each generator on this data set, in a directory of an existing claim, which is mounted read-only; "
    "repeat it for several. Default: drawn images.",
)
@click.option("--epochs", type=click.IntRange(1), help="Epochs of each data set, in place of the profile's steps.")
@click.option("--deadline", default="24h", show_default=True, help="Time that each training may take: 90m, 24h.")
@click.option(
    "--profile",
    default="quick",
    show_default=True,
    type=click.Choice([name for name, profile in PROFILES.items() if not profile.settle_s]),
    help="Sizes and steps.",
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    type=click.IntRange(0, (1 << 32) - 1),
    help="Random seed of the weights.",
)
@click.option(
    "--cpus",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="CPUs of each pod.",
)
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
    """Train generators in a cluster, and serve them.

    A test image of each is requested.

    Existing objects are brought to the request by server-side apply; an existing claim is used unchanged. The pipeline
    stays until down removes it.

    \b
    Examples:
      bench kubernetes pipeline up --image NAME@sha256:… --model gan --model dcgan --data mnist:sets/digits --epochs 50
      bench kubernetes pipeline up --image NAME@sha256:… --model dcgan --storage-class fast
      bench kubernetes pipeline up --image NAME@sha256:… --dry-run > pipeline.json
    """
    requested = _checked(**given)
    if dry_run:
        items = [*training(requested), *service(requested)]
        listed = {"apiVersion": "v1", "kind": "List", "items": items}
        click.echo(json.dumps(listed, indent=2))
        return
    cluster = Cluster.connect(context, namespace)
    cluster.demand(lifecycle.RIGHTS)
    try:
        _bring_up(cluster, requested)
    except KeyboardInterrupt:
        _note("interrupted: the objects stay in the cluster, and the training goes on there")
        _note("follow it again with the same command; remove it with bench kubernetes pipeline down")
        click.get_current_context().exit(128 + signal.SIGINT)


def _checked(
    model: Sequence[str],
    data: Sequence[str],
    profile: str,
    memory: str,
    claim: str,
    deadline: str,
    **options: object,
) -> Pipeline:
    """Return the requested pipeline. Raises RequestError."""
    if options["epochs"] and not data:
        raise RequestError("--epochs is given without --data: drawn images have no epochs", remedy="add --data")
    sets = [_data(text) for text in data] or [{"dataset": DATASET}]
    kinds = {item["dataset"] for item in sets}
    if len(kinds) < len(sets):
        raise RequestError("--data gives two data sets of one kind", remedy="use a pipeline of another --name for one")
    generators = dict.fromkeys(model)
    models: list[PipelineModel] = []
    for item in sets:
        models += [_model(name, profile, item) for name in generators]
    values = {
        **options,
        "models": models,
        "memory_bytes": parse_bytes(memory),
        "claim_bytes": parse_bytes(claim),
        "deadline_s": math.ceil(parse_duration_s(deadline)),
    }
    try:
        return Pipeline.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        raise RequestError(
            f"--{name} {first['input']!r}: {first['msg']}",
            remedy=_REMEDIES.get(name, "see bench kubernetes pipeline up --help"),
        ) from None


def _data(text: str) -> dict[str, str]:
    """Return the fields of a model that ``mnist:CLAIM/PATH`` gives. Raises RequestError."""
    fields = ON_CLAIM.fullmatch(text)
    if not fields or fields["dataset"] not in DATA_KINDS.own:
        raise RequestError(
            f"--data {text!r} is not a data set on a claim",
            remedy=f"write it as mnist:CLAIM/PATH; the kinds are {', '.join(DATA_KINDS.own)}",
        )
    return fields.groupdict()


def _model(name: str, profile: str, data: Mapping[str, str]) -> PipelineModel:
    """Return a generator with its sizes. Raises RequestError if there is none, or if it cannot take the data set."""
    generators = [name for name in WORKLOADS.own if WORKLOADS.get(name).makes_images]
    if name not in generators:
        choices = " or ".join(generators)
        raise RequestError(f"--model {name}: the image holds no such generator", remedy=f"use {choices}")
    shape = {}
    if "claim" in data and WORKLOADS.get(name).channels:
        shape = shape_of(data["dataset"])
    try:
        sizes = sizes_of(PROFILES[profile], name, shape)
        return PipelineModel(model=name, sizes=sizes, **data)
    except RequestError as error:
        message = f"--model {name} cannot be trained on {data['dataset']}: {error.message}"
        raise RequestError(message, remedy="leave one of them out, or use another --profile") from error


def _bring_up(cluster: Cluster, requested: Pipeline) -> None:
    manifests = [*training(requested), *service(requested)]
    claims = {item.claim for item in requested.models}
    for claim in filter(None, claims):
        demand_claim(cluster, claim)
    for manifest in manifests:  # all of them, before hours of training
        lifecycle.ensure(cluster, manifest, dry_run=True)
    for manifest in manifests:
        lifecycle.ensure(cluster, manifest)
        # A ReadWriteOnce volume is on one node at a time: so one by one.
        if manifest["kind"] in ("Job", "Deployment"):
            lifecycle.follow(cluster, requested.name, manifest, _note)
    refusals = (lifecycle.ask(cluster, requested, item) for item in requested.models)
    hindrance = next(filter(None, refusals), None)
    names = ", ".join(f"{item.model} {item.dataset}" for item in requested.models)
    _note(f"not reachable from here: {hindrance}" if hindrance else f"the service returned a test image of {names}")
    click.echo(f"inside the cluster: {address_of(cluster, requested.name)}")
    forward = f"kubectl --context {cluster.context} -n {cluster.namespace} port-forward"
    click.echo(f"from here: {forward} service/{requested.name}-serve {PORT}")


@pipeline.command()
@_place
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(name: str, context: str | None, namespace: str | None, as_json: bool) -> None:
    """Show the objects, address and training times of a pipeline.

    \b
    Examples:
      bench kubernetes pipeline status
      bench kubernetes pipeline status --name faces --json
    """
    cluster = Cluster.connect(context, namespace)
    parts = list(lifecycle.parts_of(cluster, name))
    answers = any(part.kind == "Deployment" and part.state == "ready" for part in parts)
    address = None
    if answers:
        address = address_of(cluster, name)
    if as_json:
        PipelineOutput(
            name=name, context=cluster.context, namespace=cluster.namespace, parts=parts, address=address
        ).tell()
        return
    for part in parts:
        click.echo(f"{part.kind} {part.name}: {part.state} {part.trained or part.reason}".rstrip())
    click.echo(f"inside the cluster: {address}" if address else "it does not answer" if parts else "nothing is there")


@pipeline.command()
@_place
@click.option("--claim", is_flag=True, help="Also remove the claim with the models.")
def down(name: str, context: str | None, namespace: str | None, claim: bool) -> None:
    """Remove exactly the objects with the labels of a pipeline. The claim with the models needs --claim.

    \b
    Examples:
      bench kubernetes pipeline down
      bench kubernetes pipeline down --name faces --claim
    """
    removed = lifecycle.remove(Cluster.connect(context, namespace), name, claim=claim)
    click.echo("\n".join(f"removed {item}" for item in removed) or "nothing is there")
