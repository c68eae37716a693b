"""What holds for all tests."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from suite.registries import WORKLOADS

# How long an example takes, or is in the making, says something of the machine and nothing of what is tested.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    """Forget the workloads of the user's own files: a process of bench has one run, and that of the tests many."""
    yield
    WORKLOADS._adopted.clear()
