"""Jobs that share a machine, as a request asks for them."""

from collections.abc import Callable, Mapping, Sequence

from commands.run.distributed import LEAST_INSTANCE_BYTES
from scenarios.members import source_sha256
from suite.errors import RequestError, option
from suite.job.distributed import cpus_are_shared
from suite.job.envelope import GIB, Envelope
from suite.job.profiles import Profile, Sizes, check_image
from suite.job.sharing import Sharing, architecture, victim_workload
from suite.registries import AGGRESSORS, WORKLOADS
from suite.request.request import RunRequest


def sharing_of(request: RunRequest, profile: Profile) -> Sharing | None:
    """Return what runs beside the victim; None for other scenarios."""
    if request.scenario != "shared":
        return None
    asked = request.shared
    batch = {"batch": asked.aggressor_batch} if asked.aggressor_batch else {}
    trained = [name for name in asked.aggressor if name in WORKLOADS]
    return Sharing(
        aggressors=asked.aggressor,
        copies=asked.aggressors or 1,
        bare_metal_cpus=asked.bare_metal_cpus,
        workloads={name: profile.sizes_of(name).model_copy(update=batch) for name in trained},
        sources={name: digest for name in asked.aggressor if (digest := _source_of(name))},
    )


def _source_of(aggressor: str) -> str | None:
    return source_sha256(WORKLOADS if aggressor in WORKLOADS else AGGRESSORS, aggressor)


def victims(profile: Profile, names: Sequence[str], changed: Mapping[str, int]) -> dict[str, Sizes]:
    """Return the victims' sizes with some of their numbers replaced. Raises RequestError for one that cannot be."""
    found = {}
    for name in names:
        found[name] = victim_workload(profile, name).model_copy(update=dict(changed))
        check_image(architecture(name), found[name], called=name)
    return found


def check_shares(sharing: Sharing, envelope: Envelope, targets: Sequence[str], note: Callable[[str], None]) -> None:
    """Raise RequestError, with the arithmetic, where the machine is too small for so many instances."""
    count = 1 + sharing.copies
    share = envelope.memory_bytes // count
    if share < LEAST_INSTANCE_BYTES:
        raise RequestError(
            f"a victim and {sharing.copies} aggressors share {envelope.memory_bytes / GIB:.1f} GiB: "
            f"{share / GIB:.2f} GiB each, and each needs {LEAST_INSTANCE_BYTES / GIB:.2f} GiB",
            remedy=f"give more with {option('memory')}, or ask for fewer {option('aggressors')}",
        )
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
