"""From the options of a run of jobs that share the machine to its plan; refusals show the arithmetic."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from suite.errors import RequestError
from suite.job.distributed import cpus_are_shared
from suite.job.envelope import GIB, Envelope
from suite.job.profiles import Profile, Sizes, check_image
from suite.job.sharing import Sharing, architecture, victim_workload
from suite.registries import WORKLOADS

LEAST_INSTANCE_BYTES = 640 << 20
"""As of a rank: a worker with torch in it takes some 450 MiB, and a guest's kernel has its share."""


def sharing_of(options: Mapping[str, Any], profile: Profile) -> Sharing | None:
    """None for other scenarios."""
    if options["scenario"] != "shared":
        return None
    batch = {"batch": options["aggressor_batch"]} if options["aggressor_batch"] else {}
    trained = [name for name in options["aggressors"] if name in WORKLOADS]
    return Sharing(
        aggressors=options["aggressors"],
        copies=options["copies"] or 1,
        bare_metal_cpus=options["bare_metal_cpus"],
        workloads={name: profile.sizes_of(name).model_copy(update=batch) for name in trained},
    )


def victims(profile: Profile, names: Sequence[str], changed: Mapping[str, int]) -> dict[str, Sizes]:
    """The victims' workloads with some of their numbers replaced. Raises RequestError on one that cannot be."""
    found = {}
    for name in names:
        found[name] = victim_workload(profile, name).model_copy(update=dict(changed))
        check_image(architecture(name), found[name], called=name)
    return found


def check_shares(sharing: Sharing, envelope: Envelope, targets: Sequence[str], note: Callable[[str], None]) -> None:
    """Raises RequestError, with the arithmetic, where the machine is too small for so many instances."""
    count = 1 + sharing.copies
    share = envelope.memory_bytes // count
    if share < LEAST_INSTANCE_BYTES:
        raise RequestError(
            f"a victim and {sharing.copies} aggressors share {envelope.memory_bytes / GIB:.1f} GiB: "
            f"{share / GIB:.2f} GiB each, and each needs {LEAST_INSTANCE_BYTES / GIB:.2f} GiB",
            remedy="give more with --memory, or ask for fewer --aggressors",
        )
    if not cpus_are_shared(envelope, count):
        return
    have = f"{count} instances on {len(envelope.cpus)} CPU{'s' if len(envelope.cpus) > 1 else ''}"
    if set(targets) == {"bare-metal"} and sharing.bare_metal_cpus == "unrestricted":
        note(f"{have}: bare metal shares them as its operating system likes")
        return
    raise RequestError(
        f"{have}: there is {len(envelope.cpus) / count:.2f} of a CPU for each, and each needs one of its own",
        remedy=f"give --cpus {count} or more where the host has them, ask for fewer --aggressors, or measure "
        "--target bare-metal alone with --bare-metal-cpus unrestricted",
    )
