"""Show a comparison of runs in the form that was asked for, draw its figures, and write its page."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from analysis.audit.audit import audited
from analysis.compare.allocation import with_allocation
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
from analysis.report.document import Level, answer_elements, document, more_options
from analysis.report.elements import Document
from analysis.report.formatting import warning_lines
from analysis.report.markdown import as_markdown, markdown
from analysis.report.rows import AnswerText, Row, as_csv, comparison_output, rows, warning_outputs
from analysis.report.sweeps.allocation import allocation_document
from analysis.report.sweeps.by import by_answer, by_document
from analysis.report.sweeps.scaling import scaling_document
from analysis.report.terminal import Terminal
from analysis.report.waterfall import explanation_document
from analysis.selftest.judging import speaks_for
from commands.compare.costs import show_job
from commands.compare.gate import show_change
from commands.compare.output import ByOutput, ExplanationOutput
from commands.output import print_json
from provisioning.paths import home
from suite.errors import RequestError
from suite.results.layout import PLOTS
from suite.selftest.certificate import FILE, Certificate, read_certificate
from suite.units import count
from suite.untrusted.console import PlainConsole


def show(chosen: Sequence[Path], options: Mapping[str, Any]) -> Iterable[Path]:
    """Print the comparison of the chosen directories, and draw it; return the files of its figures."""
    records = audited(load(chosen), force=options["force"])
    if options["pool"]:
        records = replace(records, trials=records.trials.assign(pool=""))
    if options["job"]:
        comparison = show_job(records, options)
        wanted = options["plots"] or options["form"] is None
        return _draw(comparison, options["plots"] or chosen[0] / PLOTS, options) if wanted else ()
    return (_show_by if options["by"] else _show_targets)(records, chosen, options)


def _show_targets(records: Records, chosen: Sequence[Path], options: Mapping[str, Any]) -> Iterable[Path]:
    comparison = _compared(records, options)
    if options["explain"]:
        _show_explanation(comparison, explain_records(records, comparison, force=options["force"]), options["form"])
    elif options["allocation"] and options["form"] in (None, "markdown"):
        _print(allocation_document(comparison), options["form"])
    elif options["form"]:
        _FORMS[options["form"]](comparison)
    else:
        _show(comparison, records, chosen, options)
    alone = options["form"] is None and not options["allocation"]
    if len(chosen) == 2 and alone:
        show_change(records, chosen, force=options["force"])
    if options["plots"] or (alone and not options["explain"]):
        return _draw(comparison, options["plots"] or chosen[0] / PLOTS, options)
    return ()


def _compared(records: Records, options: Mapping[str, Any]) -> Comparison:
    margin = margin_of(records.directories, options["margin"])
    comparison = compare_records(records, margin=margin, force=options["force"])
    if options["claims"]:
        comparison = judge_claims(comparison)
    elif options["allocation"]:
        comparison = with_allocation(comparison)
    if options["allocation"] and not comparison.of_kind("allocation"):
        missing = "no two cells of a sweep differ only in cpus, on a target with two blocks or more of each"
        raise RequestError(missing, remedy="measure them: bench sweep run allocation")
    return comparison


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


def _print(shown: Document, form: str | None) -> None:
    if form == "markdown":
        click.echo(markdown(shown).rstrip("\n"))
    else:
        PlainConsole().print(Terminal(shown))


def _show_by(records: Records, chosen: Sequence[Path], options: Mapping[str, Any]) -> Iterable[Path]:
    margin = margin_of(records.directories, options["margin"])
    comparison = compare_by(records, options["by"], options["base"], margin=margin)
    match options["form"]:
        case "json":
            answered, warned = AnswerText.model_validate(by_answer(comparison)), warning_outputs(comparison.warnings)
            ByOutput(
                by=options["by"], margin=margin, answer=answered, rows=tuple(rows(comparison)), warnings=warned
            ).tell()
        case "csv":
            click.echo(as_csv(comparison).rstrip("\n"))
        case form:
            _print(by_document(comparison), form)
    if options["plots"] or options["form"] is None:
        return _draw(comparison, options["plots"] or chosen[0] / PLOTS, options)
    return ()


def _draw(comparison: Comparison, place: Path, options: Mapping[str, Any]) -> Sequence[Path]:
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
    return drawn


def _certificate_of(records: Records) -> Certificate | None:
    """Return this machine's last certificate; None if there is none, or if the records are of another machine."""
    certificate = read_certificate(home() / FILE)
    return certificate if certificate and speaks_for(certificate, records) else None


def _show_explanation(comparison: Comparison, explained: Explained, form: str | None) -> None:
    if form == "json":
        warnings = warning_outputs(explained.warnings)
        ablations = tuple(Row.model_validate(one) for one in explained.contrasts if one.kind == "ablation")
        ExplanationOutput(
            explanations=explained.explanations,
            preempted=explained.preempted,
            ablations=ablations,
            warnings=warnings,
        ).tell()
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


def report_of(
    directories: Sequence[Path], path: Path, margin: float | None = None, *, force: bool = False, claims: bool = False
) -> Path:
    """Write the page of runs to ``path`` and return it."""
    # It draws: see above.
    from analysis.report.page import write_report

    records = audited(load(directories), force=force)
    chosen_margin, certificate = margin_of(records.directories, margin), _certificate_of(records)
    return write_report(records, path, margin=chosen_margin, force=force, certificate=certificate, claims=claims)
