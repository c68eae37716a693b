"""The JSON of ``bench compare``."""

from typing import Any

from pydantic import BaseModel, ConfigDict

from analysis.compare.matching import Missing
from analysis.compare.regression import Change, Outcome
from analysis.explain.explanation import Explanation
from analysis.report.rows import Row
from commands.output import Output


class Warned(BaseModel):
    """A warning."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    message: str
    advice: str


class Answer(BaseModel):
    """The sentences of the answer, and each comparison in it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sentences: list[str]
    claims: list[dict[str, Any]]


class ComparisonOutput(Output):
    """A comparison; see ``analysis.report.rows.as_json``, which writes it."""

    answer: Answer
    runs: list[str]
    margin: float
    rows: list[Row]
    overall: list[dict[str, Any]]
    interactions: list[dict[str, Any]]
    aa: list[dict[str, Any]]
    ablations: list[dict[str, Any]]
    costs: list[dict[str, Any]]
    turns: list[dict[str, Any]]
    same_work: list[dict[str, Any]]
    interference: list[dict[str, Any]]
    isolation: list[dict[str, Any]]
    warmup_trials: int
    warnings: list[Warned]


class GateOutput(Output):
    """The outcome of ``--fail-above``, and every row with its own; see ``docs/gate.md``."""

    outcome: Outcome | None
    exit_code: int
    answer: str | None
    confidence: float
    fail_above: float | None
    changes: list[Change]
    missing: list[Missing]
    added: list[str]


class ExplanationOutput(Output):
    """The parts of every overhead."""

    explanations: list[Explanation]
    warnings: list[Warned]
