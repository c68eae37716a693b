"""From a plan file's cells to runs: each goes the way of ``bench run``, by the words that one would type."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from suite.errors import RequestError
from suite.sweep.cells import Cell, cells_of
from suite.sweep.directory import SweepDirectory
from suite.sweep.model import EnvelopeRequest, Settings, Sweep

if TYPE_CHECKING:
    from analysis.statistics.sequential import Decision
    from commands.run.prepare import Ready
    from suite.interfaces import Observer
    from suite.sweep.cell_run import CellRun, Enough
    from suite.sweep.runner import Runner

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


def runner_of(
    sweep: Sweep,
    directory: SweepDirectory,
    planned: Sequence[Planned],
    observer: "Observer",
    *,
    enough: "Enough | None" = None,
    take_over: bool = False,
) -> "Runner":
    """What runs blocks of the sweep on this machine. Without ``enough`` each of them is run to its end."""
    from commands.run.prepare import host_environment
    from provisioning.metrics.accounting import open_account
    from suite.sweep.runner import Host, ReadyCell, Runner

    cells = [
        ReadyCell(each.cell, each.ready.plan, each.ready.scenario, each.ready.open_target)
        for each in planned
        if each.ready
    ]
    host = Host(host_environment, open_account)
    return Runner(sweep, directory, cells, host, observer, enough, take_over)


def prepare(planned: Sequence[Planned], note: Note) -> None:
    """What is made once and kept, for all cells."""
    say = _once(note)
    for each in planned:
        if each.ready:
            each.ready.prepare(say)


def decisions_of(sweep: Sweep) -> "Callable[[CellRun], Decision]":
    """Whether the intervals of a cell are narrow enough, as ``bench run --until`` decides it."""
    from analysis.compare.convergence import should_stop_run
    from analysis.load.records import load
    from analysis.statistics.sequential import LEAST_BLOCKS, should_stop
    from suite.units import parse_share

    half_width = parse_share(sweep.until or "")
    # That there is no further block is no reason of the intervals': the last one, begun and cut off, is to be ended.
    most = sweep.element_count + 1
    least = sweep.min_blocks or min(LEAST_BLOCKS, sweep.element_count)

    def decision(run: "CellRun") -> "Decision":
        if all(record.warm_up for record in run.records()):
            return should_stop({}, half_width, min_blocks=least, max_blocks=most)
        return should_stop_run(load([run.directory]), half_width, min_blocks=least, max_blocks=most)

    return decision


def enough_of(sweep: Sweep) -> "Enough | None":
    """Of a sweep with ``until``: why a cell needs no further block."""
    if sweep.until is None:
        return None
    decision = decisions_of(sweep)

    def enough(run: "CellRun") -> str | None:
        now = decision(run)
        return now.reason if now.stop else None

    return enough


@contextmanager
def ledger_of(directory: Path) -> Iterator[None]:
    """What a killed sweep leaves half written is found by ``bench clean``."""
    from provisioning import ledger

    with ledger.holding("run-directory", str(directory.absolute())):
        yield
