"""What to say of a name that is unknown."""

import difflib
from collections.abc import Sequence


def nearest(word: str, known: Sequence[str]) -> str:
    """``"did you mean smoke? choose among paper, quick, smoke"``; without the question where nothing is like it."""
    near = difflib.get_close_matches(word, known, n=1)
    return (f"did you mean {near[0]}? " if near else "") + f"choose among {', '.join(known)}"
