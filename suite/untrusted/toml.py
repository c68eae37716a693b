"""Reads TOML that a user wrote."""

import tomllib
from pathlib import Path
from typing import Any

from suite.errors import RequestError

_LARGEST_BYTES = 1 << 20


def read_toml(path: Path, what: str, remedy: str) -> dict[str, Any]:
    """Return the content of a file. Raises RequestError if it cannot be read; ``what`` names it there."""
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_BYTES + 1)
        if len(text) > _LARGEST_BYTES:
            raise RequestError(f"{what} is larger than 1 MiB", remedy=remedy)
        return tomllib.loads(text.decode())
    except OSError as error:
        raise RequestError(f"cannot read {what}: {error.strerror}", remedy=remedy) from error
    # Not UTF-8, not TOML, a number of more digits than Python reads, or nested too deeply.
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{what} is not TOML: {error}", remedy=remedy) from error
