"""Injuries of a known size, made to real targets: the records show them, and ``explain`` puts them where they are."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from analysis.compare.comparison import compare
from analysis.explain.explanation import Explanation
from analysis.load.records import load
from provisioning.cgroup import limits as cgroups
from provisioning.nodes import WrappedNode, write_file
from provisioning.sites.here import Here
from provisioning.targets import Choices
from scenarios.training import Synthetic
from suite.interfaces import Instance
from suite.job.envelope import Envelope
from suite.job.profiles import Sizes
from suite.plan import Trial
from suite.records.record import TrialRecord
from tests.analysis.conftest import explained_by
from tests.integration.machine import ENVELOPE, require, require_image, require_root
from tests.integration.trials import run_plan
from tests.jobs import plan_of

pytestmark = pytest.mark.integration

Injure = Callable[[WrappedNode], None]
UNIFIED = (cgroups.ROOT / "cgroup.controllers").exists()
"""Whether control groups are of version 2."""
STEPS = 20
TRIES = 3
COMPUTING = ("launch", "imports", "build", "warm-up", "compute", "teardown", "exit")


def measured(
    place: Path, injure: Injure, *, envelope: Envelope = ENVELOPE, px: int = 63, steps: int = STEPS
) -> list[TrialRecord]:
    """A block of bare metal and a container of runc's, which is injured as soon as it is open."""
    require_root()
    require("engine", "runc")
    image = require_image()
    choices = Choices(image, "runc", "tcg")
    plan = plan_of(
        scenario="synthetic",
        targets=("bare-metal", "container"),
        models=("alexnet",),
        profile="smoke",
        sizes=Sizes(batch=4, image_px=px, warmup_steps=0, steps=steps),
        envelope=envelope,
        trial_timeout_s=300,
        **choices.layers().model_dump(),
    )

    @contextmanager
    def opened(trial: Trial) -> Iterator[Sequence[Instance]]:
        with Here(choices).opened(trial) as instances:
            node = instances[0].node
            if trial.target == "container":
                assert isinstance(node, WrappedNode)
                injure(node)
            yield instances

    return run_plan(plan, Synthetic(), opened, place)


def injected(place: Path) -> Explanation:
    (explanation,) = explained_by(load([place])).explanations
    return explanation


def difference_s(explanation: Explanation, part: str) -> float:
    (found,) = [found for found in explanation.parts if found.name == part]
    return found.difference_s


def patch(node: WrappedNode, text: str) -> None:
    """Python code that the worker's interpreter runs first; the tree itself is read-only and stays as it is."""
    write_file(node, "/tmp/injury/sitecustomize.py", text.encode())
    interpreter, path = node.python
    node.python = (interpreter, f"/tmp/injury:{path}")


def set_of_group(node: WrappedNode, controller: str, name: str, value: str) -> None:
    """Change a limit of the container's control group behind the back of its engine."""
    assert node.host_processes is not None
    assert node.host_processes.group is not None
    hierarchy = "" if UNIFIED else controller
    place = cgroups.ROOT / hierarchy / node.host_processes.group.paths[hierarchy].lstrip("/")
    (place / name).write_text(value)


SLOW_STEPS = """
import sys, time
class Hook:
    def find_spec(self, name, path=None, target=None):
        if name == "worker.training.job":
            sys.meta_path.remove(self)
            import worker.training.trainer as training
            plain = training.Single.step
            def slow(self, samples, index):
                next_batch = self.batches.next
                def late():
                    time.sleep(0.1)
                    return next_batch()
                self.batches.next = late
                try:
                    return plain(self, samples, index)
                finally:
                    del self.batches.next
            training.Single.step = slow
sys.meta_path.insert(0, Hook())
"""

SLOW_STEPS_S = 0.1 * STEPS
SLOW_IMPORT_S = 15.0
"""Long beside what imports differ by from one trial to the next on a machine with neighbours."""
SLOW_IMPORT = f"""
import sys, time
class ImportHook:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            sys.meta_path.remove(self)
            time.sleep({SLOW_IMPORT_S})
sys.meta_path.insert(0, ImportHook())
"""


