"""The JSON of ``bench run`` and of the options of ``bench compare``; see ``report.rows`` for that of a comparison."""

from typing import Literal

from pydantic import AliasPath, Field

from analysis.compare.matching import Missing
from analysis.compare.regression import Outcome, Regression
from analysis.compare.results import JudgedClaim
from analysis.explain.explanation import Explanation, PreemptedJob, Victim
from analysis.report.gate import answer
from analysis.report.rows import AnswerOutput, AnswerText, Columns, Row, StepOutput, WarningOutput
from analysis.statistics.ratios import CONFIDENCE
from commands.output import Output


class RunOutput(Output):
    """A run that has ended; ``trials`` and ``failed`` are those of this call."""

    run_id: str | None
    directory: str
    trials: list[str]
    failed: list[str]
    answer: AnswerOutput | None
    """None where nothing could be compared."""


class ChangeRow(Row):
    """One number of the new run over the old ones: a contrast, and what it means for the gate."""

    old: float
    """The value of the old runs; that of the new one is ``value``."""
    samples: tuple[int, int]
    """The blocks of the old runs, and of the new one, that hold the metric."""
    spread: float | None
    """The standard deviation between old runs, as a share, of a difference in its unit; null for fewer than three."""
    slower: float | None
    """The share of a rate that is lost, or of a time that is added; negative is faster."""
    outcome: Outcome | None
    """Null for what fails no run: openings, and ratios to bare metal (``run-relative``)."""


class GateOutput(Columns):
    """The outcome of ``--fail-above``, and every row with its own."""

    schema_version: Literal[4] = 4
    outcome: Outcome | None
    exit_code: int
    answer: AnswerText | None = None
    confidence: float = CONFIDENCE
    fail_above: float | None
    spread_unknown: bool
    """Whether a row is judged without the spread between runs, which three old runs or more show."""
    changes: tuple[ChangeRow, ...]
    missing: tuple[Missing, ...]
    added: tuple[str, ...]


def gate_output(judged: Regression) -> GateOutput:
    output = GateOutput.model_validate(judged)
    if judged.outcome:
        return output.model_copy(update={"answer": AnswerText.model_validate(answer(judged))})
    return output


class ExplanationOutput(Output):
    """The parts of every overhead."""

    explanations: tuple[Explanation, ...]
    preempted: tuple[PreemptedJob, ...]
    """Jobs that were preempted, beside their prediction."""
    victims: tuple[Victim, ...]
    """Jobs next to an aggressor, and alone: elapsed time, switches and migrations."""
    ablations: tuple[Row, ...]
    """What the ablations of these targets, and of bare metal, change in the same blocks."""
    warnings: tuple[WarningOutput, ...]


class ByOutput(Output):
    """The values of the keys ``by``, each compared with a base."""

    schema_version: Literal[3] = 3  # type: ignore[assignment]
    by: tuple[str, ...]
    answer: AnswerText
    rows: tuple[Row, ...]
    published: tuple[JudgedClaim, ...] = ()
    """The claims about places; empty without ``--claims``."""
    warnings: tuple[WarningOutput, ...]


class ValueRow(Row):
    """A contrast with the interval of its value."""

    value_low: float | None = Field(None, validation_alias=AliasPath("value_interval", 0))
    value_high: float | None = Field(None, validation_alias=AliasPath("value_interval", 1))


class JobOutput(Output):
    """The time, money and energy of a whole job, as metrics of ``rows``; ``answer`` is the decision in sentences."""

    job: str
    by: tuple[str, ...]
    answer: tuple[str, ...]
    next: StepOutput | None
    """Null if no command settles what is open."""
    rows: tuple[ValueRow, ...]
    warnings: tuple[WarningOutput, ...]
