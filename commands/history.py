"""``bench history``: the numbers of every cell over all runs of a directory, and where they changed."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from analysis.audit.audit import audited
from analysis.history.history import History, Series, history_document, history_of
from analysis.load.records import load
from analysis.report.terminal import Terminal
from commands.output import Output
from commands.paths import UserPath
from commands.run.options import FIGURES, NEEDED_BY_WIDTH, WIDTH, given, refuse_silenced
from suite.errors import RequestError
from suite.results.layout import PLOTS, USUAL_FORMATS, results_directory
from suite.results.runs import find_runs
from suite.units import count
from suite.untrusted.console import PlainConsole


class HistoryOutput(Output):
    """The series of all runs of a directory."""

    runs: int
    series: list[Series]


_SILENCES = {"html": {"figures"}, "json": {"figures"}}
"""The options that an output has no place for."""


def history_over(runs: Sequence[Path], *, force: bool = False) -> History:
    """Return the history of runs. Raises RequestError for records that cannot be compared."""
    records = load(runs)
    return history_of(audited(records, force=force))


@click.command()
@click.argument("directory", type=UserPath(), default=results_directory)
@click.option("--plots", type=UserPath(), help="Directory for figures. Default: plots/ in DIRECTORY.")
@FIGURES
@WIDTH
@click.option("--html", type=UserPath(), help="Write one self-contained page to this file, in place of figures.")
@click.option("--force", is_flag=True, help="Keep records that the audit refuses.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; bench schema history describes it.")
def history(
    directory: Path,
    plots: Path | None,
    figures: tuple[str, ...],
    width: float | None,
    html: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Show the numbers of all runs, and when their level changed.

    The runs are those below a directory, and are shown cell by cell. Changes are found by E-divisive
    (docs/guide/nightly.md) and listed with simultaneous changes of the machine, such as kernel, engine, suite or
    image.

    \b
    Examples:
      bench history
      bench history results/nightly-scheduled
      bench history results/nightly-scheduled --html history.html
      bench history results/nightly-scheduled --figures pdf --width 3.3in
      bench history results/nightly-scheduled --json
    """
    present = given({"figures": figures, "width": width, "html": html, "json": as_json})
    refuse_silenced(present, _SILENCES, NEEDED_BY_WIDTH)
    runs = find_runs([directory])
    if not runs:
        raise RequestError(f"{directory} holds no run", remedy="name a directory of runs, sweeps or scheduled sweeps")
    result = history_over(runs, force=force)
    if as_json:
        output = HistoryOutput.model_validate(asdict(result))
        output.tell()
        return
    PlainConsole().print(Terminal(history_document(result)))
    # Matplotlib takes a second to import, which --json need not wait for.
    from analysis.figures.history import draw_history
    from analysis.report.page import write_history

    if html:
        click.echo(f"page: {write_history(result, html)}", err=True)
        return

    target = plots or directory / PLOTS
    drawn = draw_history(result, target, figures or USUAL_FORMATS, width)
    click.echo(f"drawn: {target}: {count(len({path.stem for path in drawn}), 'figure')}", err=True)
