"""The paper's figures, and one of each probe.

As in Lin, Pai and Chou (2018), bars grouped by model, one per target, normalised to bare metal. Of the runs compared,

    figure-2-synthetic-throughput   figure-4-real-throughput
    figure-3-synthetic-elapsed      figure-5-real-elapsed

and figure-6 to figure-9 of distributed runs; figure-10-shared is of jobs beside each other. What the paper has not
(the opening of targets, the probes, the ablations, the heat map of interference) has names without a number:
synthetic-opening, probe-disk. Where one scenario has several jobs,
what tells them apart stands between the scenario and the metric.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from matplotlib.figure import Figure

from analysis.compare.interference import SHARED_METRICS
from analysis.compare.results import Comparison, Group, Job
from analysis.figures.bars import figure, probe_figure
from analysis.figures.dots import spread
from analysis.figures.interference import heat_map, losses
from analysis.figures.reference import Key, kind_of
from analysis.figures.style import save, svg
from analysis.load.metrics import METRICS, PROBE, SHARED
from suite.errors import RequestError

__all__ = ["draw", "figure", "figures", "probe_figure", "spread", "svg"]
PAPER = {
    ("synthetic", "synthetic", "throughput"): 2,
    ("synthetic", "synthetic", "elapsed"): 3,
    ("real", "real", "throughput"): 4,
    ("real", "real", "elapsed"): 5,
    ("distributed", "synthetic", "throughput"): 6,
    ("distributed", "synthetic", "elapsed"): 7,
    ("distributed", "real", "throughput"): 8,
    ("distributed", "real", "elapsed"): 9,
}
"""The number of the paper's figure, by scenario, kind of data and metric."""
_NO_REFERENCE: Mapping[Key, float] = {}


@dataclass(frozen=True)
class Named:
    """A figure, the stem of its files, and what it shows."""

    stem: str
    caption: str
    chart: Figure


def draw(comparison: Comparison, directory: Path, reference: Mapping[Key, float] | None = None) -> list[Path]:
    """Every figure as PNG and SVG in ``directory``; returns their paths.

    ``reference``: published ratios to draw as markers, such as ``analysis.figures.reference.normalised()``.
    Raises RequestError when the directory cannot be written.
    """
    jobs = comparison.jobs
    paths: list[Path] = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for job in jobs:
            groups = [group for group in comparison.groups if group.job == job]
            for found in figures(groups, jobs, reference or {}, comparison):
                paths += save(found.chart, [directory / f"{found.stem}.png", directory / f"{found.stem}.svg"])
    except OSError as error:
        raise RequestError(f"cannot write {directory}: {error.strerror}", remedy="name another directory") from error
    return paths


def figures(
    groups: Sequence[Group],
    jobs: Sequence[Job],
    reference: Mapping[Key, float] = _NO_REFERENCE,
    comparison: Comparison | None = None,
) -> Iterator[Named]:
    """Of the groups of one job among ``jobs``: one per metric that was measured, or one per probe.

    Of jobs that share the machine, what ``comparison`` says of them beside each other.
    """
    job = groups[0].job
    if job.scenario == SHARED:
        yield from _beside(job, jobs, comparison)
        return
    if job.scenario == PROBE:
        for group in groups:
            if any(summary.estimates for summary in group.targets):
                name, *rest = _name(job, jobs)
                caption = f"The probe {group.model}: every metric on every target"
                yield Named("-".join([name, group.model, *rest]), caption, probe_figure(group))
        return
    for metric in METRICS:
        if any(metric.name in summary.estimates for group in groups for summary in group.targets):
            place = paper_figure(job, metric.name)
            what = f"{metric.name}, {job.scenario} scenario, {job.data} data"
            title = f"Figure {place}: {what}" if place else f"{what[0].upper()}{what[1:]}"
            stem = "-".join([*([f"figure-{place}"] if place else []), *_name(job, jobs), metric.name])
            caption = f"{title}{' (numbered as in the paper)' if place else ''}"
            yield Named(stem, caption, figure(groups, metric, reference, title))


def _beside(job: Job, jobs: Sequence[Job], comparison: Comparison | None) -> Iterator[Named]:
    found = [one for one in comparison.interference if one.job == job and not one.ablation] if comparison else []
    paper = [one for one in found if one.aggressor == "alexnet"]
    name, *rest = _name(job, jobs)
    for metric in SHARED_METRICS[:2]:
        if any(metric.name in one.effects for one in paper):
            title = f"Figure 10: {metric.name} beside AlexNet, shared scenario"
            stem = "-".join(["figure-10", name, *rest, metric.name])
            yield Named(stem, f"{title} (numbered as in the paper)", losses(paper, metric, title))
    if any("throughput" in one.effects for one in found):
        title = "Interference: throughput that victims lose beside aggressors"
        yield Named("-".join([name, "interference", *rest]), title, heat_map(found, title))


def paper_figure(job: Job, metric: str) -> int | None:
    """The number of the paper's figure that shows this; None where it has none."""
    return PAPER.get((job.scenario, kind_of(job.data), metric))


def _name(job: Job, jobs: Sequence[Job]) -> list[str]:
    """The scenario, and what differs among its jobs, fit for a file name."""
    others = [asdict(other) for other in jobs if other.scenario == job.scenario]
    parts = [value for key, value in asdict(job).items() if key != "scenario" and len({o[key] for o in others}) > 1]
    return [job.scenario, *(re.sub(r"[^A-Za-z0-9_.]+", "-", part).strip("-") for part in parts if part)]
