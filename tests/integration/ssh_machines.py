"""Machines that are reached by SSH, with keys of the test's own: two on this host's loopback, or a fleet in a lab."""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from provisioning.lab.lab import Lab, LabNode, open_lab
from provisioning.machines.ssh import free_port
from suite.job.lab import LabSpec
from tests.integration.machine import SSHD, require_root, require_sshd, wait_for

# Runs in the last node of a lab: hands ssh a connection (``ProxyUseFdpass``, ssh_config(5)).
WAY_IN = """\
import socket, sys
there = socket.create_connection((sys.argv[1], int(sys.argv[2])))
socket.send_fds(socket.socket(fileno=1), [b"x"], [there.fileno()])
"""
NAMES = ("one", "two")


@contextmanager
def ssh_machines(place: Path, variables: str = "LANG=C") -> Iterator[Path]:
    """Start two sshd on the loopback, whose login shells print a line first, and return the inventory of both.

    ``place`` is removed at the end; ``variables`` are set for whoever enters a machine.
    """
    require_root()
    require_sshd()
    ports = {name: free_port() for name in NAMES}
    make_keys(place, *(f"[127.0.0.1]:{port}" for port in ports.values()))
    (place / "ssh_config").write_text(f"{client_config(place)}  HostName 127.0.0.1\n  StrictHostKeyChecking yes\n")
    (place / "home").mkdir()
    (place / "home/.bashrc").write_text("echo Welcome, maintenance on Monday\n")
    inventory = place / "hosts.toml"
    inventory.write_text("".join(listed(name, f"port = {port}") for name, port in ports.items()))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        for name, port in ports.items():
            listening = {"ListenAddress": f"127.0.0.1:{port}", "SetEnv": f"HOME={place}/home {variables}"}
            stack.enter_context(sshd(place, name, listening))
        yield inventory


def make_keys(place: Path, *addresses: str) -> None:
    """Make the keys of a client and of hosts, which are known at these addresses."""
    for key in ("client_key", "host_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place / key)], check=True)
    shutil.copy(place / "client_key.pub", place / "authorized_keys")
    host_key = (place / "host_key.pub").read_text()
    (place / "known_hosts").write_text("".join(f"{address} {host_key}" for address in addresses))


def client_config(place: Path) -> str:
    """Return the end of an ssh_config, whose lines hold for every host."""
    own = f"  IdentityFile {place}/client_key\n  UserKnownHostsFile {place}/known_hosts\n"
    return f"Host *\n  User root\n  IdentitiesOnly yes\n  IdentityAgent none\n{own}"


def listed(name: str, *more: str) -> str:
    """Return the node of an inventory, which is named in the ssh_config beside it."""
    return "\n".join(("[[node]]", f'name = "{name}"', f'host = "{name}"', 'ssh_config = "ssh_config"', *more, "", ""))


@contextmanager
def sshd(place: Path, name: str, listening: Mapping[str, str], before: Sequence[str] = ()) -> Iterator[None]:
    """Run an sshd with keys of ``place``; ``before`` are words before its command."""
    lines = {
        **listening,
        "HostKey": place / "host_key",
        "AuthorizedKeysFile": place / "authorized_keys",
        "PidFile": "none",
        "StrictModes": "no",  # the test's directory lies in one that all may write to
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
    }
    config, said = place / f"sshd-{name}", place / f"log-{name}"
    config.write_text("".join(f"{key} {value}\n" for key, value in lines.items()))
    with said.open("w") as log:
        daemon = subprocess.Popen(
            [*before, str(SSHD), "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        wait_for("sshd", lambda: "Server listening" in said.read_text() or daemon.poll() is not None, said.read_text)
        assert daemon.poll() is None, said.read_text()
        yield
    finally:
        daemon.terminate()
        daemon.wait(120)


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
    """Start an sshd in each node of a lab but its last, which is the way in, by a ProxyCommand of the ssh_config.

    ``environment``: of whoever enters a machine, as ``NAME=value``.
    """
    require_root()
    require_sshd()
    with ExitStack() as stack:
        lab = stack.enter_context(open_lab(LabSpec(nodes=count + 1)))
        found = Fleet(place, lab)
        make_keys(place, *(node.address for node in found.machines))
        (place / "way_in.py").write_text(WAY_IN)
        hosts = "".join(f"Host {node.name}\n  HostName {node.address}\n" for node in found.machines)
        way_in = shlex.join(lab.nodes[-1].argv([sys.executable, "-I", str(place / "way_in.py")]))
        proxy = f"  ProxyCommand {way_in} %h %p\n  ProxyUseFdpass yes\n"
        (place / "ssh_config").write_text(f"{hosts}{client_config(place)}{proxy}")
        for node in found.machines:
            listening = {"ListenAddress": node.address, "SetEnv": environment}
            stack.enter_context(sshd(place, node.name, listening, before=node.argv([])))
        yield found
