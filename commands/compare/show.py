"""Show a comparison of runs in the form that was asked for, draw its figures, and write its page."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel

from analysis.audit.audit import audited
from analysis.compare.allocation import with_allocation
from analysis.compare.by import compare_by, settings_of
from analysis.compare.comparison import compare as compare_records
from analysis.compare.published import judge_claims
from analysis.compare.rates import RATE
from analysis.compare.results import Comparison
from analysis.costs.job import parse_amount, with_job
from analysis.costs.prices import read_prices
from analysis.explain.attribution import explain as explain_records
from analysis.explain.explanation import Explained
from analysis.figures.reference import normalised
from analysis.load.records import Records, load
from analysis.report.answers.answer import answer
from analysis.report.costs import costs_document, decisions, places_by_arm, step_after
from analysis.report.document import Level, answer_elements, document, more_options, published_elements
from analysis.report.elements import Document
from analysis.report.formatting import warning_lines
from analysis.report.latex import latex
from analysis.report.markdown import markdown
from analysis.report.methods import methods_document
from analysis.report.rows import AnswerText, Row, StepOutput, as_csv, comparison_output, rows, warning_outputs
from analysis.report.sweeps.by import allocation_document, by_answer, by_document
from analysis.report.sweeps.scaling import scaling_document
from analysis.report.terminal import Terminal
from analysis.report.waterfall import explanation_document
from analysis.selftest.judging import speaks_for
from analysis.statistics.sequential import LEAST_BLOCKS
from commands.compare.gate import show_change
from commands.compare.output import ByOutput, ExplanationOutput, JobOutput, ValueRow
from commands.output import print_json
from provisioning.paths import home
from suite.errors import RequestError
from suite.job.preemption import parse_preemption
from suite.results.layout import PLOTS, USUAL_FORMATS
from suite.selftest.certificate import FILE, Certificate, read_certificate
from suite.units import count
from suite.untrusted.console import PlainConsole

Made = tuple[Comparison, Callable[[], None]]


class Shown:
    """A comparison as ``bench compare`` shows it. Records are read when its text or its figures are wanted."""

    def __init__(self, chosen: Sequence[Path], options: Mapping[str, Any]) -> None:
        self._chosen = chosen
        self._options = options

    @cached_property
    def _made(self) -> Made:
        records = audited(load(self._chosen), force=self._options["force"])
        if self._options["pool"]:
            records = replace(records, trials=records.trials.assign(pool=""))
        if self._options["job"]:
            return _make_job(records, self._chosen, self._options)
        if self._options["by"]:
            return _make_by(records, self._chosen, self._options)
        return _make_targets(records, self._chosen, self._options)

    @property
    def comparison(self) -> Comparison:
        return self._made[0]

    def tell(self) -> Iterable[Path]:
        """Print the comparison. It writes no file."""
        self._made[1]()
        return ()

    def draw(self) -> Iterable[Path]:
        place = self._options["plots"] or self._chosen[0] / PLOTS
        return _draw(self.comparison, place, self._options)


def _print(form: str | None, comparison: Comparison, output: Callable[[], BaseModel], shown: Document) -> None:
    """Print a comparison in a form: its JSON, its rows as CSV, or its document."""
    match form:
        case "json":
            print_json(output())
        case "csv":
            click.echo(as_csv(comparison).rstrip("\n"))
        case "markdown":
            click.echo(markdown(shown).rstrip("\n"))
        case "latex":
            click.echo(latex(shown).rstrip("\n"))
        case _:
            PlainConsole().print(Terminal(shown))


def _make_targets(records: Records, chosen: Sequence[Path], options: Mapping[str, Any]) -> Made:
    comparison = _compared(records, options)
    form = options["form"]
    output: Callable[[], BaseModel] = partial(comparison_output, comparison)
    shown = _document(comparison, options)
    if options["methods"]:
        shown = methods_document(records, comparison)
    if options["explain"]:
        explained = explain_records(records, comparison, force=options["force"])
        output = partial(_explanation, explained)
        shown = chain(answer_elements(answer(comparison)), explanation_document(explained))

    def tell() -> None:
        _print(form, comparison, output, shown)
        if form == "csv":
            answered = answer(comparison)
            for line in (*answered.lines, *warning_lines(comparison)):
                click.echo(line, err=True)
        if form or options["allocation"] or options["methods"]:
            return
        if not (options["explain"] or options["scaling"]):
            certificate = _certificate_of(records)
            if certificate:
                click.echo(certificate.line())
        if len(chosen) == 2:
            show_change(records, chosen, force=options["force"])

    return comparison, tell


def _compared(records: Records, options: Mapping[str, Any]) -> Comparison:
    comparison = compare_records(records, margin=options["margin"], force=options["force"])
    if options["claims"]:
        comparison = _judged(comparison, options)
    elif options["allocation"]:
        comparison = with_allocation(comparison)
    if options["allocation"] and not comparison.of_kind("allocation"):
        missing = "no two cells of a sweep differ only in cpus, on a target with two blocks or more of each"
        raise RequestError(missing, remedy="measure them: bench sweep run allocation")
    return comparison


def _judged(comparison: Comparison, options: Mapping[str, Any]) -> Comparison:
    """Return the comparison with the claims that are wanted: none, all, or those of the paper that is reproduced."""
    wanted = options["claims"]
    if not wanted:
        return comparison
    return judge_claims(comparison, wanted if isinstance(wanted, str) else "")


def _document(comparison: Comparison, options: Mapping[str, Any]) -> Document:
    if options["allocation"]:
        return allocation_document(comparison)
    if options["scaling"]:
        # That a target is compared with no other is no answer to how jobs scale.
        answered = answer(comparison)
        scaling = scaling_document(comparison)
        if answered.rows:
            return chain(answer_elements(answered), scaling)
        return scaling
    if options["form"]:
        return document(comparison, "full", costs=True)
    if isinstance(options["claims"], str) and not answer(comparison).rows:
        # A paper that compares nothing with bare metal is answered by its claims.
        return published_elements(comparison.claims)
    level: Level = "full" if options["verbose"] else "overview"
    return document(comparison, level, costs=options["costs"])


def _explanation(explained: Explained) -> ExplanationOutput:
    ablations = (contrast for contrast in explained.contrasts if contrast.kind == "ablation")
    return ExplanationOutput(
        explanations=explained.explanations,
        preempted=explained.preempted,
        ablations=tuple(map(Row.model_validate, ablations)),
        victims=explained.victims,
        warnings=warning_outputs(explained.warnings),
    )


def _make_by(records: Records, _: Sequence[Path], options: Mapping[str, Any]) -> Made:
    comparison = compare_by(records, options["by"], options["base"], margin=options["margin"])
    comparison = _judged(comparison, options)

    def output() -> ByOutput:
        return ByOutput(
            by=options["by"],
            answer=AnswerText.model_validate(by_answer(comparison)),
            rows=tuple(rows(comparison)),
            published=comparison.claims,
            warnings=warning_outputs(comparison.warnings),
        )

    shown = by_document(comparison)
    return comparison, partial(_print, options["form"], comparison, output, shown)


def _make_job(records: Records, _: Sequence[Path], options: Mapping[str, Any]) -> Made:
    """Compare what a job takes: at every value of the keys or, without keys, in every place or on every target."""
    if RATE in options["by"]:
        raise RequestError(f"--job does not go with --by {RATE}: a job runs at saturation", remedy="leave one out")
    amount = parse_amount(options["job"])
    prices = options["prices"] and read_prices(options["prices"])
    preemption = options["preempt"] and parse_preemption(options["preempt"])
    priced = with_job(records, amount, prices, preemption)
    margin = options["margin"]
    measured_in = {settings["place"] for settings in settings_of(records.trials)}
    keys = options["by"]
    if not keys and len(measured_in) > 1:
        keys = ("place",)
    if keys:
        comparison = compare_by(priced, keys, options["base"], margin=margin)
    else:
        comparison = compare_records(priced, margin=margin, force=options["force"])
    comparison = _judged(comparison, options)
    places = places_by_arm(records.trials, keys, prices)
    step = step_after(comparison)
    following = StepOutput.model_validate(step) if step else None

    def output() -> JobOutput:
        return JobOutput(
            job=str(amount),
            by=keys,
            answer=tuple(decisions(comparison, amount, places)),
            next=following,
            rows=tuple(map(ValueRow.model_validate, comparison.contrasts)),
            warnings=warning_outputs(comparison.warnings),
        )

    shown = costs_document(comparison, amount, prices, places, preemption)
    return comparison, partial(_print, options["form"], comparison, output, shown)


def _draw(comparison: Comparison, place: Path, options: Mapping[str, Any]) -> Sequence[Path]:
    # Matplotlib takes a second to import, which the answer, --json and --explain need not wait for. If it is there,
    # seaborn imports scipy.stats for density curves, which no figure has: half a second more.
    unneeded = [name for name in ("scipy.stats", "scipy.cluster") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(unneeded))  # type: ignore[arg-type]
    from analysis.figures.plots import draw

    for name in unneeded:
        del sys.modules[name]
    reference = normalised() if options["reference"] else None
    formats = options["figures"] or USUAL_FORMATS
    drawn = draw(comparison, place, reference, formats, options["width"])
    click.echo(f"{_drawn(drawn, place)}{_more(comparison, options)}", err=True)
    return drawn


def _drawn(drawn: Sequence[Path], place: Path) -> str:
    """Return how many figures were drawn and where, or why none was."""
    if not drawn:
        return f"no figure: they show numbers of {LEAST_BLOCKS} blocks or more that are not too noisy"
    figures = {path.stem for path in drawn}
    return f"drawn: {place}: {count(len(figures), 'figure')}"


def _more(comparison: Comparison, options: Mapping[str, Any]) -> str:
    """Return the options that show more; empty where a part is shown."""
    if any(options[name] for name in ("job", "explain", "scaling", "by")):
        return ""
    level: Level = "full" if options["verbose"] else "overview"
    return more_options(comparison, level, costs=options["costs"])


def _certificate_of(records: Records) -> Certificate | None:
    """Return this machine's last certificate; None if there is none, or if the records are of another machine."""
    certificate = read_certificate(home() / FILE)
    if certificate and speaks_for(certificate, records):
        return certificate
    return None


def report_of(
    directories: Sequence[Path],
    path: Path,
    margin: float | None = None,
    *,
    force: bool = False,
    claims: bool = False,
) -> Path:
    """Write the page of runs to ``path`` and return it."""
    # It draws: see above.
    from analysis.report.page import write_report

    records = audited(load(directories), force=force)
    return write_report(
        records,
        path,
        margin=margin,
        force=force,
        certificate=_certificate_of(records),
        claims=claims,
    )
