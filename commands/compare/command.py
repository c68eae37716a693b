"""``bench compare`` and ``bench report``: what the records say."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from analysis.audit.audit import audited
from analysis.compare.by import compare_by
from analysis.compare.comparison import compare as compare_records
from analysis.compare.published import judge_claims
from analysis.compare.results import Comparison
from analysis.explain.attribution import explain as explain_records
from analysis.explain.explanation import Explained
from analysis.figures.reference import normalised
from analysis.load.plans import extendable, margin_of
from analysis.load.records import Records, load
from analysis.report.answers.answer import answer
from analysis.report.by import by_answer, by_document, slow_machines
from analysis.report.document import Level, answer_elements, document, more_options
from analysis.report.formatting import warning_lines
from analysis.report.markdown import as_markdown, markdown
from analysis.report.rows import Row, as_csv, comparison_output, rows, warning_outputs
from analysis.report.scaling import scaling_document
from analysis.report.terminal import Terminal
from analysis.report.waterfall import explanation_document
from analysis.selftest.judging import speaks_for
from commands.compare.costs import show_job
from commands.compare.gate import gate, show_change
from commands.compare.output import ByOutput, ExplanationOutput
from commands.output import print_json
from commands.run.options import choice, shares
from provisioning.paths import home
from suite.errors import RequestError
from suite.request.repetitions import MARGIN
from suite.results.store import RESULTS, latest_run
from suite.selftest.certificate import FILE, Certificate, read_certificate
from suite.units import count
from suite.untrusted.console import PlainConsole

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
@click.argument("directories", nargs=-1, type=click.Path(path_type=Path))
@click.option("--plots", type=click.Path(path_type=Path), help="Directory for figures. Default: plots/ in the run.")
@_MARGIN
@_FORCE
@click.option("--costs", is_flag=True, help="Show CPU, memory, disk and energy that each target uses on the host.")
@click.option("--verbose", is_flag=True, help="Show every metric, ablations, noise, advice and a legend.")
@click.option("--explain", is_flag=True, help="Split each overhead into phases, with intervals.")
@click.option("--scaling", is_flag=True, help="Show speed-up by workers, and kept models at equal images seen.")
@_CLAIMS
@click.option(
    "--by",
    multiple=True,
    metavar="KEY",
    help="Compare the values of a setting, or of host, machine, context, inventory, place.",
)
@click.option(
    "--base", multiple=True, metavar="VALUE", help="With --by: the value to compare with. Default: the first."
)
@click.option(
    "--pool", callback=choice(("host",)), help="host: take equal hosts of several runs as one. Default: each is a row."
)
@click.option("--job", metavar="AMOUNT", help="Show time, money and energy of a whole job, such as '50 epochs'.")
@click.option("--preempt", metavar="mean=1h", help="With --job: take its machine away at this mean interval.")
@click.option("--prices", type=click.Path(path_type=Path), help="With --job: file with the prices of places.")
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
@click.option("--json", "form", flag_value="json", help="Print JSON.")
@click.option("--csv", "form", flag_value="csv", help="Print CSV: a row per target and metric.")
@click.option("--markdown", "form", flag_value="markdown", help="Print Markdown.")
def compare(directories: tuple[Path, ...], **options: Any) -> None:  # noqa: ANN401 (one per option above)
    """Show tables and figures of runs, normalised to bare metal. Default: the latest run in results/.

    Several runs are pooled; those of several hosts need --pool host. With two runs, differences of the second from
    the first are listed. With --by, the values of a key are compared with the first; two keys give a table.

    With --fail-above the last run is judged against those before it; three or more show how runs differ. Exit codes:
    0 not slower, 3 slower, 4 cannot tell, 1 the new run lacks something of the last old one, 2 the request was wrong.

    \b
    Examples:
      bench compare
      bench compare --costs
      bench compare results/monday results/tuesday --plots figures
      bench compare results/before results/after --fail-above 5%
      bench compare results/tonight --baseline 'results/nightly/*' --fail-above 5%
      bench compare --explain
      bench compare results/cellar results/rack --by host
      bench compare results/cellar results/cloud --job "50 epochs" --prices prices.toml
      bench compare --markdown > table.md
    """
    _refuse_silenced(options)
    if options["fail_above"] is not None:
        sys.exit(gate(directories, options))
    chosen = list(directories) or [latest_run(RESULTS)]
    records = audited(load(chosen), force=options["force"])
    if options["pool"]:
        records = replace(records, trials=records.trials.assign(pool=""))
    if options["job"]:
        comparison = show_job(records, options)
        if options["plots"] or options["form"] is None:
            _draw(comparison, options["plots"] or chosen[0] / "plots", options)
        return
    (_show_by if options["by"] else _show_targets)(records, chosen, options)


def _show_targets(records: Records, chosen: Sequence[Path], options: Mapping[str, Any]) -> None:
    comparison = _compared(records, options)
    if options["explain"]:
        _show_explanation(comparison, explain_records(records, comparison, force=options["force"]), options["form"])
    elif options["form"]:
        _FORMS[options["form"]](comparison)
    else:
        _show(comparison, records, chosen, options)
    if len(chosen) == 2 and options["form"] is None:
        show_change(records, chosen, force=options["force"])
    if options["plots"] or (options["form"] is None and not options["explain"]):
        _draw(comparison, options["plots"] or chosen[0] / "plots", options)


_SILENCES = {
    "job": {"fail-above", "across", "explain", "costs", "scaling", "reference", "verbose"},
    "fail-above": {"plots", "explain", "costs", "scaling", "reference", "verbose", "claims", "csv", "markdown"},
    "by": {"fail-above", "across", "explain", "costs", "scaling", "reference", "verbose", "claims"},
    "explain": {"costs", "scaling", "verbose", "claims", "csv", "markdown"},
    "scaling": {"costs", "verbose", "claims", "json", "csv", "markdown"},
    "json": {"costs", "verbose"},
    "csv": {"costs", "verbose", "claims"},
    "markdown": {"costs", "verbose"},
}
"""The options that an output has no place for, or holds in any case."""
_NEEDS = {
    **dict.fromkeys(("across", "baseline"), ("fail-above", "5%")),
    **dict.fromkeys(("prices", "preempt"), ("job", "'50 epochs'")),
    "base": ("by", "data"),
}


def _refuse_silenced(options: Mapping[str, Any]) -> None:
    """Raise RequestError for an option that another one would silence, or that lacks the one it is for."""
    idle = (None, False, ())
    given = {name.replace("_", "-") for name, value in options.items() if not any(value is one for one in idle)}
    given.add(str(options["form"]))
    for name, silenced in _SILENCES.items():
        if name in given and (silent := sorted(silenced & given)):
            raise RequestError(f"--{silent[0]} has no effect with --{name}", remedy="leave one of them out")
    for name, (needed, example) in _NEEDS.items():
        if name in given and needed not in given:
            raise RequestError(f"--{name} needs --{needed}", remedy=f"give it, such as --{needed} {example}")


def _compared(records: Records, options: Mapping[str, Any]) -> Comparison:
    margin = margin_of(records.directories, options["margin"])
    comparison = compare_records(records, margin=margin, force=options["force"])
    return judge_claims(comparison) if options["claims"] else comparison


def _show(comparison: Comparison, records: Records, chosen: Sequence[Path], options: Mapping[str, Any]) -> None:
    if options["scaling"]:
        # That a target is compared with no other is no answer to how jobs scale.
        found = answer(comparison)
        lines = answer_elements(found) if found.rows else ()
        PlainConsole().print(Terminal([*lines, *scaling_document(comparison)]))
        return
    shown = document(comparison, _level(options), costs=options["costs"], run=extendable(chosen))
    PlainConsole().print(Terminal(shown))
    if certificate := _certificate_of(records):
        click.echo(certificate.line())


def _show_by(records: Records, chosen: Sequence[Path], options: Mapping[str, Any]) -> None:
    margin = margin_of(records.directories, options["margin"])
    comparison = compare_by(records, options["by"], options["base"], margin=margin)
    match options["form"]:
        case "json":
            answers = (*by_answer(comparison), *slow_machines(comparison))
            warned = warning_outputs(comparison.warnings)
            ByOutput(
                by=options["by"], margin=margin, answer=answers, rows=tuple(rows(comparison)), warnings=warned
            ).tell()
        case "csv":
            click.echo(as_csv(comparison).rstrip("\n"))
        case "markdown":
            click.echo(markdown(by_document(comparison)).rstrip("\n"))
        case _:
            PlainConsole().print(Terminal(by_document(comparison)))
    if options["plots"] or options["form"] is None:
        _draw(comparison, options["plots"] or chosen[0] / "plots", options)


def _draw(comparison: Comparison, place: Path, options: Mapping[str, Any]) -> None:
    # Matplotlib takes a second to import, which the answer, --json and --explain need not wait for. If it is there,
    # seaborn imports scipy.stats for density curves, which no figure has: half a second more.
    unneeded = [name for name in ("scipy.stats", "scipy.cluster") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(unneeded))  # type: ignore[arg-type]
    from analysis.figures.plots import draw

    for name in unneeded:
        del sys.modules[name]
    drawn = draw(comparison, place, normalised() if options["reference"] else None)
    part = options["job"] or options["explain"] or options["scaling"] or options["by"]
    more = "" if part else more_options(comparison, _level(options), costs=options["costs"])
    click.echo(f"drawn: {place}: {count(len({path.stem for path in drawn}), 'figure')}{more}", err=True)


def _certificate_of(records: Records) -> Certificate | None:
    """Return this machine's last certificate; None if there is none, or if the records are of another machine."""
    certificate = read_certificate(home() / FILE)
    return certificate if certificate and speaks_for(certificate, records) else None


