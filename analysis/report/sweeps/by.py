"""The values of keys as elements of a document: how each compares with the base, what else differs, slow machines.

Also the gain of CPUs by stage, whose cells are stages.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from pathlib import Path

from analysis.compare.results import Arm, Circumstances, Comparison, Contrast
from analysis.load.plans import extendable, plan_of
from analysis.report.answers.answer import Answer, formed, row_of
from analysis.report.answers.claim import NO_VERDICT, UNDECIDED, WORDS, Claim
from analysis.report.answers.next_step import explaining, extending, measure
from analysis.report.document import answer_elements, published_elements
from analysis.report.elements import Cell, Element, Head, Heading, Line, Notes, Table, warnings
from analysis.report.formatting import margins, ratio, rows_by_key
from analysis.report.sweeps.scaling import quality
from analysis.warnings.types import notices
from suite.request.next_step import NextStep
from suite.results.quality import QUALITY_METRICS

_BEYOND = ("slower", "faster")
_MOST_COLUMNS = 8
_Cells = Mapping[str, Mapping[str, Contrast]]
"""The cells of a table by their row and column."""
_GAIN = (
    "Time of the best fixed allocation over that of the best staged one, at equal CPU time. A fixed one gives all "
    "stages the same CPUs, or the same mixture. Every third block chooses the plan. Equivalent: within {margin}."
)


def by_document(comparison: Comparison, answered: Answer | None = None) -> Iterator[Element]:
    """Yield the answer, by default ``by_answer``, and the tables of every target with what else differs."""
    answered = answered or by_answer(comparison)
    yield from answer_elements(answered)
    every_row = list(rows_by_key(comparison))
    with_verdicts = [row for row in every_row if row.verdict]
    probes = [row for row in with_verdicts if row.job.traits.probes]
    for arm, of_arm in groupby(every_row, lambda row: row.arm._replace(cell=())):
        rows = list(of_arm)
        yield Heading(job_on(arm), f"{arm.job}; over {', '.join(rows[0].base)}")
        yield from tables_of(rows)
        yield from quality_tables(comparison, arm)
        explaining: list[Contrast] = []
        if not arm.job.traits.probes:
            explaining = [row for row in probes if row.target == arm.target]
        notes = _notes(rows, explaining, answered)
        yield Notes(tuple(notes))
    yield from published_elements(comparison.claims)
    yield from warnings(notices(comparison.warnings, ()))


def by_answer(comparison: Comparison) -> Answer:
    """Return the answer of the values of keys, by the metric that decides; which machines are slow is its fact."""
    rows = list(rows_by_key(comparison))
    claims = _claims(rows)
    facts = tuple(slow_machines(comparison))
    if not claims:
        return Answer(
            (),
            "nothing to compare: no two values have a metric in common",
            None,
            facts,
        )
    jobs = {job_on(claim.found.arm) for claim in claims}
    answers = []
    for claim in claims:
        arm = claim.found.arm
        names = arm.cell
        if len(jobs) > 1:
            names = (job_on(arm), *arm.cell)
        subject = ", ".join(filter(None, names))
        answers.append(row_of(claim, subject))
    slowed = [abs(claim.slower or 0.0) for claim in claims]
    worst = slowed.index(max(slowed))
    step = _next(comparison, claims)
    return formed(answers, WORDS, step, facts, [answers[worst]])


def _claims(rows: Sequence[Contrast]) -> list[Claim]:
    """Return the claims of rows: by the first metric of each job that decides and was measured."""
    measured = {row.metric.name for row in rows}
    claims = []
    for row in rows:
        deciding = (name for name in row.job.traits.deciding if name in measured)
        first_deciding = next(deciding, None)
        if row.metric.name == first_deciding and row.verdict:
            claims.append(Claim(row, row.model, Circumstances()))
    return claims


def _next(comparison: Comparison, claims: Sequence[Claim]) -> NextStep | None:
    """Return the command that explains what is decided, or extends the run with the fewest blocks."""
    still_open = [claim for claim in claims if claim.word in (UNDECIDED, NO_VERDICT)]
    if still_open:
        return _extending(comparison.places, still_open)
    return explaining(comparison.places)


def _extending(places: Sequence[Path], still_open: Sequence[Claim]) -> NextStep | None:
    """Return the command that extends the run with the fewest blocks; None unless each place is a run that can be."""
    lacking = [claim.lacking_blocks for claim in still_open]
    blocks = {}
    for directory in places:
        plan = plan_of(directory)
        if plan and extendable([directory]):
            blocks[directory] = plan.blocks
    measured = measure(claim.job.profile for claim in still_open)
    if not measured or None in lacking or not places or len(blocks) < len(places):
        return None
    measured_blocks = max(claim.found.blocks for claim in still_open)
    most_lacking = max(filter(None, lacking), default=1)
    shortest = min(blocks, key=blocks.__getitem__)
    more = measured_blocks + most_lacking - blocks[shortest]
    return extending(shortest, max(1, more))


def slow_machines(comparison: Comparison) -> Iterator[str]:
    """Yield one sentence: which machines differ from the median of the others, and by which probe."""
    of_machines = [row for row in comparison.contrasts if row.kind == "machine"]
    rows = [row for row in of_machines if row.verdict]
    # Trainings, which come first, decide; if there are none, the probes do.
    decisive = [row for row in rows if row.metric.of_probe == rows[0].metric.of_probe]
    machines = len({row.arm.cell for row in decisive})
    if not machines:
        return
    slow = "; ".join(_slow(decisive, rows))
    text = f"None of {machines} machines differs"
    if slow:
        text = f"{slow} of {machines} machines differ"
    bound = f"from the median of the others by more than {margins(comparison)} (Holm)"
    yield f"{text} {bound}{_undecided(decisive)}."


def _slow(decisive: Sequence[Contrast], rows: Sequence[Contrast]) -> Iterator[str]:
    """Yield each machine that is beyond the margin, with what shows it."""
    beyond = (row.arm.cell for row in decisive if _verdict(row) in _BEYOND)
    for values in dict.fromkeys(beyond):
        machine = ", ".join(values)
        yield f"{machine} (by {_shown_by(values, rows)})"


def _shown_by(values: Sequence[str], rows: Sequence[Contrast]) -> str:
    texts = []
    for row in rows:
        if row.arm.cell == values and _verdict(row) in _BEYOND:
            name = row.metric.name
            if row.metric.of_probe:
                name = f"the probe {row.model}, {name}"
            texts.append(f"{name} on {row.target} {ratio(row)}")
    return "; ".join(texts)


def _undecided(decisive: Sequence[Contrast]) -> str:
    """Return how many machines are neither equivalent nor beyond the margin, and why; empty if there are none."""
    decided = (*_BEYOND, "equivalent")
    rows = [row for row in decisive if _verdict(row) not in decided]
    if not rows:
        return ""
    machines = {row.arm.cell for row in rows}
    text = f"; undecided: {len(machines)}"
    reasons = ", ".join(withheld(rows))
    if reasons:
        text += f" ({reasons})"
    return text


def _verdict(row: Contrast) -> str | None:
    return row.verdict.name if row.verdict else None


def job_on(arm: Arm) -> str:
    """Return ``gan on vm (engine=runc)``, as far as the cells agree in it."""
    text = " on ".join(filter(None, (arm.model, arm.target)))
    if arm.job.variant:
        text += f" ({arm.job.variant})"
    return text


def tables_of(rows: Sequence[Contrast]) -> Iterator[Table]:
    """Yield values against metrics or, of several keys, the first against the others for each metric."""
    several = len(rows[0].base) > 1
    tables: dict[str, dict[str, dict[str, Contrast]]] = {}
    for row in rows:
        first, *others = row.arm.cell
        name = row.metric.name if several else ""
        column = ", ".join(others) or row.metric.name
        table = tables.setdefault(name, {})
        cells = table.setdefault(first, {})
        cells[column] = row
    for name, table in tables.items():
        columns = list(dict.fromkeys(chain.from_iterable(table.values())))
        if len(columns) > _MOST_COLUMNS:
            turned = _transposed(table, columns)
            yield _table(name, turned, list(table))
        else:
            yield _table(name, table, columns)


def _table(name: str, table: _Cells, columns: Sequence[str]) -> Table:
    heads = tuple(map(Head, columns))
    return Table(name, "", heads, _body(table, columns))


def _body(table: Mapping[str, Mapping[str, Cell]], columns: Iterable[str]) -> tuple[tuple[Head, tuple[Cell, ...]], ...]:
    rows = []
    for name, cells in table.items():
        in_order = tuple(map(cells.get, columns))
        rows.append((Head(name), in_order))
    return tuple(rows)


def _transposed(table: _Cells, columns: Sequence[str]) -> _Cells:
    """Return a row for each column: many metrics of few values fit no line."""
    turned: dict[str, dict[str, Contrast]] = {column: {} for column in columns}
    for head, cells in table.items():
        for column, cell in cells.items():
            turned[column][head] = cell
    return turned


def quality_tables(comparison: Comparison, arm: Arm) -> Iterator[Table]:
    """Yield the quality of the images at every value, in words for quality; nothing for models that nobody judged."""
    cells: dict[str, dict[str, str]] = {}
    for row in comparison.contrasts:
        of_arm = row.kind == "by" and row.arm._replace(cell=()) == arm
        if of_arm and row.metric.name in QUALITY_METRICS:
            values = ", ".join(row.arm.cell)
            of_values = cells.setdefault(values, {})
            of_values[row.metric.name] = quality(row)
    names = dict.fromkeys(chain.from_iterable(cells.values()))
    if cells:
        heads = tuple(map(Head, names))
        caption = "Quality of the images: a block is a trial's model"
        yield Table("images", "", heads, _body(cells, names), caption)


def _notes(rows: Sequence[Contrast], probes: Sequence[Contrast], answered: Answer) -> Iterator[str]:
    """Yield what else differs, why there is no verdict unless the answer has it, and the ratios of the probes."""
    for values in dict.fromkeys(row.arm.cell for row in rows):
        of_cell = [row for row in rows if row.arm.cell == values]
        of_probes = [row for row in probes if row.arm.cell == values]
        unanswered = []
        for reason in withheld(of_cell):
            if reason.partition(" (")[0] not in answered.why:
                unanswered.append(reason)
        texts = {
            "besides": of_cell[0].notes,
            "no verdict": unanswered,
            "probes": [f"{row.model} {row.metric.name} {ratio(row)}" for row in of_probes],
        }
        cell = ", ".join(values)
        for name, parts in texts.items():
            if parts:
                yield f"{cell}: {name}: {'; '.join(parts)}"


def withheld(rows: Sequence[Contrast]) -> list[str]:
    """Return why rows have no verdict, each reason once."""
    reasons = chain.from_iterable(row.verdict.withheld for row in rows if row.verdict)
    return list(dict.fromkeys(reasons))


def allocation_document(comparison: Comparison) -> Iterator[Element]:
    """Yield what CPUs by stage gain, why a gain has no verdict, the stages of every job, and the judged claims."""
    every = [contrast for contrast in comparison.contrasts if contrast.kind == "allocation"]
    gains = [contrast for contrast in every if contrast.members]
    yield Heading("CPUs by stage", "1.000x: no gain")
    rows = []
    for gain in gains:
        job = Head(job_on(gain.arm), gain.notes)
        cpus = ", ".join(gain.members)
        rows.append((job, (cpus, gain)))
    caption = _GAIN.format(margin=margins(comparison))
    heads = (Head("CPUs of each stage"), Head("gain"))
    yield Table("job", "", heads, tuple(rows), caption)
    reasons = withheld(gains)
    if reasons:
        yield Line("; ".join(reasons), label="no verdict")
    stages = (contrast for contrast in every if contrast.arm.cell)
    for arm, of_arm in groupby(stages, lambda contrast: contrast.arm._replace(cell=())):
        contrasts = list(of_arm)
        yield Heading(
            f"{job_on(arm)}: seconds of each stage",
            str(arm.job),
            contrasts[0].notes,
        )
        yield from tables_of(contrasts)
    yield from published_elements(comparison.claims)
