"""The sweep backend ``kubernetes``: each block is a Job whose pod runs bench."""

import json
from pathlib import Path

import click

from commands.sweep.backends.base import Backend, SweepEnd, SweepRequest, options_of
from commands.sweep.backends.rounds import BLOCK, blocks_left, files_to_send, next_round, run_on, run_rounds
from provisioning.batch import kubernetes
from provisioning.batch.kubernetes import JobProcess
from provisioning.batch.options import KubernetesOptions
from provisioning.batch.slurm import job_name
from provisioning.kubernetes.cluster import Cluster, Object
from suite.errors import BenchError
from suite.sweep.cells import cells_of
from suite.sweep.file_transfer import GIVEN, encode, encode_file, packed
from suite.sweep.model import Sweep
from suite.units import count


class KubernetesBackend(Backend):
    """Runs blocks as Jobs of a cluster, one on a node at a time; nothing in them is privileged."""

    options = KubernetesOptions

    def run(self, request: SweepRequest) -> SweepEnd:
        options = options_of(KubernetesOptions, request.sweep)
        cluster = _cluster(options)
        cluster.demand(kubernetes.RIGHTS)
        # What the cluster refuses is a wrong request as long as no block was handed out.
        for block in blocks_left(request)[:1]:
            kubernetes.submit(cluster, _manifest(request, options, block), dryRun="All")
        return run_rounds(request, lambda blocks: _by_jobs(request, options, cluster, blocks), options.at_once)

    def dry_run(self, request: SweepRequest) -> None:
        """Print the manifests as ``kubectl apply`` takes them, a document for each object."""
        options = options_of(KubernetesOptions, request.sweep)
        blocks = next_round(request, options.at_once)
        counted = count(len(blocks), "block")
        click.echo(f"# {counted} would go to Kubernetes, {options.at_once} at once, each to its own node.")
        for block in blocks:
            click.echo(f"---\n{json.dumps(_manifest(request, options, block), indent=2)}")

    def queue(self, sweep: Sweep, directory: Path) -> list[str]:
        try:
            queued = _jobs(sweep, directory)[1]
        except BenchError as error:  # the records are here all the same
            return [f"the cluster cannot be seen from here: {error.message}"]
        return [f"in the cluster: block {job.block}, {job.state} {job.reason}".rstrip() for job in queued]

    def stop(self, sweep: Sweep, directory: Path) -> list[str]:
        return _remove(sweep, directory, waiting_alone=True)

    def cancel(self, sweep: Sweep, directory: Path) -> list[str]:
        return _remove(sweep, directory, waiting_alone=False)


def _cluster(options: KubernetesOptions) -> Cluster:
    return Cluster.connect(options.context, options.namespace)


def _label(sweep: Sweep, directory: Path) -> str:
    return kubernetes.label_of(job_name(sweep.name, directory))


def _jobs(sweep: Sweep, directory: Path) -> tuple[Cluster, list[kubernetes.BlockJob]]:
    cluster = _cluster(options_of(KubernetesOptions, sweep))
    return cluster, kubernetes.jobs(cluster, _label(sweep, directory))


def _remove(sweep: Sweep, directory: Path, *, waiting_alone: bool) -> list[str]:
    cluster, queued = _jobs(sweep, directory)
    removed = [job for job in queued if not waiting_alone or (job.state == "waiting" and not job.begun)]
    if removed:
        click.echo("waiting until the pods of removed blocks are gone", err=True)
        kubernetes.remove_all(cluster, _label(sweep, directory), removed)
    return [f"block {job.block} was removed from the cluster ({job.state} {job.reason})" for job in removed]


def _manifest(request: SweepRequest, options: KubernetesOptions, block: int) -> Object:
    directory = request.directory.path.absolute()
    label = _label(request.sweep, directory)
    # What a dry run prints is whole before the directory is there, and can be applied by hand.
    plan = encode("sweep.json", request.directory.acceptable(request.sweep, cells_of(request.sweep)).text())
    records = [encode_file(directory, path) for path in files_to_send(directory, block) if path.name != "sweep.json"]
    files = packed([plan, *records, GIVEN])
    places = ["--given", kubernetes.GIVEN_AT, "--scratch", kubernetes.RECORDS_AT]
    return kubernetes.manifest(options, label, block, files, ["bench", *BLOCK, "--name", label, *places])


def _by_jobs(request: SweepRequest, options: KubernetesOptions, cluster: Cluster, blocks: list[int]) -> None:
    label, logs = _label(request.sweep, request.directory.path), request.directory.path / "logs"

    def start(block: int) -> JobProcess:
        return JobProcess(cluster, label, block, _manifest(request, options, block), logs, options.poll_s)

    names = [f"kubernetes-{number}" for number in range(min(len(blocks), options.at_once))]
    run_on(dict.fromkeys(names, start), request, blocks, stay="the Jobs stay in the cluster")
