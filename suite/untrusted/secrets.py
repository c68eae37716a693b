"""Secrets of this process, and texts of other programs without them: a server may repeat what it was sent."""

import html
import json
import re
from urllib.parse import quote

HIDDEN = "***"
LEAST = 4
"""A shorter secret protects nothing, and is part of too many words."""
_known: set[str] = set()
_USER_INFO = re.compile(r"(?<=://)[^\s/@:]*:[^\s/@]+(?=@)")


def keep_secret(*values: object) -> None:
    """Let ``without_secrets`` hide these values from now on, also as URLs, JSON and HTML spell them."""
    for text in (value.strip() for value in values if isinstance(value, str)):
        if len(text) >= LEAST:
            _known.update((text, quote(text, safe=""), json.dumps(text)[1:-1], html.escape(text)))


def without_secrets(text: str) -> str:
    """Return the text of another program without what is known as secret, and without passwords in URLs."""
    if "://" in text:
        text = _USER_INFO.sub(HIDDEN, text)
    for secret in sorted(_known, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text
