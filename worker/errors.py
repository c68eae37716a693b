"""Why a job cannot be run or does not count."""


class JobError(Exception):
    """``kind`` classifies it in the record's outcome."""

    def __init__(self, message: str, *, kind: str) -> None:
        super().__init__(message)
        self.kind = kind
