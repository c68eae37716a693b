"""A machine of the inventory as a node."""

import base64
import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO

from provisioning.machines.ssh import SSH_FAILED
from provisioning.nodes import LocalNode, NodeState, local_node
from provisioning.remote.connection import ANSWERED_WITHIN_S, PRINTED_LINES, Access, RemoteAgent, marked, root_mark
from suite.errors import CommandError, MeasurementError, RequestError
from suite.interfaces import COMMAND_WITHIN_S, Completed, Process, Stopwatch
from suite.inventory import InventoryNode
from suite.job.envelope import format_cpu_list, lacking_cpus, parse_cpu_list, parse_kernel_cpus

QUICK_BYTES = 1 << 16
"""A command that is given more, or may last longer than short ones do, goes through a session of its own."""


@dataclass
class Machine(NodeState):
    """See ``suite.interfaces.Node``. ``carrier`` is this machine, on which its ssh clients run."""

    name: str
    planned: InventoryNode
    carrier: LocalNode
    access: Access
    agent: RemoteAgent
    cpus: tuple[int, ...]
    memory_bytes: int
    userland: str | None = None
    offline: tuple[int, ...] = ()
    isolated: tuple[int, ...] = ()
    python: tuple[str, str] = ("python3", "")
    local: bool = False
    opening: Stopwatch = field(default_factory=Stopwatch)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = COMMAND_WITHIN_S,
        check: bool = True,
    ) -> Completed:
        quick = timeout_s <= COMMAND_WITHIN_S and len(stdin) <= QUICK_BYTES
        completed = (self._quickly if quick else self._through_ssh)(argv, stdin, timeout_s)
        if check and completed.returncode:
            output = completed.stderr or completed.stdout or "no output"
            raise CommandError(argv, completed.returncode, f"{self.name}: {output}")
        return completed

    def _quickly(self, argv: Sequence[str], stdin: bytes, timeout_s: float) -> Completed:
        """Run it by the agent, without a client and a session of its own. The agent hears nothing else meanwhile."""
        content = base64.b64encode(stdin).decode()
        options = {"stdin": content, "mark": self._mark(), "timeout_s": timeout_s}
        within_s = timeout_s + ANSWERED_WITHIN_S
        answer = self.agent.ask(do="run", argv=list(argv), within_s=within_s, **options)
        if answer["returncode"] is None:
            raise CommandError(argv, None, f"{self.name}: {answer['stderr']}")
        return Completed(answer["returncode"], answer["stdout"], answer["stderr"])

    def _through_ssh(self, argv: Sequence[str], stdin: bytes, timeout_s: float) -> Completed:
        mark, words = self._words(argv)
        try:
            completed = self.carrier.run(words, stdin=stdin, timeout_s=timeout_s, check=False)
        except CommandError as error:
            self.agent.ask(do="end", mark=mark)
            raise CommandError(argv, None, f"{self.name}: {error.output_tail}") from None
        if completed.returncode == SSH_FAILED:
            self.agent.ask(do="clock")  # says why, when it is the connection
        before, announcement, stdout = completed.stdout.partition(f"{mark}\n")
        if not announcement:
            raise CommandError(argv, completed.returncode, f"{self.name}: {completed.stderr or before}")
        return Completed(completed.returncode, stdout, completed.stderr)

    def start(self, argv: Sequence[str], *, stdin: bytes | IO[bytes] = b"") -> Process:
        mark, words = self._words(argv)
        process = self.carrier.start(words, stdin=stdin)
        return RemoteProcess(process, self.agent, mark)

    def undone_when_lost(self, argv: Sequence[str]) -> AbstractContextManager[None]:
        """See ``nodes.undone_when_lost``."""
        return self.agent.undone_when_lost(argv)

    def _words(self, argv: Sequence[str]) -> tuple[str, list[str]]:
        mark = self._mark()
        return mark, self.access.argv(marked(mark, argv))

    def _mark(self) -> str:
        return f"{root_mark(self.carrier.token)}.{next(self._numbers)}"


@dataclass
class RemoteProcess:
    """A command on a machine. See ``suite.interfaces.Process``; what is heard of it comes through its ssh client."""

    client: Process
    agent: RemoteAgent
    mark: str
    _begun: bool = False
    _printed: deque[str] = field(default_factory=lambda: deque(maxlen=PRINTED_LINES))

    def lines(self, timeout_s: float) -> Iterator[str]:
        for line in self.client.lines(timeout_s):
            if self._begun:
                yield line
            else:
                self._begun = line.endswith(self.mark)
                self._printed.append(line.removesuffix(self.mark))

    def wait(self, timeout_s: float) -> int:
        return self.client.wait(timeout_s)

    def running(self) -> bool:
        return self.client.running()

    def kill(self) -> None:
        """Kill the client here and the command there, which outlives it. Without a connection the agent ends it."""
        if self.client.running():
            self.client.kill()
        with suppress(MeasurementError):
            self.agent.ask(do="end", mark=self.mark)

    def output_tail(self) -> str:
        return self.client.output_tail() or ("" if self._begun else "\n".join(self._printed))


def _chosen_cpus(
    planned: InventoryNode, allowed: Sequence[int], states: Mapping[str, Sequence[int]]
) -> tuple[int, ...]:
    """Return the CPUs that the inventory names, or all that the machine allows. Raises RequestError for others."""
    if not planned.cpus:
        return tuple(allowed)
    cpus = parse_cpu_list(planned.cpus)
    missing = set(cpus) - set(allowed)
    if missing:
        message = f"node {planned.name}: cpus = {planned.cpus!r}, and it allows {lacking_cpus(missing, states)}"
        raise RequestError(message, remedy=f"choose among {format_cpu_list(allowed)}")
    return cpus


@contextmanager
def machine(planned: InventoryNode, userland: str | None = None) -> Iterator[Machine]:
    """Connect to the machine; at the end nothing of the suite is left there, and no connection here.

    Raises MeasurementError of kind ``connection``.
    """
    with local_node((), None) as carrier:
        access = Access(planned, f"{carrier.directory}/ssh")
        agent = RemoteAgent(access, carrier)
        try:
            greeting = agent.greeting
            states = {state: parse_kernel_cpus(text) for state, text in greeting["cpu_states"].items()}
            cpus = _chosen_cpus(planned, greeting["cpus"], states)
            if greeting["uid"]:
                raise RequestError(
                    f"{planned.name} ({planned.host}) is entered as user {greeting['uid']}: control groups and "
                    "containers under them need root there",
                    remedy=f"write root@ before the host, or User root in the ssh_config: {access.by_hand} id -u",
                )
            facts = {
                "machine": planned.name,
                "machine_key": greeting["machine_key"],
                "accelerator": "none",
                "host_cpus": list(cpus),
            }
            memory_bytes = int(greeting["memory_bytes"])
            yield Machine(
                planned.name,
                planned,
                carrier,
                access,
                agent,
                cpus,
                memory_bytes,
                userland,
                offline=states["offline"],
                isolated=states["isolated"],
                facts=facts,
            )
        except BaseException:
            with suppress(MeasurementError):  # the first error says why
                agent.close()
            raise
        agent.close()
