"""Choose the end of a run that names none, for ``bench run``: a margin, a budget, and turns of trainings.

The run and the commands that propose one have it from here: a proposed command names nothing that is chosen anyway.
"""

from suite.errors import RequestError
from suite.request.repetitions import DECIDING_BLOCKS, DECIDING_BUDGETS, DECIDING_MARGIN
from suite.request.request import RunRequest
from suite.request.traits import traits_of
from suite.units import format_share, parse_duration_s, parse_share

DEFAULT_MARGIN = parse_share(DECIDING_MARGIN)
_ENDS = ("blocks", "warmup_blocks", "until", "detect", "max_blocks", "budget")


def leaves_turns_to_the_run(request: RunRequest) -> bool:
    """Return whether it names no design and trains on CPUs: the run then takes turns, if its machine can."""
    if request.measurement.design or request.gpus.device != "cpu":
        return False
    # Ablations are also about opening and elapsed times, and quotas refill while a job waits.
    return traits_of(request.scenario).trains and not request.targets.ablate


def until_decided(request: RunRequest, margin: float) -> RunRequest:
    """Return the request of a run that is decided at a margin, a share, with no option that it would choose itself.

    Raises RequestError for options that go with no verdict.
    """
    named_margin = None
    if margin != DEFAULT_MARGIN:
        named_margin = format_share(margin)
    decided = request.changed(**dict.fromkeys(_ENDS), margin=named_margin)
    if decided.measurement.design != "alternating":
        return decided
    try:
        without_design = decided.changed(design=None)
    except RequestError:  # the number of its rounds, or of the steps of a turn, was chosen
        return decided
    if leaves_turns_to_the_run(without_design):
        return without_design
    return decided


def deciding_budget(block_s: float, *, length_unknown: bool = False) -> str:
    """Return the least budget that is expected to hold a verdict, if a block takes so many seconds."""
    budgets = DECIDING_BUDGETS[1:] if length_unknown else DECIDING_BUDGETS
    expected_s = DECIDING_BLOCKS * block_s
    sufficient = (budget for budget in budgets if parse_duration_s(budget) >= expected_s)
    return next(sufficient, budgets[-1])
