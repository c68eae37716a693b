"""A generator behind HTTP on real targets: joined by a lab, measured, recorded whole, and nothing left."""

from pathlib import Path

import pytest

from suite.records.record import TrialRecord
from tests.integration.machine import require, require_fast_guests, require_root_and_image
from tests.integration.test_distributed import namespaces
from tests.integration.test_run import NOTHING, measured, on, ours

pytestmark = pytest.mark.integration


def served(out: Path, *targets: str) -> list[TrialRecord]:
    require_root_and_image()
    words = ("--scenario", "serve", "--profile", "smoke", "--requests", "20")
    found = measured(out, *words, *(word for target in targets for word in on(target)))
    assert ours() == NOTHING
    assert namespaces() == []
    for record in found:
        latencies = [record.metrics[f"latency-p{percent}"].value for percent in (50, 95)]
        assert 0 < latencies[0] <= latencies[1]
        assert record.throughput_per_s is not None
        assert record.throughput_per_s > 0
        opened = record.metrics["cold-start-with-opening"].value - record.metrics["cold-start"].value
        assert 0 < opened < (record.open_s or 0) + 0.001
        assert [rank.role for rank in record.ranks] == ["server", "client"]
        cpus = {len(rank.environment.cpus or []) for rank in record.ranks}
        assert cpus == {max(1, len(record.job.envelope.cpus) // 2)}, "each has its share"
    return found


def test_bare_metal_and_a_container_are_served_over_the_lab(tmp_path: Path) -> None:
    require("engine", "runc")
    found = served(tmp_path / "run", "bare-metal", "container")
    assert {record.target for record in found} == {"bare-metal", "container"}
    addresses = [{rank.address for rank in record.ranks} for record in found]
    assert addresses[0].isdisjoint(addresses[1]), "containers have addresses of their own"


@pytest.mark.parametrize("target", ["vm", "container-vm"])
def test_a_guest_is_served(target: str, tmp_path: Path) -> None:
    require_fast_guests()
    (record,) = served(tmp_path / "run", target)
    assert record.environment.target is not None
