"""``bench`` on a machine that is all fakes and takes milliseconds: a program of its own, so that it can be killed.

    python -m tests.suite.sweeping_machine sweep run plan.toml

Each trial is written to the file MEASURED (a line when it is measured). FAILING: targets that fail. SLOW_S: how long a
trial takes.
"""

import os
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

import cli
from provisioning import ledger, nodes
from provisioning.doctor import Check
from provisioning.images.image import Image
from suite.errors import MeasurementError
from suite.interfaces import Instance, Measurement, Observer
from suite.plan import Trial
from suite.targets import TARGETS
from tests.suite.conftest import FakeAccount, FakeScenario, FakeTargets, measuring_by


class Scenario(FakeScenario):
    """Takes SLOW_S, and says in MEASURED what it has measured."""

    def measure(
        self, trial: Trial, instances: Sequence[Instance], observer: Observer, account: AbstractContextManager[object]
    ) -> Measurement:
        with Path(os.environ["MEASURED"]).open("a") as file:
            file.write(f"{trial.job.profile} {trial.trial_id}\n")
        time.sleep(float(os.environ.get("SLOW_S", "0.005")))
        return super().measure(trial, instances, observer, account)


def checks(_named: object = None) -> list[Check]:
    def usable(kind: Any, name: str) -> Check:
        return Check(kind=kind, name=name, usable=True, evidence="seen", reason=None, remedy=None)

    engines = [usable("engine", name) for name in ("docker", "podman", "runc")]
    return [*(usable("target", name) for name in TARGETS), *engines]


def furnish(patch: pytest.MonkeyPatch, home: Path) -> None:
    """Answer everything that ``bench`` asks of the machine; see ``tests.commands.conftest.Machine``."""
    image = Image(digest="a" * 64, variant="cpu", recipe_sha256="b" * 64, created_at="2026", base="debian", files={})
    targets = FakeTargets([])
    patch.setenv("VIRTBENCH_HOME", str(home))
    (home / "run").mkdir(parents=True, exist_ok=True, mode=0o700)
    for module in (ledger, nodes):
        patch.setattr(module, "runtime", lambda: home / "run")
    patch.setattr(Image, "check", lambda _: None)
    patch.setattr("provisioning.doctor.examine", checks)
    patch.setattr("provisioning.images.image.current", lambda _variant: image)
    patch.setattr("provisioning.machines.accelerator.choose", lambda _requested: ("tcg", "asked for"))
    patch.setattr("provisioning.isa.shared", lambda *_, **__: "avx2")
    patch.setattr("commands.run.prepare.Ready.prepare", lambda *_: None)
    patch.setattr("commands.run.prepare.Ready.open_target", targets.opened)
    patch.setattr("provisioning.metrics.accounting.open_account", lambda *_, **__: FakeAccount())
    patch.setattr("provisioning.neighbours.alone_on", lambda *_, **__: nullcontext())


def measure_nothing(patch: pytest.MonkeyPatch) -> None:
    """Every scenario is one that trains nothing."""
    failing: dict[str, BaseException] = {
        target: MeasurementError(f"{target} is broken") for target in os.environ.get("FAILING", "").split()
    }
    scenario = Scenario([], failing)
    measuring_by(scenario, patch)


def main(words: Sequence[str]) -> None:
    furnish(pytest.MonkeyPatch(), Path(os.environ["MEASURED"]).parent / "home")
    measure_nothing(pytest.MonkeyPatch())
    cli.main(words)


if __name__ == "__main__":
    main(sys.argv[1:])
