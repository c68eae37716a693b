"""``bench compare --job``: the time, the money and the energy of a whole job."""

from collections.abc import Mapping
from typing import Any

import click

from analysis.compare.by import compare_by, settings_of
from analysis.compare.comparison import compare
from analysis.compare.published import judge_claims
from analysis.compare.results import Comparison
from analysis.costs.decision import decisions, places_by_arm
from analysis.costs.job import parse_amount, with_job
from analysis.costs.prices import read_prices
from analysis.load.plans import margin_of
from analysis.load.records import Records
from analysis.report.costs import costs_document
from analysis.report.markdown import markdown
from analysis.report.rows import as_csv, warning_outputs
from analysis.report.terminal import Terminal
from commands.compare.output import JobOutput, ValueRow
from suite.job.preemption import parse_preemption
from suite.untrusted.console import PlainConsole

_PLACE = "place"


def show_job(records: Records, options: Mapping[str, Any]) -> Comparison:
    """Print what a job takes: at every value of the keys or, without keys, in every place or on every target."""
    amount, prices = parse_amount(options["job"]), options["prices"] and read_prices(options["prices"])
    preemption = options["preempt"] and parse_preemption(options["preempt"])
    priced, margin = with_job(records, amount, prices, preemption), margin_of(records.directories, options["margin"])
    several = len({settings[_PLACE] for settings in settings_of(records.trials)}) > 1
    keys = options["by"] or ((_PLACE,) if several else ())
    if keys:
        comparison = compare_by(priced, keys, options["base"], margin=margin)
    else:
        comparison = compare(priced, margin=margin, force=options["force"])
        comparison = judge_claims(comparison) if options["claims"] else comparison
    places = places_by_arm(records.trials, keys, prices)
    match options["form"]:
        case "json":
            answer = tuple(decisions(comparison, amount, places))
            rows = tuple(map(ValueRow.model_validate, comparison.contrasts))
            warned = warning_outputs(comparison.warnings)
            JobOutput(by=keys, margin=margin, answer=answer, rows=rows, warnings=warned, job=str(amount)).tell()
        case "csv":
            click.echo(as_csv(comparison).rstrip("\n"))
        case "markdown":
            click.echo(markdown(costs_document(comparison, amount, prices, places, preemption)).rstrip("\n"))
        case _:
            PlainConsole().print(Terminal(costs_document(comparison, amount, prices, places, preemption)))
    return comparison
