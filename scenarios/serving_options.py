"""The options of scenario serve: the load, and the server of the user's own."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from suite.errors import option
from suite.job.serving import (
    MOST_CLIENTS,
    MOST_PORT,
    MOST_REQUESTS,
    PUBLISHED_PORTS,
    Api,
    Load,
    Method,
    parse_limit,
    parse_path,
    parse_rates,
)
from suite.request.option import Asked, Count, Need, OptionGroup, Text, about, given

CHAT, MODELS = "/v1/chat/completions", "/v1/models"
READY_WITHIN_S = 600
_OWN = (given("port", example="8000"),)


def _is_not_published(asked: Asked) -> bool:
    first, last = PUBLISHED_PORTS
    return asked("network") == "bridge" and not first < asked("port") <= last


class ServingOptions(OptionGroup):
    """Scenario serve."""

    requests: Annotated[int, Field(gt=0, le=MOST_REQUESTS, strict=True)] | None = about(
        None, "Requests of each part of the measurement. Default: the profile's."
    )
    rates: Text | None = about(
        None,
        "Requests per second: 10,50. They are sent regardless of responses. Default: the profile's.",
        parse=parse_rates,
        also=("--rate",),
    )
    clients: Annotated[int, Field(gt=0, le=MOST_CLIENTS, strict=True)] | None = about(
        None, "Connections at saturation, and the most open at a rate. Default: the profile's."
    )
    port: Annotated[int, Field(gt=0, le=MOST_PORT, strict=True)] | None = about(
        None,
        f"Port of your own server, which {option('command')} starts in place of a generator. It must listen at every "
        "address (0.0.0.0) and stay in the foreground.",
        needs=(given("command", example='"python server.py"'),),
        excludes=(
            Need(option("model"), lambda asked: bool(asked("model")), "", "the command is what is served"),
            given("inventory", why="the files of a command are not sent to joined machines"),
            given("engine", "kubernetes", why="the files of a command are not sent to joined pods"),
            Need(
                f"{option('network')} bridge",
                _is_not_published,
                "",
                f"it publishes ports {PUBLISHED_PORTS[0] + 1} to {PUBLISHED_PORTS[1]}",
            ),
        ),
    )
    api: Api = about(
        "http",
        "Interface of your own server. http: a latency and a rate per request. openai: chats or completions, whose "
        "answers come as streams, with times of the first token and of each further one.",
        idle_without=_OWN,
    )
    path: Text | None = about(
        None,
        f"Path of the requests to your own server. Default: /, with {option('api')} openai {CHAT}; a path that ends "
        "with /completions alone gets prompts in place of chats.",
        parse=parse_path,
        idle_without=_OWN,
    )
    method: Method | None = about(
        None,
        f"Method of the requests to your own server. Default: POST with {option('bodies')} or {option('api')} openai, "
        "else GET.",
        excludes=(given("api", "openai", why="its requests are POST"),),
        idle_without=_OWN,
    )
    bodies: Path | None = about(
        None,
        f"File with the body of a request per line, sent in turn. With {option('api')} openai, each is a JSON object "
        "with prompt or messages. Default: no body; with openai, prompts that are drawn.",
        idle_without=_OWN,
    )
    prompt_words: Count | None = about(
        None,
        "Mean length of the prompts that are drawn, by a fixed seed, in words. Default: 64.",
        needs=(given("api", "openai"),),
        excludes=(given("bodies", why="its prompts are not drawn"),),
    )
    max_tokens: Count | None = about(
        None,
        f"Most tokens of an answer, unless {option('bodies')} sets them. Default: 64.",
        needs=(given("api", "openai"),),
    )
    ready: Text | None = about(
        None,
        f"Path that answers without an error once your own server is ready. Default: the {option('path')}; with "
        f"{option('api')} openai {MODELS}.",
        parse=parse_path,
        idle_without=_OWN,
    )
    ready_limit: Count | None = about(
        None, f"Seconds that your own server may take to be ready. Default: {READY_WITHIN_S}.", idle_without=_OWN
    )
    limit: Text | None = about(
        None,
        f"Most latency at a sustained rate: p99=500ms. The knee is the highest of the {option('rates')} that keeps it.",
        parse=parse_limit,
        idle_without=_OWN,
    )
    from_snapshot: bool = about(
        False,
        "Start your own server from a snapshot of its guest, saved after its first answers, in place of its command. "
        "For target vm.",
        excludes=(
            Need(
                option("ablate"),
                lambda asked: bool(asked("ablate")),
                "",
                "a snapshot is that of the target as it is",
            ),
        ),
        idle_without=_OWN,
    )


def load_of(options: ServingOptions, profile: Load) -> Load:
    """Return the load of the options; the profile gives what they leave out."""
    rates = profile.rates
    if options.rates:
        rates = parse_rates(options.rates)
    return Load(
        requests=options.requests or profile.requests,
        rates=rates,
        clients=options.clients or profile.clients,
    )
