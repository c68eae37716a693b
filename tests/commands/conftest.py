"""The commands without an image or a virtual machine: the test answers what is asked of the machine."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import cli
from provisioning import ledger, nodes
from provisioning.doctor import Check
from provisioning.images.image import Image
from suite.plan import Trial
from suite.targets import TARGETS
from tests.sites import IMAGE
from tests.suite.conftest import FakeAccount, FakeScenario, FakeTargets, measuring_by

Bench = Callable[..., Result]
SMALL = ("--memory", "1M", "--cpus", "1", "--out", "out")
ONCE = (*SMALL, "--blocks", "1")


class Machine:
    """What the machine answers when it is examined, and what was run on it."""

    def __init__(self) -> None:
        self.usable = dict.fromkeys((*TARGETS, "docker", "podman", "runc"), True)
        self.substitutes: dict[str, str] = {}
        self.events: list[str] = []
        self.targets = FakeTargets(self.events)
        self.scenario = FakeScenario(self.events)

    def examine(self, _named: object = None) -> list[Check]:
        kinds = {name: "target" if name in TARGETS else "engine" for name in self.usable}
        found = [check(kinds[name], name, usable=usable) for name, usable in self.usable.items()]
        return [one.model_copy(update={"substitute": self.substitutes.get(one.name)}) for one in found]

    def during_the_second_trial(self, act: Callable[[], object], patch: pytest.MonkeyPatch) -> None:
        measure = self.scenario.measure

        def acting(trial: Trial, *rest: Any) -> Any:
            if trial.position == 1:
                act()
            return measure(trial, *rest)

        patch.setattr(self.scenario, "measure", acting)


def commands(
    group: click.Group = cli.main, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every group and command behind its words."""
    yield words, group
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))
        else:
            yield (*words, name), command


def check(kind: Any, name: str, *, usable: bool = True) -> Check:
    reason, remedy = (None, None) if usable else (f"{name} is not there", f"install {name}")
    return Check(kind=kind, name=name, usable=usable, evidence="seen", reason=reason, remedy=remedy)


def go_to(directory: Path, patch: pytest.MonkeyPatch) -> Path:
    """Let a directory be the working directory, and hold the folders of the suite."""
    patch.chdir(directory)
    patch.delenv("VIRTBENCH_DEBUG", raising=False)
    live_in(directory / "home", directory / "runtime", patch)
    return directory


def live_in(home: Path, runtime: Path, patch: pytest.MonkeyPatch) -> None:
    """Let these be the folders of the suite."""
    patch.setenv("VIRTBENCH_HOME", str(home))
    runtime.mkdir(parents=True, exist_ok=True, mode=0o700)
    for module in (ledger, nodes):
        patch.setattr(module, "runtime", lambda: runtime)


def answer_for(machine: Machine, patch: pytest.MonkeyPatch) -> Machine:
    """Let the machine carry everything and have an image; targets and accounts are fakes."""
    answers: dict[str, Any] = {
        "provisioning.doctor.examine": machine.examine,
        "provisioning.sites.here.examined": lambda *_: ([], "nvml is not there", None),
        "commands.machine.examine_as_far_as_possible": machine.examine,
        "provisioning.images.image.current": lambda _variant: IMAGE,
        "provisioning.machines.accelerator.choose": lambda _requested: ("tcg", "asked for"),
        "provisioning.isa.shared": lambda *_, **__: "avx2",
        "commands.run.prepare.Ready.prepare": lambda made, _: made,
        "provisioning.metrics.accounting.open_account": lambda *_, **__: FakeAccount(),
        "provisioning.neighbours.alone_on": lambda *_, **__: nullcontext(),
        "suite.progress.Allowance.GRACE_S": 0.0,
        "commands.run.prepare.Ready.open_target": machine.targets.opened,
    }
    patch.setattr(Image, "check", lambda _: None)
    for name, answer in answers.items():
        patch.setattr(name, answer)
    return machine


def short_pilot(patch: pytest.MonkeyPatch) -> None:
    """Let the pilot of ``--detect`` be the least number of blocks of which there is an interval."""
    patch.setattr("analysis.compare.convergence.PILOT_BLOCKS", 5)
    patch.setattr("analysis.compare.convergence._FEWEST", {"pilot": 10, "earlier": 1})


def ended_well(result: Result) -> Result:
    assert result.exit_code == 0, result.output
    return result


def refused(result: Result, *words: str) -> None:
    """The command ended with 2 and a message with the words in it, before anything was started."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert [word for word in words if word not in result.stderr] == [], result.stderr
    assert "Traceback" not in result.stderr


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory and folders of the test's own."""
    return go_to(tmp_path, monkeypatch)


@pytest.fixture
def bench() -> Bench:
    """``bench("compare", "--json")``: the command's exit code, standard output and standard error."""
    return lambda *words, **more: CliRunner().invoke(cli.main, list(words), prog_name="bench", **more)


@pytest.fixture
def unaudited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let records count that the audit refuses: the fakes claim more images than their steps make."""
    # Here, since those who take the machine alone need no pandas.
    from analysis.audit.audit import Audit

    monkeypatch.setattr("analysis.audit.audit.audit", lambda records, **_: Audit((), len(records.trials)))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = answer_for(Machine(), monkeypatch)
    measuring_by(made.scenario, monkeypatch)
    return made
