"""A comparison for other programs, as JSON and as CSV: each column is declared once, with where the results have it."""

import csv
import io
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from pydantic import AliasPath, BaseModel, ConfigDict, Field

from analysis.compare.results import BurstVariation, ComparedJob, Comparison, Cost, JudgedClaim, SameWork, TargetSummary
from analysis.report.answers.answer import answer
from analysis.report.answers.claim import WORDS
from analysis.report.export import for_spreadsheets
from analysis.statistics.ratios import VerdictName
from analysis.warnings.types import AnalysisWarning


class Columns(BaseModel):
    """Columns that are read from results; what the results lack is null in JSON and empty in CSV, never zero."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        defer_build=True,
        from_attributes=True,
        validate_by_name=True,
        validate_by_alias=True,
        json_schema_serialization_defaults_required=True,
    )


def _at(first: str, *path: str | int, default: Any = ...) -> Any:  # noqa: ANN401 (a field of any type)
    return Field(default, validation_alias=AliasPath(first, *path))


class WarningOutput(Columns):
    """A warning; ``kind`` is stable."""

    kind: str
    message: str
    advice: str


class JobColumns(Columns):
    """The job that was run."""

    scenario: str = _at("job", "scenario")
    data: str = _at("job", "data")
    profile: str = _at("job", "profile")
    recipe: str = _at("job", "recipe")
    variant: str = _at("job", "variant")
    """The settings that differ among the records; empty where none does."""


class Row(JobColumns):
    """One contrast: a row of the CSV, and of ``rows`` in the JSON. The names of the columns are stable."""

    kind: str
    """What is divided by what; see ``CONTRASTS`` of ``suite.registries``."""
    model: str
    """The model, or the probe; empty for all models of the job together."""
    target: str
    ablation: str = _at("arm", "ablation")
    aggressor: str = _at("arm", "aggressor")
    workers: int | None = _at("arm", "division", "workers", default=None)
    """The way in which a distributed job divided its work, where several are compared; null elsewhere."""
    strategy: str | None = _at("arm", "division", "strategy", default=None)
    batch: int | None = _at("arm", "division", "batch", default=None)
    global_batch: int | None = _at("arm", "division", "global_batch", default=None)
    images_seen: int | None = _at("arm", "division", "images_seen", default=None)
    values: tuple[str, ...] = _at("arm", "cell")
    """The values of the keys of ``--by``, as ``data=mnist``; empty elsewhere."""
    base: tuple[str, ...]
    """The values that these are compared with."""
    metric: str = _at("metric", "name")
    """``throughput`` (images/s), ``elapsed`` (s), ``opening`` (s), ``step-tail`` (the 99th percentile of the steps over
    their median), or what the workload or the probe measures."""
    unit: str = _at("metric", "unit")
    value: float | None
    """The trimmed geometric mean over the blocks; absent for what is only a ratio."""
    trials: int
    failed: int
    failed_low: float | None = _at("failures", "low", default=None)
    """The lower end of the 95 % interval of the share of failed trials; null if no trial failed on either side."""
    failed_high: float | None = _at("failures", "high", default=None)
    failed_baseline: int | None = _at("failures", "of_base", default=None)
    """The failed trials on the other side, in the blocks that hold a trial of both."""
    failed_p: float | None = _at("failures", "p", default=None)
    """The level of McNemar's exact test: whether the target fails more often than the other side."""
    ratio: float | None
    """The trimmed geometric mean of the ratios inside the blocks, to what the kind divides by."""
    difference: float | None = _at("difference", "mean", default=None)
    """In place of a ratio, for a metric that can be zero: the mean over the blocks of own less base, in its unit."""
    difference_low: float | None = _at("difference", "interval", 0, default=None)
    """The lower end of the exact 95 % interval of the difference; null for too few blocks, or nothing but zeros."""
    difference_high: float | None = _at("difference", "interval", 1, default=None)
    blocks: int
    """The number of blocks that have such a ratio or difference."""
    runs: tuple[int, int] | None = None
    """The runs of the base and its own, where runs are compared; null inside the blocks of one run or sweep."""
    spread: float | None = None
    """The standard deviation between runs of the same, as a share, of a difference in its unit; null where too few show
    it, and inside blocks."""
    low: float | None = _at("interval", 0, default=None)
    """The lower end of the 95 % interval, of the value where there is no ratio; absent for a single block."""
    high: float | None = _at("interval", 1, default=None)
    verdict: VerdictName | None = _at("verdict", "name", default=None)
    """``equivalent``, ``slower``, ``faster`` or ``undecided``; ``tail`` or ``typical-only`` if only the typical trial
    is equivalent; ``fails more`` if more trials fail than on the other side. Null if the trials decide nothing, and
    ``withheld`` gives the reasons, or if nothing is judged."""
    margin: float | None = _at("verdict", "margin", default=None)
    """The margin (a share) of the verdict: that of the plan of its job, or the one that was given."""
    withheld: tuple[str, ...] = _at("verdict", "withheld", default=())
    """Why there is no verdict, whatever the tests say; empty where it stands."""
    p: float | None = _at("verdict", "p", default=None)
    """The Holm-adjusted level of the verdict."""
    more_blocks: int | None = _at("verdict", "more_blocks", default=None)
    """The number of further blocks that would probably decide."""
    detectable: float | None = _at("verdict", "detectable", default=None)
    """The difference from 1 (a share) that these blocks detect with a chance of 80 %."""
    expected: float | None = _at("expected", "ratio", default=None)
    """The ratio of the mean times, slow trials and all. Of a rate the times per unit of work are meant."""
    expected_low: float | None = _at("expected", "interval", 0, default=None)
    expected_high: float | None = _at("expected", "interval", 1, default=None)
    slow_over: float | None = _at("slow", "over", default=None)
    """The share by which a slow trial is slower than the typical one."""
    slow_trials: int | None = _at("slow", "own", default=None)
    """The number of the blocks in which the trial was slow, and bare metal's was not; failed ones apart."""
    slow_baseline: int | None = _at("slow", "base", default=None)
    """The number of the blocks in which bare metal's was, and the trial was not."""
    slow_p: float | None = _at("slow", "p", default=None)
    """The level of McNemar's exact test: whether the target has more slow and failed trials than bare metal."""
    slow_excluded: float | None = _at("slow", "excluded", default=None)
    """The share of slow and failed trials such that more are excluded at 95 %."""
    noise_floor: float | None = _at("noise", "share", default=None)
    """The smallest overhead (a share) that the base's trials could have shown."""
    noise_method: Literal["a/a", "across-blocks"] | None = _at("noise", "method", default=None)
    members: tuple[str, ...]
    """What it is the mean over, or the CPUs of each stage; joined by "; " in CSV, as the notes are."""
    notes: tuple[str, ...]
    """Substitutes and marks without which the number must not be read."""


