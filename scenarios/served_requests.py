"""The bodies of the requests to a server of the user's own: read from a file, or drawn by a fixed seed."""

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scenarios.serving_options import ServingOptions
from suite.errors import RequestError, option

MOST_BYTES, MOST_BODIES = 8 << 20, 10_000
DRAWN_PROMPTS = 16
"""The different prompts that are drawn."""
SEED = 20180319
"""The seed of prompts: every run, and every target, has the same."""
USUAL_WORDS = USUAL_TOKENS = 64
_WORDS = "time year people way day man thing life world school state group country problem hand part place case week"


def bodies_of(asked: ServingOptions, path: str) -> tuple[str, ...]:
    """Return the bodies, of which an empty one stands for none. Raises RequestError for a file that cannot be sent."""
    if asked.api == "http":
        return tuple(_lines_of(asked.bodies)) if asked.bodies else ("",)
    chats = path.endswith("/chat/completions")
    most_tokens = asked.max_tokens or USUAL_TOKENS
    if asked.bodies is None:
        return tuple(_completed(prompt, chats, most_tokens) for prompt in _drawn(asked.prompt_words or USUAL_WORDS))
    bodies = []
    for number, line in enumerate(_lines_of(asked.bodies), start=1):
        bodies.append(_completed(_question(asked.bodies, number, line), chats, most_tokens))
    return tuple(bodies)


def digest_of(bodies: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for body in bodies:
        digest.update(f"{len(body)} {body}".encode())
    return digest.hexdigest()


def _lines_of(file: Path) -> list[str]:
    """Return the lines of a file that are not blank. Raises RequestError."""
    try:
        with file.expanduser().open("rb") as opened:
            content = opened.read(MOST_BYTES + 1)
        text = content.decode()
    except OSError as error:
        why = f"cannot read {file}: {error.strerror}"
        raise RequestError(why, remedy="name a file that you can read").within(option("bodies")) from error
    except UnicodeDecodeError as error:
        raise RequestError(f"{file} is not UTF-8", remedy="write one body per line").within(option("bodies")) from error
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines or len(lines) > MOST_BODIES or len(content) > MOST_BYTES:
        raise RequestError(
            f"{file} holds {len(lines):,} bodies in {len(content):,} bytes",
            remedy=f"give 1 to {MOST_BODIES:,} lines, in {MOST_BYTES >> 20} MiB at most",
        ).within(option("bodies"))
    return lines


def _question(file: Path, number: int, line: str) -> Mapping[str, Any]:
    """Return the object of a line. Raises RequestError unless it asks something."""
    try:
        question = json.loads(line)
    except ValueError:
        question = None
    if isinstance(question, dict) and question.keys() & {"prompt", "messages"}:
        return question
    raise RequestError(
        f"line {number} of {file} is not a JSON object with prompt or messages",
        remedy='write lines such as {"prompt": "Hello", "max_tokens": 32}',
    ).within(option("bodies"))


def _drawn(mean_words: int) -> list[dict[str, Any]]:
    """Return prompts of half to one and a half times ``mean_words`` words."""
    draw = random.Random(SEED)  # noqa: S311 (no secret)
    prompts = []
    for _ in range(DRAWN_PROMPTS):
        words = draw.choices(_WORDS.split(), k=max(1, round(mean_words * draw.uniform(0.5, 1.5))))
        prompts.append({"prompt": " ".join(words)})
    return prompts


def _completed(question: Mapping[str, Any], chats: bool, most_tokens: int) -> str:
    """Return the body for a question: a stream, of the likeliest tokens unless it sets a temperature."""
    body = {"max_tokens": most_tokens, "temperature": 0, **question}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    if chats and "messages" not in body:
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    return json.dumps(body)
