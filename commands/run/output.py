"""The JSON of ``bench run``."""

from commands.compare.output import Answer
from commands.output import Output


class RunOutput(Output):
    """A run that has ended; ``trials`` and ``failed`` are those of this call."""

    run_id: str
    directory: str
    trials: list[str]
    failed: list[str]
    answer: Answer | None
    """None where nothing could be compared."""
