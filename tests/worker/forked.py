"""The worker as a program that is forked from a process which has imported torch already."""

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from tests.forked import Forked
from worker.main import main


def run(arguments: Sequence[str]) -> None:
    sys.exit(main(arguments, started_s=time.monotonic()))


def worker(given: str, *arguments: str) -> tuple[int | None, list[dict[str, Any]], str]:
    """Return exit status, events and standard error."""
    process = Forked(run, *arguments, given=given)
    output, errors = process.communicate()
    return process.returncode, [json.loads(line) for line in output.splitlines()], errors