@pytest.fixture(scope="module")
def delayed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose container sleeps in two places.

    It is run again when neighbours have made the imports of bare metal alone slow: that hides a part of the sleep.
    """
    for _ in range(TRIES):
        place = tmp_path_factory.mktemp("delayed") / "run"
        records = measured(place, lambda node: patch(node, SLOW_STEPS + SLOW_IMPORT))
        assert [record.outcome.status for record in records] == ["ok"] * 2
        if difference_s(injected(place), "imports") >= 0.9 * SLOW_IMPORT_S:
            break
    return place


def test_a_sleep_before_every_batch_and_a_slow_import_are_found_each_in_its_phase(delayed: Path) -> None:
    explanation = injected(delayed)
    # A sleep takes as long as it says, or longer where others want the CPU too; nothing of the other one is in it.
    assert 0.9 * SLOW_STEPS_S <= difference_s(explanation, "data") <= SLOW_STEPS_S + SLOW_IMPORT_S / 2
    assert difference_s(explanation, "imports") >= 0.9 * SLOW_IMPORT_S


@pytest.mark.thorough
def test_a_quota_of_80_percent_is_found_in_computing_and_warned_of(tmp_path: Path) -> None:
    """One CPU, so that all that computes is held back; what is held back is known from the kernel's own counter.

    It is run again when neighbours have made bare metal alone slow: that hides a part of what is held back.
    """
    envelope = Envelope(cpus=ENVELOPE.cpus[:1], memory_bytes=ENVELOPE.memory_bytes, threads=1)

    def throttle(node: WrappedNode) -> None:
        if UNIFIED:
            set_of_group(node, "cpu", "cpu.max", "80000 100000")
        else:
            set_of_group(node, "cpu", "cpu.cfs_period_us", "100000")
            set_of_group(node, "cpu", "cpu.cfs_quota_us", "80000")

    for number in range(TRIES):
        place = tmp_path / str(number)
        records = measured(place, throttle, envelope=envelope, px=96, steps=2 * STEPS)
        (conditions,) = (record.conditions for record in records if record.target == "container")
        held_s = (conditions.throttled_s if conditions else None) or 0.0
        assert held_s > 0.5
        explanation = injected(place)
        # Every part in which the worker computes grows by what it computes, the interpreter's own end too.
        computing_s = sum(difference_s(explanation, part) for part in COMPUTING)
        if computing_s >= 0.9 * held_s:
            break
    assert computing_s >= 0.9 * held_s
    assert explanation.whole.difference_s - difference_s(explanation, "opening") - computing_s <= 0.1 * held_s
    assert max(explanation.parts, key=lambda part: part.difference_s).name == "compute"
    kinds = [warning.kind for warning in compare(load([place])).warnings]
    assert "throttled" in kinds


def test_too_little_memory_is_a_failed_trial_that_says_so_and_no_number(tmp_path: Path) -> None:
    def starve(node: WrappedNode) -> None:
        if UNIFIED:
            set_of_group(node, "memory", "memory.max", str(120 << 20))
        else:
            # Version 1 holds the limit of memory below that of memory and swap.
            set_of_group(node, "memory", "memory.limit_in_bytes", str(120 << 20))
            set_of_group(node, "memory", "memory.memsw.limit_in_bytes", str(120 << 20))

    records = {record.target: record for record in measured(tmp_path, starve)}
    assert records["bare-metal"].outcome.status == "ok"
    outcome = records["container"].outcome
    assert outcome.status == "failed"
    assert outcome.kind in ("killed", "out-of-memory")
    assert outcome.remedy is not None
    assert "--memory" in outcome.remedy
    assert records["container"].throughput_per_s is None
    warnings = compare(load([tmp_path])).warnings
    assert ["trials on container failed" in one.message for one in warnings if one.kind == "failed-trials"] == [True]
