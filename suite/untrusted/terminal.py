"""Text for the terminal: what comes from records, names of files and other programs must not steer it or tell secrets.

An escape sequence can rewrite what stands above it, or what a user pastes next. Here is the one place where such
characters are made visible: all that commands print goes through ``CleanStream``, and rich's own through
``suite.untrusted.console``.
"""

import html
import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast
from urllib.parse import quote

_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\N{ARABIC LETTER MARK}\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters but for line breaks and tabs, marks that turn the direction of text, and bytes that are no UTF-8.
Python reads these from names of files as halves of surrogate pairs."""
HIDDEN = "***"
LEAST = 4
LONG = 8
"""The lengths from which a secret protects anything, and from which it is hidden within words and paths, too."""
_known: set[str] = set()
_USER_INFO = re.compile(r"(?<=://)[^\s/\"<>]+(?=@)")


def keep_secret(*values: object) -> None:
    """Let ``without_secrets`` hide these values from now on, also as URLs, JSON and HTML spell them."""
    for text in (value.strip() for value in values if isinstance(value, str)):
        if len(text) >= LEAST:
            _known.update((text, quote(text, safe=""), json.dumps(text)[1:-1], html.escape(text)))


def without_secrets(text: str) -> str:
    """Return the text of another program without known secrets, and without users and passwords in URLs."""
    if "://" in text:
        text = _USER_INFO.sub(HIDDEN, text)
    for secret in sorted(_known, key=len, reverse=True):
        pattern = re.escape(secret)
        text = re.sub(pattern if len(secret) >= LONG else rf"(?<![\w/]){pattern}(?![\w/])", HIDDEN, text)
    return text


def clean(text: str) -> str:
    r"""Return the text with what steers a terminal written as ``\u001b``, which JSON reads as the same character.

    It is without secrets, too: a server may repeat what it was sent.
    """
    return _STEERING.sub(lambda match: f"\\u{ord(match[0]):04x}", without_secrets(text))


class CleanStream:
    """Writes cleaned text to another stream; what its encoding does not have is written as an escape, too.

    It has no ``buffer``: whoever writes bytes would go past it.
    """

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream
        """The stream that rich writes to, whose own sequences have to reach the terminal."""
        self.copy: Callable[[str], object] | None = None
        """Receives what is printed as well, such as the log of a run."""

    def write(self, text: str) -> int:
        self.write_copy(text)
        encoding = self.rich_proxied_file.encoding or "utf-8"
        self.rich_proxied_file.write(clean(text).encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def write_copy(self, text: str) -> None:
        """Give text that reaches the terminal by another way to the copy alone."""
        if self.copy:
            self.copy(clean(text))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (whatever a stream has)
        """Return what the other stream has of this name."""
        if name == "buffer":
            raise AttributeError(name)
        return getattr(self.rich_proxied_file, name)


@contextmanager
def clean_streams() -> Iterator[None]:
    """Clean what is printed to standard output and standard error for as long as the context lasts.

    What the encoding of the session does not have is written as an escape, by tables, too.
    """
    before = sys.stdout, sys.stderr
    for stream in before:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.stdout = cast(TextIO, CleanStream(before[0]))
    sys.stderr = cast(TextIO, CleanStream(before[1]))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
