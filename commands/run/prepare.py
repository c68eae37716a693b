"""Make a request ready to run: for ``bench run`` and for the cells of a sweep."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from commands.run.plan import plan_of
from commands.run.resolve import resolve
from provisioning.doctor import Check
from provisioning.sites.base import Site
from scenarios.command_files import files_of
from scenarios.datasets.resolve import sha256_now
from suite.differ import Host
from suite.errors import RequestError
from suite.interfaces import Note, OpenTarget, Scenario
from suite.job.datasets import Dataset
from suite.plan import Plan
from suite.progress import Display, Lines
from suite.records.environment import Environment
from suite.request.request import RunRequest
from suite.untrusted.console import PlainConsole
from worker.environment import collect


@dataclass(frozen=True)
class Ready:
    """A plan that was checked on this machine, and what runs it."""

    plan: Plan
    scenario: Scenario
    site: Site

    def prepare(self, note: Note) -> None:
        """Make what is made once and kept; see ``Site.prepare``."""
        dataset = self.plan.job.dataset

        def check() -> None:
            if dataset and dataset.directory and not dataset.device:
                refuse_changed(dataset)

        check()
        self.site.prepare(self.plan, note, check)

    @property
    def open_target(self) -> OpenTarget:
        return self.site.opened


def ready(
    request: RunRequest, note: Note, checks: Sequence[Check] | None = None, lifetime: ExitStack | None = None
) -> Ready:
    """Check a request on this machine; nothing is started. Raises RequestError for what cannot be run.

    ``checks`` are what ``doctor.examine`` found, where it was asked already. ``lifetime`` closes at the end of the run;
    machines that are hired for it are made here.
    """
    resolved = resolve(request, note, checks, lifetime)
    return Ready(plan_of(resolved, note), resolved.inputs.scenario, resolved.site)


def refuse_changed(dataset: Dataset) -> None:
    """Raise RequestError if the directory no longer holds what was planned: a sweep plans hours before it packs."""
    of_command = dataset.kind == "files"
    try:
        now = files_of(Path(dataset.directory)).sha256 if of_command else sha256_now(dataset)
    except OSError as error:
        raise RequestError(
            f"cannot read {dataset.directory}: {error.strerror}", remedy="see who may read it"
        ) from error
    if now != dataset.sha256:
        raise RequestError(
            f"{dataset.directory} has changed since this command read it",
            remedy="repeat the command when nothing writes to it",
        )


@contextmanager
def observing(display: Callable[[Console], Display] = Display) -> Iterator[Lines | Display]:
    """Show how a run goes: live on a terminal, else in lines."""
    if not sys.stderr.isatty():
        yield Lines(sys.stderr)
        return
    with closing(display(PlainConsole(stderr=True))) as observer:
        yield observer


def host_environment() -> Environment:
    """Return the environment of this machine, as the worker would see it."""
    return Environment.model_validate({**collect(), "accelerator": "none"})


def this_host() -> Host:
    return Host.of(host_environment().model_dump(mode="json"))
