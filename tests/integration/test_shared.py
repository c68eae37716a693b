"""Jobs beside each other on real targets: the overlap that records prove, and an aggressor that is killed."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from analysis.compare.comparison import compare
from analysis.load.records import load
from provisioning.sites.here import Here
from provisioning.targets import Choices
from scenarios.probe import scratch_bytes
from scenarios.shared import Shared
from suite.errors import MeasurementError
from suite.interfaces import Instance
from suite.job.envelope import GIB, Envelope
from suite.job.profiles import Sizes
from suite.job.sharing import Sharing
from suite.plan import Trial
from suite.records.record import TrialRecord
from suite.registries import AGGRESSORS
from tests.integration.bench import inside, ours, run_plan, some
from tests.integration.machine import ENVELOPE, require, require_image, require_root, wait_for, words_of, workers
from tests.jobs import plan_of

pytestmark = pytest.mark.integration

TINY = Sizes(batch=1, image_px=64, warmup_steps=1, steps=2)
ENDLESS = TINY.model_copy(update={"steps": 100_000})


def run_shared(
    place: Path, target: str, *aggressors: str, disturb: Callable[[], None] | None = None
) -> list[TrialRecord]:
    """A block. With ``disturb``, which is called in another thread once the targets are open, only the trials beside
    aggressors, whose victim would not end by itself."""
    require_root()
    require("engine", "runc")
    if len(ENVELOPE.cpus) < 2:
        pytest.skip("a victim and an aggressor need a CPU each")
    choices = Choices(require_image(), "runc", "tcg")
    room = scratch_bytes(AGGRESSORS, aggressors, "smoke").get("disk")
    plan = plan_of(
        scenario="shared",
        targets=(target,),
        models=("alexnet",),
        profile="smoke",
        sizes=ENDLESS if disturb else TINY,
        envelope=Envelope(cpus=ENVELOPE.cpus, memory_bytes=2 * GIB, threads=2),
        trial_timeout_s=300,
        sharing=Sharing(aggressors=aggressors, workloads={"alexnet": TINY}),
        scratch_bytes={"alexnet": room} if room else {},
        **choices.layers().model_dump(),
    )

    @contextmanager
    def opened(trial: Trial) -> Iterator[Sequence[Instance]]:
        with Here(choices).opened(trial) as instances:
            if disturb and not trial.aggressor:
                raise MeasurementError("not asked for", kind="test")
            thread = threading.Thread(target=disturb)
            thread.start()
            yield instances
            thread.join()

    before = ours()
    records = run_plan(plan, Shared(), opened, place)
    assert ours() == before
    return records


def working(*, aggressor: bool) -> list[psutil.Process]:
    return [process for process in workers() if ("--aggressor" in words_of(process)) == aggressor]


@pytest.mark.parametrize("target", [pytest.param("bare-metal", marks=pytest.mark.thorough), "container"])
def test_the_records_prove_that_every_aggressor_enclosed_the_victim(tmp_path: Path, target: str) -> None:
    aggressors = ("alexnet",) if target == "bare-metal" else ("disk", "network")
    records = {record.aggressor: record for record in run_shared(tmp_path, target, *aggressors)}
    assert set(records) == {None, *aggressors}
    for aggressor, record in records.items():
        assert record.outcome.status == "ok", record.outcome
        (one,) = record.aggressors
        assert (one.aggression is None) == (aggressor is None)
        if one.aggression and record.elapsed_s:
            assert one.aggression.begun_s < 0 < record.elapsed_s <= one.aggression.ended_s
            assert one.aggression.before_per_s
        victim, used = inside(record), some(record.resources)
        assert one.environment.userland_sha256 == victim.userland_sha256
        if target == "container":
            assert (victim.host_cpus, one.environment.host_cpus) == ([ENVELOPE.cpus[0]], [ENVELOPE.cpus[1]])
        assert some(used.serving).cpu_s
        beside_s = some(used.beside).cpu_s or 0.0
        assert beside_s > 0.1 or aggressor not in ("alexnet", "network")
    found = compare(load([tmp_path]))
    beside = found.of_kind("aggressor")
    assert [arm.aggressor for arm in beside] == list(aggressors)
    assert {"throughput", "elapsed", "step-p99", "cpu-time"} <= set(next(iter(beside.values())))


@pytest.mark.parametrize("target", [pytest.param("bare-metal", marks=pytest.mark.thorough), "container"])
def test_an_aggressor_that_is_killed_gives_a_failed_trial_with_the_reason(tmp_path: Path, target: str) -> None:
    def kill() -> None:
        wait_for("both", lambda: working(aggressor=False) and working(aggressor=True), lambda: workers(), 240)
        for process in working(aggressor=True):
            process.kill()

    trials = {record.aggressor: record for record in run_shared(tmp_path, target, "cpu", disturb=kill)}
    outcome = trials["cpu"].outcome
    assert (outcome.status, outcome.kind) == ("failed", "aggressor")
    assert "the aggressor cpu in instance 1" in (outcome.message or "")
    assert "killed" in (outcome.message or "")
    assert trials["cpu"].throughput_per_s is None
    assert trials["cpu"].aggressors == []
