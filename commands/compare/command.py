"""``bench compare`` and ``bench report``: what the records say."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commands.compare.kept import listing, once
from commands.paths import RunPath, UserPath, complete_key, with_packs
from commands.run.options import FIGURES, NEEDED_BY_WIDTH, WIDTH, choice, given, latest, refuse_silenced, shares
from suite.errors import RequestError
from suite.request.repetitions import MARGIN
from suite.results.layout import ENDING, REPORT
from suite.results.runs import runs_and_sweeps

if TYPE_CHECKING:
    from commands.compare.show import Shown

_MARGIN = click.option(
    "--margin",
    callback=shares,
    help=f"Overheads below it are equivalent. Default: the margin of the plan, else {MARGIN:.0%}.",
)
_FORCE = click.option(
    "--force", is_flag=True, help="Keep records that the audit refuses, form all ratios, and mark them."
)
_CLAIMS = click.option("--claims", is_flag=True, help="Judge the claims of papers by the records.")


@click.command()
@click.argument("directories", nargs=-1, type=RunPath())
@click.option("--plots", type=UserPath(), help="Directory for figures. Default: plots/ in the run.")
@FIGURES
@WIDTH
@_MARGIN
@_FORCE
@click.option("--costs", is_flag=True, help="Show CPU, memory, disk and energy that each target uses on the host.")
@click.option("--verbose", is_flag=True, help="Show every metric, ablations, noise, advice and a legend.")
@click.option("--explain", is_flag=True, help="Split each overhead into phases, with intervals.")
@click.option("--scaling", is_flag=True, help="Show speed-up by workers, and kept models at equal images seen.")
@click.option("--methods", is_flag=True, help="Show how it was measured, for a paper, and the testbed as a table.")
@click.option("--allocation", is_flag=True, help="Show what CPUs by stage of the training gain at equal CPU time.")
@_CLAIMS
@click.option(
    "--by",
    multiple=True,
    metavar="KEY",
    shell_complete=complete_key,
    help="Compare the values of a setting, or of host, machine, context, inventory, place; or the rates of requests: "
    "rate.",
)
@click.option(
    "--base", multiple=True, metavar="VALUE", help="With --by: the value to compare with. Default: the first."
)
@click.option(
    "--pool", callback=choice(("host",)), help="host: take equal hosts of several runs as one. Default: each is a row."
)
@click.option("--job", metavar="AMOUNT", help="Show time, money and energy of a whole job, such as '50 epochs'.")
@click.option("--preempt", metavar="mean=1h", help="With --job: take its machine away at this mean interval.")
@click.option("--prices", type=UserPath(), help="With --job: file with the prices of places.")
@click.option("--reference", is_flag=True, help="Mark the values of the paper (CLOSER 2018) in the figures.")
@click.option("--fail-above", callback=shares, help="Fail if the last run is slower by more than this, such as 5%.")
@click.option(
    "--baseline",
    multiple=True,
    help="With --fail-above: older runs or sweeps of the same, as a pattern such as 'results/nightly/*'. Repeatable.",
)
@click.option(
    "--across",
    callback=choice(("code",)),
    help="With --fail-above: code, to compare runs between which your workload or command files have changed.",
)
@click.option("--junit", type=UserPath(), help="With --fail-above: also write the outcome to this file as JUnit XML.")
@click.option("--json", "form", flag_value="json", help="Print JSON.")
@click.option("--csv", "form", flag_value="csv", help="Print CSV: a row per target and metric.")
@click.option("--markdown", "form", flag_value="markdown", help="Print Markdown; with --fail-above a summary.")
@click.option("--latex", "form", flag_value="latex", help="Print LaTeX that needs no package.")
def compare(directories: tuple[Path, ...], **options: Any) -> None:  # noqa: ANN401 (one per option above)
    """Show tables and figures of runs, normalised to bare metal. Default: the latest run in results/.

    Several runs are pooled; those of several hosts need --pool host. With two runs, differences of the second from
    the first are listed. A directory or a pack stands for the runs that it holds. With --by, the values of a key are
    compared with the first; two keys give a table.

    With --fail-above the last run is judged against those before it; three or more show how runs differ. Exit codes: 0
    not slower, 3 slower or fails more, 4 cannot tell (too few or noisy blocks), 1 it lacks something, 2 wrong request.

    \b
    Examples:
      bench compare --costs
      bench compare results/monday results/tuesday --plots figures
      bench compare results/tonight --baseline 'results/nightly/*' --fail-above 5%
      bench compare results/main results/branch --fail-above 5% --markdown --junit gate.xml
      bench compare --explain
      bench compare results/cellar results/rack --by host
      bench compare results/cellar results/cloud --job "50 epochs" --prices prices.toml
      bench compare --figures pdf --width 3.3in --latex > tables.tex
      bench compare --methods --latex > methods.tex
    """
    present = given(options) | {str(options["form"])}
    refuse_silenced(present, _SILENCES, _NEEDS)
    if options["fail_above"] is not None:
        from commands.compare.gate import gate  # here, like those below: pandas need not be imported for what is kept

        sys.exit(gate(_held(directories), options))

    chosen = list(_held(directories)) or [latest()]

    @cache
    def shown() -> "Shown":
        from commands.compare.show import Shown

        return Shown(chosen, options)

    parts: dict[str, Callable[[], Iterable[Path]]] = {"compare": lambda: shown().tell()}
    if _draws(directories, options):
        parts["figures"] = lambda: shown().draw()
    listed = listing(chosen)
    for name, make in parts.items():
        if options["prices"]:  # a file outside the runs, whose change no digest of theirs shows
            make()
        else:
            once(chosen, {"command": name, **options}, make, listed)


def _draws(directories: Sequence[Path], options: Mapping[str, Any]) -> bool:
    """Return whether figures are drawn: where they are named, or next to the runs of a comparison that shows all."""
    if options["plots"] or options["figures"]:
        return True
    if options["form"] or options["allocation"] or options["explain"] or options["methods"]:
        return False
    of_pack = bool(directories) and directories[0].name.endswith(ENDING)
    return not of_pack


def _held(directories: Sequence[Path]) -> tuple[Path, ...]:
    """Return the runs and sweeps that are meant; name those that a directory holds. Raises RequestError for none."""
    directories = with_packs(directories)
    places = tuple(runs_and_sweeps(directories))
    if places != tuple(dict.fromkeys(directories)):
        click.echo(f"comparing {', '.join(map(str, places))}", err=True)
        return places
    return tuple(directories)


def plain() -> dict[str, Any]:
    """Return the options of a ``bench compare`` that names none."""
    # With the parent's names of --help: click keeps those that a command was first made with.
    root = click.get_current_context().find_root()
    context = compare.make_context("compare", [], parent=root)
    options = context.params
    del options["directories"]
    return options


_VIEWS = {"explain", "costs", "scaling", "allocation", "methods", "reference", "verbose"}
_SILENCES = {
    "job": {"fail-above", "across", *_VIEWS},
    "fail-above": {"plots", "figures", "claims", "csv", "latex", *_VIEWS},
    "by": {"fail-above", "across", *_VIEWS},
    "methods": {"claims", "json", "csv", *_VIEWS} - {"methods"},
    "explain": {"costs", "scaling", "allocation", "verbose", "claims", "csv", "markdown"},
    "scaling": {"costs", "allocation", "verbose", "claims", "json", "csv", "markdown"},
    "allocation": {"costs", "reference", "verbose"},
    "json": {"costs", "verbose"},
    "csv": {"costs", "verbose", "claims"},
    "markdown": {"costs", "verbose"},
    "latex": {"costs", "verbose"},
}
"""The options that an output has no place for, or holds in any case."""
_NEEDS = {
    **dict.fromkeys(("across", "baseline", "junit"), ("fail-above", "5%")),
    **dict.fromkeys(("prices", "preempt"), ("job", "'50 epochs'")),
    "base": ("by", "data"),
    **NEEDED_BY_WIDTH,
}


@click.command()
@click.argument("directories", nargs=-1, type=RunPath())
@click.option("--html", type=UserPath(), help="The file. Default: report.html in the run.")
@_MARGIN
@_FORCE
@_CLAIMS
def report(directories: tuple[Path, ...], html: Path | None, margin: float | None, **options: bool) -> None:
    """Write one page with the answer, figures and provenance.

    It holds all tables and warnings, too, and needs no network.

    \b
    Examples:
      bench report
      bench report results/night --html night.html
    """
    if html is None and any(directory.name.endswith(ENDING) for directory in directories):
        raise RequestError("nothing is written to a pack", remedy="name the page: --html report.html")
    chosen = list(_held(directories)) or [latest()]

    def write() -> Iterable[Path]:
        from commands.compare.show import report_of

        file = html or chosen[0] / REPORT
        page = report_of(chosen, file, margin, **options)
        click.echo(page)
        return [page]

    once(chosen, {"command": "report", "html": html, "margin": margin, **options}, write)
