"""A comparison for other programs, as JSON and as CSV: each column is declared once, with where the results have it."""

import csv
import io
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any, Literal, TypeVar

from pydantic import AliasPath, BaseModel, ConfigDict, Field

from analysis.compare.results import Comparison, JudgedClaim, SameImage, Scaling
from analysis.load.computed import Kind
from analysis.load.metrics import METRICS
from analysis.report.answer import answer, claims
from analysis.report.export import for_spreadsheets
from analysis.statistics.alternating import Components, Design, SwitchingCost
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


class RatioColumns(Columns):
    """A ratio inside the blocks."""

    ratio: float | None = _at("effect", "ratio", default=None)
    """The trimmed geometric mean of the ratios to bare metal inside the blocks."""
    blocks: int = _at("effect", "blocks", default=0)
    """The number of blocks that have such a ratio."""
    ratio_low: float | None = _at("effect", "interval", 0, default=None)
    """The lower end of the 95 % interval; absent for bare metal and for a single block."""
    ratio_high: float | None = _at("effect", "interval", 1, default=None)


class EffectColumns(RatioColumns):
    """A ratio with its verdict, and what slow trials add to it."""

    verdict: VerdictName | None = _at("effect", "verdict", "name", default=None)
    """``equivalent``, ``slower``, ``faster`` or ``undecided``; ``tail`` or ``typical-only`` if only the typical trial
    is equivalent. Null where the trials decide nothing; ``withheld`` says why."""
    withheld: tuple[str, ...] = _at("effect", "verdict", "withheld", default=())
    """Why there is no verdict, whatever the tests say; empty where it stands."""
    p: float | None = _at("effect", "verdict", "p", default=None)
    """The Holm-adjusted level of the verdict."""
    more_blocks: int | None = _at("effect", "verdict", "more_blocks", default=None)
    """The number of further blocks that would probably decide."""
    detectable: float | None = _at("effect", "verdict", "detectable", default=None)
    """The difference from 1 (a share) that these blocks detect with a chance of 80 %."""
    expected: float | None = _at("effect", "expected", "ratio", default=None)
    """The ratio of the mean times, slow trials and all. Of a rate the times per unit of work are meant."""
    expected_low: float | None = _at("effect", "expected", "interval", 0, default=None)
    expected_high: float | None = _at("effect", "expected", "interval", 1, default=None)
    slow_over: float | None = _at("effect", "slow", "over", default=None)
    """The share by which a slow trial is slower than the typical one."""
    slow_trials: int | None = _at("effect", "slow", "own", default=None)
    """The number of the blocks in which the trial was slow, and bare metal's was not."""
    slow_baseline: int | None = _at("effect", "slow", "base", default=None)
    """The number of the blocks in which bare metal's was, and the trial was not."""
    slow_p: float | None = _at("effect", "slow", "p", default=None)
    """The level of McNemar's exact test: whether the target has more slow trials than bare metal."""
    slow_excluded: float | None = _at("effect", "slow", "excluded", default=None)
    """The share of slow trials such that more are excluded at 95 %."""


class NoiseColumns(Columns):
    """The noise floor of the metric."""

    noise_floor: float | None = _at("floor", "share", default=None)
    """The smallest overhead (a share) that the data could have shown."""
    noise_method: Literal["a/a", "across-blocks"] | None = _at("floor", "method", default=None)


class _RowColumns(JobColumns):
    model: str
    """The model, or the probe."""
    target: str = _at("summary", "target")
    metric: str = _at("metric", "name")
    """``throughput`` (images/s), ``elapsed`` (s), ``opening`` (s), ``step-tail`` (the 99th percentile of the steps over
    their median), or what the probe measures."""
    unit: str = _at("metric", "unit")
    value: float | None = _at("effect", "value", default=None)
    """The trimmed geometric mean over the blocks."""
    trials: int = _at("effect", "trials", default=0)
    failed: int = _at("summary", "failed")


class Row(NoiseColumns, EffectColumns, _RowColumns):
    """One metric of one target: a row of the CSV, and of ``rows`` in the JSON. The names of the columns are stable."""

    substitutes: tuple[str, ...] = _at("summary", "substitutes")
    """The substitutes without which the number must not be read, as with ``marks``; joined by "; " in CSV."""
    marks: tuple[str, ...] = _at("summary", "marks")
    differences: tuple[str, ...] = _at("summary", "differences")
    """The facts in which the target and bare metal differ, and which the marks only count."""


