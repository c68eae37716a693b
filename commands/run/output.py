"""The JSON of ``bench run``."""

from analysis.report.rows import AnswerOutput
from commands.output import Output


class RunOutput(Output):
    """A run that has ended; ``trials`` and ``failed`` are those of this call."""

    run_id: str
    directory: str
    trials: list[str]
    failed: list[str]
    answer: AnswerOutput | None
    """None where nothing could be compared."""
