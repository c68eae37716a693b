"""The sweep backend ``ssh``: blocks go to the machines of an inventory."""

from commands.sweep.backends.base import Backend, SweepEnd, SweepRequest, options_of
from commands.sweep.backends.remote import BLOCK, executor_of, run_on
from commands.sweep.backends.rounds import run_rounds
from provisioning.batch.options import SshOptions
from provisioning.batch.remote import RemoteExecutor, ssh_wrap
from suite.errors import RequestError, nearest
from suite.inventory import read_inventory
from suite.sweep.receiving import Receiver


class Ssh(Backend):
    """Runs blocks on the machines of an inventory, one on each at a time."""

    options = SshOptions

    def run(self, request: SweepRequest) -> SweepEnd:
        executors = _executors(request)
        return run_rounds(request, lambda blocks: run_on(executors, request, blocks), len(executors))

    def dry_run(self, request: SweepRequest) -> None:
        names = ", ".join(executor.name for executor in _executors(request))
        request.observer.note(f"blocks go to {names} as these become free")


def _executors(request: SweepRequest) -> list[RemoteExecutor]:
    """Return the machines that the plan names. Raises RequestError."""
    options, receive = options_of(SshOptions, request.sweep), Receiver(request.sweep, request.directory)
    nodes = {node.name: node for node in read_inventory(request.file.absolute().parent / options.inventory).nodes}
    if unknown := [name for name in options.nodes if name not in nodes]:
        raise RequestError(
            f"engine.nodes: {unknown[0]!r} is not in the inventory", remedy=nearest(unknown[0], [*nodes])
        )
    scratch = ["--scratch", options.scratch] if options.scratch else []
    executors = []
    for name, node in nodes.items():
        if not options.nodes or name in options.nodes:
            home = ["env", f"VIRTBENCH_HOME={node.directory}"] if "directory" in node.model_fields_set else []
            wrap = ssh_wrap(node.host, port=node.port, config=node.ssh_config)
            command = [*home, node.bench or "bench", *BLOCK, *scratch]
            executors.append(executor_of(request, name, wrap, command, receive))
    return executors
