"""``bench compare`` and ``bench report``: what the records say."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commands.run.options import shares
from suite.errors import RequestError
from suite.results.store import RESULTS, latest_run

if TYPE_CHECKING:
    from analysis.compare.results import Comparison
    from analysis.load.records import Records


@click.command()
@click.argument("directories", nargs=-1, type=click.Path(path_type=Path))
@click.option("--plots", type=click.Path(path_type=Path), help="Where the figures go. Default: plots/ in the run.")
@click.option("--margin", default="2%", callback=shares, show_default=True, help="Overheads below it are equivalent.")
@click.option("--force", is_flag=True, help="Form ratios of records that are not comparable; the mark stays on them.")
@click.option("--explain", is_flag=True, help="Where each overhead comes from: phase by phase, with intervals.")
@click.option("--reference", is_flag=True, help="Mark the values of the paper (CLOSER 2018) in the figures.")
@click.option("--fail-above", callback=shares, help="With two runs: exit code 1 when the second is slower by more: 5%.")
@click.option("--json", "form", flag_value="json", help="For machines.")
@click.option("--csv", "form", flag_value="csv")
@click.option("--markdown", "form", flag_value="markdown")
def compare(directories: tuple[Path, ...], **options: Any) -> None:  # noqa: ANN401 (one per option above)
    """Tables and plots of runs, normalised to bare metal. Without a directory: of the latest run in results/.

    Several runs are pooled; of two runs it is also told how the second differs from the first.

    \b
    Examples:
      bench compare
      bench compare results/monday results/tuesday --plots figures
      bench compare results/before results/after --fail-above 5%
      bench compare --explain
      bench compare --markdown > table.md
    """
    from analysis.compare.comparison import compare as compared
    from analysis.load.records import load

    if options["fail_above"] is not None and len(directories) != 2:
        raise RequestError("--fail-above compares two runs", remedy="bench compare BEFORE AFTER --fail-above 5%")
    chosen = list(directories) or [latest_run(RESULTS)]
    records = load(chosen)
    comparison = compared(records, margin=options["margin"], force=options["force"])
    exceeded = _change(chosen, options) if len(chosen) == 2 else False
    if options["explain"]:
        _explain(records, options)
    elif not (len(chosen) == 2 and options["fail_above"] and options["form"]):
        _table(comparison, options["form"])
    if options["plots"] or (options["form"] is None and not options["explain"]):
        from analysis.figures.plots import draw
        from analysis.figures.reference import normalised

        reference = normalised() if options["reference"] else None
        for path in draw(comparison, options["plots"] or chosen[0] / "plots", reference):
            click.echo(f"drawn: {path}", err=True)
    if exceeded:
        sys.exit(1)


def _table(comparison: "Comparison", form: str | None) -> None:
    from analysis.report import tables

    if form is None:
        from rich.console import Console

        Console().print(tables.Terminal(comparison))
        return
    forms = {"json": tables.as_json, "csv": tables.as_csv, "markdown": tables.as_markdown}
    click.echo(forms[form](comparison).rstrip("\n"))
    if form == "csv":
        for line in tables.warning_lines(comparison):
            click.echo(line, err=True)


def _explain(records: "Records", options: dict[str, Any]) -> None:
    from analysis.explain.attribution import explain
    from analysis.explain.waterfall import Waterfall, as_rows

    explained = explain(records, margin=options["margin"], force=options["force"])
    if options["form"] == "json":
        click.echo(json.dumps(as_rows(explained), indent=1))
        return
    from rich.console import Console

    Console().print(Waterfall(explained))


def _change(chosen: list[Path], options: dict[str, Any]) -> bool:
    """How the second run differs from the first; whether it is slower by more than was allowed."""
    from analysis.compare.regression import Report, as_rows, regress
    from analysis.load.records import load

    found = regress(load(chosen[:1]), load(chosen[1:]), options["fail_above"])
    if options["form"] is None:
        from rich.console import Console

        Console().print(Report(found))
    elif options["fail_above"] and options["form"] == "json":
        click.echo(json.dumps({"exceeded": found.exceeded, "changes": as_rows(found)}, indent=1))
    return found.exceeded


@click.command()
@click.argument("directories", nargs=-1, type=click.Path(path_type=Path))
@click.option("--html", type=click.Path(path_type=Path), help="The file. Default: report.html in the run.")
@click.option("--margin", default="2%", callback=shares, show_default=True, help="Overheads below it are equivalent.")
@click.option("--force", is_flag=True, help="Form ratios of records that are not comparable; the mark stays on them.")
def report(directories: tuple[Path, ...], html: Path | None, margin: float, force: bool) -> None:
    """One page with everything: the answer, tables, figures, where it comes from, warnings, provenance. No network.

    \b
    Examples:
      bench report
      bench report results/night --html night.html
    """
    from analysis.load.records import load
    from analysis.report.page import write_report

    chosen = list(directories) or [latest_run(RESULTS)]
    click.echo(write_report(load(chosen), html or chosen[0] / "report.html", margin=margin, force=force))
