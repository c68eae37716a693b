"""The answer: number and word of every row, why, and what to do next. Comparison, gate and ``--by`` have the same."""

import math
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from analysis.compare.results import Circumstances, Comparison, TargetSummary
from analysis.load.metrics import METRICS
from analysis.load.plans import plan_of
from analysis.report.answers.claim import NO_NUMBER, NO_VERDICT, UNDECIDED, WORDS, Claim, direction
from analysis.report.answers.equal_work import same_work
from analysis.report.formatting import duration, percent
from analysis.report.tables import differing
from analysis.statistics.margins import slower_by
from suite.job.ablations import named_arm
from suite.job.profiles import PROFILES
from suite.request.repetitions import RepetitionOptions
from suite.request.request import RunRequest
from suite.targets import BASELINE
from suite.units import count

MOST_ROWS = 4
"""More claims than these are counted, and the one that costs most is named; the overview has the others."""
_NAMED = 3
"""So many of those that a line names, before it counts the others."""
_LONGEST = 150
"""A longer command is described instead."""
_TURNS = "--design alternating (turns are disturbed alike)"


@dataclass(frozen=True)
class AnswerRow:
    """One line of the answer: what was compared, the number, and the word for it."""

    subject: str
    word: str
    value: str = ""
    """The ratio, or the value of what is over nothing."""
    over: str = ""
    """What the ratio is to; empty if there is none to show."""
    span: str = ""
    why: tuple[str, ...] = ()

    @property
    def number(self) -> str:
        """Return ``0.982x bare metal (0.975 to 0.989)``."""
        return f"{self.value}{f'x {self.over}' if self.over else ''} {self.span}".strip()

    def __str__(self) -> str:
        return f"{self.subject}: {', '.join(filter(None, (self.number, self.word)))}"


