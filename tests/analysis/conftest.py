"""Runs made of records as the loop leaves them, with numbers that a test chooses."""

import functools
import io
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest
from click.testing import CliRunner, Result

import cli
from analysis.compare.comparison import compare
from analysis.compare.results import Arm, ComparedJob, Comparison, Contrast, Group, Measured, Selection, TargetSummary
from analysis.explain.attribution import explain
from analysis.explain.explanation import Explained
from analysis.load.metrics import METRICS, Metric
from analysis.load.records import Records, load
from analysis.report import page
from analysis.report.document import document
from analysis.report.elements import Document
from analysis.report.markdown import markdown
from analysis.report.rows import as_json
from analysis.report.terminal import Terminal
from analysis.statistics.ratios import Location, Samples, Verdict, locate
from analysis.warnings.types import AnalysisWarning
from suite.job.envelope import GIB, Envelope
from suite.job.profiles import Sizes
from suite.records.environment import Environment, Environments
from suite.records.record import MetricValue, Outcome, Steps, Timeline, TrialRecord
from suite.records.usage import Conditions, Resources, Usage
from suite.request.repetitions import Repetitions
from suite.results.store import PLAN, Run
from suite.untrusted.console import PlainConsole
from tests.jobs import identity, in_job

Value = TypeVar("Value")
WITHIN_2 = Repetitions(until="2%")
"""A run that goes on until its intervals are within 2 %."""


def record(run_id: str = "run", **changes: Any) -> TrialRecord:
    """One record: bare metal, ResNet-50, 10 images/s, 20 s elapsed, 0.5 s opening, with ``changes``.

    ``failed`` (a message) makes it a failed one; ``userland``, ``capability`` and ``threads`` are the target's own.
    """
    failed = changes.pop("failed", None)
    place = Environment(
        userland_sha256=changes.pop("userland", "a" * 64),
        torch_cpu_capability=changes.pop("capability", "AVX2"),
        threads=changes.pop("threads", None),
        cpu_model="a CPU",
    )
    values: dict[str, Any] = {
        "scenario": "synthetic",
        "target": "bare-metal",
        "model": "resnet50",
        "data": "synthetic",
        "profile": "quick",
        "recipe": "reference",
        "block": 0,
        "position": 0,
        "seed": 0,
        "sizes": Sizes(batch=2, image_px=32, warmup_steps=1, steps=3),
        "envelope": Envelope(cpus=(0, 1), memory_bytes=2 * GIB, threads=2),
        "outcome": Outcome(status="ok"),
        "throughput_per_s": 10.0,
        "elapsed_s": 20.0,
        "open_s": 0.5,
        "steps": Steps(elapsed_s=[0.2] * 3, data_s=[0.0] * 3, compute_s=[0.2] * 3),
        "environment": Environments(host=place, target=place),
        "replica": 0,
        "ablation": None,
        "warm_up": False,
        "metrics": {},
        "clock_ratio": 1.0,
        "conditions": Conditions(interval_s=changes.get("elapsed_s", 20.0)),
        "resources": Resources(worker=Usage(cpu_s=1.0)),
    }
    if failed:
        values["outcome"] = Outcome(status="failed", kind="command", message=failed)
        values |= {"throughput_per_s": None, "elapsed_s": None, "steps": None, "clock_ratio": None}
    values |= changes
    if values["open_s"]:
        values.setdefault("opening", {"container": values["open_s"]})
    if values["steps"] and "timeline" not in values:
        values["timeline"] = timeline(math.fsum(values["steps"].elapsed_s), values["elapsed_s"])
    if values["scenario"] == "probe":
        values |= {"throughput_per_s": None, "steps": None, "sizes": None}
    arm = values["target"] + ("-again" if values["replica"] else "") + (values["ablation"] or "")
    letter = "w" if values["warm_up"] else "b"
    name = f"{values['scenario']}-{values['model']}-{arm}-{letter}{values['block']:03d}"
    named = {
        "trial_id": name,
        "run_id": identity(run_id),
        "suite_version": "0",
        "started_at": "2026-01-01T00:00:00+00:00",
    }
    return TrialRecord(**in_job(named | values))


def timeline(measured_s: float, elapsed_s: float | None = None) -> Timeline:
    """Return a whole timeline around the measured steps."""
    rest_s = 0.0 if elapsed_s is None else max(0.0, elapsed_s - measured_s)
    parts = dict.fromkeys(("launch_s", "build_s", "warmup_s", "teardown_s", "exit_s"), 0.0)
    return Timeline(**parts, imports_s=rest_s, measured_s=measured_s)


def measured(speed: float) -> dict[str, Any]:
    """Fields of a record that agree with each other: two images a step, at this speed."""
    steps = Steps(elapsed_s=[2 / speed] * 3, data_s=[0.0] * 3, compute_s=[2 / speed] * 3)
    return {"throughput_per_s": speed, "elapsed_s": 100 / speed, "steps": steps}


