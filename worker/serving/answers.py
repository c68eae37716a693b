"""Reads the answer to a request: when its first token and its end came, and what it held."""

import hashlib
import http.client
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_PNG = b"\x89PNG\r\n\x1a\n"
_EVENT, _LAST_EVENT = b"data:", b"[DONE]"
QUOTED_BYTES = 200
LEAST_ERROR = 400
"""The least status of HTTP that is an error."""


@dataclass(frozen=True)
class ServerAnswer:
    """One answer. Moments are on the monotonic clock."""

    status: int
    """The status of HTTP; 0 if no whole answer came."""
    first_s: float
    """The moment of the first token or, of what has none, of the whole answer."""
    ended_s: float
    tokens: int = 0
    """The tokens, as the server counts them, else the events that held text."""
    arrived_s: tuple[float, ...] = ()
    """The moment of each event that held text."""
    sha256: str = ""
    """The digest of what the answer says, without its time, its number and its headers."""
    problem: str = ""
    """The reason why it is none; empty for a good one."""

    @property
    def per_token_s(self) -> float | None:
        """Return the mean time of a token after the first; None for an answer without several."""
        return (self.ended_s - self.first_s) / (self.tokens - 1) if self.tokens > 1 else None

    @property
    def gaps_s(self) -> list[float]:
        """Return the times between one event with text and the next."""
        return [later - earlier for earlier, later in zip(self.arrived_s, self.arrived_s[1:], strict=False)]


def broken(problem: str, status: int = 0) -> ServerAnswer:
    """Return what stands for an answer that did not come, or that holds nothing."""
    now_s = time.monotonic()
    return ServerAnswer(status, now_s, now_s, problem=problem)


def of_generator(response: http.client.HTTPResponse, tokens: int | None) -> ServerAnswer:
    """Read an image, or the lines of so many tokens."""
    first = response.readline() if tokens else response.read()
    first_s = time.monotonic()
    body = first + response.read()
    whole = body.count(b"\n") == tokens if tokens else body.startswith(_PNG)
    problem = "" if whole and response.status == http.client.OK else _quoted(response, body)
    return ServerAnswer(response.status, first_s, time.monotonic(), tokens or 0, problem=problem)


def of_http(response: http.client.HTTPResponse, _: int | None = None) -> ServerAnswer:
    """Read a whole answer of any kind."""
    body = response.read()
    ended_s = time.monotonic()
    problem = _quoted(response, body) if response.status >= LEAST_ERROR else ""
    digest = hashlib.sha256(body).hexdigest()
    return ServerAnswer(response.status, ended_s, ended_s, sha256=digest, problem=problem)


def of_openai(response: http.client.HTTPResponse, _: int | None = None) -> ServerAnswer:
    """Read the events of a completion or a chat, each of which holds some text."""
    if response.status >= LEAST_ERROR:
        return of_http(response)
    arrived_s: list[float] = []
    texts: list[str] = []
    counted = 0
    ended_s = 0.0
    for line in response:
        now_s = time.monotonic()
        data = line.removeprefix(_EVENT).strip()
        if data == _LAST_EVENT or not line.startswith(_EVENT):
            continue
        event = _object(data)
        if "error" in event:
            return broken(str(event["error"])[:QUOTED_BYTES], response.status)
        counted = _tokens_of(event) or counted
        if event.get("choices"):  # the last one may end the answer without any text
            ended_s = now_s
        text = _text_of(event)
        if text:
            arrived_s.append(now_s)
            texts.append(text)
    if not arrived_s:
        kind = response.headers.get("Content-Type")
        return broken(f"no text came as a stream, but {kind}", response.status)
    digest = hashlib.sha256("".join(texts).encode()).hexdigest()
    tokens = counted or len(arrived_s)
    return ServerAnswer(response.status, arrived_s[0], ended_s, tokens, tuple(arrived_s), digest)


READERS: Mapping[str, Callable[[http.client.HTTPResponse, int | None], ServerAnswer]] = {
    "generator": of_generator,
    "http": of_http,
    "openai": of_openai,
}
"""How the answers of an interface are read."""


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        event = json.loads(data)
    except ValueError:
        return {"error": f"an event is not JSON: {data[:QUOTED_BYTES]!r}"}
    return event if isinstance(event, Mapping) else {}


def _text_of(event: Mapping[str, Any]) -> str:
    """Return the text that an event of a chat or a completion adds."""
    added = []
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        added += [delta.get("reasoning_content"), delta.get("content"), choice.get("text")]
    return "".join(text for text in added if isinstance(text, str))


def _tokens_of(event: Mapping[str, Any]) -> int:
    """Return how many tokens the server says that it has made; 0 if the event does not count them."""
    usage = event.get("usage")
    made = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
    return made if isinstance(made, int) else 0


def _quoted(response: http.client.HTTPResponse, body: bytes) -> str:
    return f"{response.status} {response.reason}: {body[:QUOTED_BYTES].decode('utf-8', 'replace')}"