@dataclass(frozen=True)
class Answer:
    """Number, word, why and next; ``rows`` are empty where there is nothing to compare, and ``why`` says so."""

    rows: tuple[AnswerRow, ...]
    why: str
    next: str
    facts: tuple[str, ...]
    """What ablations change, and whether all targets did the same work."""
    where: str = ""
    """The job, the blocks and the host that all rows share."""
    claims: tuple[Claim, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        where = (self.where,) if self.where else ()
        return (*map(str, self.rows), f"why: {self.why}", f"next: {self.next}", *self.facts, *where)


def answer(comparison: Comparison, run: Path | None = None) -> Answer:
    """Return the answer with which every form of a comparison begins.

    Of a single ``run``, which can be extended, ``next`` is the command that would decide what is open.
    """
    claimed = claims(comparison)
    facts = (*switched(comparison), *same_work(comparison))
    if not claimed:
        return Answer((), *_nothing(comparison), facts)
    worst = min(claimed, key=lambda one: math.inf if one.withheld or one.slower is None else -one.slower)
    shortened = _rows([*_of_several(comparison, "models"), worst])
    steps = _next_steps(comparison, claimed, run)
    return replace(formed(_rows(claimed), WORDS, steps, facts, shortened), where=_where(claimed), claims=tuple(claimed))


def formed(
    rows: Sequence[AnswerRow],
    words: Sequence[str],
    steps: Iterable[str],
    facts: Sequence[str] = (),
    shortened: Sequence[AnswerRow] = (),
) -> Answer:
    """Return the answer of rows. Where these are too many, show those of ``shortened``, and how many have each word."""
    shown = tuple(rows)
    if len(rows) > MOST_ROWS:
        counted = Counter(row.word for row in rows)
        counts = ", ".join(f"{counted[word]} {word}" for word in words if counted[word])
        shown = (*shortened, AnswerRow(count(len(rows), "comparison"), "", counts))
    return Answer(shown, "; ".join(_why(rows)), "; ".join(steps), tuple(facts))


def _rows(claimed: Sequence[Claim]) -> list[AnswerRow]:
    return [row_of(one, subject) for one, subject in zip(claimed, _subjects(claimed), strict=True)]


def row_of(one: Claim, subject: str) -> AnswerRow:
    return AnswerRow(subject, one.word, one.value, one.over, one.span, one.why)


def _subjects(claimed: Sequence[Claim]) -> list[str]:
    """Return the target of each claim, after what else differs among them: settings of the job, the model, the metric.

    Throughput is what the reader expects.
    """
    settings, several = differing([one.job for one in claimed]), len({one.what for one in claimed}) > 1
    subjects = []
    for one in claimed:
        metric = "" if one.metric == METRICS[0].name else one.metric
        parts = (*(getattr(one.job, name) for name in settings), one.what if several else "", metric)
        subjects.append(", ".join((*filter(None, parts), one.subject)))
    return subjects


def _why(rows: Sequence[AnswerRow]) -> Iterator[str]:
    """Yield each reason once: with the subjects where not all share it, with its details where these agree."""
    by_reason: dict[str, dict[str, str]] = {}
    for row in rows:
        for reason in row.why:
            by_reason.setdefault(reason.partition(" (")[0], {})[row.subject] = reason
    for shared, texts in by_reason.items():
        details = set(texts.values())
        text = details.pop() if len(details) == 1 else shared
        some = f"{len(texts)} of {len(rows)}" if len(rows) > MOST_ROWS else _named([*texts])
        yield text if len(texts) == len(rows) else f"{some}: {text}"


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def _where(claimed: Sequence[Claim]) -> str:
    """Return ``synthetic data, …; 20 blocks, host node7``: what all claims have in common."""
    hosts = dict.fromkeys(host for one in claimed for host in one.around.hosts)
    blocks = sorted({one.found.blocks for one in claimed if one.found.measured}) or [0]
    span = count(blocks[-1], "block") if len(blocks) == 1 else f"{blocks[0]} to {blocks[-1]} blocks"
    jobs = [one.job for one in claimed]
    job = replace(jobs[0], **dict.fromkeys(differing(jobs), ""))
    common = str(job).replace(", none data", "")
    if job.scenario in ("synthetic", "real"):  # its data says so
        common = common.removeprefix(f"{job.scenario} scenario, ")
    return "; ".join(filter(None, (common, f"{span}, host {' and '.join(hosts)}" if hosts else span)))


def switched(comparison: Comparison) -> Iterator[str]:
    """Yield the sentence on the ablations that make their targets slower or faster; none without such a verdict."""
    clauses: dict[str, list[str]] = {}
    for group in comparison.groups:
        for (arm, measured), metric in product(group.of_kind("ablation").items(), group.deciding):
            one = measured.get(metric.name)
            if one and one.ratio and one.verdict and one.verdict.name in ("slower", "faster"):
                what = f"{group.model} {metric.name}" if metric.of_probe else group.model
                slower = direction(slower_by(one.ratio, more_is_faster=metric.more_is_faster))
                clauses.setdefault(named_arm(arm.target, arm.ablation), []).append(f"{what} {slower}")
    if clauses:
        yield f"Switched in the same blocks: {'; '.join(f'{name}: {_named(own)}' for name, own in clauses.items())}."


def claims(comparison: Comparison) -> list[Claim]:
    """Return every comparison with bare metal, of victims beside aggressors with the same target alone.

    A training is compared by its throughput, or by its elapsed time if it prints none; a probe by every metric.
    """
    found = (
        Claim(group.over_base(one.target, metric), group.model, comparison.margin, group.circumstances, _notes(one))
        for group in comparison.groups
        for one, metric in product(group.targets if group.job.traits.normalised else (), group.deciding)
        if one.target != BASELINE
    )
    return [*found, *_of_several(comparison, "isolation", "victims beside aggressors")]


def _of_several(comparison: Comparison, kind: str, what: str = "") -> Iterator[Claim]:
    """Yield the claim on throughput of each target over several models, which ``what`` stands for, or their number."""
    for one in comparison.contrasts:
        if one.kind == kind and one.metric == METRICS[0]:
            # The models of a job share the circumstances of the first.
            around = next((group.circumstances for group in comparison.groups if group.job == one.job), Circumstances())
            yield Claim(one, what or count(len(one.members), "model"), comparison.margin, around, one.notes)


def _notes(summary: TargetSummary) -> tuple[str, ...]:
    """Return substitutes and marks, but for the one that only counts what is named elsewhere."""
    return summary.substitutes + (summary.marks[:-1] if summary.differences else summary.marks)


def _nothing(comparison: Comparison) -> tuple[str, str]:
    """Return why there is no comparison, and what would make one."""
    summaries = [summary for group in comparison.groups for summary in group.targets]
    if not summaries:
        return "nothing was measured: no trial has finished", "bench results list (what there is)"
    models = ", ".join(dict.fromkeys(group.model for group in comparison.groups))
    failed = sum(summary.failed for summary in summaries)
    if not any(summary.ok for summary in summaries):
        why = f"nothing to compare: {count(failed, 'trial')} of {models} failed, and none has finished"
        return why, "bench results show (each failure in full)"
    if {summary.target for summary in summaries} == {BASELINE}:
        return f"nothing to compare: {models} ran on {BASELINE} alone", "add a target, such as --target container"
    return f"nothing to compare: no metric of {models} was measured on two targets", "bench compare --verbose"


def _next_steps(comparison: Comparison, claims: Sequence[Claim], run: Path | None) -> Iterator[str]:
    """Yield what to do next; of a single ``run``, which can be extended, as commands. At least one step."""
    still_open = [one for one in claims if one.word in (UNDECIDED, NO_VERDICT)]
    request = plan.request if run and (plan := plan_of(run)) else None
    where = f" {shlex.quote(str(run))}" if run else ""
    if still_open:
        decides = all(PROFILES[name].decides for name in PROFILES if name in {one.job.profile for one in still_open})
        yield from _deciding(comparison, still_open, request, where) if decides else [_measuring(request)]
    if any(one.word == NO_NUMBER and one.found.failed for one in claims):
        yield f"bench results show{where} (the failures in full)"
    elif not still_open:
        yield _explaining(claims, where)


def _explaining(claims: Sequence[Claim], where: str) -> str:
    probes = all(one.job.traits.probes for one in claims)
    return f"bench report{where} (one page)" if probes else f"bench compare{where} --explain (where the time goes)"


def _measuring(request: RunRequest | None) -> str:
    """Return the command of the same run as a measurement, unless it is long."""
    again = request and request.changed(profile="quick", blocks=None, warmup_blocks=None)
    command = shlex.join(again.command()) if again else ""
    return f"{command} (to measure)" if 0 < len(command) <= _LONGEST else "the same bench run with --profile quick"


def _deciding(
    comparison: Comparison, still_open: Sequence[Claim], request: RunRequest | None, where: str
) -> Iterator[str]:
    blocks, lacking, block_s = (max(column) for column in zip((0, 0, 0.0), *map(_extension, still_open), strict=True))
    in_reach = lacking < math.inf
    if in_reach:
        least = "at least " if any(one.withheld for one in still_open) else ""
        spent = f", about {duration(lacking * block_s)} on a quiet machine" if block_s else ""
        more = f"{least}{count(int(lacking), 'more block')}{spent}"
        repetitions = request.repetitions if request else RepetitionOptions()
        words = f"bench run --continue{where} {repetitions.extension(int(blocks + lacking), block_s)}".strip()
        yield f"{words} ({more})" if where else more
    if lacking > blocks and _can_take_turns(comparison, still_open):
        yield f"{_TURNS} may decide sooner" if in_reach else f"{_TURNS}, or a quieter machine"
    elif not in_reach:
        yield f"a quieter machine, or a margin above {percent(still_open[0].margin)}"


def _extension(one: Claim) -> tuple[float, float, float]:
    """Return the blocks that a claim has, those that it lacks, and the seconds of one."""
    lacking = math.inf if one.lacking_blocks is None else one.lacking_blocks
    return one.found.blocks, lacking, one.around.block_s or 0.0


def _can_take_turns(comparison: Comparison, still_open: Sequence[Claim]) -> bool:
    """Return whether all jobs could take turns, and none does."""
    in_turns = {group.job for group in comparison.groups if group.turns}
    return all(hasattr(one.job.traits, "turn_taker") and one.job not in in_turns for one in still_open)