class MetricRow(EffectColumns, JobColumns):
    """A ratio of ``interactions`` (container-vm over container times vm) or ``aa`` (second over first bare metal)."""

    model: str
    metric: str


class OverallRow(EffectColumns, JobColumns):
    """A target over all models of a job."""

    models: tuple[str, ...]
    target: str
    metric: str
    notes: tuple[str, ...]


class AblationRow(EffectColumns, JobColumns):
    """A target with an ablation over the same target without."""

    model: str
    target: str
    ablation: str
    metric: str
    notes: tuple[str, ...]


class InterferenceRow(NoiseColumns, EffectColumns, JobColumns):
    """A victim beside an aggressor over the same alone; see ``results.Interference``."""

    model: str
    target: str
    ablation: str
    aggressor: str
    metric: str
    kept_ratio: float | None = _at("kept", "ratio", default=None)
    kept_blocks: int = _at("kept", "blocks", default=0)
    kept_ratio_low: float | None = _at("kept", "interval", 0, default=None)
    kept_ratio_high: float | None = _at("kept", "interval", 1, default=None)
    steal_share_alone: float | None = _at("steal_shares", 0)
    steal_share_beside: float | None = _at("steal_shares", 1)
    notes: tuple[str, ...]


class IsolationRow(EffectColumns, JobColumns):
    """The share of its throughput that a victim keeps on a target; the first rank isolates best."""

    target: str
    rank: int
    cells: int
    metric: str
    notes: tuple[str, ...]


class QualityRow(EffectColumns, JobColumns):
    """The images of one way to divide the work over those of the first; see ``results.Quality``."""

    model: str
    target: str
    strategy: str
    workers: int
    batch: int
    global_batch: int
    images_seen: int
    metric: str
    value: float = _at("effect", "value")
    notes: tuple[str, ...]


class CostRow(JobColumns):
    """The cost of a target on the host; see ``results.Cost``."""

    model: str
    target: str
    unit: str
    cpu_steps_s: float | None
    cpu_startup_s: float | None
    cpu_inside_s: float | None
    cpu_all_in_s: float | None
    all_in_to_inside: float | None
    normalised: RatioColumns | None
    memory_inside_bytes: float | None
    memory_all_in_bytes: float | None
    disk_read_inside_bytes: float | None
    disk_read_all_in_bytes: float | None
    disk_written_inside_bytes: float | None
    disk_written_all_in_bytes: float | None
    energy_j: float | None
    notes: tuple[str, ...]


class TurnsRow(JobColumns):
    """The variation of the bursts of a target in the alternating design; see ``results.BurstVariation``."""

    model: str
    target: str
    blocks: int
    components: Components
    switching: SwitchingCost | None
    best: Design | None


class SameWorkRow(JobColumns):
    """How the losses and weights of an arm agree with those of bare metal; see ``results.SameWork``."""

    model: str
    arm: str
    kind: Kind
    trials: int
    other: int
    text: str
    apart: float | None
    seeds_apart: float | None
    drawn: bool
    rounding: str
    image: SameImage | None


class ClaimRow(JobColumns):
    """One comparison of the answer. ``verdict`` is null where it is withheld."""

    what: str
    target: str
    metric: str
    slower: float | None
    slower_low: float | None = _at("interval", 0, default=None)
    slower_high: float | None = _at("interval", 1, default=None)
    blocks: int = _at("found", "blocks", default=0)
    margin: float
    verdict: VerdictName | None = _at("found", "verdict", "name", default=None)
    withheld: tuple[str, ...]
    more_blocks: int | None
    more_s: float | None
    engine: str = _at("around", "engine")
    hosts: tuple[str, ...] = _at("around", "hosts")
    substitutes: tuple[str, ...] = _at("notes")
    sentence: str


class AnswerOutput(Columns):
    """The sentences of the answer, and each comparison in it."""

    sentences: tuple[str, ...]
    claims: tuple[ClaimRow, ...]


