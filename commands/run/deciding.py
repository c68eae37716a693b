"""The default end of a run: until every comparison is decided at a margin, within a budget; in turns if jobs can."""

from dataclasses import replace

from commands.run.resolve import Resolved
from suite.errors import RequestError, option, spelled
from suite.interfaces import Note
from suite.request.repetitions import DECIDED, DECIDING_BUDGETS, DECIDING_MARGIN
from suite.request.request import RunRequest, leaves_turns_to_the_run
from suite.request.scenario import can_take_turns
from suite.targets import BASELINE


def decided_by_default(resolved: Resolved, host_memory_bytes: int, note: Note) -> Resolved:
    """Return what is run where nothing says when it ends: until decided if that is possible, else as it is.

    Raises RequestError for a budget of a run that ends after one block.
    """
    request = resolved.inputs.request
    repetitions = request.repetitions
    if repetitions.blocks is not None or repetitions.open_ended:
        return resolved
    if not _can_be_decided(resolved, note):
        if repetitions.budget:
            raise RequestError(
                f"{option('budget')} needs something to decide: bare metal and another measured target",
                remedy=f"leave it out, or give {option('until')} {DECIDED}",
            )
        return resolved
    margin = repetitions.margin or DECIDING_MARGIN
    budget = repetitions.budget or DECIDING_BUDGETS[0]
    request = request.changed(until=DECIDED, margin=margin, budget=budget)
    if _fits_in_turns(resolved, host_memory_bytes):
        request = _in_turns(request)
    return replace(resolved, inputs=replace(resolved.inputs, request=request))


def _can_be_decided(resolved: Resolved, note: Note) -> bool:
    """Return whether measured targets can be compared with bare metal; name those for whose sake they are not."""
    site = resolved.site
    scenario = resolved.inputs.scenario
    compares = BASELINE in site.targets and len(site.targets) > 1
    compares = compares or bool(scenario.arms(resolved.inputs.request))
    if not compares or not scenario.normalised or not resolved.profile.decides:
        return False
    if site.path_only:
        names = ", ".join(site.path_only)
        note(spelled(f"1 block: {names} cannot be measured here; with other {option('target')} it is decided"))
    return not site.path_only


def _fits_in_turns(resolved: Resolved, host_memory_bytes: int) -> bool:
    """Return whether the job can take turns, and all targets can hold it in memory at once."""
    site = resolved.site
    scenario = resolved.inputs.scenario
    request = resolved.inputs.request
    if site.no_turns or not leaves_turns_to_the_run(request):
        return False
    if not can_take_turns(scenario, request):
        return False
    instances = len(site.targets) + request.repetitions.aa + len(scenario.arms(request))
    envelopes = site.envelopes(resolved.inputs)
    return instances * max(envelope.memory_bytes for envelope in envelopes) <= host_memory_bytes


def _in_turns(request: RunRequest) -> RunRequest:
    """Return the request in turns, unless one of its options excludes them: a number of steps, epochs, checkpoints."""
    try:
        return request.changed(design="alternating")
    except RequestError:
        return request
