"""Machines that are reached by SSH: an sshd in each node of a lab, with keys of the test's own. The last node of the
lab has no sshd: it is the way in, by a ProxyCommand of the ssh_config.
"""

import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from provisioning.lab.lab import Lab, LabNode, open_lab
from suite.job.lab import LabSpec
from tests.integration.machine import SSHD, require_root, require_sshd

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

    @property
    def config(self) -> Path:
        return self.place / "ssh_config"

    def inventory(self, *more: str) -> Path:
        """``more``: lines for every node."""
        nodes = "".join(_node(node.name, more) for node in self.machines)
        path = self.place / "hosts.toml"
        path.write_text(nodes)
        return path


def _node(name: str, more: Sequence[str]) -> str:
    return "\n".join(("[[node]]", f'name = "{name}"', f'host = "{name}"', 'ssh_config = "ssh_config"', *more, "", ""))


@contextmanager
def fleet(place: Path, count: int = 3, environment: str = "LANG=C") -> Iterator[Fleet]:
    """``environment``: of whoever enters a machine, as ``NAME=value``."""
    require_root()
    require_sshd()
    with ExitStack() as stack:
        lab = stack.enter_context(open_lab(LabSpec(nodes=count + 1)))
        found = Fleet(place, lab)
        for key in ("client_key", "host_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place / key)], check=True)
        shutil.copy(place / "client_key.pub", place / "authorized_keys")
        host_key = (place / "host_key.pub").read_text()
        (place / "known_hosts").write_text("".join(f"{node.address} {host_key}" for node in found.machines))
        (place / "way_in.py").write_text(WAY_IN)
        found.config.write_text(_client_config(found))
        for node in found.machines:
            stack.enter_context(_sshd(found, node, environment))
        yield found


def _client_config(found: Fleet) -> str:
    hosts = "".join(f"Host {node.name}\n  HostName {node.address}\n" for node in found.machines)
    way_in = shlex.join(found.lab.nodes[-1].argv([sys.executable, "-I", str(found.place / "way_in.py")]))
    proxy = f"  ProxyCommand {way_in} %h %p\n  ProxyUseFdpass yes\n"
    own = f"  IdentityFile {found.place}/client_key\n  UserKnownHostsFile {found.place}/known_hosts\n"
    return f"{hosts}Host *\n  User root\n  IdentitiesOnly yes\n  IdentityAgent none\n{own}{proxy}"


@contextmanager
def _sshd(found: Fleet, node: LabNode, environment: str) -> Iterator[None]:
    place = found.place
    lines = {
        "ListenAddress": node.address,
        "HostKey": place / "host_key",
        "AuthorizedKeysFile": place / "authorized_keys",
        "PidFile": "none",
        "StrictModes": "no",  # the test's directory lies in one that all may write to
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
        "SetEnv": environment,
    }
    config = place / f"sshd-{node.name}"
    config.write_text("".join(f"{key} {value}\n" for key, value in lines.items()))
    with (place / f"log-{node.name}").open("w") as log:
        argv = node.argv([str(SSHD), "-D", "-e", "-f", str(config)])
        daemon = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 120
        while "Server listening" not in Path(log.name).read_text():
            assert daemon.poll() is None, Path(log.name).read_text()
            assert time.monotonic() < deadline, "sshd does not listen"
            time.sleep(0.02)
        yield
    finally:
        daemon.terminate()
        daemon.wait(120)
