"""An instance that can be killed with its layers, and opened again on the same machine."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import psutil

from provisioning.cgroup.counters import ControlGroup
from provisioning.metrics.footprint import lowest_processes
from provisioning.nodes import LocalNode, WrappedNode
from provisioning.processes import carrying
from suite.interfaces import Instance, Layer, Node, open_stack


class KilledError(Exception):
    """The instance was killed. Layers clean up as after any error: a guest, for one, is not shut down in order."""


@contextmanager
def reopenable(machine: Node, layers: Sequence[Layer]) -> Iterator[Instance]:
    """Open the layers on the machine. ``Instance.reopen`` kills them, and opens them anew."""
    with ExitStack() as opened:
        node = opened.enter_context(open_stack(machine, layers))

        def reopen() -> Node:
            nonlocal node
            killed = KilledError()
            opened.__exit__(type(killed), killed, None)
            node = opened.enter_context(open_stack(machine, layers))
            return node

        resize = node.resize if isinstance(node, WrappedNode) else None
        yield Instance(node, reopen=reopen, kill=lambda: _kill(node), resize=resize)


def _kill(node: Node) -> None:
    """Kill a container's first process, with which the kernel ends its namespace, or the hypervisor of a guest."""
    lowest, bottom = lowest_processes(node)
    with suppress(OSError, psutil.Error):
        if lowest is None and isinstance(bottom, LocalNode):
            for process in carrying(bottom.token):
                if process.name().startswith("qemu"):
                    process.kill()
        elif lowest and lowest.main_pid and ControlGroup.of_process(lowest.main_pid) == lowest.group:
            os.kill(lowest.main_pid, signal.SIGKILL)
