"""The opening is the target's own: what the suite asks for itself, however long, does not lengthen it."""
# ruff: noqa: ARG002 (fakes need few of the arguments)

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

import pytest

from provisioning import ledger
from provisioning.engines.base import ContainerEngine, ContainerSpec
from provisioning.layers.container import ContainerLayer
from provisioning.layers.userland import OWN_USERLAND, UnlimitedLayer
from provisioning.layers.vm import VmLayer
from provisioning.machines.base import Guest, GuestSpec
from provisioning.nodes import LocalNode, WrappedNode
from suite import interfaces
from suite.interfaces import Layer, Node, Stopwatch, open_stack
from suite.job.envelope import GIB, MEMORY_NOT_LIMITED, Envelope
from tests.provisioning.conftest import MakeImage

STARTS_S, ASKS_S = 0.05, 0.5
ENVELOPE = Envelope(cpus=(0,), memory_bytes=GIB, threads=1)


class Clock:
    """A clock that moves only while somebody sleeps by it: a busy machine lengthens nothing."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


CLOCK = Clock()


class Engine(ContainerEngine):
    """Starts within 50 ms; every question of the suite's takes ten times as long."""

    name, rootfs, commands_are_children = "fake", "directory", True

    def version(self, node: Node) -> str:
        CLOCK.sleep(ASKS_S)
        return "1.0"

    def begin(self, node: Node, spec: ContainerSpec) -> None:
        with node.opening.paused():
            CLOCK.sleep(ASKS_S)
        CLOCK.sleep(STARTS_S)

    def main_pid(self, node: Node, name: str) -> int:
        CLOCK.sleep(ASKS_S)
        return 1

    def exec_argv(self, spec: ContainerSpec) -> list[str]:
        del spec
        return []

    def removal(self, name: str) -> list[list[str]]:
        del name
        return []


class Machines:
    """The same of a hypervisor."""

    @contextmanager
    def booted(self, node: Node, spec: GuestSpec) -> Iterator[Guest]:
        with node.opening.paused():
            CLOCK.sleep(ASKS_S)
        CLOCK.sleep(STARTS_S)
        yield Guest(list)


@pytest.mark.parametrize("layers", [("container",), ("vm",), ("vm", "container")])
def test_what_the_suite_asks_for_itself_does_not_lengthen_the_opening(
    layers: tuple[str, ...], node: LocalNode, make_image: MakeImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ledger.KINDS, "container", ledger.LedgerKind(".*", lambda _: None))
    monkeypatch.setattr(interfaces, "time", CLOCK)
    made: dict[str, Layer] = {
        "container": ContainerLayer(Engine(), "f" * 64, GIB),
        "vm": VmLayer(cast("Any", Machines()), GuestSpec(make_image(), "tcg", ENVELOPE)),
    }
    node.userland = "/"
    with open_stack(node, [made[name] for name in layers]) as opened:
        assert [{"boot": "vm"}.get(part, part) for part in opened.opening.parts] == list(layers)
        assert opened.opening.seconds == pytest.approx(STARTS_S * len(layers))


def test_bare_metal_opens_by_entering_it(node: LocalNode) -> None:
    with open_stack(node, [UnlimitedLayer(ENVELOPE)]) as opened:
        assert opened.opening is node.opening
        assert opened.opening.seconds > 0


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@pytest.mark.parametrize(
    ("hidden", "substitutes"),
    [
        ((), (MEMORY_NOT_LIMITED,)),
        (("--unshare-user", "--disable-userns"), (OWN_USERLAND, MEMORY_NOT_LIMITED)),
        (("--dev-bind", "/dev/null", "/usr/bin/bwrap"), (OWN_USERLAND, MEMORY_NOT_LIMITED)),
    ],
    ids=["nothing", "user namespaces", "bubblewrap"],
)
def test_bare_metal_without_root_is_in_the_tree_unless_that_is_hidden_which_enters_it(
    node: LocalNode, hidden: tuple[str, ...], substitutes: tuple[str, ...]
) -> None:
    words = [*("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"), *("bwrap", "--dev-bind", "/", "/")]
    words += [*hidden, "--chdir", "/", "--"]
    user = WrappedNode(node, lambda argv: [*words, *argv], "user", "/", node.cpus, node.local)
    with open_stack(user, [UnlimitedLayer(ENVELOPE)]) as inside:
        assert inside.substitutes == substitutes
        assert inside.run(["id", "-u"]).stdout == "65534\n"
        assert inside.run(["nproc"]).stdout == "1\n"
        assert (inside.run(["ls", "-A", "/run"]).stdout == "") == (len(substitutes) == 1)


def test_a_stopwatch_runs_on_after_a_pause_and_stops_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces, "time", CLOCK)
    watch = Stopwatch()
    with suppress(KeyError), watch.running("boot"):
        CLOCK.sleep(STARTS_S)
        with watch.paused():
            CLOCK.sleep(ASKS_S)
        CLOCK.sleep(STARTS_S)
        raise KeyError
    stopped_s = watch.seconds
    with watch.paused():
        CLOCK.sleep(STARTS_S)
    assert stopped_s == watch.seconds == pytest.approx(2 * STARTS_S)
