"""Blocks on machines that share no file system with this one: files go there, and records come back."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import ValidationError

from commands.sweep.backends.base import SweepRequest
from commands.sweep.backends.rounds import files_to_send
from provisioning.batch.pool import Pool
from provisioning.batch.remote import RemoteExecutor, Wrap
from provisioning.batch.slurm import job_name
from suite.errors import MeasurementError
from suite.plan import Plan
from suite.results.store import PLAN, write_atomic
from suite.sweep.cell_run import CellRun
from suite.sweep.file_transfer import decode, encode_file
from suite.sweep.pool import POOL, PoolMember, join_pool

BLOCK = ("sweep", "block")


def run_on(executors: Sequence[RemoteExecutor], request: SweepRequest, blocks: list[int]) -> None:
    """Run the blocks on the executors as these become free."""
    Pool(executors, blocks, request.observer.note, request.directory.stop_requested).run()


def executor_of(
    request: SweepRequest, name: str, wrap: Wrap, command: Sequence[str], receive: Callable[[str], None]
) -> RemoteExecutor:
    """Return what runs blocks by ``bench sweep block`` through ``wrap``; ``command`` is the one to start there."""
    directory = request.directory.path.absolute()
    return RemoteExecutor(
        name=name,
        wrap=wrap,
        command=[*command, "--name", job_name(request.sweep.name, directory)],
        receive=receive,
        files=lambda block: [encode_file(directory, path) for path in files_to_send(directory, block)],
        log=directory / "logs" / f"{name}.log",
    )


def receiver_of(directory: Path) -> Callable[[str], None]:
    """Return what writes files that any machine has sent to the output directory, one after the other."""
    writing = threading.Lock()  # two machines may send a cell's plan at the same moment

    def receive(line: str) -> None:
        name, text = decode(line)
        path = directory / name
        with writing:
            try:
                if name == POOL:
                    join_pool(directory, PoolMember.model_validate_json(text))
                elif path.name == PLAN:  # refused if it is another than the first machine's
                    CellRun(path.parent, retries=0).begin(Plan.model_validate_json(text))
                else:
                    write_atomic(path, text)
            except ValidationError as error:
                raise MeasurementError(f"{name} arrived, and is not valid", kind="transfer") from error

    return receive
