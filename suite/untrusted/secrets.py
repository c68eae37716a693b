"""Secrets of this process, and texts of other programs without them: a server may repeat what it was sent."""

import html
import json
import re
from urllib.parse import quote

HIDDEN = "***"
LEAST, LONG = 4, 8
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
