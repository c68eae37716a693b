"""Suggestions for a name that is unknown."""

import difflib
from collections.abc import Sequence


def nearest(word: str, known: Sequence[str]) -> str:
    """Return ``"did you mean smoke? choose among paper, quick, smoke"``; without the question if no name is close."""
    near = difflib.get_close_matches(word, known, n=1)
    return (f"did you mean {near[0]}? " if near else "") + f"choose among {', '.join(known)}"
