"""Hire machines: each is in the ledger before it is made, and all are removed unless every one answers by SSH."""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from provisioning import ledger
from provisioning.clouds import base
from provisioning.clouds.base import Cloud, CloudError, CloudOptions, Hired, Making, refusals
from provisioning.machines.ssh import SSH_FAILED, destination, ssh_argv
from provisioning.processes import run_apart
from suite.errors import CommandError, RequestError, flag
from suite.interruption import uninterrupted
from suite.inventory import read_inventory
from suite.part import first_problem
from suite.registries import CLOUDS
from suite.results.store import write_atomic, write_output
from suite.units import format_duration, parse_duration_s
from suite.untrusted.terminal import keep_secret, without_secrets

SSH_WITHIN_S = 30.0
ANSWERED = ("Permission denied", "Host key verification failed")
"""Words of ssh that only an sshd can cause."""
INVENTORY = "hosts.toml"
PARTS = {
    "asked": "see whether the cloud answers",
    "scheduled": "see whether the cloud has room, or allow more time with --within",
    "built": "see what the cloud is waiting for, or allow more time with --within",
    "booted": "see whether this machine may reach its port 22 (security groups, routes), and the image starts sshd",
    "reachable": "see whether ssh here has the private key, root may log in, and the image reads its config drive",
}
"""The parts of the time until a machine is ready, by the next step if one takes too long: the request, the choice of a
host or node, the cloud's own work, sshd's first answer, and a login."""


class _Course:
    """One machine on its way: the part that runs now, and the seconds of those that have ended."""

    def __init__(self, name: str, making: Making, note: Callable[[str], object]) -> None:
        self.name = name
        self.address = ""
        self.part = "asked"
        self.state = ""
        self.ready_s: dict[str, float] = {}
        self._making = making
        self._note = note
        self._since_s = 0.0

    def step(self) -> bool:
        """Go on as far as that needs no waiting; return whether the machine is ready."""
        self._since_s = self._since_s or time.monotonic()
        try:
            part, self.state = next(self._making)
        except StopIteration as end:
            part = ""
            self.address = str(end.value)
        if part != self.part:
            took_s = time.monotonic() - self._since_s
            self._note(f"{self.name}: {self.part} {took_s:.1f} s")
            before_s = self.ready_s.get(self.part, 0.0)
            self.ready_s[self.part] = before_s + took_s
            self.part = part
            self._since_s = self._since_s + took_s
        return not part

    def node(self, **keys: object) -> str:
        keys = {
            "name": self.name,
            "host": f"root@{self.address}",
            "ssh_config": "ssh_config",
            **keys,
        }
        lines = (f"{key} = {json.dumps(value)}" for key, value in keys.items())
        return "\n".join(["[[node]]", *lines, ""])


@dataclass(frozen=True)
class MachineOrder:
    source: str
    cloud: str
    """Its name in clouds.yaml."""
    options: CloudOptions
    within_s: float
    """The limit until all are ready, or else removed."""

    @classmethod
    def of(
        cls,
        asked: str,
        source: str,
        cloud: str,
        within: str | None,
        given: Mapping[str, object],
    ) -> "MachineOrder":
        """Return the order with these options of the cloud. Raises RequestError, by the option that ``asked``."""
        remedy = f"bench machines up --from {source} --help describes it"
        model = CLOUDS.get(source).options
        foreign = sorted(given.keys() - model.model_fields.keys())
        if foreign:
            raise RequestError(f"{flag(foreign[0])} does not apply to {asked}", remedy="leave it out")
        fields = model.model_fields
        lacking = [name for name, field in fields.items() if field.is_required() and name not in given]
        if lacking:
            raise RequestError(f"{asked} needs {flag(lacking[0])}", remedy=remedy)
        within_s = parse_duration_s(within or CLOUDS.get(source).ready_within)
        try:
            return cls(source, cloud, model.model_validate(given), within_s)
        except ValidationError as error:
            raise RequestError(f"--{first_problem(error)}", remedy=remedy) from None

    @property
    def lender(self) -> Cloud:
        lender: Cloud = CLOUDS.get(self.source)
        return lender

    def looked_up(self, note: Callable[[str], object]) -> tuple[Any, str, Mapping[str, Any], tuple[str, ...]]:
        """Return the connection, its clouds.yaml, the body of a request, and what is unfair; nothing is made.

        Raises RequestError for what the cloud does not have, and for credentials that do not work.
        """
        sdk, config = base.connect(self.cloud)
        path = self.options.host_key
        if path and not re.match(r"[a-z0-9@.-]+ AAAA\S+", path.read_text()):
            raise RequestError(f"--host-key {path} is no public key", remedy="name a file such as host_key.pub")
        with refusals(f"cloud {self.cloud}", RequestError):
            body, unfair = self.lender.look_up(sdk, self.options)
        for words in unfair:
            note(f"unfair: {words}")
        return sdk, config, body, unfair


