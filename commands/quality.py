"""``bench quality``: how good the images of kept models are, measured on this host after the run."""

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import click
import psutil

from analysis.report.elements import Element, Head, Line, Table
from analysis.report.terminal import Terminal
from commands.output import Output
from commands.paths import UserPath
from commands.run.options import latest
from commands.run.prepare import observing
from provisioning.layers.userland import own_python_argv
from provisioning.nodes import local_node
from provisioning.paths import home
from scenarios.datasets import resolve as datasets
from scenarios.members import plugin_of
from scenarios.reading import data_at
from suite.errors import MeasurementError, RequestError, option
from suite.job.datasets import GENERATED, Dataset
from suite.job.job import Job
from suite.job.profiles import Sizes
from suite.records.record import TrialRecord
from suite.registries import WORKLOADS
from suite.results.quality import Judge, ModelsQuality, Numbers, RunQuality, read_quality, write_quality
from suite.results.store import MODELS, ListedFile, Run, stored_plan
from suite.units import number
from suite.untrusted.console import PlainConsole
from suite.untrusted.parse import parse_object
from worker.spec import FEWEST_FOR_FID, QualitySpec, Spec

_BATCH = 64
_STEPS = 1500
"""Of the classifier's training."""
_RELEASED = "6726825d"
"""How the SHA-256 of the weights begins that torch-fidelity's releases name, as their file's name shows."""
_FID_TAKES = f"{FEWEST_FOR_FID:,} images or more, of three channels"
_WITHIN_S = 6 * 3600.0
_SILENT_S = 10.0
_MOST_MEMORY_BYTES = 8 << 30
"""Of each process. The features of 100,000 images on each side take 3 GB."""


class QualityOutput(Output):
    """The quality of a run's kept models, by the digests of their weights."""

    run: str
    quality: RunQuality


@click.command()
@click.argument("run", required=False, type=UserPath())
@click.option(
    "--samples", type=click.IntRange(10, 100_000), default=2048, show_default=True, help="Images on each side."
)
@click.option(
    "--features",
    default="own",
    show_default=True,
    metavar="own|FILE",
    help="FILE: InceptionV3's weights.",
)
@click.option("--reach", type=click.FloatRange(min=0, min_open=True), help="An own-frechet or FID: when is it reached?")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def quality(
    run: Path | None,
    samples: int,
    features: str,
    reach: float | None,
    as_json: bool,
) -> None:
    """Measure the images of the models that a run kept.

    Default: the latest run in results/. This host measures: a classifier of the suite learns the classes of the
    real images. own-frechet is the Frechet distance of its features of generated and real images, own-score the
    score of its predictions: neither is FID or Inception Score. Those, KID, precision and recall need a file of the
    weights that torch-fidelity's releases name; nothing is downloaded. Each distinct model is measured once;
    results are in quality.json, and in bench compare.

    \b
    Examples:
      bench quality
      bench quality results/digits --samples 4096 --reach 20
      bench quality --features weights-inception-2015-12-05-6726825d.pth
    """
    directory = run or latest()
    records = [record for record in Run(directory).records() if record.kept and not record.warm_up]
    if not records:
        raise RequestError(f"{directory} kept no models", remedy=f"run it with {option('keep_model')} last or each")
    file = None
    digest = None
    if features != "own":
        file = Path(features).resolve()
        digest = ListedFile.of(file).sha256
    before = read_quality(directory)
    wanted = ModelsQuality(weights_sha256=digest, samples=samples, reach=reach, models={})
    measured = before.known(wanted)
    _check_reach(records, measured)
    jobs = {record.job.model: record.job for record in records}
    for job in jobs.values():
        digests = _digests(records, job.model)
        # A classifier is trained anew each time, and one of them measures all models of its workload.
        if not measured.covers(job.model, digests):
            numbers, judge = _measured(directory, job, sorted(digests), measured, file)
            measured.judges[job.model] = judge
            measured.models.update(numbers)
    by_features = {**before.features, measured.features: measured}
    result = RunQuality(features=by_features)
    write_quality(directory, result)
    if as_json:
        QualityOutput(run=str(directory), quality=result).tell()
    else:
        PlainConsole().print(Terminal(quality_document(records, measured)))


def _check_reach(records: list[TrialRecord], asked: ModelsQuality) -> None:
    """Raise RequestError where a FID is to be reached that is not measured."""
    if asked.reach and asked.features == "inception":
        sizes = (record.job.sizes for record in records)
        grey = any(shape.channels == 1 for shape in sizes if shape)
        if grey or asked.samples < FEWEST_FOR_FID:
            why = f"--reach {number(asked.reach)} needs a FID, which takes {_FID_TAKES}"
            raise RequestError(why, remedy="leave it out")


def _digests(records: list[TrialRecord], model: str) -> set[str]:
    digests = set()
    for record in records:
        if record.job.model == model:
            digests |= {kept.weights_sha256 for kept in record.kept}
    return digests


