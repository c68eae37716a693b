"""Injuries of a known size, made to real targets: the records show them, ``explain`` puts them where they are.

And ``bench selftest``, the positive control: an injury of bare metal, two blocks.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from analysis.compare.comparison import compare
from analysis.load.records import load
from provisioning.cgroup import limits as cgroups
from provisioning.nodes import WrappedNode, write_file
from provisioning.paths import home
from provisioning.sites.here import Here
from provisioning.targets import Choices
from scenarios.training import Synthetic
from suite.interfaces import Instance
from suite.job.profiles import Sizes
from suite.plan import Trial
from suite.records.record import TrialRecord
from suite.selftest.certificate import Certificate, InjuryFinding
from tests.analysis.conftest import explained_by
from tests.integration.bench import bench, records_in, run_plan
from tests.integration.machine import ENVELOPE, require, require_image, require_root, require_root_and_image
from tests.jobs import plan_of

pytestmark = pytest.mark.integration

Injure = Callable[[WrappedNode], None]
STEPS = 20
TRIES = 3


def measured(place: Path, injure: Injure) -> list[TrialRecord]:
    """A block of bare metal and a container of runc's, which is injured as soon as it is open."""
    require_root()
    require("engine", "runc")
    choices = Choices(require_image(), "runc", "tcg")
    plan = plan_of(
        scenario="synthetic",
        targets=("bare-metal", "container"),
        models=("alexnet",),
        profile="smoke",
        sizes=Sizes(batch=4, image_px=63, warmup_steps=0, steps=STEPS),
        envelope=ENVELOPE,
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


def patch(node: WrappedNode, text: str) -> None:
    """Python code that the worker's interpreter runs first; the tree itself is read-only and stays as it is."""
    write_file(node, "/tmp/injury/sitecustomize.py", text.encode())
    interpreter, path = node.python
    node.python = (interpreter, f"/tmp/injury:{path}")


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


@pytest.mark.thorough
def test_a_sleep_before_every_batch_and_a_slow_import_are_found_each_in_its_phase(tmp_path: Path) -> None:
    for number in range(TRIES):
        place = tmp_path / str(number)
        records = measured(place, lambda node: patch(node, SLOW_STEPS + SLOW_IMPORT))
        assert [record.outcome.status for record in records] == ["ok"] * 2
        (explanation,) = explained_by(load([place])).explanations
        found = {part.name: part.difference_s for part in explanation.parts}
        # Neighbours that make the imports of bare metal alone slow hide a part of the sleep: it is tried again then.
        if found["imports"] >= 0.9 * SLOW_IMPORT_S:
            break
    assert found["imports"] >= 0.9 * SLOW_IMPORT_S
    # A sleep takes as long as it says, or longer where others want the CPU too; nothing of the other one is in it.
    assert 0.9 * SLOW_STEPS_S <= found["data"] <= SLOW_STEPS_S + SLOW_IMPORT_S / 2


def test_too_little_memory_is_a_failed_trial_that_says_so_and_no_number(tmp_path: Path) -> None:
    def starve(node: WrappedNode) -> None:
        """Change the limit of the container's control group behind the back of its engine."""
        assert node.host_processes is not None
        assert node.host_processes.group is not None
        unified = (cgroups.ROOT / "cgroup.controllers").exists()
        hierarchy = "" if unified else "memory"
        group = cgroups.ROOT / hierarchy / node.host_processes.group.paths[hierarchy].lstrip("/")
        # Version 1 holds the limit of memory below that of memory and swap.
        for name in ("max",) if unified else ("limit_in_bytes", "memsw.limit_in_bytes"):
            (group / f"memory.{name}").write_text(str(120 << 20))

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


def certified(injury: str, place: Path) -> tuple[InjuryFinding, list[TrialRecord]]:
    """Return what is found of an injury of bare metal in two blocks, and the records of those that had it."""
    require_root_and_image()
    # A home of the test's own, with the image of this machine: the machine's own certificate stays.
    (place / "home").mkdir()
    (place / "home/images").symlink_to(home() / "images")
    words = ("--target", "bare-metal", "--injury", injury, "--blocks", "2", "--out", str(place), "--json")
    result = bench("selftest", *words, code=None, env={"VIRTBENCH_HOME": str(place / "home")})
    certificate = Certificate.model_validate(json.loads(result.stdout))
    (found,) = (one for one in certificate.findings if one.injury == injury)
    return found, [each for each in records_in(place / "synthetic") if each.ablation == injury]


@pytest.mark.thorough
def test_held_memory_is_injected_clocked_and_found_on_bare_metal(tmp_path: Path) -> None:
    """Memory and not time: how much others compute meanwhile does not matter."""
    found, injured = certified("held-memory", tmp_path)
    assert found.truth is not None
    assert found.truth[0] > 1.5
    assert found.ratio == pytest.approx(found.truth[0], rel=0.1)
    assert [record.details["injected"]["held_bytes"] for record in injured] == [512 << 20] * 2


@pytest.mark.thorough
def test_a_quota_is_confirmed_by_the_counter_of_the_kernel_and_warned_of(tmp_path: Path) -> None:
    found, injured = certified("cpu-quota-10", tmp_path)
    assert found.truth is not None, "half of what the quota takes was held back"
    assert all(record.conditions and record.conditions.throttled_s for record in injured)
    assert "throttled" in [warning.kind for warning in compare(load([tmp_path / "synthetic"])).warnings]
