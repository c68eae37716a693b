"""Two machines that are reached by SSH: an sshd each on this host's loopback, with keys of the test's own.

Their login shells print a line first.
"""

import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType

from tests.integration.machine import SSHD, require_root, require_sshd, wait_for
from tests.integration.slurm_cluster import free_ports

NAMES = ("one", "two")


@contextmanager
def ssh_machines(
    place: Path, variables: str = "LANG=C", before: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> Iterator[Path]:
    """The inventory of both. ``place`` is removed at the end; ``variables`` are set for whoever enters a machine.

    ``before``: words before the command of a machine's sshd.
    """
    require_root()
    require_sshd()
    ports = dict(zip(NAMES, free_ports(len(NAMES)), strict=True))
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
            stack.enter_context(sshd(place, name, listening, before.get(name, ())))
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
