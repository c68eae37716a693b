"""Instances that are opened together: those that open, those that fail, and what stays open."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from scenarios.startup import Startup, Together, memory_bytes
from suite.errors import MeasurementError, RequestError
from suite.request.request import RunRequest
from tests.scenarios.conftest import HereNode

NO_ROOM = MeasurementError("there is no room", kind="opening")


class Opener:
    """Opens real commands on this machine; those whose numbers are ``failing`` fail."""

    def __init__(self, node: HereNode, failing: tuple[int, ...] = (), error: Exception = NO_ROOM) -> None:
        self.node, self.failing, self.error = node, failing, error
        self.stuck: Exception | None = None
        self.lock, self.begun, self.open = threading.Lock(), 0, 0

    @contextmanager
    def __call__(self) -> Iterator[HereNode]:
        with self.lock:
            self.begun += 1
            number = self.begun
        if number in self.failing:
            raise self.error
        with self.lock:
            self.open += 1
        try:
            yield self.node
        finally:
            with self.lock:
                self.open -= 1
            if self.stuck:
                raise self.stuck


def test_all_are_open_at_once_and_none_is_afterwards(here: HereNode) -> None:
    opener, before = Opener(here), {*psutil.pids()}
    found = Together(opener, 3)
    assert opener.begun == 0, "making it opens nothing"
    found.open_all()
    assert (opener.begun, opener.open, len(found.ready_s), found.failures) == (3, 0, 3, [])
    metrics = found.metrics()
    assert metrics["ready-median"].samples == found.ready_s
    assert 1 < metrics["memory-per-instance"].value < 500
    assert 0 < metrics["ready-median"].value <= metrics["ready-p95"].value <= metrics["ready-all"].value
    assert metrics["failed-instances"].value == 0
    begun = (each for each in psutil.process_iter(["cmdline"]) if each.pid not in before)  # any may end meanwhile
    assert not [each for each in begun if "sys.stdin.read" in " ".join(each.info["cmdline"] or ())]


def test_instances_that_fail_are_counted_and_without_any_there_is_no_measurement(here: HereNode) -> None:
    for error in (NO_ROOM, OSError("there is no room")):
        found = Together(Opener(here, failing=(2, 3), error=error), 3)
        found.open_all()
        assert (len(found.ready_s), found.failures) == (1, ["there is no room"] * 2)
        assert found.metrics()["failed-instances"].value == 2
        assert found.metrics()["memory-per-instance"].value == found.bytes / 1e6
    none = Together(Opener(here, failing=(1, 2)), 2)
    none.open_all()
    with pytest.raises(MeasurementError, match="no instance opened: there is no room"):
        none.metrics()


def test_an_instance_that_cannot_be_closed_fails_the_trial(here: HereNode) -> None:
    opener = Opener(here)
    opener.stuck = MeasurementError("it is still mounted", kind="closing")
    with pytest.raises(MeasurementError, match="still mounted"):
        Together(opener, 2).open_all()
    assert opener.open == 0


def test_ctrl_c_closes_what_is_open(here: HereNode, monkeypatch: pytest.MonkeyPatch) -> None:
    opener = Opener(here)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Semaphore, "acquire", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Together(opener, 3).open_all()
    assert opener.open == 0


def test_memory_counts_shared_pages_once_and_a_process_that_has_ended_is_left_out() -> None:
    own = psutil.Process().memory_full_info()
    assert 0 < memory_bytes([psutil.Process().pid, 1 << 22]) <= own.rss


def test_more_instances_than_memory_carries_are_refused_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    request = RunRequest.of({"scenario": "startup", "instances": "1,20"})
    assert Startup().models(request) == ("1-instance", "20-instances")
    memory = psutil.virtual_memory()._replace(available=8 << 30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    envelope: Any = type("Envelope", (), {"memory_bytes": 2 << 30})
    Startup().check_shares(request, envelope, ("bare-metal", "container"), print)
    with pytest.raises(RequestError, match=r"21 instances of vm need 45\.1 GB of memory, and 8\.6 GB are available"):
        Startup().check_shares(request, envelope, ("container", "vm"), print)
