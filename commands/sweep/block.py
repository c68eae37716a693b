"""``bench sweep element``: one block of a sweep on a machine that sees none of its files."""

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from suite.errors import MeasurementError, RequestError
from suite.sweep.file_transfer import ENDED, GIVEN, Outbox, pack, unpack

if TYPE_CHECKING:
    from suite.interfaces import Observer
    from suite.plan import Trial
    from suite.records.record import TrialRecord
    from suite.sweep.pool import Machine


@click.command(hidden=True)
@click.argument("block", type=click.IntRange(min=0))
@click.option("--name", required=True, help="Of the sweep: what an earlier try has left here is found by it.")
@click.option("--scratch", type=click.Path(path_type=Path), help="Where records are kept on their way.")
def element(block: int, name: str, scratch: Path | None) -> None:
    """One block of a sweep: its files come on standard input and go, as they are finished, to standard output.

    For ``bench sweep run`` with the engines ssh and slurm. It ends, in order, when its standard input does.

    \b
    Examples:
      bench sweep element --name bench-smoke-1a2b3c4d 0      (as bench sweep run starts it)
    """
    from commands.run.prepare import observing
    from provisioning.paths import state

    if not name.replace("-", "").replace(".", "").replace("_", "").isalnum():
        raise RequestError(f"--name {name!r} is no name of a sweep", remedy="bench sweep run gives it")
    directory = (scratch or state("elements")) / f"{name}-block-{block:03d}"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    outbox = Outbox(directory)
    _receive(directory, outbox)
    ended = _end_with_standard_input()
    with observing() as observer:
        _run(directory, block, Sending(observer, lambda: _send(directory, outbox)))
    _send(directory, outbox)
    ended.set()
    _say(ENDED)
    shutil.rmtree(directory)


@dataclass
class Sending:
    """Between the loop and who is told: what a trial has left is sent before the next begins."""

    observer: "Observer"
    send: Callable[[], None]

    def trial_started(self, trial: "Trial", number: int, of: int) -> None:
        self.observer.trial_started(trial, number, of)

    def phase(self, name: str, detail: str = "") -> None:
        self.observer.phase(name, detail)

    def trial_finished(self, record: "TrialRecord") -> None:
        self.observer.trial_finished(record)
        self.send()

    def note(self, text: str) -> None:
        self.observer.note(text)


def this_machine() -> "Machine":
    """What must be equal on all machines of a pool."""
    from commands.run.prepare import host_environment
    from provisioning.images.image import current
    from suite import __version__
    from suite.errors import BenchError
    from suite.sweep.pool import Machine

    try:
        image = current("cpu").digest
    except BenchError:
        image = None
    return Machine(suite_version=__version__, image=image, environment=host_environment())


def _receive(directory: Path, outbox: Outbox) -> None:
    for line in iter(sys.stdin.readline, ""):
        if line.rstrip("\n") == GIVEN:
            return
        outbox.known(unpack(directory, line))
    raise MeasurementError("the sweep's files did not all arrive", kind="connection")


def _end_with_standard_input() -> threading.Event:
    """Whoever started this holds the other end. That it is gone is heard by a thread that sleeps in the kernel.

    After the event that is returned was set it matters no more.
    """
    ended = threading.Event()

    def listen() -> None:
        while os.read(sys.stdin.fileno(), 1 << 12):
            pass
        if not ended.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=listen, daemon=True, name="standard input").start()
    return ended


def _send(directory: Path, outbox: Outbox) -> None:
    for path in outbox.fresh():
        _say(pack(directory, path))


def _say(line: str) -> None:
    try:
        print(line, flush=True)
    except OSError as error:
        raise MeasurementError("nobody takes the records any more; they are kept here", kind="connection") from error


def _run(directory: Path, block: int, observer: "Observer") -> None:
    from commands.sweep.backends.registry import SweepRequest, run_element
    from commands.sweep.resolve import ledger_of, refuse_refused, resolve
    from suite.sweep.directory import SweepDirectory
    from suite.sweep.locks import WHOLE, claimed
    from suite.sweep.pool import join_pool

    place = SweepDirectory(directory)
    accepted = place.accepted()
    if accepted is None:
        raise MeasurementError("no sweep.json came", kind="connection")
    with claimed(directory, WHOLE), ledger_of(directory):
        join_pool(directory, this_machine())
        planned = resolve(accepted.sweep, observer.note)
        refuse_refused(planned)
        run_element(SweepRequest(directory, accepted.sweep, place, planned, observer), block, take_over=True)
