"""A service on one target as the host sees it: two processes of the worker on this machine."""

import json
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from provisioning.machines.ssh import free_port
from scenarios.serve import Serve
from suite.errors import MeasurementError
from suite.interfaces import Instance
from suite.job.distributed import DistributedJob
from suite.job.envelope import GIB, Envelope
from suite.job.lab import LabSpec
from suite.job.serving import Serving
from suite.plan import Trial
from tests.scenarios.conftest import HereNode, fails
from tests.scenarios.test_job import event

JOINED = DistributedJob(workers=1, servers=1, network="overlay", lab=LabSpec(nodes=2))
ENVELOPE = Envelope(cpus=(0, 1), memory_bytes=4 * GIB, threads=2)
LOAD = Serving(requests=20, rates=(40.0,), clients=2, image_px=28, channels=1)


@pytest.fixture
def planned(trial: Trial) -> Trial:
    return trial.with_job(
        scenario="serve", model="gan", sizes=None, unit="images", serving=LOAD, distributed=JOINED, envelope=ENVELOPE
    )


def instances(*nodes: Any) -> list[Instance]:
    return [Instance(node, "127.0.0.1", "lo", port=free_port()) for node in nodes]


def measured(planned: Trial, observer: Any, *nodes: Any) -> Any:
    return Serve().measure(planned, instances(*nodes), observer, nullcontext())


def test_what_a_client_sees_is_measured_from_the_launch_to_saturation(
    planned: Trial, here: HereNode, observer: Any
) -> None:
    with here.opening.running("boot"):
        pass
    found = measured(planned, observer, here, here)
    metrics = found.metrics
    assert found.throughput_per_s > 1
    latencies = {f"latency-{share}{at}" for share in ("p50", "p95") for at in ("", "-at-40-per-s")}
    assert {name for name in metrics if name.startswith("latency")} == latencies
    assert 0 < metrics["latency-p50"].value <= metrics["latency-p95"].value
    assert len(metrics["latency-p50"].samples or []) == LOAD.requests
    cold_s = metrics["cold-start"].value
    assert 0 < cold_s < found.elapsed_s
    assert metrics["cold-start-with-opening"].value == pytest.approx(cold_s + here.opening.seconds)
    assert [rank.role for rank in found.ranks] == ["server", "client"]
    assert found.environment.torch is not None
    assert (found.usage.cpu_s or 0) > 0
    assert set(found.details["answered_per_s"]) == {"40"}
    phases = [name for name, _ in observer.phases]
    assert phases == ["attesting", "launching", "preparing", "waiting for the first answer", "measuring", "finishing"]


def test_clients_ask_at_the_service_that_is_before_the_server(planned: Trial, here: HereNode, observer: Any) -> None:
    server, client = instances(here, here)
    behind = replace(server, address="0.0.0.0", service=("127.0.0.2", server.port or 0))  # noqa: S104 (of the test)
    found = Serve().measure(planned, [behind, client], observer, nullcontext())
    assert found.details["asked_at"] == ["127.0.0.2", server.port]
    assert found.metrics["latency-p50"].value > 0
    assert "asked_at" not in measured(planned, observer, here, here).details


def test_a_server_that_fails_is_blamed_and_not_the_client_that_waits_for_it(
    planned: Trial, here: HereNode, observer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scenarios.distributed.LAST_WORDS_S", 0.1)
    other = planned.with_job(model="resnet50")
    with fails(MeasurementError, "request", r"server \(rank 0\) on here: .* generates nothing"):
        measured(other, observer, here, here)
    assert not any(process.running() for process in here.processes)


def test_a_client_that_fails_before_the_server_is_launched_ends_the_trial(
    planned: Trial, here: HereNode, observer: Any, scripted: Any
) -> None:
    node = scripted(
        event("started", 101.0), event("error", 101.5, kind="exception", message="no such module"), status=1
    )
    with pytest.raises(MeasurementError, match="no such module"):
        measured(planned, observer, here, node)
    assert here.processes == [], "the server was never launched"


def test_the_load_is_that_of_the_plan_and_a_rate_has_the_schedule_of_the_seed(
    planned: Trial, here: HereNode, observer: Any, scripted: Any
) -> None:
    node = scripted(event("error", 101.5, kind="exception", message="enough"), status=1)
    with pytest.raises(MeasurementError, match="without its load"):
        measured(planned.with_job(serving=None), observer, here, node)
    with pytest.raises(MeasurementError, match="enough"):
        measured(planned, observer, here, node)
    asked = json.loads(node.started[0][1])
    told = {name: asked[name] for name in ("requests", "rates", "clients", "seed", "timeout_s", "threads")}
    assert told == {"requests": 20, "rates": [40.0], "clients": 2, "seed": 7, "timeout_s": 60, "threads": 1}
    (body,) = asked["bodies"]
    assert json.loads(body) == {"dataset": "synthetic", "model": "gan"}
