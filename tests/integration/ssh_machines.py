"""Two machines that are reached by SSH: an sshd each on this host's loopback, with keys of the test's own.

Their login shells print a line first.
"""

import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType

from tests.integration.machine import SSHD, require_root, require_sshd
from tests.integration.slurm_cluster import free_ports, wait_for

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
    for key in ("client_key", "host_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place / key)], check=True)
    shutil.copy(place / "client_key.pub", place / "authorized_keys")
    ports = dict(zip(NAMES, free_ports(len(NAMES)), strict=True))
    host_key = (place / "host_key.pub").read_text()
    (place / "known_hosts").write_text("".join(f"[127.0.0.1]:{port} {host_key}" for port in ports.values()))
    (place / "ssh_config").write_text(
        f"Host *\n  HostName 127.0.0.1\n  User root\n  IdentitiesOnly yes\n  IdentityAgent none\n"
        f"  IdentityFile {place}/client_key\n  UserKnownHostsFile {place}/known_hosts\n  StrictHostKeyChecking yes\n"
    )
    (place / "home").mkdir()
    (place / "home/.bashrc").write_text("echo Welcome, maintenance on Monday\n")
    inventory = place / "hosts.toml"
    inventory.write_text("".join(_node(name, port) for name, port in ports.items()))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        for name, port in ports.items():
            stack.enter_context(_sshd(place, name, port, variables, before.get(name, ())))
        yield inventory


def _node(name: str, port: int) -> str:
    own = [f'name = "{name}"', f'host = "{name}"', f"port = {port}", 'ssh_config = "ssh_config"']
    return "\n".join(["[[node]]", *own, "", ""])


@contextmanager
def _sshd(place: Path, name: str, port: int, variables: str, before: Sequence[str]) -> Iterator[None]:
    lines = {
        "ListenAddress": "127.0.0.1",
        "Port": port,
        "HostKey": place / "host_key",
        "AuthorizedKeysFile": place / "authorized_keys",
        "PidFile": "none",
        "StrictModes": "no",  # the test's directory lies in one that all may write to
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
        "SetEnv": f"HOME={place}/home {variables}",
    }
    config, said = place / f"sshd-{name}", place / f"sshd-{name}.log"
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
