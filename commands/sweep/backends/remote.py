"""Blocks on machines that share no file system with this one: files go there, and records come back."""

from collections.abc import Sequence

from commands.sweep.backends.base import SweepRequest
from commands.sweep.backends.rounds import files_to_send
from provisioning.batch.pool import Executor, Pool
from provisioning.batch.remote import RemoteExecutor, Wrap
from provisioning.batch.slurm import job_name
from suite.sweep.file_transfer import encode_file
from suite.sweep.receiving import Receiver

BLOCK = ("sweep", "block")


def run_on(executors: Sequence[Executor], request: SweepRequest, blocks: list[int]) -> None:
    """Run the blocks on the executors as these become free."""
    Pool(executors, blocks, request.observer.note, request.directory.stop_requested).run()


def executor_of(
    request: SweepRequest, name: str, wrap: Wrap, command: Sequence[str], receive: Receiver
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
