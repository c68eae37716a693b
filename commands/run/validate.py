"""What a run is refused for: options that contradict each other, say nothing here, or would switch nothing."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from suite.errors import RequestError
from suite.job.envelope import GIB
from suite.job.job import CpuCapability
from suite.plan import BASELINE, Plan, lower

if TYPE_CHECKING:
    from provisioning.targets import Choices

Options = dict[str, Any]
Note = Callable[[str], None]
MOST_OF_MEMORY = 0.5
"""What a data set can take of an instance's memory and stay cached beside the job."""


def check_blocks(options: Options, targets: tuple[str, ...]) -> None:
    """Raises RequestError for numbers of blocks that cannot be."""
    if options["until"] and options["blocks"]:
        raise RequestError("--until and --blocks exclude each other", remedy="use --max-blocks with --until")
    if options["until"] and options["scenario"] == "shared":
        raise RequestError(
            "--until is about ratios to bare metal, and --scenario shared has others", remedy="use --blocks"
        )
    if options["until"] and len(targets) < 2 and not options["aa"]:
        raise RequestError("--until needs ratios", remedy="add a --target, or --aa for bare metal against itself")
    if (options["until"] or options["aa"]) and BASELINE not in targets and options["scenario"] != "shared":
        raise RequestError("--until and --aa need bare metal in the run", remedy=f"add --target {BASELINE}")


def refuse_foreign(options: Options) -> None:
    """Raises RequestError for options of a shared machine, which say nothing elsewhere."""
    if options["scenario"] == "shared":
        return
    given = [
        name
        for name, usual in (("aggressors", ("alexnet",)), ("bare_metal_cpus", "unrestricted"))
        if options[name] != usual
    ]
    given += [name for name in ("copies", "aggressor_batch") if options[name] is not None]
    if given:
        words = {"aggressors": "aggressor", "copies": "aggressors"}
        name = words.get(given[0], given[0]).replace("_", "-")
        raise RequestError(f"--{name} is about jobs beside each other", remedy="use --scenario shared")


def check_data(plan: Plan, devices: int) -> None:
    """Raises RequestError for a data set that is smaller than one step, or too large for a warm page cache."""
    if plan.job.dataset is None:
        return
    for job in plan.jobs:
        if job.sizes and plan.job.dataset.images < (wanted := job.sizes.batch * devices):
            raise RequestError(
                f"the data set has {plan.job.dataset.images} images, and one step of {job.model} takes {wanted}",
                remedy=f"give --batch {max(1, plan.job.dataset.images // devices)} or less, or a larger data set",
            )
    if plan.job.page_cache != "warm":
        return
    # Every block has the same instances.
    places = [place for trial in plan.trials_of(0) for place in trial.instances or [trial.job]]
    memory_bytes = min(place.envelope.memory_bytes for place in places)
    most_bytes = MOST_OF_MEMORY * memory_bytes
    if plan.job.dataset.size_bytes > most_bytes:
        raise RequestError(
            f"the data set of {plan.job.dataset.size_bytes / GIB:.2f} GiB cannot be kept in the page cache: of the "
            f"{memory_bytes / GIB:.2f} GiB of memory of an instance {most_bytes / GIB:.2f} GiB are left to it",
            remedy="use --cache cold, a smaller data set, or more --memory",
        )


def ablations_of(
    options: Options, targets: tuple[str, ...], choices: "Choices", capability: CpuCapability | None, note: Note
) -> tuple[str, ...]:
    """What is switched. A switch that was named is refused if it would switch nothing; of ``all`` it is left out."""
    from provisioning.targets import refuse_ablation
    from suite.job import ablations
    from suite.registries import ABLATIONS

    kept = []
    for name in options["ablations"]:
        try:
            ablations.check((name,), targets)
            refuse_ablation(name, choices, options["recipe"], options["scenario"])
            if ablations.properties_of(name).lower_isa:
                lower(capability)
            kept.append(name)
        except RequestError as error:
            if set(options["ablations"]) != set(ABLATIONS):
                raise
            note(f"left out: {error.message}")
    return tuple(kept)
