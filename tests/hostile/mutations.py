"""What strangers send: values of JSON and TOML with parts replaced by what no program of the suite writes."""

import copy
import json
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

FULL = int(os.environ.get("VIRTBENCH_FUZZ_FULL") or 0)
"""Whether to try as many as the suite was tried with: 1 for all of them, more for at most so many of each kind."""
STEERING = "\x1b[2J\x1b]0;title\x07\r\x9b31m\x7f\u202e"
MARKUP = "[/x] [red] $\\frac$ <script>alert(1)</script> {{ 7 * 7 }} ![x](http://example.org/x) =cmd() %s"
TEXTS = ("", "x", "../../../tmp/elsewhere", "a/b", "a\nb", "\ud800", "x" * 2000, "=1+1", "@x", "nan", STEERING, MARKUP)
NUMBERS = (0, 1, -1, 2**31, 2**62, 2**63, 10**400, 0.5, 1e-320, 5e-324, 1e308, -1e308, math.inf, -math.inf, math.nan)
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"": None}, [0.0] * 3, {"x": [1, "y"]})
_DEEP = "[" * 5000 + "]" * 5000


def examples(full: int, one_in: int = 100) -> int:
    """Return how many examples to try: ``full``, or one in so many of them."""
    if not FULL:
        return full // one_in
    return full if FULL == 1 else min(full, FULL)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a value but the value itself; of a long list the first three."""
    inside = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, part in inside:
        yield (*path, key)
        yield from places(part, (*path, key))


@st.composite
def mutated(draw: Callable[..., Any], original: Any) -> Any:
    """The value with one to three parts replaced, taken away, doubled, or exchanged for another of its parts."""
    found = copy.deepcopy(original)
    for _ in range(draw(st.integers(1, 3))):
        if not (there := list(places(found))):
            return found
        *path, last = draw(st.sampled_from(there))
        inside = found
        for key in path:
            inside = inside[key]
        what = draw(st.sampled_from(("text", "number", "other", "gone", "doubled", "moved", "more")))
        if what == "gone":
            del inside[last]
        elif what == "doubled" and isinstance(inside, list):
            inside.append(copy.deepcopy(inside[last]))
        elif what == "moved":
            other: Any = found
            for key in draw(st.sampled_from(there)):
                try:
                    other = other[key]
                except (KeyError, IndexError, TypeError):
                    break
            inside[last] = copy.deepcopy(other) if other is not found else None
        elif what == "more" and isinstance(inside, dict):
            inside[draw(st.sampled_from(TEXTS))] = copy.deepcopy(draw(st.sampled_from((*NUMBERS, *TEXTS, *OTHERS))))
        else:
            choices = {"number": NUMBERS, "other": OTHERS}.get(what, TEXTS)
            inside[last] = copy.deepcopy(draw(st.sampled_from(choices)))
    return found


@st.composite
def written(draw: Callable[..., Any], text: bytes) -> bytes:
    """The bytes of a text with some of them cut off, exchanged, doubled, or something deep put between them."""
    place = draw(st.integers(0, len(text)))
    what = draw(st.sampled_from(("cut", "byte", "doubled", "deep", "digits", "none")))
    after = {
        "cut": b"",
        "byte": bytes([draw(st.integers(0, 255))]) + text[place + 1 :],
        "doubled": text[max(0, place - 200) :],
        "deep": _DEEP.encode() + text[place:],
        "digits": b"9" * 5000 + text[place:],
        "none": text[place:],
    }
    return text[:place] + after[what]


@st.composite
def json_texts(draw: Callable[..., Any], original: Any) -> bytes:
    """The value mutated and written as the suite writes records, or the text itself mutated."""
    value = draw(mutated(original)) if draw(st.integers(0, 9)) else original
    text = json.dumps(value, indent=1).encode()
    return text if value is not original else draw(written(text))


@st.composite
def toml_texts(draw: Callable[..., Any], original: dict[str, Any]) -> bytes:
    """The same as TOML."""
    value = draw(mutated(original)) if draw(st.integers(0, 9)) else original
    lines = [f"{_key(key)} = {_toml(part)}" for key, part in value.items() if part is not None]
    text = "\n".join(lines).encode(errors="surrogatepass")
    return text if value is not original else draw(written(text))


def _key(key: str) -> str:
    return json.dumps(key)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        inside = ", ".join(f"{_key(key)} = {_toml(part)}" for key, part in value.items() if part is not None)
        return f"{{{inside}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_toml(part) for part in value if part is not None)}]"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    return json.dumps(value).replace("\\u007f", "\x7f") if not isinstance(value, int) else str(value).lower()
