"""The document of a comparison: which parts it has, and in which order. Every renderer shows this one."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Literal

from analysis.compare.contrast_kinds import AGGRESSOR, tabled_kinds
from analysis.compare.published import citation
from analysis.compare.results import ClaimVerdict, ComparedJob, Comparison, Group, JudgedClaim
from analysis.explain.explanation import Explained
from analysis.figures.reference import PAPERS_KEY
from analysis.report import formatting, tables
from analysis.report.answers.answer import MOST_ROWS, Answer, answer
from analysis.report.elements import CommandLine, Element, Figure, Head, Heading, Line, Notes, Styled, Table, warnings
from analysis.report.sweeps.scaling import growth_elements, scaling_elements
from analysis.report.waterfall import explained_job, reason
from analysis.warnings.types import notices
from suite.request.next_step import LABEL
from suite.units import count

Level = Literal["overview", "full"]
"""``overview`` fits a screen; ``full`` has every metric with its interval, ablations, noise, advice and a legend."""
Figures = Callable[[ComparedJob], Iterator[Figure]]


def document(
    comparison: Comparison,
    level: Level = "overview",
    *,
    costs: bool = False,
    explained: Explained | None = None,
    figures: Figures | None = None,
) -> Iterator[Element]:
    """Yield a comparison, the answer first. ``costs`` adds what each target takes of the host.

    With ``explained`` the part of a trial that costs most stands below the answer, and every job has the parts of its
    differences.
    """
    answered = answer(comparison)
    yield from answer_elements(answered)
    if level == "overview" and comparison.between:  # a mean over both would be a number of neither
        return
    if level == "overview":
        yield from _overview(comparison, answered, costs=costs)
        yield from published_elements(comparison.claims)
        return
    for text in map(reason, explained.explanations if explained else ()):
        if text:
            yield Line(text, indent=2)
    overall = (arm.job for arm in comparison.of_kind("models"))
    for job in dict.fromkeys((*comparison.jobs, *tables.jobs_with_aggressors(comparison), *overall)):
        yield from _job(comparison, job, costs=costs, explained=explained, figures=figures)
    yield from published_elements(comparison.claims)
    yield from _legend(comparison, figures=figures is not None)
    noted = dict.fromkeys((*comparison.warnings, *(explained.warnings if explained else ())))
    noticed = notices(noted, comparison.jobs)
    if noticed:
        yield Heading("Warnings", rank=2)
        yield from warnings(noticed)


def _legend(comparison: Comparison, *, figures: bool) -> Iterator[Element]:
    guide = formatting.reading_guide(comparison)
    if guide:
        yield Heading("How to read the numbers", rank=2)
        yield Line(f"{guide}. The noise floor is the smallest overhead that these blocks could have shown.", "dim")
        expected = "expected: ratio of the mean times, slow trials and all, which a long queue of jobs pays."
        yield Line(expected, "dim", column=tables.EXPECTED)
        if figures:
            marks = "White diamonds and dotted boxes in the figures are the values and ranges of"
            yield Line(f"{marks} {citation(PAPERS_KEY)}, where it gives one.", "dim")
    if comparison.warmup_trials:
        yield Line(f"{count(comparison.warmup_trials, 'warm-up trial')} left out of everything.", "dim")


_DECIDED_FIRST: Sequence[ClaimVerdict] = (
    "contradicted",
    "confirmed",
    "confirmed in part",
    "undecided",
    "not testable",
)


def published_elements(judged: Sequence[JudgedClaim]) -> Iterator[Element]:
    """Yield each published claim with its verdict, what was measured, and what would decide it.

    Those that are decided come first; those of which nothing was measured last, in groups that one command decides.
    """
    counts = Counter(row.verdict for row in judged)
    if counts:
        in_order = sorted(counts, key=_DECIDED_FIRST.index)
        yield Heading(
            "Published claims",
            ", ".join(f"{counts[verdict]} {verdict}" for verdict in in_order),
            rank=2,
        )
    cited: set[str] = set()  # each paper once
    for group in _by_advice(judged):
        for row in group:
            yield from _claim(row, cited)
        (*_, last) = group
        if last.verdict == "not testable":
            yield Line(last.claim.advice, "dim", indent=2)
        elif last.verdict in ("undecided", "confirmed in part"):
            label = "to decide it" if len(group) == 1 else "to decide them"
            for command in last.claim.advice.split("; "):
                yield CommandLine(command, label)
                label = "and"


def _by_advice(judged: Sequence[JudgedClaim]) -> Iterator[Sequence[JudgedClaim]]:
    """Yield each claim that records speak of alone, then the others by the commands that decide them."""
    unmeasured: dict[str, list[JudgedClaim]] = {}
    for row in sorted(judged, key=lambda row: _DECIDED_FIRST.index(row.verdict)):
        if row.evidence or row.verdict != "undecided":
            yield [row]
        else:
            unmeasured.setdefault(row.claim.advice, []).append(row)
    yield from unmeasured.values()


def _claim(row: JudgedClaim, cited: set[str]) -> Iterator[Element]:
    """Yield a claim with its evidence, and its citation unless the paper is in ``cited``, to which it is added."""
    printed = f"; printed: {row.claim.published}" if row.claim.published else ""
    paper = f": {row.claim.cited}" if row.claim.cited not in {"", *cited} else ""
    cited.add(row.claim.cited)
    yield Line(f"{row.claim.sentence} ({row.claim.paper}{paper}{printed})", label=row.word)
    for item in row.evidence:
        effect = ""
        if item.effect:
            effect = formatting.at_margin(item.effect)
        measured = "; ".join(filter(None, (effect, item.text)))
        yield Line(
            f"{item.what}: {row.claim.metric} {measured}",
            "dim",
            indent=2,
        )


def answer_elements(answered: Answer) -> Iterator[Element]:
    """Yield the answer, with which an output begins: a line for each comparison, then why, next, and the facts."""
    if answered.rows:
        yield _answer_table(answered)
    yield Line(answered.why, label="why", indent=2)
    if answered.next:
        yield CommandLine(str(answered.next), LABEL)
    yield from map(Line, answered.facts)
    yield from [Line(answered.where, "dim")] if answered.where else []


def _answer_table(answered: Answer) -> Table:
    """Return a line for each comparison: number, word, and the failed trials where there are any."""
    alone = len(answered.rows) == 1
    over = next((row.over for row in answered.rows if row.over), "")
    if alone:
        heads = ("", "", "")
    else:
        heads = (f"x {over}".rstrip(), "verdict", "")
    rows = []
    for row in answered.rows:
        if alone:
            number = row.number
        else:
            number = f"{row.value} {row.span}".strip()
        rows.append((Head(row.subject), (number, Styled(row.word, row.word), row.failed)))
    table = Table(
        "",
        "",
        tuple(Head(text, wraps=True) for text in heads),
        tuple(rows),
        compact=True,
    )
    if any(row.failed for row in answered.rows):
        return table
    return table.only(0, 1)


def more_options(comparison: Comparison, level: Level, *, costs: bool) -> str:
    """Return which options show what a document leaves out, as the end of a line; empty if there are none."""
    left_out = {
        "--verbose": level == "overview",
        "--costs": not costs and any(group.costs for group in comparison.groups),
        "--explain": any(map(_has_parts, comparison.groups)),
        "--scaling": any(contrast.arm.division for contrast in comparison.contrasts),
    }
    hints = ", ".join(option for option, left in left_out.items() if left)
    return f"; more: {hints}" if hints else ""


def _has_parts(group: Group) -> bool:
    """Return whether ``--explain`` has anything on a group: the parts of its time, or what changed in its victims."""
    if group.of_kind(AGGRESSOR.name):
        return True
    return group.job.traits.normalised and not group.job.traits.probes


def _overview(comparison: Comparison, answered: Answer, *, costs: bool) -> Iterator[Element]:
    footnotes = tables.Footnotes(comparison, answered.why)
    yield from growth_elements(comparison)
    trained = [group for group in comparison.groups if group.job.traits.normalised and not group.job.traits.probes]
    if trained:
        yield tables.overview_table(
            trained,
            footnotes,
            judged=len(answered.claims) > MOST_ROWS,
        )
    for group in comparison.groups:
        parts: list[Element] = [tables.results_table(group, full=False)] if group.job.traits.probes else []
        parts += _tables(group, costs=costs, losses=False)
        parts += [Notes((line,))] if (line := formatting.aa_line(group)) else []
        if parts:
            yield Heading(
                group.model,
                str(group.job) if group.job.traits.probes else "",
                rank=4,
            )
            yield from parts
    for job in tables.jobs_with_aggressors(comparison):
        yield Heading(tables.TITLE, str(job))
        yield from _interference(comparison, job)
    yield from footnotes.lines()


def _job(
    comparison: Comparison, job: ComparedJob, *, costs: bool, explained: Explained | None, figures: Figures | None
) -> Iterator[Element]:
    yield Heading(str(job), rank=2)
    of_job = comparison.of(job)
    drawn = iter(figures(job) if figures else ())
    yield from islice(drawn, 1)  # the forest, in which every ratio is
    for group in of_job.groups:
        yield Heading(group.model)
        yield tables.results_table(group)
        # The marks below a target only count what else it differs in.
        differing = (
            f"{summary.target} besides: {'; '.join(summary.differences)}"
            for summary in group.targets
            if summary.differences
        )
        yield Notes((*formatting.group_lines(group), *differing))
        yield from _tables(group, costs=costs)
    if job in tables.jobs_with_aggressors(comparison):
        yield Heading(tables.TITLE)
        yield from _interference(comparison, job)
    yield from scaling_elements(of_job)
    yield from growth_elements(of_job)
    models = comparison.of_kind("models").items()
    overall = tuple(f"{arm.target}{formatting.noted_effects(of)}" for arm, of in models if arm.job == job)
    if overall:
        yield Heading("all models")
        yield Notes(overall)
    first = next(drawn, None)
    if first is not None:
        yield Heading("Figures")
        for figure in chain((first,), drawn):
            yield replace(figure, folded=not figure.small)
    if explained:
        yield from explained_job(explained, job)


def _tables(group: Group, *, costs: bool, losses: bool = True) -> Iterator[Element]:
    table = tables.own_table(group, losses=losses)
    if table:
        yield table
    for kind in tabled_kinds():
        arms = group.of_kind(kind.name)
        if arms:
            yield tables.kind_table(kind, group, arms)
    if costs and group.costs:
        yield tables.cost_table(group)
        yield Notes(tuple(tables.cost_lines(group)))


def _interference(comparison: Comparison, job: ComparedJob) -> Iterator[Element]:
    yield tables.interference_table(comparison, job)
    yield Notes(tuple(tables.interference_lines(comparison, job)))
