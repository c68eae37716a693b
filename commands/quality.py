"""``bench quality``: how good the images of kept models are, measured on this host after the run."""

import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import click

from analysis.report.elements import Element, Head, Line, Table
from analysis.report.formatting import number
from analysis.report.terminal import Terminal
from commands.output import Output
from provisioning.nodes import local_node
from provisioning.paths import ROOMS, home
from scenarios.datasets import resolve as datasets
from scenarios.members import plugin_of
from suite.errors import MeasurementError, RequestError, option
from suite.job.datasets import Dataset
from suite.job.job import Job, Loading
from suite.records.record import TrialRecord
from suite.registries import DATA_KINDS, WORKLOADS
from suite.results.quality import ModelQuality, RunQuality, read_quality, write_quality
from suite.results.store import MODELS, RESULTS, Run, latest_run, stored_plan
from suite.untrusted.console import PlainConsole
from suite.untrusted.parse import parse_object
from worker.spec import Data, QualitySpec, Spec

_BATCH, _STEPS = 64, 1500
"""Of the classifier's training."""
_WITHIN_S = 6 * 3600.0


class QualityOutput(Output):
    """The quality of a run's kept models, by the digests of their weights."""

    run: str
    quality: RunQuality


@click.command()
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option(
    "--samples", type=click.IntRange(2, 100_000), default=2048, show_default=True, help="Images on each side."
)
@click.option("--reach", type=click.FloatRange(min=0, min_open=True), help="An own-frechet: when is it reached?")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def quality(run: Path | None, samples: int, reach: float | None, as_json: bool) -> None:
    """Measure the images of the models that a run kept, on this host. Default: the latest run in results/.

    A classifier of the suite learns the classes of the real images. own-frechet is the Frechet distance of its features
    of generated and real images, own-score the score of its predictions: neither is FID or Inception Score, which need
    Inception's weights. Each distinct model is measured once; results are in quality.json, and in bench compare.

    \b
    Examples:
      bench quality
      bench quality results/digits --samples 4096 --reach 20
    """
    directory = run or latest_run(RESULTS)
    records = _with_models(directory)
    before = read_quality(directory) or RunQuality(samples=samples, models={})
    known = dict(before.models) if before.samples == samples else {}
    for model in dict.fromkeys(record.job.model for record in records):
        of_model = [record for record in records if record.job.model == model]
        if missing := _digests(of_model) - known.keys():
            known |= _measured(directory, of_model[0].job, sorted(missing), samples)
    result = RunQuality(samples=samples, reach=reach, models=known)
    write_quality(directory, result)
    if as_json:
        QualityOutput(run=str(directory), quality=result).tell()
    else:
        PlainConsole().print(Terminal(quality_document(records, result)))


def _with_models(run: Path) -> list[TrialRecord]:
    """Return the records that have models. Raises RequestError for a run without any."""
    if records := [record for record in Run(run).records() if record.kept]:
        return records
    raise RequestError(f"{run} kept no models", remedy=f"run it with {option('keep_model')} last or each")


def _digests(records: list[TrialRecord]) -> set[str]:
    return {model.weights_sha256 for record in records for model in record.kept}


def _measured(run: Path, job: Job, digests: list[str], samples: int) -> dict[str, ModelQuality]:
    """Measure models of one job in a process of this Python. Raises RequestError and MeasurementError."""
    request = stored_plan(run).request
    if job.sizes is None or request is None or job.dataset is None:
        raise RequestError(f"{run} trained on drawn images, which have no classes", remedy="train on a data set")
    _, dataset = datasets.resolve(request.data.data or "", home(), job.dataset.frame_stride)
    if dataset.sha256 != job.dataset.sha256:
        raise RequestError(f"{dataset.directory} is not the data set of {run}: it has changed", remedy="restore it")
    spec = Spec(
        workload=WORKLOADS.place(job.model),
        plugin=plugin_of(WORKLOADS, job.model, job.workload_sha256),
        **{**job.sizes.model_dump(), "batch": min(_BATCH, samples), "warmup_steps": 0, "steps": _STEPS, "epochs": None},
        threads=job.envelope.threads,
        recipe="reference",
        seed=0,
        device="cpu",
        devices=1,
        parallel="none",
        data=_data(job, dataset),
    )
    models = {digest: str((run / MODELS / f"{digest}.pt").absolute()) for digest in digests}
    trained, *measured, _ = _events_of(QualitySpec(spec=spec, models=models, samples=samples))
    return {
        str(event["weights_sha256"]): ModelQuality.model_validate(
            {"own_score": event["score"], "own_frechet": event["frechet"], "accuracy": trained["accuracy"]}
        )
        for event in measured
    }


def _events_of(request: QualitySpec) -> list[dict[str, Any]]:
    """Run the worker's program on this machine, and return its events. Raises MeasurementError."""
    argv = ["/usr/bin/env", f"PYTHONPATH={ROOMS}", sys.executable, "-m", "worker.quality"]
    with local_node((), None) as node:
        done = node.run(argv, stdin=request.encoded(), timeout_s=_WITHIN_S, check=False)
    events = [parse_object(line) for line in done.stdout.splitlines()]
    last = events[-1] if events else {"message": done.stderr, "kind": "quality"}
    if last.get("event") != "done":
        raise MeasurementError(str(last["message"]), kind=str(last["kind"]), remedy=last.get("remedy"))
    return events


def _data(job: Job, dataset: Dataset) -> Data:
    loading = job.loading or Loading()
    return Data(
        kind=DATA_KINDS.place(dataset.kind),
        plugin=plugin_of(DATA_KINDS, dataset.kind, dataset.kind_sha256),
        directory=dataset.directory,
        loader_workers=1,
        decoder=loading.decoder,
        crop=loading.crop,
        frame_stride=dataset.frame_stride or 1,
    )


def quality_document(records: list[TrialRecord], result: RunQuality) -> Iterator[Element]:
    """Yield the means over the trials, after each epoch, and when the images were good enough."""
    rows: dict[str, list[tuple[ModelQuality, float]]] = {}
    for record in records:
        for model in record.kept:
            when = "the last" if model.epoch is None else f"epoch {model.epoch}"
            row = rows.setdefault(f"{record.job.model} on {record.target}, {when}", [])
            row.append((result.models[model.weights_sha256], model.training_s))
    heads = tuple(map(Head, ("own-frechet", "own-score", "training s", "accuracy", "trials")))
    table = tuple((Head(name), _cells(row)) for name, row in rows.items())
    yield Table("model", "", heads, table, f"{result.samples} images on each side, means over the trials", compact=True)
    if result.reach:
        first_s = [first.training_s for record in records if (first := result.first_reached(record.kept))]
        spent = f", on average after {number(fmean(first_s))} s of training" if first_s else ""
        yield Line(f"{len(first_s)} of {len(records)} trials reach {number(result.reach)}{spent}", "strong")


def _cells(row: list[tuple[ModelQuality, float]]) -> tuple[str, ...]:
    values = [(quality.own_frechet, quality.own_score, training_s, quality.accuracy) for quality, training_s in row]
    return (*(number(fmean(column)) for column in zip(*values, strict=True)), str(len(row)))
