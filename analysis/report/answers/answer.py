"""The answer: number and word of every row, why, and what to do next. Comparison, gate and ``--by`` have the same."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product

from analysis.compare.agreement import CONTRADICTION
from analysis.compare.matching import named
from analysis.compare.pairing import SECOND
from analysis.compare.results import Circumstances, Comparison, TargetSummary
from analysis.load.metrics import METRICS
from analysis.load.records import read_record
from analysis.report.answers.claim import WORDS, Claim, direction
from analysis.report.answers.equal_work import same_work
from analysis.report.answers.next_step import explaining, next_step
from analysis.report.formatting import brief, percent
from analysis.report.tables import differing
from analysis.statistics.margins import slower_by
from analysis.statistics.ratios import FAILS_MORE
from analysis.warnings.types import AnalysisWarning
from suite.job.ablations import named_arm
from suite.records.reader import job_of
from suite.request.next_step import LABEL, NextStep
from suite.targets import BASELINE, BASES, COMMANDS
from suite.units import count

MOST_ROWS = 4
"""More claims than these are counted, and the one that costs most is named; the overview has the others."""
_NAMED = 3
"""So many of those that a line names, before it counts the others."""


@dataclass(frozen=True)
class AnswerRow:
    """One line of the answer: what was compared, the number, and the word for it."""

    subject: str
    word: str
    value: str = ""
    """The ratio; the value of a number without one."""
    over: str = ""
    """What the ratio is to; empty if there is none to show."""
    span: str = ""
    failed: str = ""
    """The failed trials of both sides, which no ratio contains; empty if none failed."""
    why: tuple[str, ...] = ()

    @property
    def number(self) -> str:
        """Return ``0.982x bare metal (0.975 to 0.989)``."""
        ratio = self.value
        if self.over:
            ratio += f"x {self.over}"
        return f"{ratio} {self.span}".strip()

    def __str__(self) -> str:
        parts = (self.number, self.word, self.failed)
        return f"{self.subject}: {', '.join(filter(None, parts))}"


@dataclass(frozen=True)
class Answer:
    """Number, word, why and next; ``rows`` are empty where there is nothing to compare, and ``why`` says so."""

    rows: tuple[AnswerRow, ...]
    why: str
    next: NextStep | None
    """The command that settles what is open; None if no command does."""
    facts: tuple[str, ...]
    """What ablations change, and whether all targets did the same work."""
    where: str = ""
    """The job, the blocks and the host that all rows share."""
    claims: tuple[Claim, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        lines = [*map(str, self.rows), f"why: {self.why}"]
        if self.next:
            lines += [f"{LABEL}:", str(self.next)]
        lines += self.facts
        if self.where:
            lines.append(self.where)
        return tuple(lines)


def answer(comparison: Comparison) -> Answer:
    """Return the answer with which every form of a comparison begins."""
    if comparison.between:
        return between_runs(comparison)
    claimed = claims(comparison)
    facts = (*commands(comparison), *switched(comparison), *same_work(comparison))
    step = next_step(comparison, claimed)
    if not claimed:
        return Answer((), _nothing(comparison), step, facts)
    worst = min(claimed, key=_from_worst)
    shortened = _rows([*_of_several(comparison, "models"), worst])
    answer = formed(_rows(claimed), WORDS, step, facts, shortened)
    return replace(answer, where=_where(comparison, claimed), claims=tuple(claimed))


def _from_worst(claim: Claim) -> tuple[bool, float]:
    """Return a sort key: targets that fail more often, then the slowest; last what has no verdict or no number."""
    unknown = claim.withheld or claim.slower is None
    return claim.word != FAILS_MORE, math.inf if unknown else -(claim.slower or 0.0)


def between_runs(comparison: Comparison) -> Answer:
    """Return the answer of two runs that contradict each other: the ratio between them."""
    old, new = comparison.places
    rows = []
    for change in comparison.between:
        ratio = change.ratio or 1.0
        span = ""
        if change.interval:
            span = f"({' to '.join(map(brief, change.interval))})"
        slower = slower_by(ratio, more_is_faster=change.metric.more_is_faster)
        word = "slower" if slower > 0 else "faster"
        subject = f"{named(change.arm)}, {change.metric.name}, {new}"
        margin = percent(comparison.terms[change.job].margin)
        why = (f"{CONTRADICTION}: beyond the margin of {margin}",)
        rows.append(AnswerRow(subject, word, brief(ratio), str(old), span, why=why))
    return formed(rows, WORDS, explaining((new,)), shortened=rows[:1])


def formed(
    rows: Sequence[AnswerRow],
    words: Sequence[str],
    step: NextStep | None,
    facts: Sequence[str] = (),
    shortened: Sequence[AnswerRow] = (),
) -> Answer:
    """Return the answer of rows. Where these are too many, show those of ``shortened``, and how many have each word."""
    shown = tuple(rows)
    if len(rows) > MOST_ROWS:
        counted = Counter(row.word for row in rows)
        counts = ", ".join(f"{counted[word]} {word}" for word in words if counted[word])
        shown = (*shortened, AnswerRow(count(len(rows), "comparison"), "", counts))
    return Answer(shown, "; ".join(_why(rows)), step, tuple(facts))


def _rows(claimed: Sequence[Claim]) -> list[AnswerRow]:
    with_subjects = zip(claimed, _subjects(claimed), strict=True)
    return [row_of(claim, subject) for claim, subject in with_subjects]


def row_of(claim: Claim, subject: str) -> AnswerRow:
    return AnswerRow(
        subject,
        claim.word,
        claim.value,
        claim.over,
        claim.span,
        claim.failed,
        claim.why,
    )


def _subjects(claimed: Sequence[Claim]) -> list[str]:
    """Return the target of each claim, after what else differs among them: settings of the job, the model, the metric.

    Throughput is what the reader expects, unless a service was asked, whose latencies stand beside it.
    """
    settings = differing([claim.job for claim in claimed])
    several = len({claim.what for claim in claimed}) > 1
    subjects = []
    for claimant in claimed:
        parts = [getattr(claimant.job, name) for name in settings]
        if several:
            parts.append(claimant.what)
        if claimant.metric != METRICS[0].name or claimant.job.traits.service:
            parts.append(claimant.metric)
        subjects.append(", ".join((*filter(None, parts), claimant.subject)))
    return subjects


def _why(rows: Sequence[AnswerRow]) -> Iterator[str]:
    """Yield each reason once: with the subjects where not all share it, with its details where these agree."""
    by_reason: dict[str, dict[str, str]] = {}
    for row in rows:
        for reason in row.why:
            shared = reason.partition(" (")[0]
            by_reason.setdefault(shared, {})[row.subject] = reason
    for shared, texts in by_reason.items():
        details = set(texts.values())
        text = details.pop() if len(details) == 1 else shared
        if len(texts) == len(rows):
            yield text
        elif len(rows) > MOST_ROWS:
            yield f"{len(texts)} of {len(rows)}: {text}"
        else:
            yield f"{_named([*texts])}: {text}"


def _named(names: Sequence[str]) -> str:
    more = ""
    if len(names) > _NAMED:
        more = f" and {len(names) - _NAMED} more"
    return f"{', '.join(names[:_NAMED])}{more}"


def _where(comparison: Comparison, claimed: Sequence[Claim]) -> str:
    """Return ``synthetic data, …; 20 blocks, host node7``: what all claims have in common, and their data sets."""
    hosts = dict.fromkeys(chain.from_iterable(claim.around.hosts for claim in claimed))
    blocks = {claim.found.blocks for claim in claimed if claim.found.measured} or {0}
    if len(blocks) == 1:
        where = count(min(blocks), "block")
    else:
        where = f"{min(blocks)} to {max(blocks)} blocks"
    if hosts:
        where += f", host {' and '.join(hosts)}"
    jobs = [claim.job for claim in claimed]
    job = replace(jobs[0], **dict.fromkeys(differing(jobs), ""))
    common = str(job)
    if job.scenario in ("synthetic", "real"):  # its data says so
        common = common.removeprefix(f"{job.scenario} scenario, ")
    data_sets = " and ".join(_data_sets(comparison))
    return "; ".join(filter(None, (common, data_sets, where)))


def _data_sets(comparison: Comparison) -> list[str]:
    """Return ``imagefolder of 1,000 images, digest 0a1b2c3d`` of each data set that was trained on."""
    trials = comparison.trials
    if trials.empty:
        return []
    paths: dict[str, str] = {}
    once = trials.drop_duplicates("settings")[["settings", "path"]]
    for settings, path in once.itertuples(index=False):
        digest = dict(settings.pairs).get("data_sha256")
        if digest:
            paths.setdefault(digest, path)
    records = [read_record(path) for path in paths.values()]
    jobs = []
    for record in records:
        if not isinstance(record, AnalysisWarning):
            jobs.append(job_of(record.job))
    return [job.dataset.label for job in jobs if job.dataset and job.command is None]


def commands(comparison: Comparison) -> Iterator[str]:
    """Yield which commands are compared, if there are two, and the target that ran both."""
    trials = comparison.trials
    if trials.empty:
        return
    for _, of_job in trials.groupby("settings", observed=True):
        settings = dict(of_job["settings"].iloc[0].pairs)
        if SECOND in settings:
            stacks = " and ".join(dict.fromkeys(of_job["stack"].astype(str)))
            first, second = COMMANDS
            yield f"{first}: {settings['command.argv']}; {second}: {settings[SECOND]}; both on {stacks}."


def switched(comparison: Comparison) -> Iterator[str]:
    """Yield the sentence on the ablations that make their targets slower or faster; none without such a verdict."""
    clauses: dict[str, list[str]] = {}
    for group in comparison.groups:
        ablations = group.of_kind("ablation")
        for (arm, measured), metric in product(ablations.items(), group.deciding):
            contrast = measured.get(metric.name)
            if not contrast or not contrast.ratio or not contrast.verdict:
                continue
            if contrast.verdict.name in ("slower", "faster"):
                subject = f"{group.model} {metric.name}" if metric.of_probe else group.model
                slower = slower_by(contrast.ratio, more_is_faster=metric.more_is_faster)
                name = named_arm(arm.target, arm.ablation)
                clauses.setdefault(name, []).append(f"{subject} {direction(slower)}")
    if clauses:
        texts = [f"{name}: {_named(subjects)}" for name, subjects in clauses.items()]
        yield f"Switched in the same blocks: {'; '.join(texts)}."


def claims(comparison: Comparison) -> list[Claim]:
    """Return every comparison with bare metal, of victims beside aggressors with the same target alone.

    A training is compared by its throughput, or by its elapsed time if it prints none; a probe by every metric.
    """
    claims = []
    for group in comparison.groups:
        if not group.job.traits.normalised:
            continue
        for summary, metric in product(group.targets, group.deciding):
            if summary.target not in BASES:
                claim = Claim(
                    group.over_base(summary.target, metric),
                    group.model,
                    group.circumstances,
                    notes=_notes(summary),
                    failure=summary.failure,
                )
                claims.append(claim)
    return [*claims, *_of_several(comparison, "isolation", "victims beside aggressors")]


def _of_several(comparison: Comparison, kind: str, models: str = "") -> Iterator[Claim]:
    """Yield the claim on throughput of each target over several models: by their name, or else by their number."""
    for contrast in comparison.contrasts:
        if contrast.kind == kind and contrast.metric == METRICS[0]:
            # The models of a job share the circumstances of the first.
            of_job = (group.circumstances for group in comparison.groups if group.job == contrast.job)
            circumstances = next(of_job, Circumstances())
            yield Claim(
                contrast,
                models or count(len(contrast.members), "model"),
                circumstances,
                contrast.notes,
            )


def _notes(summary: TargetSummary) -> tuple[str, ...]:
    """Return substitutes and marks, but for the one that only counts what is named elsewhere."""
    return summary.substitutes + (summary.marks[:-1] if summary.differences else summary.marks)


def _nothing(comparison: Comparison) -> str:
    """Return why there is no comparison."""
    summaries = comparison.summaries
    if not summaries:
        return "nothing was measured: no trial has finished"
    models = ", ".join(dict.fromkeys(group.model for group in comparison.groups))
    failed = sum(summary.failed for summary in summaries)
    if not any(summary.ok for summary in summaries):
        return f"nothing to compare: {count(failed, 'trial')} of {models} failed, and none has finished"
    if {summary.target for summary in summaries} == {BASELINE}:
        return f"nothing to compare: {models} ran on {BASELINE} alone"
    return f"nothing to compare: no metric of {models} was measured on two targets"
