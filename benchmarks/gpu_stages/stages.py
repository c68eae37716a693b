"""The stages by their worth, those that fit into the minutes of a call, and the order in which a day takes them."""

from collections.abc import Callable
from dataclasses import dataclass

from gpu_stages.day import Day, Found
from gpu_stages.loops import harness, more_pairs
from gpu_stages.machine import adopted, facts_of_the_machine
from gpu_stages.trainings import alternating, models_on_both, more_tuned, other_models_on_both, profile_gpu, tuned
from gpu_stages.truth import intruders, truth
from gpu_stages.ways import same_work, several_ways


@dataclass(frozen=True)
class Stage:
    """A stage and the seconds that it is expected to take on a GPU."""

    run: Callable[[Day], Found]
    seconds: int


STAGES = {
    "A": Stage(facts_of_the_machine, 45),
    "P": Stage(adopted, 55),
    "B": Stage(models_on_both, 110),
    "D": Stage(alternating, 180),
    "T": Stage(truth, 45),
    "C": Stage(harness, 100),
    "E": Stage(tuned, 100),
    "U": Stage(profile_gpu, 150),
    "R": Stage(other_models_on_both, 180),
    "F": Stage(several_ways, 240),
    "H": Stage(same_work, 110),
    "V": Stage(more_tuned, 150),
    "W": Stage(more_pairs, 300),
    "G": Stage(intruders, 290),
}
"""The stages by what they decide, the most first."""
WITHOUT_IMAGE = ("A", "P")
"""The stages that need no image; all others need that of P."""
TIMES_ITS_ESTIMATE = 3
"""What a stage may take; then it is cut off, so that others have their turn."""
SPARE_S = 20.0
"""What starting, cleaning up and copying the results take of a call."""


def packed(minutes: float) -> tuple[list[str], list[str]]:
    """Return the stages that fit into the minutes of one call on a GPU, by their estimates, and those left out."""
    left_s = 60 * minutes - SPARE_S
    fitting: list[str] = []
    omitted: list[str] = []
    for name, stage in STAGES.items():
        if stage.seconds <= left_s:
            left_s -= stage.seconds
            fitting.append(name)
        else:
            omitted.append(name)
    return fitting, omitted


def print_packed() -> None:
    for minutes in (15, 30):
        fitting, omitted = packed(minutes)
        print(f"{minutes} minutes hold {' '.join(fitting)}; left out: {' '.join(omitted) or 'none'}", flush=True)
        for name in omitted:
            print(f"  {name}: {STAGES[name].run.__doc__}", flush=True)


def in_order(day: Day) -> list[str]:
    """Return the stages to run: those never tried first, and then those that failed or were cut off."""
    wanted = [name for name in STAGES if name in day.options.stages]
    tried = [name for name in wanted if name in day.facts and not day.facts[name].get("whole")]
    return [*(name for name in wanted if name not in day.facts), *tried]
