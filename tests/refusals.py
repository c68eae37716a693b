"""Requests that ``bench run`` refuses. ``python -m tests.refusals [WITHOUT…]`` writes the transcript of the answers.

``samples/refusals.txt`` first holds what the options' declarations refuse, one request each; this program finds these.
The commands behind them, whose refusal is computed, are written by hand, and it renews their answers, too.
"""

import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from click.testing import CliRunner

import cli
from suite.errors import RequestError
from suite.part import MOST
from suite.registries import SCENARIOS
from suite.request.option import Option
from suite.request.request import OPTIONS, RunRequest, command_of
from tests.commands.conftest import Machine, answer_for, go_to

TRANSCRIPT = Path(__file__).parent / "samples/refusals.txt"
TAKEN = {
    **dict.fromkeys(("until", "detect", "margin"), "2%"),
    "budget": "1h",
    "memory": "4G",
    "cpus": "0",
    "gpus": "0",
    "data": "generated",
    "data_disk": "/dev/sdx",
    "lab": "nodes=2",
    "rates": "5",
    "command": "true",
    "versus": "false",
    "throughput": "auto",
    "unit": "rows",
    "preempt": "mean=60s",
    "resize_at": "0=1",
    "learning_rate": "0.1",
    "path": "/",
    "ready": "/health",
    "limit": "p99=500ms",
}
"""A value of each option whose annotation does not show one."""
_OWN_SERVER = {"scenario": "serve", "command": "true", "port": 8000}
_MODEL_SERVER = {**_OWN_SERVER, "api": "openai"}
_CHECKPOINTS = {"scenario": "real", "data": "generated", "epochs": 3, "checkpoint": "on"}
NEEDED: Mapping[str, Mapping[str, object]] = {
    **dict.fromkeys(("preempt", "resize_at"), _CHECKPOINTS),
    **dict.fromkeys(("port", "method"), _OWN_SERVER),
    **dict.fromkeys(("prompt_words", "max_tokens"), _MODEL_SERVER),
}
"""What an option needs before its other conditions are looked at, where that is more than one other option."""


def values_of(declared: Option) -> tuple[object, ...]:
    """Return values that the option takes: every name, or one of the rest."""
    usual = {bool: True, int: 2, Path: Path("a.toml")}.get(declared.kind, "a")
    return declared.choices() or (TAKEN.get(declared.name, usual),)


def wrong_values_of(declared: Option) -> Iterator[object]:
    """Yield a name with a letter less, numbers out of bounds, or text that its grammar has no place for."""
    if names := declared.choices():
        yield names[-1][:-1] or "x"
    elif declared.kind is int:
        yield from (-1, 0, MOST + 1)
    elif declared.kind is str:
        yield "?" if refusal({**usual_of(declared), declared.name: "?"}) else ""


def usual_of(declared: Option) -> dict[str, object]:
    """Return a scenario and an engine that know the option."""
    knowing = [scenario for scenario in SCENARIOS.own if declared.known_to(scenario)]
    scenario = {} if "synthetic" in knowing else {"scenario": knowing[0]}
    return {**scenario, **({"engine": declared.engine} if declared.engine else {})}


def refusal(given: Mapping[str, object]) -> str | None:
    """Return the message that refuses the request."""
    try:
        RunRequest.of(given).refuse_idle()
    except RequestError as error:
        return error.message
    return None


def contradictions(declared: Option, given: Mapping[str, object]) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield what the option's conditions refuse alone, and with each value of each other option."""
    others = ({each.name: value} for each in OPTIONS.values() for value in values_of(each) if each is not declared)
    for more in ({}, *others):
        values = {**given, **more}

        def asked(name: str, values: Mapping[str, object] = values) -> object:
            if name not in OPTIONS:
                raise AttributeError(name)
            value = values.get(name, OPTIONS[name].default)
            return (value,) if OPTIONS[name].several and isinstance(value, str) else value

        try:
            declared.about.refuse(declared.name, values[declared.name], asked)
            declared.about.refuse_idle(declared.name, asked)
        except RequestError as error:
            yield error.message, values


@cache
def declared_refusals() -> dict[str, Mapping[str, object]]:
    """Return, by message, a request for each condition, each bound, each list of names and each owner of an option."""
    requests: dict[str, Mapping[str, object]] = {}
    for name, declared in OPTIONS.items():
        usual, values = usual_of(declared), values_of(declared)
        foreign = [{"scenario": scenario} for scenario in SCENARIOS.own if not declared.known_to(scenario)][:1]
        foreign += [{}] if declared.engine else []
        wrong: list[Mapping[str, object]] = [{**usual, name: value} for value in wrong_values_of(declared)]
        for asked in (*({**other, name: values[0]} for other in foreign), *wrong):
            if message := refusal(asked):
                requests.setdefault(message, asked)
        for value in (each for each in values if each != declared.default):
            for message, given in contradictions(declared, {**usual, name: value}):
                if not requests.get(message):
                    # Another option may be needed before this one is looked at.
                    needed = {**given, **NEEDED.get(name, {})}
                    more = ({**given, other.name: each} for other in OPTIONS.values() for each in values_of(other))
                    requests[message] = next((each for each in (given, needed, *more) if refusal(each) == message), {})
    return requests


def read(text: str, mark: str = "$") -> dict[str, str]:
    """Return the answer to each command, or question, of a transcript."""
    entries = (entry.partition("\n") for entry in text.rstrip("\n").split(f"\n{mark} ")[1:])
    return {command: answer for command, _, answer in entries}


def written(answers: Mapping[str, str], mark: str = "$", module: str = "refusals") -> str:
    """Return the transcript of commands, or questions, and answers."""
    parts = (f"\n{mark} {command}\n{answer}" for command, answer in answers.items())
    return f"# See tests/{module}.py.{''.join(parts)}\n"


def commands() -> dict[str, None]:
    """Return the commands that the options' declarations refuse."""
    return {shlex.join(command_of(given)): None for given in declared_refusals().values()}


def answer_to(command: str) -> str:
    """Return message and remedy of a command that is refused on a machine that carries everything."""
    ended = CliRunner().invoke(cli.main, shlex.split(command)[1:], prog_name="bench")
    assert (ended.exit_code, bool(ended.stdout)) == (2, "--json" in command), (command, ended.output)
    return "\n".join(re.findall("^(?:bench:|  what to do:|Error:) .*", ended.stderr, re.MULTILINE))


if __name__ == "__main__":
    by_hand = [command for command in read(TRANSCRIPT.read_text()) if command not in sys.argv[1:]]
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as directory:
        answer_for(Machine(), patch)
        go_to(Path(directory), patch)
        everything = {**commands(), **dict.fromkeys(by_hand)}
        TRANSCRIPT.write_text(written({command: answer_to(command) for command in everything}))
