"""Instances that were opened together, as elements of a document."""

from collections.abc import Iterator
from itertools import groupby

from analysis.compare.results import Arm, Comparison, Contrast, Measured
from analysis.compare.scaling import EACH, FAILED, TIMES
from analysis.report.elements import Element, Head, Heading, Notes, Table
from suite.job.ablations import named_arm
from suite.trial_names import instances_in
from suite.units import count, number


def growth_elements(comparison: Comparison) -> Iterator[Element]:
    """Yield a table for each job, a row for each number of instances of a target, and what each further one adds."""
    together, slopes = comparison.of_kind("together"), comparison.of_kind("growth")
    for job, of_job in groupby(together, lambda arm: arm.job):
        arms = sorted(of_job, key=lambda arm: (named(arm), instances_in(arm.model)))
        yield Heading("Many at once", str(job))
        heads = (Head(f"{metric.name.replace('-per-instance', '')} {metric.unit}") for metric in (*TIMES, *EACH))
        rows = tuple(_row(arm, together[arm]) for arm in arms)
        yield Table("opened together", "", tuple(heads), rows, "memory and CPU: of each instance", compact=True)
        further = dict.fromkeys(arm._replace(model="") for arm in arms)
        yield Notes(tuple(_slopes(arm, slopes[arm]) for arm in further if arm in slopes))


def _row(arm: Arm, measured: Measured) -> tuple[Head, tuple[str, ...]]:
    failed = measured.get(FAILED.name)
    lost = (f"in {count(failed.trials, 'block')} {number(failed.value or 0.0)} did not open",) if failed else ()
    cells = tuple(_text(measured.get(metric.name)) for metric in (*TIMES, *EACH))
    return Head(f"{named(arm)}, {count(instances_in(arm.model), 'instance')}", lost), cells


def _slopes(arm: Arm, measured: Measured) -> str:
    parts = (_slope(measured[name], unit) for name, unit in _FURTHER.items() if name in measured)
    return f"each further instance of {named(arm)}: {', '.join(parts)}"


_FURTHER = {TIMES[0].name: "s", EACH[0].name: "MB", EACH[1].name: "s of CPU"}


def named(arm: Arm) -> str:
    return named_arm(arm.target, arm.ablation)


def _text(one: Contrast | None) -> str:
    return "-" if one is None or one.value is None else number(one.value)


def _slope(one: Contrast, unit: str) -> str:
    ends = f" ({number(one.value_interval[0])} to {number(one.value_interval[1])})" if one.value_interval else ""
    return f"{_text(one)} {unit}{ends}"