def _measured(
    run: Path,
    job: Job,
    digests: list[str],
    into: ModelsQuality,
    file: Path | None,
) -> tuple[dict[str, Numbers], Judge]:
    """Measure models of one job in a process of this Python. Raises RequestError and MeasurementError."""
    request = stored_plan(run).request
    if job.sizes is None or request is None or job.dataset is None:
        raise RequestError(f"{run} trained on drawn images, which have no classes", remedy="train on a data set")
    data = request.data.data or GENERATED
    of_run = job.dataset.listing_sha256
    frame_stride = job.dataset.frame_stride
    _, dataset = datasets.resolve(data, home(), frame_stride, listing_sha256=of_run)
    if dataset.sha256 != job.dataset.sha256:
        raise RequestError(f"{dataset.directory} is not the data set of {run}: it has changed", remedy="restore it")
    spec = _spec(job, job.sizes, dataset, into.samples)
    kept = (run / MODELS).absolute()
    models = {digest: str(kept / f"{digest}.pt") for digest in digests}
    quality_spec = QualitySpec(
        spec=spec,
        models=models,
        samples=into.samples,
        inception=str(file) if file else None,
    )
    readable = filter(None, (dataset.directory, kept, file))
    *measured, done = _events_of(quality_spec, list(map(str, readable)))
    judge = Judge(
        network_sha256=done["network_sha256"],
        data_sha256=dataset.sha256,
        image_px=job.sizes.image_px or 0,
        channels=spec.shape.channels,
    )
    numbers = {str(event["weights_sha256"]): event["numbers"] for event in measured}
    return numbers, judge


def _spec(job: Job, sizes: Sizes, dataset: Dataset, samples: int) -> Spec:
    """Return how the classifier of the suite is trained: on the job's data, with few steps."""
    shortened = {
        **sizes.model_dump(),
        "batch": min(_BATCH, samples),
        "warmup_steps": 0,
        "steps": _STEPS,
        "epochs": None,
    }
    return Spec(
        workload=WORKLOADS.place(job.model),
        plugin=plugin_of(WORKLOADS, job.model, job.workload_sha256),
        **shortened,
        threads=job.envelope.threads,
        recipe="reference",
        seed=0,
        device="cpu",
        devices=1,
        parallel="none",
        data=data_at(dataset.directory, dataset, job),
    )


def _events_of(request: QualitySpec, readable: Sequence[str]) -> list[dict[str, Any]]:
    """Run the worker's program on this machine, and return its events. Raises MeasurementError."""
    memory_bytes = min(_MOST_MEMORY_BYTES, psutil.virtual_memory().available)
    events = list[dict[str, Any]]()
    shown_s = time.monotonic()
    python = own_python_argv(readable, memory_bytes)
    with local_node((), None) as node, observing() as observer:
        process = node.start([*python, "-m", "worker.quality"], stdin=request.encoded())
        for event in map(parse_object, process.lines(_WITHIN_S)):
            if event["event"] != "progress":
                events.append(event)
            elif time.monotonic() - shown_s > _SILENT_S:
                shown_s = time.monotonic()
                share = event["done"] / event["of"]
                observer.note(f"{event['what']}: {share:.0%}")
        status = process.wait(_WITHIN_S)
    last = events[-1] if events else {}
    if last.get("event") != "done":
        why = str(last.get("message") or process.output_tail() or f"measuring ended with exit status {status}")
        kind = str(last.get("kind", "quality"))
        remedy = last.get("remedy")
        if not remedy and "Permission denied" in why:
            # It reads as an unprivileged user, as jobs do.
            remedy = "let everybody read models and data set: chmod -R o+rX"
        raise MeasurementError(why, kind=kind, remedy=remedy)
    return events


def quality_document(records: list[TrialRecord], measured: ModelsQuality) -> Iterator[Element]:
    """Yield the means over the trials, after each epoch, and when the images were good enough."""
    rows: dict[str, list[Numbers]] = {}
    for record in records:
        for model in record.kept:
            when = "the last"
            if model.epoch is not None:
                when = f"epoch {model.epoch}"
            row = rows.setdefault(f"{record.job.model} on {record.target}, {when}", [])
            row.append({**measured.models[model.weights_sha256], "training s": model.training_s})
    names = next(iter(rows.values()))[0]
    table = []
    for when, row in rows.items():
        trials = str(len(row))
        table.append((Head(when), (*_means(row, names), trials)))
    note = {"own": "", "inception": f"; a FID takes {_FID_TAKES}"}[measured.features]
    caption = f"{measured.samples} images on each side, means over the trials{note}"
    heads = tuple(map(Head, (*names, "trials")))
    yield Table("model", "", heads, tuple(table), caption, compact=True)
    if measured.weights_sha256 and not measured.weights_sha256.startswith(_RELEASED):
        yield Line("not the weights that torch-fidelity's releases name: compare with no published number", "warning")
    if measured.reach:
        reaching = (measured.first_reached(record.kept) for record in records)
        first_s = [model.training_s for model in reaching if model]
        spent = ""
        if first_s:
            spent = f", on average after {number(fmean(first_s))} s of training"
        yield Line(f"{len(first_s)} of {len(records)} trials reach {number(measured.reach)}{spent}", "strong")


def _means(row: list[Numbers], names: Iterable[str]) -> list[str | None]:
    return [_mean(row, name) for name in names]


def _mean(row: list[Numbers], name: str) -> str | None:
    of_name = (numbers[name] for numbers in row)
    values = [value for value in of_name if value is not None]
    if values:
        return number(fmean(values))
    return None