class GroupOutput(Columns):
    """The facts beside the contrasts of one job and model; see the classes of ``analysis.compare.results``."""

    job: ComparedJob
    model: str
    targets: tuple[TargetSummary, ...]
    costs: tuple[Cost, ...]
    turns: tuple[BurstVariation, ...]
    same_work: tuple[SameWork, ...]


class ClaimRow(JobColumns):
    """One comparison of the answer. ``verdict`` is null where it is withheld."""

    what: str
    target: str
    metric: str
    slower: float | None
    slower_low: float | None = _at("interval", 0, default=None)
    slower_high: float | None = _at("interval", 1, default=None)
    blocks: int = _at("found", "blocks", default=0)
    margin: float | None
    verdict: VerdictName | None = _at("found", "verdict", "name", default=None)
    withheld: tuple[str, ...]
    more_blocks: int | None
    more_s: float | None
    engine: str = _at("around", "engine")
    hosts: tuple[str, ...] = _at("around", "hosts")
    substitutes: tuple[str, ...] = _at("notes")
    word: Literal[WORDS]  # type: ignore[valid-type]
    """The name of the verdict, or ``no verdict`` or ``no number``."""
    why: tuple[str, ...]
    """The reasons of the word."""


class StepOutput(Columns):
    """A command that settles what is open."""

    argv: tuple[str, ...]
    command: str
    """The same as a line of a shell."""
    decides: str
    takes_s: float | None
    at_most: bool
    """Whether a budget ends it after ``takes_s``; else it takes about that long."""


class AnswerText(Columns):
    """An answer as text, and its parts."""

    lines: tuple[str, ...]
    why: str
    next: StepOutput | None
    """Null if no command settles what is open."""
    facts: tuple[str, ...]


class AnswerOutput(AnswerText):
    """The answer as text, its parts, and each comparison in it."""

    claims: tuple[ClaimRow, ...]


class ComparisonOutput(Columns):
    """A comparison; ``runs`` are their ids. Trials of warm-up blocks were left out of everything."""

    schema_version: Literal[3] = 3
    answer: AnswerOutput
    runs: tuple[str, ...]
    rows: tuple[Row, ...]
    groups: tuple[GroupOutput, ...]
    published: tuple[JudgedClaim, ...]
    warmup_trials: int
    warnings: tuple[WarningOutput, ...]


def comparison_output(comparison: Comparison) -> ComparisonOutput:
    return ComparisonOutput(
        answer=answer_output(comparison),
        runs=comparison.runs,
        rows=tuple(rows(comparison)),
        groups=tuple(map(GroupOutput.model_validate, comparison.groups)),
        published=comparison.claims,
        warmup_trials=comparison.warmup_trials,
        warnings=warning_outputs(comparison.warnings),
    )


def answer_output(comparison: Comparison) -> AnswerOutput:
    return AnswerOutput.model_validate(answer(comparison))


def warning_outputs(warnings: Iterable[AnalysisWarning]) -> tuple[WarningOutput, ...]:
    return tuple(map(WarningOutput.model_validate, warnings))


def rows(comparison: Comparison) -> Iterator[Row]:
    return map(Row.model_validate, comparison.contrasts)


KEYS = tuple(Row.model_fields)


def as_json(comparison: Comparison) -> str:
    return comparison_output(comparison).model_dump_json(indent=1)


def as_csv(comparison: Comparison) -> str:
    """Return a header and the rows. The warnings are not part of it: print ``formatting.warning_lines`` beside."""
    out = io.StringIO()
    writer = csv.DictWriter(out, KEYS, lineterminator="\n")
    writer.writeheader()
    for row in rows(comparison):
        cells = {}
        for key, value in row:
            text = "; ".join(map(str, value)) if isinstance(value, tuple) else value
            cells[key] = for_spreadsheets(text)
        writer.writerow(cells)
    return out.getvalue()