def _show_explanation(comparison: Comparison, explained: Explained, form: str | None) -> None:
    if form == "json":
        warnings = warning_outputs(explained.warnings)
        ablations = tuple(Row.model_validate(one) for one in explained.contrasts if one.kind == "ablation")
        ExplanationOutput(explanations=explained.explanations, ablations=ablations, warnings=warnings).tell()
        return
    PlainConsole().print(Terminal([*answer_elements(answer(comparison)), *explanation_document(explained)]))


def _print_csv(comparison: Comparison) -> None:
    click.echo(as_csv(comparison).rstrip("\n"))
    for line in (*answer(comparison).lines, *warning_lines(comparison)):
        click.echo(line, err=True)


_FORMS: Mapping[str, Callable[[Comparison], None]] = {
    "json": lambda comparison: print_json(comparison_output(comparison)),
    "csv": _print_csv,
    "markdown": lambda comparison: click.echo(as_markdown(comparison).rstrip("\n")),
}


def _level(options: Mapping[str, Any]) -> Level:
    return "full" if options["verbose"] else "overview"


@click.command()
@click.argument("directories", nargs=-1, type=click.Path(path_type=Path))
@click.option("--html", type=click.Path(path_type=Path), help="The file. Default: report.html in the run.")
@_MARGIN
@_FORCE
@_CLAIMS
def report(directories: tuple[Path, ...], html: Path | None, margin: float | None, **options: bool) -> None:
    """Write one page with the answer, tables, figures, warnings and provenance. It needs no network.

    \b
    Examples:
      bench report
      bench report results/night --html night.html
    """
    chosen = list(directories) or [latest_run(RESULTS)]
    click.echo(report_of(chosen, html or chosen[0] / "report.html", margin, **options))


def report_of(
    directories: Sequence[Path], path: Path, margin: float | None = None, *, force: bool = False, claims: bool = False
) -> Path:
    """Write the page of runs to ``path`` and return it."""
    # It draws: see above.
    from analysis.report.page import write_report

    records = audited(load(directories), force=force)
    chosen_margin, certificate = margin_of(records.directories, margin), _certificate_of(records)
    return write_report(records, path, margin=chosen_margin, force=force, certificate=certificate, claims=claims)