def without_plan(directory: Path) -> Run:
    """Return a run whose plan nobody can read: it may hold any records that agree with themselves."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / PLAN).write_text("{}")
    return Run(directory)


def probe(name: str, **metrics: tuple[float, str, Literal["more", "less"]]) -> dict[str, Any]:
    """Fields of a record of a probe; in the names of the metrics underscores stand for hyphens."""
    found = {
        metric.replace("_", "-"): MetricValue(value=value, unit=unit, better=better)
        for metric, (value, unit, better) in metrics.items()
    }
    return {"scenario": "probe", "model": name, "metrics": found}


def explained_by(records: Records, *, force: bool = False) -> Explained:
    """Return the explanations of records that are compared as ``bench compare --explain`` does."""
    return explain(records, compare(records, force=force), force=force)


def json_of(comparison: Comparison) -> Any:
    """Return what programs are told of a comparison."""
    return json.loads(as_json(comparison))


def as_markdown(comparison: Comparison) -> str:
    return markdown(document(comparison, "full", costs=True))


def printed(parts: Document, width: int = 200) -> str:
    """Return what a terminal of this width shows of a document."""
    out = io.StringIO()
    PlainConsole(width=width, file=out, force_terminal=False).print(Terminal(parts))
    return out.getvalue()


def but_command(text: str) -> list[str]:
    """Return the lines of a document that have to fit a terminal: all but a command, which nothing breaks."""
    return [line for line in text.splitlines() if not line.startswith("bench ")]


def bench(*words: str | Path, columns: int = 80) -> Result:
    """Run ``bench`` in this process."""
    return CliRunner().invoke(cli.main, [*map(str, words)], prog_name="bench", env={"COLUMNS": str(columns)})


bench_compare = functools.partial(bench, "compare")


def known(value: Value | None) -> Value:
    """Return a value, which must be there."""
    assert value is not None
    return value


def judged(found: Contrast) -> Verdict:
    """Return the verdict of a contrast, which must have one."""
    return known(found.verdict)


def located(values: Samples) -> Location:
    """Return the location of values, which must have one."""
    return known(locate(values))


class Save:
    """Saves records of runs below a directory, and reads runs by their names; by default the one called ``run``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, run_id: Any = "run", **changes: Any) -> TrialRecord:  # Any: mypy takes each of ** for it
        made = record(run_id, **changes)
        Run(self.path / run_id).save(made)
        return made

    def load(self, *runs: str) -> Records:
        return load([self.path / run for run in runs or ("run",)])

    def compare(self, *runs: str, margin: float | None = None, force: bool = False) -> Comparison:
        return compare(self.load(*runs), margin=margin, force=force)

    def explain(self, *runs: str) -> Explained:
        return explained_by(self.load(*runs))

    def page(self, *runs: str, drawn: bool = False, **options: Any) -> str:
        """Return the page of runs; its figures, which take most of the time, only if they are to be ``drawn``."""
        with pytest.MonkeyPatch.context() as patch:
            if not drawn:
                patch.setattr(page, "pictures", lambda *_: ())
            return page.write_report(self.load(*runs), self.path / "report.html", **options).read_text()


def edited(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change a record in its file."""
    record = json.loads(path.read_text())
    edit(record)
    path.write_text(json.dumps(record, indent=1))


@pytest.fixture(autouse=True)
def _not_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of records are saved and read at once: none has to outlast a loss of power."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Saves a record of the run in ``tmp_path / run_id``."""
    return Save(tmp_path)


def only(selection: Selection, kind: str) -> Measured:
    """Return what was measured of a kind, of which there is one arm."""
    (measured,) = selection.of_kind(kind).values()
    return measured


def a_group(
    job: ComparedJob,
    model: str,
    *targets: TargetSummary,
    of: Mapping[str, Mapping[str, Any]],
    metrics: Sequence[Metric] = METRICS,
) -> Group:
    """Return a group; ``of`` holds what each target measured, by the metric's name."""
    contrasts = (
        Contrast(
            kind="target",
            arm=Arm(job, model, one.target),
            metric=metric,
            failed=one.failed,
            notes=one.notes,
            **of.get(one.target, {}).get(metric.name, {}),
        )
        for one in targets
        for metric in metrics
    )
    return Group(job=job, model=model, targets=targets, metrics=tuple(metrics), contrasts=tuple(contrasts))


def a_comparison(*groups: Group, more: Sequence[Contrast] = (), warnings: Sequence[AnalysisWarning] = ()) -> Comparison:
    """Return a comparison of these groups, with ``more`` contrasts that are of no group."""
    contrasts = (*(one for group in groups for one in group.contrasts), *more)
    return Comparison(runs=("run",), groups=groups, contrasts=contrasts, warnings=tuple(warnings))