class ComparisonOutput(Columns):
    """A comparison; ``runs`` are their ids. Trials of warm-up blocks were left out of everything."""

    schema_version: Literal[1] = 1
    answer: AnswerOutput
    runs: tuple[str, ...]
    margin: float
    rows: tuple[Row, ...]
    overall: tuple[OverallRow, ...]
    interactions: tuple[MetricRow, ...]
    aa: tuple[MetricRow, ...]
    ablations: tuple[AblationRow, ...]
    costs: tuple[CostRow, ...]
    turns: tuple[TurnsRow, ...]
    same_work: tuple[SameWorkRow, ...]
    interference: tuple[InterferenceRow, ...]
    isolation: tuple[IsolationRow, ...]
    scaling: tuple[Scaling, ...]
    quality: tuple[QualityRow, ...]
    published: tuple[JudgedClaim, ...]
    warmup_trials: int
    warnings: tuple[WarningOutput, ...]


def comparison_output(comparison: Comparison) -> ComparisonOutput:
    """Return the comparison as its JSON holds it."""
    groups = comparison.groups
    cost_rows = (
        _row(CostRow, one, normalised=one.normalised and SimpleNamespace(effect=one.normalised))
        for one in comparison.costs
    )
    isolation = (
        _row(IsolationRow, one, rank=rank, metric=METRICS[0].name)
        for rank, one in enumerate(comparison.isolation, start=1)
    )
    return ComparisonOutput(
        answer=answer_output(comparison),
        runs=comparison.runs,
        margin=comparison.margin,
        rows=tuple(rows(comparison)),
        overall=_rows(OverallRow, comparison.overall, "effects"),
        interactions=_rows(MetricRow, groups, "interactions"),
        aa=_rows(MetricRow, groups, "aa"),
        ablations=_rows(AblationRow, comparison.ablations, "effects"),
        costs=tuple(cost_rows),
        turns=tuple(_row(TurnsRow, group, **vars(one)) for group in groups for one in group.turns),
        same_work=tuple(_row(SameWorkRow, group, **vars(one)) for group in groups for one in group.same_work),
        interference=_rows(InterferenceRow, comparison.interference, "effects"),
        isolation=tuple(isolation),
        scaling=comparison.scaling,
        quality=_rows(QualityRow, comparison.quality, "estimates"),
        published=comparison.claims,
        warmup_trials=comparison.warmup_trials,
        warnings=warning_outputs(comparison.warnings),
    )


def answer_output(comparison: Comparison) -> AnswerOutput:
    """Return the sentences with which the output begins and ends, and every claim by itself."""
    found = tuple(map(ClaimRow.model_validate, claims(comparison)))
    return AnswerOutput(sentences=tuple(answer(comparison)), claims=found)


def warning_outputs(warnings: Iterable[AnalysisWarning]) -> tuple[WarningOutput, ...]:
    """Return warnings as every JSON of the analysis holds them."""
    return tuple(map(WarningOutput.model_validate, warnings))


def rows(comparison: Comparison) -> Iterator[Row]:
    """Yield one row per group, target and metric, in the order of the comparison."""
    for group in comparison.groups:
        for summary in group.targets:
            for metric in group.metrics:
                effect, floor = summary.estimates.get(metric.name), group.noise_floors.get(metric.name)
                yield _row(Row, group, summary=summary, metric=metric, effect=effect, floor=floor)


_Columns = TypeVar("_Columns", bound=Columns)


def _row(row: type[_Columns], result: object, **more: object) -> _Columns:
    return row.model_validate(SimpleNamespace(**{**vars(result), **more}))


def _rows(row: type[_Columns], results: Iterable[object], name: str) -> tuple[_Columns, ...]:
    """Return a row for each effect that the results hold in the field ``name``."""
    return tuple(
        _row(row, result, metric=metric, effect=effect, floor=getattr(result, "noise_floors", {}).get(metric))
        for result in results
        for metric, effect in getattr(result, name).items()
    )


KEYS = tuple(Row.model_fields)
"""The columns of the CSV."""


def as_json(comparison: Comparison) -> str:
    """Return the JSON of ``comparison_output``."""
    return comparison_output(comparison).model_dump_json(indent=1)


def as_csv(comparison: Comparison) -> str:
    """Return a header and the rows. The warnings are not part of it: print ``formatting.warning_lines`` beside."""
    out = io.StringIO()
    writer = csv.DictWriter(out, KEYS, lineterminator="\n")
    writer.writeheader()
    for row in rows(comparison):
        texts = {key: "; ".join(value) if isinstance(value, tuple) else value for key, value in row}
        writer.writerow({key: for_spreadsheets(value) for key, value in texts.items()})
    return out.getvalue()
