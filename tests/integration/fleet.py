"""Machines that are reached by SSH: an sshd in each node of a lab, with keys of the test's own. The last node of the
lab has no sshd: it is the way in, by a ProxyCommand of the ssh_config.
"""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from provisioning.lab.lab import Lab, LabNode, open_lab
from suite.job.lab import LabSpec
from tests.integration.machine import require_root, require_sshd
from tests.integration.ssh_machines import client_config, listed, make_keys, sshd

# Runs in the last node: hands ssh a connection (``ProxyUseFdpass``, ssh_config(5)).
WAY_IN = """\
import socket, sys
there = socket.create_connection((sys.argv[1], int(sys.argv[2])))
socket.send_fds(socket.socket(fileno=1), [b"x"], [there.fileno()])
"""


@dataclass(frozen=True)
class Fleet:
    """``inventory`` lists the machines; its ssh_config lies beside it."""

    place: Path
    lab: Lab

    @property
    def machines(self) -> Sequence[LabNode]:
        return self.lab.nodes[:-1]

    def inventory(self, *more: str) -> Path:
        """``more``: lines for every node."""
        path = self.place / "hosts.toml"
        path.write_text("".join(listed(node.name, *more) for node in self.machines))
        return path


@contextmanager
def fleet(place: Path, count: int = 3, environment: str = "LANG=C") -> Iterator[Fleet]:
    """``environment``: of whoever enters a machine, as ``NAME=value``."""
    require_root()
    require_sshd()
    with ExitStack() as stack:
        lab = stack.enter_context(open_lab(LabSpec(nodes=count + 1)))
        found = Fleet(place, lab)
        make_keys(place, *(node.address for node in found.machines))
        (place / "way_in.py").write_text(WAY_IN)
        (place / "ssh_config").write_text(_client_config(found))
        for node in found.machines:
            listening = {"ListenAddress": node.address, "SetEnv": environment}
            stack.enter_context(sshd(place, node.name, listening, before=node.argv([])))
        yield found


def _client_config(found: Fleet) -> str:
    hosts = "".join(f"Host {node.name}\n  HostName {node.address}\n" for node in found.machines)
    way_in = shlex.join(found.lab.nodes[-1].argv([sys.executable, "-I", str(found.place / "way_in.py")]))
    return f"{hosts}{client_config(found.place)}  ProxyCommand {way_in} %h %p\n  ProxyUseFdpass yes\n"
