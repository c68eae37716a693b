"""The inventory: the machines that a user has listed in ``hosts.toml``.

    [[node]]
    name = "n1"                        # as records and messages call it
    host = "alice@gpu1.example.org"    # as one would write it after ssh: a name, or an alias of the ssh_config

``provisioning.remote`` connects to them. Keys and passwords have no place here: they are managed by OpenSSH.
"""

import difflib
import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError, model_validator

from suite.errors import RequestError, option
from suite.job.envelope import parse_cpu_list
from suite.part import Part, checked
from suite.targets import IN_PLACE, ListedMachine
from suite.untrusted.files import read_toml, refuse_writable_by_others

DIRECTORY = "/var/lib/virtbench"
EXAMPLE = 'write [[node]] with name = "n1" and host = "gpu1.example.org" for each machine'
_USER = r"(?P<user>[A-Za-z0-9_](?:[A-Za-z0-9._@+\\-]{0,126}[A-Za-z0-9._+-])?@)?"
_WRITTEN = re.compile(rf"(?:ssh://)?{_USER}(?:\[(?P<address>[^]]+)\]|(?P<name>[^]:/@[]+))(?::(?P<port>[0-9]+))?/?")
"""A destination as people write it: ``ssh`` takes no port behind a name, and no brackets."""
_TAKEN = re.compile(rf"{_USER}(?P<host>[^@]+)")
_HOST_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}")


def _destination(text: str) -> str:
    parts = _TAKEN.fullmatch(text)
    host = parts["host"] if parts else ""
    if _HOST_NAME.fullmatch(host):
        return text
    try:
        IPv6Address(host)
    except ValueError:
        forms = "gpu1, alice@gpu1, alice@[2001:db8::7]:2222 or ssh://alice@gpu1:2222"
        raise ValueError(f"write it as {forms}, and a port once") from None
    return text


def _absolute(text: str) -> str:
    if not re.fullmatch(r"/[A-Za-z0-9._/+@-]{1,200}", text) or ".." in PurePosixPath(text).parts:
        raise ValueError("not an absolute path of letters, digits and ._/+@-")
    return text


class InventoryNode(ListedMachine):
    """An entry: one machine. What is left out is discovered on it."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")]
    host: Annotated[str, AfterValidator(_destination)]
    """An OpenSSH destination: a host name, ``user@host``, or an alias of the ssh_config. A port goes to ``port``."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """The port of its sshd, where the ssh_config does not give it."""
    ssh_config: Path | None = None
    """A file for ``ssh -F`` instead of the user's own, relative to the inventory."""
    interface: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}$")] | None = None
    """The network interface to the other machines. Default: that of the route to them."""
    address: Annotated[str, checked(IPv4Address)] | None = None
    """The IPv4 address at which the other machines reach it. Default: that of the interface."""
    directory: Annotated[str, AfterValidator(_absolute)] = DIRECTORY
    """The directory of the suite on that machine, which holds the images."""
    data: Annotated[str, AfterValidator(_absolute)] | None = None
    """The directory of the data set on it. Default: the one on the machine that launches."""
    bench: Annotated[str, AfterValidator(_absolute)] | None = None
    """The command ``bench`` there, for sweeps that run on it."""
    cpus: Annotated[str, checked(parse_cpu_list)] | None = None
    """The CPUs to use, as ``0-3,8``. Default: those that a shell there may use."""

    @model_validator(mode="before")
    @classmethod
    def _split(cls, values: Any) -> Any:  # noqa: ANN401 (of any type before it is validated)
        """Return the values with the port apart from the host."""
        text = None
        if isinstance(values, dict):
            text = values.get("host")
        written = None
        if isinstance(text, str):
            written = _WRITTEN.fullmatch(text)
        if written is None:
            return values
        port = written["port"]
        if port and values.get("port", int(port)) != int(port):
            return values  # refused as a host: which of the two ports is meant?
        host = (written["user"] or "") + (written["address"] or written["name"])
        split = {**values, "host": host}
        if port:
            split["port"] = int(port)
        return split


class Inventory(Part):
    """All entries, in the order of the file."""

    nodes: Annotated[tuple[InventoryNode, ...], Field(alias="node", min_length=1, max_length=64)]

    def of_target(self, target: str) -> tuple[InventoryNode, ...]:
        return tuple(node for node in self.nodes if target in node.targets)

    def opened_as(self, target: str) -> str:
        """Return the target that the suite opens: on a machine that is listed as the virtual one, it boots none."""
        if self.of_target(target):
            return IN_PLACE.get(target, target)
        return target

    def opened_on(self, node: InventoryNode, targets: Sequence[str]) -> list[str]:
        """Return what is opened of the targets on one machine; those that no machine lists are on each."""
        return [self.opened_as(target) for target in targets if node in (self.of_target(target) or (node,))]


def read_inventory(path: Path) -> Inventory:
    """Read an inventory. Raises RequestError that names the node, the key, the value and what to write there.

    An inventory that others may write is refused, and so is an ssh_config that it names: they say what ssh starts here.
    """
    written = read_toml(path, f"{option('inventory')} {path}", EXAMPLE)
    refuse_writable_by_others(path, option("inventory"))
    try:
        inventory = Inventory.model_validate(written)
    except ValidationError as error:
        raise _refusal(path, written, dict(error.errors()[0])) from None
    for key in ("name", "address"):
        values = [value for node in inventory.nodes if (value := getattr(node, key))]
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            raise RequestError(
                f"{option('inventory')} {path}: two nodes have the {key} {twice[0]}", remedy=f"one {key} for each"
            )
    nodes = tuple(_with_config(node, path) for node in inventory.nodes)
    return inventory.model_copy(update={"nodes": nodes})


def _with_config(node: InventoryNode, path: Path) -> InventoryNode:
    """Return the node with the absolute path of its ssh_config, which the inventory gives relative to itself."""
    if node.ssh_config is None:
        return node
    below = node.ssh_config.expanduser()
    config = (path.absolute().parent / below).resolve()
    if not config.is_file():
        raise RequestError(
            f"{option('inventory')} {path}: {node.name} names {config}, which does not exist", remedy=EXAMPLE
        )
    refuse_writable_by_others(config, f"the ssh_config of {node.name}")
    return node.model_copy(update={"ssh_config": config})


def _refusal(path: Path, written: dict[str, Any], error: dict[str, Any]) -> RequestError:
    """Return the error in terms of the file. ``loc`` is ``("node", 1, "prot")``."""
    location: Sequence[str | int] = error["loc"]
    key = str(location[-1]) if location else "node"
    keys = [*InventoryNode.model_fields] if len(location) == 3 else ["node"]
    where = ""
    if len(location) > 1 and isinstance(location[1], int):
        node = written["node"][location[1]]
        name = None
        if isinstance(node, dict):
            name = node.get("name")
        where = f"node {name if isinstance(name, str) else location[1] + 1}: "
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, keys, n=1)
        remedy = (f"did you mean {near[0]}? " if near else "") + f"the keys are {', '.join(keys)}"
        return RequestError(f"{option('inventory')} {path}: {where}unknown key {key!r}", remedy=remedy)
    if error["type"] == "missing":
        return RequestError(f"{option('inventory')} {path}: {where}no {key}", remedy=EXAMPLE)
    value = re.sub(r"[^ -~]", "?", repr(error.get("input")))[:100]
    reason = str(error["msg"]).removeprefix("Value error, ")
    return RequestError(f"{option('inventory')} {path}: {where}{key} = {value} is refused: {reason}", remedy=EXAMPLE)
