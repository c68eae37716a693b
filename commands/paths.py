"""Paths on a command line."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from suite.results.layout import ENDING, results_directory

if TYPE_CHECKING:
    from suite.results.archive import PackList


class UserPath(click.Path):
    """A file or directory. ``~`` is the home, also behind ``--out=``, which no shell expands."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        if str(value) == "-":
            self.fail("'-' does not stand for standard output or input here: name a file, or write ./-", param, ctx)
        path = Path(str(super().convert(value, param, ctx)))
        try:
            return path.expanduser()
        except RuntimeError:
            self.fail(f"{path} begins with ~, but there is no such home directory: write it out", param, ctx)


class RunPath(UserPath):
    """The directory of a run, one that holds runs, or a pack of runs."""

    def shell_complete(self, _ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the runs and sweeps in results/ that begin like this; where there are none, directories."""
        names = [str(place) for place in _stored_places()]
        return _completed(names, incomplete) or [CompletionItem(incomplete, type="dir")]


def with_packs(places: Sequence[Path]) -> tuple[Path, ...]:
    """Return places with each pack replaced by its runs, unpacked in a directory that goes when the command ends."""
    if not any(place.name.endswith(ENDING) for place in places):
        return tuple(places)
    opened: list[Path] = []
    for place in places:
        if place.name.endswith(ENDING):
            context = click.get_current_context()
            directory, listed = context.with_resource(unpacked(place))
            opened += [directory / run for run in listed.runs]
        else:
            opened.append(place)
    return tuple(opened)


@contextmanager
def unpacked(path: Path) -> Iterator[tuple[Path, "PackList"]]:
    """Unpack a pack into a new directory for as long as the context lasts; yield the directory and the list.

    Raises RequestError as ``extract`` does.
    """
    # Few commands read a pack, and each waits for every import.
    from provisioning import ledger
    from suite.results.archive import extract

    with ledger.temporary("virtbench-pack") as directory:
        yield directory, extract(path, directory)


def complete_run_name(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of runs in results/ that begin like this; where there are none, files."""
    names = [place.name for place in _stored_places()]
    return _completed(names, incomplete) or [CompletionItem(incomplete, type="file")]


def complete_key(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the settings of the jobs of the named runs, or of those in results/, and where they ran."""
    # As below.
    from suite.errors import BenchError
    from suite.job.job import IN_COLUMNS, PLACES, settings
    from suite.results.runs import find_runs
    from suite.results.store import stored_plan

    # An option without its value, which is to be completed, leaves the arguments before it unparsed.
    named = [Path(word) for word in ctx.args]
    places = ctx.params.get("directories") or named or [results_directory()]
    directories = [place for place in places if place.is_dir()]
    keys = {*IN_COLUMNS, *PLACES}
    for run in find_runs(directories):
        with suppress(BenchError):
            for job in stored_plan(run).jobs:
                keys.update(settings(job))
    return _completed(sorted(keys), incomplete)


def _completed(words: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def _stored_places() -> list[Path]:
    # Here, since the command line reads no records before it knows its command.
    from suite.results.runs import find_runs, runs_and_sweeps

    results = results_directory()
    if results.is_dir() and find_runs([results]):
        return runs_and_sweeps([results])
    return []