@contextmanager
def hired_machines(
    order: MachineOrder,
    directory: Path,
    note: Callable[[str], object],
    *,
    kept: bool = False,
    listed: bool = True,
) -> Iterator[Path]:
    """Make machines, wait until SSH answers, and yield their inventory, with ``ready.json`` in the directory.

    At the end they are removed, unless they are ``kept`` and it comes without an exception. If they are not, a run that
    continues finds their names in the inventory again. They are ``listed`` for the targets of the cloud. Raises
    RequestError before anything is made, and CloudError with nothing left of what was made.
    """
    lists = {"targets": order.lender.targets} if listed else {}
    paths = (order.options.user_data, order.options.host_key)
    given = [path.read_text() if path else "" for path in paths]
    sdk, config, body, unfair = order.looked_up(note)
    _prepare(directory)
    with ExitStack() as stack:
        with refusals(f"cloud {order.cloud}"):
            courses = []
            for _ in range(order.options.count):
                name = ledger.fresh("virtbench")
                (user_data, public_key) = _first_boot(*given)
                hired = Hired(order.source, config, order.cloud, name)
                stack.enter_context(_held(hired, kept=kept))
                making = order.lender.make(sdk, name, body, user_data)
                courses.append(_Course(name, _until_ssh_answers(making, directory, public_key), note))
            _advance(courses, order.within_s)
            nodes = [
                course.node(**({} if kept else {"name": f"{order.source}-{number}"}), **lists)
                for number, course in enumerate(courses, start=1)
            ]
            write_output(directory / INVENTORY, "\n".join(nodes))
            read_inventory(directory / INVENTORY)
            ready = [{"name": each.name, "address": each.address, "ready_s": each.ready_s} for each in courses]
            write_atomic(directory / "ready.json", json.dumps({"unfair": unfair, "machines": ready}, indent=1))
        yield directory / INVENTORY
        with uninterrupted():
            stack.pop_all().close()


@contextmanager
def _held(machine: Hired, *, kept: bool) -> Iterator[None]:
    """Hold a machine in the ledger, ``kept`` if the context ends well; one that stays is named with the cause."""
    cause: BaseException | None = None
    try:
        with ledger.holding("hired-machine", json.dumps(machine), kept=kept):
            try:
                yield
            except BaseException as error:
                cause = error
                raise
    except CloudError as error:
        if cause in (None, error):
            raise
        raise CloudError(f"{cause}; {error}", remedy=error.remedy) from error


def _first_boot(script: str, host_key: str) -> tuple[str, str]:
    """Return the user data of one machine and its public host key, which is a new one unless the image has its own.

    The private half of a new key is in the user data alone, and nowhere on this machine.
    """
    if host_key:
        return script, " ".join(host_key.split()[:2])
    serialization = base.library("cryptography.hazmat.primitives.serialization")
    key = base.library("cryptography.hazmat.primitives.asymmetric.ed25519").Ed25519PrivateKey.generate()
    encoding = serialization.Encoding
    plain = serialization.NoEncryption()
    private = key.private_bytes(encoding.PEM, serialization.PrivateFormat.OpenSSH, plain).decode()
    keep_secret(private)
    public_key = key.public_key()
    public = str(public_key.public_bytes(encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode())
    keys = {"ed25519_private": private, "ed25519_public": public}
    config = {"disable_root": False, "ssh_keys": keys, "runcmd": [script] if script else []}
    return f"#cloud-config\n{json.dumps(config)}\n", public


def _prepare(directory: Path) -> None:
    """Make the directory with the files of ssh. Raises RequestError if machines that are hired are listed in it."""
    inventory = directory / INVENTORY
    listed = ""
    if inventory.exists():
        listed = inventory.read_text()
    kept = [name for entry in ledger.kept() if (name := base.hired(entry).name) in listed]
    if kept:
        raise RequestError(f"{inventory} lists {kept[0]}, which is still hired", remedy="name another --out")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(directory / "known_hosts", "")
    files = f'UserKnownHostsFile "{directory.resolve()}/known_hosts" ~/.ssh/known_hosts'
    # The user's own settings apply too, such as a ProxyJump to the cloud's networks.
    write_atomic(directory / "ssh_config", f"Host *\n    {files}\nInclude ~/.ssh/config /etc/ssh/ssh_config\n")


def _until_ssh_answers(making: Making, directory: Path, public_key: str) -> Making:
    """Make the machine, then wait for its sshd, and for a login."""
    address = yield from making
    with (directory / "known_hosts").open("a") as file:
        file.write(f"{address} {public_key}\n")
    argv = ssh_argv(destination(f"root@{address}", config=directory / "ssh_config"), ["true"], ConnectTimeout="5")
    words = f"{address} was not tried yet"
    for part in ("booted", "reachable"):
        while True:
            yield part, words
            try:
                done = run_apart(argv, SSH_WITHIN_S)
            except CommandError as error:
                words = error.message
                continue
            lines = (done.stderr or done.stdout).strip().splitlines()
            words = (lines or ["no answer"])[-1]
            sshd = done.returncode != SSH_FAILED or any(each in done.stderr for each in ANSWERED)
            if done.returncode == 0 or (part == "booted" and sshd):
                break
    return address


def _advance(courses: Sequence[_Course], within_s: float) -> None:
    """Let all machines go on until they are ready. Raises CloudError for the first that is not within the time."""
    deadline = time.monotonic() + within_s
    waiting = list(courses)
    while waiting := [course for course in waiting if not course.step()]:
        if time.monotonic() > deadline:
            late = waiting[0]
            state = without_secrets(late.state)[:300]
            words = f"{late.name} was not ready within {format_duration(within_s)}: not {late.part}: {state}"
            raise CloudError(words, remedy=PARTS[late.part])
        time.sleep(base.LOOKED_EVERY_S)
