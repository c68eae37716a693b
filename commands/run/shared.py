"""Jobs that share a machine, as a request asks for them."""

from collections.abc import Callable, Sequence

from scenarios.members import source_sha256
from suite.errors import RequestError, option
from suite.job.distributed import check_memory, cpus_are_shared
from suite.job.envelope import Envelope
from suite.job.profiles import Profile
from suite.job.sharing import Sharing
from suite.registries import AGGRESSORS, WORKLOADS
from suite.request.request import RunRequest


def sharing_of(request: RunRequest, profile: Profile) -> Sharing | None:
    """Return what runs beside the victim; None for other scenarios."""
    if request.scenario != "shared":
        return None
    asked = request.shared
    batch = {"batch": asked.aggressor_batch} if asked.aggressor_batch else {}
    trained = [name for name in asked.aggressor if name in WORKLOADS]
    sources = {name: source_sha256(WORKLOADS if name in trained else AGGRESSORS, name) for name in asked.aggressor}
    return Sharing(
        aggressors=asked.aggressor,
        copies=asked.aggressors or 1,
        bare_metal_cpus=asked.bare_metal_cpus,
        workloads={name: profile.sizes_of(name).model_copy(update=batch) for name in trained},
        sources={name: digest for name, digest in sources.items() if digest},
    )


def check_shares(sharing: Sharing, envelope: Envelope, targets: Sequence[str], note: Callable[[str], None]) -> None:
    """Raise RequestError, with the arithmetic, where the machine is too small for so many instances."""
    count = 1 + sharing.copies
    check_memory(envelope, count, who=f"a victim and {sharing.copies} aggressors", fewer="aggressors")
    if not cpus_are_shared(envelope, count):
        return
    have = f"{count} instances on {len(envelope.cpus)} CPU{'s' if len(envelope.cpus) > 1 else ''}"
    if set(targets) == {"bare-metal"} and sharing.bare_metal_cpus == "unrestricted":
        note(f"{have}: bare metal shares them as its operating system likes")
        return
    raise RequestError(
        f"{have}: there is {len(envelope.cpus) / count:.2f} of a CPU for each, and each needs one of its own",
        remedy=f"give {option('cpus')} {count} or more where the host has them, ask for fewer {option('aggressors')}, "
        f"or measure {option('target')} bare-metal alone with {option('bare_metal_cpus')} unrestricted",
    )
