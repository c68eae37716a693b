"""``bench compare`` and ``bench report``: what the records say."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from analysis.audit.audit import audited
from analysis.compare.comparison import compare as compare_records
from analysis.compare.regression import regress
from analysis.compare.results import Comparison
from analysis.explain.attribution import explain as explain_records
from analysis.figures.reference import normalised
from analysis.load.records import load
from analysis.report.formatting import warning_lines
from analysis.report.markdown import as_markdown
from analysis.report.rows import as_csv, as_json
from analysis.report.terminal import RegressionTerminal, Terminal
from analysis.report.waterfall import Waterfall
from commands.run.options import shares
from commands.selftest.known import certificate_of
from suite.errors import RequestError
from suite.results.store import RESULTS, latest_run


@click.command()
@click.argument("directories", nargs=-1, type=click.Path(path_type=Path))
@click.option("--plots", type=click.Path(path_type=Path), help="Where the figures go. Default: plots/ in the run.")
@click.option("--margin", default="2%", callback=shares, show_default=True, help="Overheads below it are equivalent.")
@click.option(
    "--force", is_flag=True, help="Keep records that the audit refuses, and form all ratios; the mark stays on them."
)
@click.option("--costs", is_flag=True, help="Show the CPU, memory, disk and energy that each target takes of the host.")
@click.option("--explain", is_flag=True, help="Show where each overhead comes from: phase by phase, with intervals.")
@click.option("--reference", is_flag=True, help="Mark the values of the paper (CLOSER 2018) in the figures.")
@click.option("--fail-above", callback=shares, help="With two runs: exit code 1 when the second is slower by more: 5%.")
@click.option("--json", "form", flag_value="json", help="Print JSON.")
@click.option("--csv", "form", flag_value="csv", help="Print CSV: a row per target and metric.")
@click.option("--markdown", "form", flag_value="markdown", help="Print Markdown.")
def compare(directories: tuple[Path, ...], **options: Any) -> None:  # noqa: ANN401 (one per option above)
    """Show tables and figures of runs, normalised to bare metal. Default: the latest run in results/.

    Several runs are pooled. Given two runs, it also says how the second differs from the first.

    \b
    Examples:
      bench compare
      bench compare --costs
      bench compare results/monday results/tuesday --plots figures
      bench compare results/before results/after --fail-above 5%
      bench compare --explain
      bench compare --markdown > table.md
    """
    if options["fail_above"] is not None and len(directories) != 2:
        raise RequestError("--fail-above compares two runs", remedy="bench compare BEFORE AFTER --fail-above 5%")
    chosen = list(directories) or [latest_run(RESULTS)]
    records = audited(load(chosen), force=options["force"])
    comparison = compare_records(records, margin=options["margin"], force=options["force"])
    exceeded = _change(chosen, options) if len(chosen) == 2 else False
    if options["explain"]:
        explained = explain_records(records, margin=options["margin"], force=options["force"])
        if options["form"] == "json":
            click.echo(json.dumps([asdict(one) for one in explained.explanations], indent=1))
        else:
            Console().print(Waterfall(explained))
    elif not (len(chosen) == 2 and options["fail_above"] and options["form"]):
        _show(comparison, options["form"], options["costs"])
        if options["form"] is None and (certificate := certificate_of(records)):
            click.echo(certificate.line())
    if options["plots"] or (options["form"] is None and not options["explain"]):
        # Matplotlib takes a second to import, which --json and --explain need not wait for.
        from analysis.figures.plots import draw

        reference = normalised() if options["reference"] else None
        for path in draw(comparison, options["plots"] or chosen[0] / "plots", reference):
            click.echo(f"drawn: {path}", err=True)
    if exceeded:
        sys.exit(1)


def _show(comparison: Comparison, form: str | None, costs: bool) -> None:
    if form is None:
        Console().print(Terminal(comparison, costs=costs))
        return
    forms = {"json": as_json, "csv": as_csv, "markdown": as_markdown}
    click.echo(forms[form](comparison).rstrip("\n"))
    if form == "csv":
        for line in warning_lines(comparison):
            click.echo(line, err=True)


def _change(chosen: list[Path], options: dict[str, Any]) -> bool:
    """Show how the second run differs from the first; return whether it is slower by more than was allowed."""
    old, new = (audited(load([run]), force=options["force"]) for run in chosen)
    found = regress(old, new, options["fail_above"])
    if options["form"] is None:
        Console().print(RegressionTerminal(found))
    elif options["fail_above"] and options["form"] == "json":
        changes = [asdict(change) for change in found.changes]
        click.echo(json.dumps({"exceeded": found.exceeded, "changes": changes}, indent=1))
    return found.exceeded


@click.command()
@click.argument("directories", nargs=-1, type=click.Path(path_type=Path))
@click.option("--html", type=click.Path(path_type=Path), help="The file. Default: report.html in the run.")
@click.option("--margin", default="2%", callback=shares, show_default=True, help="Overheads below it are equivalent.")
@click.option(
    "--force", is_flag=True, help="Keep records that the audit refuses, and form all ratios; the mark stays on them."
)
def report(directories: tuple[Path, ...], html: Path | None, margin: float, force: bool) -> None:
    """Write one page with the answer, tables, figures, warnings and provenance. It needs no network.

    \b
    Examples:
      bench report
      bench report results/night --html night.html
    """
    # It draws: see above.
    from analysis.report.page import write_report

    chosen = list(directories) or [latest_run(RESULTS)]
    records, path = audited(load(chosen), force=force), html or chosen[0] / "report.html"
    click.echo(write_report(records, path, margin=margin, force=force, certificate=certificate_of(records)))
