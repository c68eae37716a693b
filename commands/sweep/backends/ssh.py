"""The engine ``ssh`` of sweeps: elements go to the machines of an inventory."""

from typing import TYPE_CHECKING

from commands.sweep.backends.remote import ELEMENT, options_of, place_of, run_pool, run_rounds, taker_of
from suite.errors import RequestError
from suite.suggest import nearest

if TYPE_CHECKING:
    from commands.sweep.backends.registry import SweepRequest
    from provisioning.batch.options import SshOptions
    from provisioning.batch.remote import RemotePlace
    from suite.inventory import InventoryNode
    from suite.records.record import TrialRecord
    from suite.sweep.model import Sweep


def run_ssh(request: "SweepRequest") -> "list[TrialRecord]":
    """Elements go to the machines of the inventory as these become free."""
    places = ssh_places(request)
    return run_rounds(request, lambda blocks: run_pool(request, places, blocks), len(places))


def ssh_places(request: "SweepRequest") -> "list[RemotePlace]":
    """The machines that the plan names. Raises RequestError."""
    from provisioning.batch.reach import ssh_wrap
    from suite.inventory import read_inventory

    options, take = ssh_options(request.sweep), taker_of(request.directory.path)
    nodes = {node.name: node for node in read_inventory(request.file.absolute().parent / options.inventory).nodes}
    if unknown := [name for name in options.nodes if name not in nodes]:
        raise RequestError(
            f"engine.nodes: {unknown[0]!r} is not in the inventory", remedy=nearest(unknown[0], [*nodes])
        )
    return [
        place_of(
            request,
            name,
            ssh_wrap(node.host, port=node.port, config=node.ssh_config),
            _far(node, options.scratch),
            take,
        )
        for name, node in nodes.items()
        if not options.nodes or name in options.nodes
    ]


def ssh_options(sweep: "Sweep") -> "SshOptions":
    """Raises RequestError."""
    from provisioning.batch.options import SshOptions

    return options_of(SshOptions, sweep)


def _far(node: "InventoryNode", scratch: str | None) -> list[str]:
    """The command of an element on the machine."""
    own = ["env", f"VIRTBENCH_HOME={node.directory}"] if "directory" in node.model_fields_set else []
    return [*own, node.bench or "bench", *ELEMENT, *(["--scratch", scratch] if scratch else [])]
