"""The JSON of ``bench compare --fail-above`` and ``--explain``; see ``report.rows`` for that of a comparison."""

from analysis.compare.matching import Missing
from analysis.compare.regression import Change, Outcome, Regression
from analysis.explain.explanation import Explanation
from analysis.report.gate import answer
from analysis.report.rows import Row, WarningOutput
from analysis.statistics.ratios import CONFIDENCE
from commands.output import Output


class GateOutput(Output):
    """The outcome of ``--fail-above``, and every row with its own."""

    outcome: Outcome | None
    exit_code: int
    answer: str | None
    confidence: float = CONFIDENCE
    fail_above: float | None
    changes: tuple[Change, ...]
    missing: tuple[Missing, ...]
    added: tuple[str, ...]


def gate_output(found: Regression) -> GateOutput:
    """Return a regression as its JSON holds it."""
    sentence = answer(found) if found.outcome else None
    return GateOutput(outcome=found.outcome, exit_code=found.exit_code, answer=sentence, **vars(found))


class ExplanationOutput(Output):
    """The parts of every overhead."""

    explanations: tuple[Explanation, ...]
    ablations: tuple[Row, ...]
    """What the ablations of these targets, and of bare metal, change in the same blocks."""
    warnings: tuple[WarningOutput, ...]


class ByOutput(Output):
    """The values of the keys ``by``, each compared with a base; ``answer`` are sentences."""

    by: tuple[str, ...]
    margin: float
    answer: tuple[str, ...]
    rows: tuple[Row, ...]
    warnings: tuple[WarningOutput, ...]
