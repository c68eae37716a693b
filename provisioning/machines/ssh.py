"""The arguments of SSH; and SSH to a guest, with keys and known hosts in a private directory for this run alone."""

import os
import re
import shlex
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath

from provisioning.artefacts import workshop
from provisioning.nodes import local_node, write_file
from provisioning.paths import runtime
from suite.interfaces import Node

SSHD_CONFIG = """\
Port 22
HostKey /run/virtbench/ssh/host_key
AuthorizedKeysFile /run/virtbench/ssh/authorized_keys
PidFile /run/sshd.pid
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
X11Forwarding no
AllowTcpForwarding no
PrintMotd no
PrintLastLog no
LogLevel ERROR
MaxSessions 100
SetEnv SHLVL=1
"""
"""SHLVL keeps bash from reading ~/.bashrc, whose output would come before a command's; containers do not read it."""
ALWAYS = {
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "ConnectTimeout": "20",
    "ServerAliveInterval": "15",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ClearAllForwardings": "yes",
    "PermitLocalCommand": "no",
    "RemoteCommand": "none",
    "RequestTTY": "no",
    "LogLevel": "ERROR",
}
"""Settings for the user's machines, whatever the user's ssh_config has for a terminal: nobody is asked for anything,
and a host key is known already."""
SSH_FAILED = 255
"""The exit status of ssh itself; any other is that of a command on the far side."""
ELSEWHERE = "/run/virtbench"
"""The parent directory on other machines; short, because the path of a socket has at most 108 bytes."""


@dataclass(frozen=True)
class SshAccess:
    """The way into a guest. ``directory`` holds the client's key, the known host and the connection's socket."""

    directory: str
    port: int

    def argv(self, *options: str) -> list[str]:
        """Return the ssh command with nothing of this host's own configuration: the guest is nobody else's."""
        settings = {
            "ControlMaster": "auto",
            "ControlPersist": "yes",
            "ControlPath": f"{self.directory}/ssh",
            "UserKnownHostsFile": f"{self.directory}/known_hosts",
            "GlobalKnownHostsFile": "none",
            "StrictHostKeyChecking": "yes",
            "HostKeyAlias": "guest",
            "IdentityFile": f"{self.directory}/client_key",
            "IdentitiesOnly": "yes",
            "BatchMode": "yes",
            "LogLevel": "ERROR",
            "ConnectTimeout": "60",
        }
        words = option_words(settings)
        return ["ssh", "-F", "none", *words, "-p", str(self.port), *options, "root@127.0.0.1"]

    def wrap(self, argv: Sequence[str]) -> list[str]:
        # SSH hands the far side one string for its shell: each word is quoted for that.
        return [*self.argv("-T"), "--", shlex.join(argv)]


def option_words(settings: Mapping[str, str]) -> list[str]:
    """Return settings of ssh_config(5) as options, which take precedence over those of any file."""
    return [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]


def destination(host: str, port: int | None = None, config: Path | None = None) -> list[str]:
    """Return the words behind ``ssh`` that name one of the user's machines."""
    return [*(["-F", str(config)] if config else []), *(["-p", str(port)] if port else []), host]


def ssh_argv(way: Sequence[str], argv: Sequence[str], **settings: str) -> list[str]:
    """Return the command that runs a command on one of the user's machines, whose ``destination`` is ``way``."""
    words = option_words(ALWAYS | settings)
    return ["ssh", *words, "-T", *way[:-1], "--", way[-1], for_any_shell(argv)]


def for_any_shell(argv: Sequence[str]) -> str:
    """Return a command as every login shell reads it, be it sh, csh or fish. The shell gives way to the command.

    Characters that these shells read differently within quotes are sent as numbers, and sh turns them back.
    """
    text = f"exec {shlex.join(argv)}"
    if not re.search(r"[^ -~]|[!\\]", text):
        return text
    numbers = re.sub(
        r"[^\w@%+=:,./ -]",
        lambda sign: "".join(f"\\0{byte:03o}" for byte in os.fsencode(sign[0])),
        text,
        flags=re.ASCII,
    )
    return f"""exec sh -c 'eval "$(printf %b "$1")"' sh '{numbers}'"""


def make_keys(node: Node, directory: str) -> None:
    """Make a key for the client and one for the guest, and make the guest's known."""
    for name in ("client_key", "host_key"):
        node.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "virtbench", "-f", f"{directory}/{name}"])
    public = Path(f"{directory}/host_key.pub").read_text()
    Path(f"{directory}/known_hosts").write_text(f"guest {public}")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def connection(node: Node, access: SshAccess, timeout_s: float) -> Iterator[None]:
    """Open one connection for all commands: a handshake takes a second where the guest's CPU is emulated."""
    node.run(access.wrap(["true"]), timeout_s=timeout_s)  # leaves the connection open behind it (ControlPersist)
    try:
        yield
    finally:
        node.run(access.argv("-O", "exit"), check=False, timeout_s=60.0)


@contextmanager
def private_directory(node: Node) -> Iterator[PurePath]:
    """Make the directory; at the end nothing of it is left."""
    parent = str(runtime()) if node.local else ELSEWHERE
    if not node.local:
        node.run(["mkdir", "-p", "-m", "700", "--", parent])
    with workshop(node, parent, "vm") as directory:
        yield PurePath(directory)


@contextmanager
def written_here(node: Node, directory: PurePath) -> Iterator[tuple[Node, Path]]:
    """Write files on this machine that are to be in ``directory`` of ``node``.

    Yields a node of this machine and the place for the files; they are copied at the end.
    """
    if node.local:
        yield node, Path(directory)
        return
    with local_node((), None) as machine:
        files = Path(machine.directory) / "files"
        files.mkdir(mode=0o700)
        yield machine, files
        for path in sorted(files.iterdir()):
            if path.is_file():
                write_file(node, f"{directory}/{path.name}", path.read_bytes())
                node.run(["chmod", "600", "--", f"{directory}/{path.name}"])
