"""From a plan file's cells to runs: each goes the way of ``bench run``, by the words that one would type."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from suite.errors import RequestError
from suite.sweep.cells import Cell, cells_of
from suite.sweep.model import EnvelopeRequest, Settings, Sweep

if TYPE_CHECKING:
    from commands.run.prepare import Ready

Note = Callable[[str], None]


@dataclass(frozen=True)
class Planned:
    """A cell, checked on this machine: ready to run, or refused with a reason."""

    cell: Cell
    words: tuple[str, ...]
    """The command that runs one such cell by itself, without ``bench``."""
    ready: "Ready | None" = None
    refusal: RequestError | None = None


def words_of(sweep: Sweep, cell: Cell) -> tuple[str, ...]:
    """``("run", "--scenario", "synthetic", ...)``: the cell as it would be typed."""
    words = ["run"]
    for key, value in cell.settings.items():
        words += [f"--{key.replace('_', '-')}", str(value)]
    for option, values in (("--target", sweep.targets), ("--ablate", sweep.ablate)):
        words += [word for value in values for word in (option, value)]
    numbers: dict[str, object] = {
        **sweep.envelope.model_dump(),
        **{key: getattr(sweep, key) for key in ("blocks", "until", "min_blocks", "max_blocks", "warmup_blocks")},
        "seed": sweep.seed or None,
    }
    for key, given in numbers.items():
        if given is not None:
            words += [f"--{key.replace('_', '-')}", str(given)]
    return (*words, "--aa") if sweep.aa else tuple(words)


def options_of(words: Sequence[str]) -> dict[str, Any]:
    """What ``bench run`` makes of the words: its own defaults, its own checks. Raises RequestError."""
    from commands.run.command import run

    try:
        # click keeps the options of help that it makes first: these must be those of ``bench``.
        return run.make_context("bench run", list(words[1:]), help_option_names=["-h", "--help"]).params
    except click.UsageError as error:
        raise RequestError(error.format_message(), remedy="bench run --help tells what it takes") from error


def resolve(sweep: Sweep, note: Note) -> list[Planned]:
    """Every cell of the sweep on this machine. Starts nothing. Raises RequestError for a plan without cells."""
    from provisioning.doctor import examine

    cells = [(cell, words_of(sweep, cell)) for cell in cells_of(sweep)]
    note(f"{len(cells)} cells; checking this machine")
    checks = examine()
    say = _once(note)
    return [_planned(sweep, cell, words, checks, say) for cell, words in cells]


def _planned(sweep: Sweep, cell: Cell, words: tuple[str, ...], checks: Any, note: Note) -> Planned:  # noqa: ANN401
    from commands.run.prepare import ready

    try:
        made = ready(options_of(words), note, checks)
    except RequestError as error:
        told, remedy = (_in_words_of_the_plan(text) for text in (error.message, error.remedy or ""))
        return Planned(cell, words, refusal=RequestError(told, remedy=remedy or None))
    plan = made.plan.model_copy(update={"blocks": sweep.element_count})
    return Planned(cell, words, ready=type(made)(plan, made.scenario, made.choices))


def _in_words_of_the_plan(text: str) -> str:
    """``--memory`` is ``envelope.memory`` in a plan file. Options that it does not have, and whole commands, stay."""
    if "bench " in text:
        return text

    def key_of(option: "re.Match[str]") -> str:
        name = option[1].replace("-", "_")
        if name in EnvelopeRequest.model_fields:
            return f"envelope.{name}"
        known = {name: name for name in (*Settings.model_fields, *Sweep.model_fields)} | {"target": "targets"}
        return known.get(name, option[0])

    return re.sub(r"--([a-z-]+)", key_of, text)


def refuse_refused(planned: Sequence[Planned]) -> None:
    """Raises RequestError naming every cell that cannot be run."""
    refused = [(each.cell.cell_id, each.refusal) for each in planned if each.refusal]
    if refused:
        reasons = "; ".join(f"{name}: {error.message}" for name, error in refused if error)
        remedies = dict.fromkeys(error.remedy for _, error in refused if error and error.remedy)
        raise RequestError(
            f"{len(refused)} of {len(planned)} cells cannot be run here: {reasons}",
            remedy="; ".join([*remedies, "or exclude such cells in the plan"]),
        )


def _once(note: Note) -> Note:
    """Cells are alike: what was said of one is not said of the next."""
    said: set[str] = set()

    def say(text: str) -> None:
        if text not in said:
            said.add(text)
            note(text)

    return say
