"""One connection to a machine of the inventory: OpenSSH's, as the user has configured it.

A login shell may print lines before any command runs. They are skipped up to the first line that the command is known
by, and shown as the cause if that line does not come.
"""

import itertools
import json
import os
import secrets
import shlex
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from provisioning.machines.ssh import destination, ssh_argv
from provisioning.nodes import LocalNode
from provisioning.processes import TOKEN, program_argv
from provisioning.remote import agent
from suite.errors import CommandError, MeasurementError
from suite.inventory import InventoryNode
from suite.untrusted.parse import parse_object

CONNECTED_WITHIN_S = 60.0
ANSWERED_WITHIN_S = 60.0
UNDONE_WITHIN_S = 180.0
CLOCK_ROUNDS = 5
PRINTED_LINES = 20
"""The last lines of a login shell that are kept."""
REMEDIES = {
    "Please login as": "let root log in there: disable_root: false for cloud-init, or root's authorized_keys",
    "Host key verification failed": "connect once by hand, and compare its key: {ssh}",
    # The key was taken then: what is left of sshd's AuthenticationMethods is asked of a person.
    "Permission denied (keyboard-interactive": "ssh asks for a second factor, which no program can answer: let the key "
    "alone suffice from this machine (AuthenticationMethods in a Match block of its sshd_config), or run bench on it",
    "Permission denied": "give ssh a key that needs no asking (an agent's, or an IdentityFile): {ssh} true",
    "Could not resolve": "write a name that is known here, or an alias of the ssh_config",
    "or newer is needed": "install a newer Python there, as the python3 of the user that ssh enters",
    "python3": "install python3 on it",
}


@dataclass(frozen=True)
class Access:
    """The way to a machine. ``socket`` is the shared connection's."""

    planned: InventoryNode
    socket: str

    def argv(self, remote: Sequence[str], *, shared: bool = True) -> list[str]:
        """Return the ssh command for the far side; ``shared`` goes through the open connection, and never beside it."""
        mode = {"ControlMaster": "no", "ProxyCommand": "false"} if shared else {"ControlMaster": "yes"}
        return ssh_argv(self.way, remote, **mode, ControlPath=self.socket, ControlPersist="no")

    @property
    def by_hand(self) -> str:
        """The command with which a user connects as the suite does."""
        return shlex.join(["ssh", *self.way])

    @property
    def way(self) -> list[str]:
        return destination(self.planned.host, self.planned.port, self.planned.ssh_config)


class RemoteAgent:
    """The near side of ``agent``, whose ssh is the shared connection.

    Its standard input is a pipe that this process alone holds: it ends with this process, however that ends.
    """

    def __init__(self, access: Access, node: LocalNode) -> None:
        self._access = access
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._printed = deque[str](maxlen=PRINTED_LINES)
        words = program_argv(agent, root_mark(node.token))
        reading, self._writing = os.pipe()
        try:
            argv = access.argv(words, shared=False)
            self._process = node.start(argv, stdin=os.fdopen(reading, "rb"))
            self.greeting = self._answer(agent.GREETING, CONNECTED_WITHIN_S)
            self._printed.clear()
        except BaseException:
            os.close(self._writing)
            raise

    def ask(self, *, within_s: float = ANSWERED_WITHIN_S, **request: object) -> dict[str, Any]:
        """Return the agent's answer. Raises MeasurementError of kind ``connection`` if none comes."""
        with self._lock:
            number = next(self._numbers)
            line = json.dumps({**request, "number": number}).encode() + b"\n"
            try:
                while line:
                    line = line[os.write(self._writing, line) :]
            except OSError:
                raise self.lost() from None
            return self._answer(number, within_s)

    @contextmanager
    def undone_when_lost(self, argv: Sequence[str]) -> Iterator[None]:
        """Make the machine run the command by itself if the connection ends before this context does."""
        key = secrets.token_hex(8)
        self.ask(do="keep", key=key, argv=list(argv))
        yield
        self.ask(do="drop", key=key)

    def clock_offset_s(self) -> float:
        """Return how many seconds its time of day is ahead of this machine's, from the quickest round."""
        rounds = []
        for _ in range(CLOCK_ROUNDS):
            begun_s = time.time()
            began = time.monotonic()
            at_s = float(self.ask(do="clock")["at_s"])
            took_s = time.monotonic() - began
            rounds.append((took_s, at_s - begun_s - took_s / 2))
        return min(rounds)[1]

    def close(self) -> None:
        """Let the machine end and undo what is left. Raises MeasurementError when something stays."""
        os.close(self._writing)
        failures = self._answer(agent.FAREWELL, UNDONE_WITHIN_S).get("left")
        if failures:
            raise MeasurementError(
                f"{self._access.planned.name}: cleanup failed: {'; '.join(failures)[:500]}",
                kind="cleanup",
                remedy=f"see why, and remove it there: {self._access.by_hand}",
            )

    def _answer(self, number: int, within_s: float) -> dict[str, Any]:
        """Return the answer with this number; earlier ones are left over from a caller that was interrupted."""
        try:
            for line in self._process.lines(within_s):
                before, begin, rest = line.partition(agent.BEGIN)
                message = parse_object(begin + rest) if begin else {}
                self._printed.append(before)
                if message.get("number") == number:
                    return message
        except (CommandError, ValueError):
            pass
        raise self.lost()

    def lost(self) -> MeasurementError:
        """Return the error that says why there is no connection, in ssh's own words."""
        planned = self._access.planned
        output = self._process.output_tail() or "\n".join(self._printed)
        last = (output.strip().splitlines() or ["it does not answer"])[-1]
        advice = (text for word, text in REMEDIES.items() if word in output)
        remedy = next(advice, "see whether this works: {ssh}")
        return MeasurementError(
            f"no connection to {planned.name} ({planned.host}): {last[:300]}",
            kind="connection",
            output_tail=output,
            remedy=remedy.format(ssh=self._access.by_hand),
        )


def root_mark(token: str) -> str:
    """Return the mark of all that is started on the far side, which is not the token: both sides may be one machine."""
    return f"{token}.far"


def marked(mark: str, argv: Sequence[str]) -> list[str]:
    """Return the command as the machine is to start it: found by the mark, and killed when the connection ends.

    The mark is its first line of output, behind those of a login shell.
    """
    announced = ["sh", "-c", 'umask 022; echo "$0"; exec "$@"', mark]
    return [*announced, "env", "LC_ALL=C", f"{TOKEN}={mark}", "setpriv", "--pdeathsig", "KILL", *argv]
