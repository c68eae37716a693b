"""``bench sweep block``: run one block of a sweep whose files are on another machine."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import click

from commands.paths import UserPath
from commands.results.removal import name_foreign, removable, remove
from commands.run.prepare import host_environment, observing
from commands.sweep.backends.base import SweepRequest
from commands.sweep.backends.local import run_block
from commands.sweep.backends.rounds import BLOCK
from commands.sweep.resolve import resolve_all
from provisioning import ledger, paths
from provisioning.images import image
from provisioning.kubernetes import owned
from provisioning.kubernetes.bench_pod import run_outside
from suite.errors import BenchError, MeasurementError, RequestError
from suite.interfaces import Observer
from suite.records.record import TrialRecord
from suite.sweep.directory import SweepDirectory
from suite.sweep.file_transfer import ENDED, GIVEN, Outbox, encode_file, receive_file, unpacked
from suite.sweep.locks import WHOLE, locked
from suite.sweep.pool import PoolMember, join_pool
from suite.version import suite_version


@click.command(hidden=True)
@click.argument("block", type=click.IntRange(min=0))
@click.option("--name", required=True, help="Name of the sweep, which identifies records of earlier attempts.")
@click.option("--scratch", type=UserPath(), help="Directory for records in transit.")
@click.option("--given", type=UserPath(), help="Read the input from FILE instead of standard input.")
@click.option("--on-node", help="Start this bench command of the node, outside this privileged pod.")
def block(block: int, name: str, scratch: Path | None, given: Path | None, on_node: str | None) -> None:
    """Run one block of a sweep: read its files from standard input, write records to standard output.

    bench sweep run calls it for the engines ssh, slurm and kubernetes. It ends when its standard input closes; with
    --given it ends on a signal.

    \b
    Examples:
      bench sweep block --name bench-smoke-1a2b3c4d 0      (as bench sweep run starts it)
    """
    letters = name.translate(str.maketrans("", "", "-._"))
    if not letters.isalnum():
        raise RequestError(f"--name {name!r} is not a name of a sweep", remedy="bench sweep run gives it")
    if given and on_node:
        words = [*BLOCK, "--name", name, str(block)]
        files = unpacked(given.read_text())
        sys.exit(run_outside(on_node, words, files))
    directory = (scratch or paths.state("blocks")) / f"{name}-block-{block:03d}"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    paths.refuse_foreign(directory, "give --scratch a directory that others may not write to")
    if given:
        os.dup2(sys.stdout.fileno(), sys.stderr.fileno())  # a pod has one log: no line is cut by another's
        owned.use_account(directory)
    outbox = Outbox(directory)
    lines = unpacked(given.read_text()) if given else iter(sys.stdin.readline, "")
    for line in lines:
        if line.rstrip("\n") == GIVEN:
            break
        outbox.mark_sent(receive_file(directory, line))
    else:
        raise MeasurementError("the sweep's files did not all arrive", kind="connection")
    if given:
        ended = threading.Event()
    else:
        ended = _end_with_standard_input()

    def send() -> None:
        for path in outbox.unsent():
            _write_line(encode_file(directory, path))

    with observing() as observer:
        _run(directory, block, SendingObserver(observer, send))
    send()
    ended.set()
    _write_line(ENDED)
    _remove(directory)


def _remove(directory: Path) -> None:
    """Remove what this block and earlier attempts at it have written there; name what stays."""
    owned.forget_account(directory)
    contents = removable(directory)
    for foreign in contents.foreign:
        name_foreign(foreign)
    remove(contents)


class SendingObserver:
    """Wraps an observer: sends the files that a trial has left before the next trial begins."""

    def __init__(self, observer: Observer, send: Callable[[], None]) -> None:
        self.trial_started = observer.trial_started
        self.phase = observer.phase
        self.note = observer.note
        self._observer = observer
        self._send = send

    def trial_finished(self, record: TrialRecord) -> None:
        self._observer.trial_finished(record)
        self._send()


def this_machine() -> PoolMember:
    """Return what must be equal on all machines of a pool."""
    try:
        digest = image.current("cpu").digest
    except BenchError:
        digest = None
    return PoolMember(suite_version=suite_version(), image=digest, environment=host_environment())


def _end_with_standard_input() -> threading.Event:
    """End this process in order when its standard input ends, until the event that is returned is set.

    The other end is held by whoever started this; a thread that sleeps in the kernel notices when it is gone.
    """
    ended = threading.Event()

    def listen() -> None:
        while os.read(sys.stdin.fileno(), 1 << 12):
            pass
        if not ended.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=listen, daemon=True, name="standard input").start()
    return ended


def _write_line(line: str) -> None:
    try:
        print(line, flush=True)
    except OSError as error:
        lost = "the connection to the machine that requested this block is lost; the records are kept here"
        raise MeasurementError(lost, kind="connection") from error


def _run(directory: Path, block: int, observer: Observer) -> None:
    sweep_directory = SweepDirectory(directory)
    accepted = sweep_directory.accepted()
    if accepted is None:
        raise MeasurementError("sweep.json did not arrive", kind="connection")
    with locked(directory, WHOLE), ledger.holding("run-directory", str(directory.absolute())):
        join_pool(directory, this_machine())
        planned = resolve_all(accepted.sweep, observer.note)
        request = SweepRequest(directory, accepted.sweep, sweep_directory, planned, observer, take_over=True)
        run_block(request, block)
