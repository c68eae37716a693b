"""The sweep backend ``ssh``: blocks go to the machines of an inventory."""

from functools import partial

from commands.sweep.backends.base import Backend, SweepEnd, SweepRequest, options_of
from commands.sweep.backends.dispatch import OpenBlock
from commands.sweep.backends.rounds import BLOCK, run_on, run_rounds, stream
from provisioning.batch.options import SshOptions
from provisioning.machines.ssh import destination, ssh_argv
from suite.errors import RequestError, nearest
from suite.inventory import read_inventory


class Ssh(Backend):
    """Runs blocks on the machines of an inventory, one on each at a time."""

    options = SshOptions

    def run(self, request: SweepRequest) -> SweepEnd:
        machines = _machines(request)
        return run_rounds(request, lambda blocks: run_on(machines, request, blocks), len(machines))

    def dry_run(self, request: SweepRequest) -> None:
        request.observer.note(f"blocks go to {', '.join(_machines(request))} as these become free")


def _machines(request: SweepRequest) -> dict[str, OpenBlock]:
    """Return what starts a block on each machine that the plan names. Raises RequestError."""
    options = options_of(SshOptions, request.sweep)
    inventory = request.file.absolute().parent / options.inventory
    nodes = {node.name: node for node in read_inventory(inventory).nodes}
    for name in options.nodes:
        if name not in nodes:
            raise RequestError(f"engine.nodes: {name!r} is not in the inventory", remedy=nearest(name, [*nodes]))
    scratch = ["--scratch", options.scratch] if options.scratch else []
    machines = {}
    for name, node in nodes.items():
        if options.nodes and name not in options.nodes:
            continue
        home = []
        if "directory" in node.model_fields_set:
            home = ["env", f"VIRTBENCH_HOME={node.directory}"]
        host = destination(node.host, node.port, node.ssh_config)
        wrap = partial(ssh_argv, host)
        bench = node.bench or "bench"
        command = [*home, bench, *BLOCK, *scratch]
        machines[name] = stream(request, name, command, wrap)
    return machines
