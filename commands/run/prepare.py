"""From the options of a run to everything that running it takes: the way of ``bench run`` and of a sweep's cells."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from suite.plan import Plan

if TYPE_CHECKING:
    from commands.run.plan import Note
    from provisioning.doctor import Check
    from provisioning.targets import Choices
    from suite.interfaces import Scenario
    from suite.loop import OpenTarget
    from suite.progress import Display, Lines
    from suite.records.record import Environment


@dataclass(frozen=True)
class Ready:
    """A plan that was checked on this machine, and what runs it."""

    plan: Plan
    scenario: "Scenario"
    choices: "Choices"

    def prepare(self, note: "Note") -> None:
        """Make what is made once and kept; see ``provisioning.targets.prepare``."""
        from provisioning.targets import prepare

        prepare(self.choices, self.plan.targets, note, self.plan.job.dataset, self.plan.ablations)

    @property
    def open_target(self) -> "OpenTarget":
        from provisioning.targets import open_target

        return lambda trial: open_target(trial, self.choices)


def ready(options: dict[str, Any], note: "Note", checks: "list[Check] | None" = None) -> Ready:
    """Check the options of ``bench run`` on this machine. Starts nothing. Raises RequestError for what cannot be run.

    ``checks``: what ``doctor.examine`` gave, where it was asked already.
    """
    from commands.run.distributed import ranks_of
    from commands.run.inventory import fleet_of
    from commands.run.plan import carried, choices_of, data_of, fio_job_of, models_of, plan_of
    from provisioning.doctor import examine

    options = {**options, "models": models_of(options)}
    data = data_of(options)
    options["fio_job"] = fio_job_of(options)
    scenario = scenario_of(options)
    fleet = options["fleet"] = fleet_of(options, data[1], *ranks_of(options), note)
    if fleet:
        targets, choices = fleet.targets, fleet.choices(options)
    else:
        if checks is None:
            note("checking this machine")
            checks = examine()
        targets = carried(options["targets"], checks, note)
        choices = choices_of(options, checks, targets, note)
    return Ready(plan_of(options, targets, choices, data, note), scenario, choices)


def scenario_of(options: dict[str, Any]) -> "Scenario":
    """The scenario that the options name, made with those of them that are its own."""
    from scenarios.registry import get_scenario

    wanted = ("device", "parallel", "loader_workers", "decoder")
    return get_scenario(options["scenario"])(
        **{name: options[name] for name in wanted}, devices=options["devices"] or 1, fio_job=options["fio_job"]
    )


@contextmanager
def observing() -> "Iterator[Lines | Display]":
    """Tell how a run goes: live on a terminal, else in lines."""
    from rich.console import Console

    from suite.progress import Display, Lines

    observer = Display(Console(stderr=True)) if sys.stderr.isatty() else Lines(sys.stderr)
    try:
        yield observer
    finally:
        observer.close()


def host_environment() -> "Environment":
    """Of this machine, as the worker would see it."""
    from suite.records.record import Environment
    from worker.environment import collect

    return Environment.model_validate({**collect(), "accelerator": "none"})
