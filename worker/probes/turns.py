"""A probe that takes turns: it is measured again in each, and what counts is the mean over them."""

import statistics
from dataclasses import replace
from typing import TextIO

from worker.probes.probe import Probe
from worker.probes.reading import Measured
from worker.protocol import Events
from worker.spec import Request, Turns
from worker.turns import each_turn


def measured_in_turns(probe: Probe, request: Request, turns: Turns, events: Events, orders: TextIO) -> Measured:
    """Measure once to warm up, then in each turn, and emit the bursts. Raises JobError.

    Returns the geometric mean of every metric over all turns. The logarithm of a ratio of two of these is the mean of
    the ratios of the turns of each round, as for the bursts of a training.
    """
    probe.measure(request)
    found: list[Measured] = []

    def take(_: int) -> None:
        found.extend(probe.measure(request) for _ in range(turns.burst_steps))

    each_turn(turns.rounds, orders, events, take)
    last = found[-1]
    names = [name for name in last.metrics if all(name in one.metrics for one in found)]
    columns = {name: [one.metrics[name].value for one in found] for name in names}
    means = {
        name: replace(last.metrics[name], value=statistics.geometric_mean(values), samples=values)
        for name, values in columns.items()
    }
    return Measured(means, last.details)
