"""An instance that can be killed with its layers, and opened again on the same machine."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from provisioning.nodes import WrappedNode
from suite.interfaces import Instance, Layer, Node, open_stack


class KilledError(Exception):
    """The instance was killed. Layers clean up as after any error: a guest, for one, is not shut down in order."""


@contextmanager
def reopenable(machine: Node, layers: Sequence[Layer]) -> Iterator[Instance]:
    """Open the layers on the machine. ``Instance.reopen`` kills them, and opens them anew."""
    with ExitStack() as opened:

        def reopen() -> Node:
            killed = KilledError()
            opened.__exit__(type(killed), killed, None)
            return opened.enter_context(open_stack(machine, layers))

        node = opened.enter_context(open_stack(machine, layers))
        yield Instance(node, reopen=reopen, resize=node.resize if isinstance(node, WrappedNode) else None)
