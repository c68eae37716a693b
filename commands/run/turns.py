"""Refuse the alternating design where jobs cannot take turns, or where they do not fit beside each other."""

from collections.abc import Callable, Iterator, Sequence

from suite.errors import RequestError, option, spelled
from suite.job.envelope import GIB
from suite.job.job import Alternating, Job
from suite.plan import Plan, together
from suite.registries import PROBES, SCENARIOS
from suite.request.request import RunRequest
from suite.targets import BASELINE

Note = Callable[[str], None]


def check_turns(request: RunRequest, targets: tuple[str, ...]) -> None:
    """Raise RequestError, in one sentence, where the jobs of the request cannot take turns."""
    asked = request.measurement
    if asked.turns is None:
        if given := [option(name) for name in ("rounds", "burst_steps") if request.value(name)]:
            raise RequestError(
                f"{' and '.join(given)} are about jobs that take turns", remedy=f"add {option('design')} alternating"
            )
        return
    if asked.steps and asked.design == "alternating":
        raise RequestError(
            f"{option('steps')} {asked.steps}: the steps of jobs that take turns are those of all their turns",
            remedy=f"give {option('rounds')} and {option('burst_steps')}",
        )
    scenario = SCENARIOS.get(request.scenario)
    if not hasattr(scenario, "turn_taker"):
        raise _refusal(request, getattr(scenario, "no_turns", "its jobs cannot be cut into turns"))
    if request.scenario == "probe" and (whole := [name for name in request.probes.probe if not _in_turns(name)]):
        able = [name for name in PROBES if _in_turns(name)]
        why = f"the {' and the '.join(whole)} probe measures in one piece"
        raise _refusal(request, why, f"give {option('probe')} {', '.join(able)}, or leave {option('design')} out")
    if request.distributed.inventory or (request.scenario == "distributed" and request.targets.node):
        raise _refusal(request, "a machine of an inventory, or a node of a cluster, holds one job at a time")
    if request.scenario == "real" and request.data.cache != "warm":
        why = "a cold page cache is cold once, and not in every turn"
        raise _refusal(request, why, f"add {option('cache')} warm, or leave {option('design')} out")
    if request.gpus.parallel == "ddp":
        raise _refusal(request, "the ranks of ddp are processes of their own, and take no turns")
    if request.gpus.vfio:
        raise _refusal(request, "a GPU that is passed through belongs to one instance, and all are open at once")
    if len(targets) < 2 and not request.repetitions.aa and not request.targets.ablate:
        raise _refusal(
            request,
            "a job alone has nobody to take turns with",
            f"add a {option('target')}, or {option('aa')} for bare metal against itself",
        )


def turns_of(request: RunRequest) -> Alternating | None:
    """Return how the jobs of the request take turns; None where they do not."""
    turns = request.measurement.turns
    if turns is None or request.scenario != "probe" or request.measurement.burst_steps:
        return turns
    # One measurement of a probe is as long as many steps.
    return turns.model_copy(update={"burst_steps": 1})


def _in_turns(probe: str) -> bool:
    return bool(getattr(PROBES.get(probe), "in_turns", False))


def fitted(plan: Plan, host_memory_bytes: int, note: Note) -> Plan:
    """Return the plan; where the instances of a block do not fit into memory at once, with bare metal and one target.

    Raises RequestError, with the arithmetic, where these do not fit either.
    """
    each_bytes = plan.job.envelope.memory_bytes

    def lacking(planned: Plan) -> str:
        count = max((len(group) for group in together(planned.trials_of(0)) if group[0].job.turns), default=0)
        if count * each_bytes <= host_memory_bytes:
            return ""
        take = f"{count} instances of {each_bytes / GIB:.1f} GiB take {count * each_bytes / GIB:.1f} GiB"
        return f"{option('design')}: {take}, and the machine has {host_memory_bytes / GIB:.1f} GiB"

    if not (why := lacking(plan)):
        return plan
    partners = [target for target in plan.targets if target != BASELINE or plan.aa]
    pairs = tuple(pair for job in plan.jobs for pair in (_pairs(job, partners) if job.turns else (job,)))
    paired = plan.model_copy(update={"jobs": pairs})
    more = lacking(paired) if BASELINE in plan.targets else why
    if more:
        raise RequestError(more, remedy=f"lower {option('memory')}, or name fewer with {option('target')}")
    note(f"{spelled(why)}: bare metal takes turns with one target at a time")
    return paired


def _pairs(job: Job, partners: Sequence[str]) -> Iterator[Job]:
    for partner in partners:
        yield job.model_copy(update={"turns": job.turns and job.turns.model_copy(update={"partner": partner})})


def _refusal(request: RunRequest, why: str, remedy: str = "") -> RequestError:
    asked = f"{option('design')} {request.measurement.design} with {option('scenario')} {request.scenario}"
    return RequestError(f"{asked}: {why}", remedy=remedy or f"leave {option('design')} out")
