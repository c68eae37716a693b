"""What holds for all tests."""

import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from provisioning import ledger
from suite.registries import WORKLOADS
from suite.untrusted import terminal

# How long an example takes, or is in the making, says something of the machine and nothing of what is tested.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    """Forget what a process of bench has for its one run: workloads of own files, hook, handlers, and what it holds."""
    hook = sys.unraisablehook
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    sys.unraisablehook = hook
    for each, handler in handlers.items():
        signal.signal(each, handler)
    WORKLOADS._adopted.clear()
    ledger._HELD.clear()
    terminal._known.clear()
