"""The sweep backend ``kubernetes``: each block is a Job whose pod runs bench.

All state is in the cluster, as it is in the queue with Slurm: Jobs are found by a label made from the output directory.
The name of a block can belong to only one Job at a time, so that no block runs twice.
"""

import json
import re
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import click

from commands.sweep.backends.base import Backend, SweepEnd, SweepRequest, job_name, options_of
from commands.sweep.backends.rounds import BLOCK, blocks_left, files_to_send, next_round, run_on, run_rounds
from provisioning.batch.options import KubernetesOptions
from provisioning.batch.patience import AwayError
from provisioning.batch.remote import CLOSES_WITHIN_S, lost
from provisioning.kubernetes.bench_pod import CONTAINER, GIVEN_AT, RECORDS_AT, bench_template
from provisioning.kubernetes.cluster import MANAGED, Cluster, Object
from provisioning.kubernetes.owned import (
    KUEUE,
    NOT_FOUND,
    await_gone,
    demand_queue,
    not_found_is_fine,
    owners,
)
from provisioning.kubernetes.pod import HOSTNAME_LABEL, POD_FAILURES, job_manifest
from provisioning.kubernetes.refusals import ApiError, refused_as_request
from provisioning.kubernetes.states import JobState, events_of
from suite.errors import BenchError, MeasurementError, RequestError
from suite.results.files import appending
from suite.results.layout import LOGS
from suite.sweep.cells import cells_of
from suite.sweep.file import Sweep
from suite.sweep.file_transfer import ENDED, FILE, GIVEN, encode, encode_file, packed
from suite.units import count

SWEEP_LABEL = "virtbench.dev/sweep"
BLOCK_LABEL = "virtbench.dev/block"
"""The labels by which Jobs and their pods are found."""
QUEUE = f"{KUEUE}/queue-name"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
GONE_WITHIN_S = CLOSES_WITHIN_S + 60.0
"""How long removed pods are waited for: the node may need a moment more than bench."""
KEPT_S = 7 * 24 * 3600
"""How long a Job that nobody has followed is kept, with its log."""
RIGHTS = {"jobs.batch": ("create", "get", "list", "delete"), "pods": ("list",), "pods/log": ("get",)}
"""What the user who submits needs; the pods need what ``--engine kubernetes`` does."""
CONFLICT = 409
SILENT_S = 10.0
"""Seconds after which a log without new lines is opened again, and a stop is noticed."""
FINAL = ("image", "runtime-class", "admission", "namespace")
"""The kinds of hindrances that no waiting removes: unlike a quota, or nodes that are full."""
MOST_LOOKS = 3
"""The log of a pod that has just ended may be empty at first."""


class KubernetesBackend(Backend):
    """Runs blocks as Jobs of a cluster, one on a node at a time; none is privileged without ``privileged_bench``."""

    options = KubernetesOptions

    def run(self, request: SweepRequest) -> SweepEnd:
        options = options_of(KubernetesOptions, request.sweep)
        cluster = _cluster(request.sweep)
        cluster.demand(RIGHTS)
        if options.queue:
            demand_queue(cluster, options.queue)
        # What the cluster refuses is a wrong request as long as no block was handed out.
        for block in blocks_left(request)[:1]:
            submit(cluster, _job(request, options, block), dryRun="All")
        by_jobs = partial(_by_jobs, request, options, cluster)
        return run_rounds(request, by_jobs, options.at_once)

    def dry_run(self, request: SweepRequest) -> None:
        """Print the manifests as ``kubectl apply`` takes them, a document for each object."""
        options = options_of(KubernetesOptions, request.sweep)
        blocks = next_round(request, options.at_once)
        counted = count(len(blocks), "block")
        click.echo(f"# {counted} would go to Kubernetes, {options.at_once} at once, each to its own node.")
        for block in blocks:
            click.echo(f"---\n{json.dumps(_job(request, options, block), indent=2)}")

    def queue(self, sweep: Sweep, directory: Path) -> list[str]:
        try:
            labels = {SWEEP_LABEL: label(sweep, directory)}
            queued = jobs(_cluster(sweep), labels)
        except BenchError as error:  # the records are here all the same
            return [f"the cluster cannot be seen from here: {error.message}"]
        return [f"in the cluster: block {job.block}, {job.state} {job.reason}".rstrip() for job in queued]

    def stop(self, sweep: Sweep, directory: Path) -> list[str]:
        return self.cancel(sweep, directory, waiting_alone=True)

    def cancel(self, sweep: Sweep, directory: Path, *, waiting_alone: bool = False) -> list[str]:
        cluster = _cluster(sweep)
        labelled = label(sweep, directory)
        removed = jobs(cluster, {SWEEP_LABEL: labelled})
        if waiting_alone:
            removed = [job for job in removed if job.state == "waiting" and not job.begun]
        if removed:
            click.echo("waiting until the pods of removed blocks are gone", err=True)
            remove_all(cluster, labelled, removed)
        return [f"block {job.block} was removed from the cluster ({job.state} {job.reason})" for job in removed]


def _cluster(sweep: Sweep) -> Cluster:
    options = options_of(KubernetesOptions, sweep)
    return Cluster.connect(options.context, options.namespace)


def _by_jobs(request: SweepRequest, options: KubernetesOptions, cluster: Cluster, blocks: list[int]) -> None:
    logs = request.directory.path / LOGS

    def start(block: int) -> JobProcess:
        make_job = partial(_job, request, options, block)
        return JobProcess(cluster, make_job, logs, options.poll_s)

    process_count = min(len(blocks), options.at_once)
    names = [f"kubernetes-{number}" for number in range(process_count)]
    run_on(dict.fromkeys(names, start), request, blocks, stay="the Jobs stay in the cluster")


def label(sweep: Sweep, directory: Path) -> str:
    """Return the label's value for a sweep: the names of its pods, which begin with it, take 63 characters at most."""
    name, _, hashed = job_name(sweep, directory).rpartition("-")
    hyphenated = re.sub("[._]", "-", name)
    shortened = hyphenated[:40].strip("-")
    return f"{shortened}-{hashed}"


def _job(request: SweepRequest, options: KubernetesOptions, block: int) -> Object:
    directory = request.directory.path.absolute()
    # What a dry run prints is whole before the directory is there, and can be applied by hand.
    cells = cells_of(request.sweep)
    accepted = request.directory.acceptable(request.sweep, cells)
    plan = encode("sweep.json", accepted.text())
    records = []
    for path in files_to_send(directory, block):
        if path.name != "sweep.json":
            records.append(encode_file(directory, path))
    content = packed([plan, *records, GIVEN])
    return manifest(options, label(request.sweep, directory), block, content)


def manifest(options: KubernetesOptions, sweep: str, block: int, given: str) -> Object:
    """Return the Job of a block of the sweep with this label.

    ``given`` are the files that it begins with, from ``file_transfer.packed``. Raises RequestError for more files than
    a Job holds.
    """
    labels = {**MANAGED, SWEEP_LABEL: sweep, BLOCK_LABEL: str(block)}
    node_bench = ["--on-node", options.privileged_bench] if options.privileged_bench else []
    block_options = ["--name", sweep, "--given", GIVEN_AT, "--scratch", RECORDS_AT, *node_bench]
    command = ["bench", *BLOCK, *block_options, str(block)]
    template = bench_template(options, labels, given, command)
    pod = template["spec"]
    # Two blocks on one node would measure each other.
    other_block = {"matchExpressions": [{"key": SWEEP_LABEL, "operator": "Exists"}]}
    apart = {"labelSelector": other_block, "topologyKey": HOSTNAME_LABEL}
    pod["affinity"] = {"podAntiAffinity": {REQUIRED: [apart]}}
    if options.nodes:
        on_nodes = {"key": HOSTNAME_LABEL, "operator": "In", "values": list(options.nodes)}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [on_nodes]}]}
        pod["affinity"]["nodeAffinity"] = {REQUIRED: terms}
    if node_bench:
        # The pod enters the namespaces of its node's first process, as root, without a token of the cluster.
        pod["hostPID"] = True
        pod["automountServiceAccountToken"] = False
        pod["securityContext"] = {"runAsUser": 0}
        pod["containers"][0]["securityContext"] = {"privileged": True}
    if options.queue:
        labels = {**labels, QUEUE: options.queue}
    job = job_manifest(
        f"{sweep}-{block:03d}",
        labels,
        template,
        podFailurePolicy=POD_FAILURES,
        ttlSecondsAfterFinished=KEPT_S,
    )
    # A Job that the pod of a CronJob has made is removed with that pod.
    job["metadata"]["ownerReferences"] = owners()
    return job


def submit(cluster: Cluster, job: Object, **query: object) -> None:
    """Create the Job of a block, unless the block has one already. With ``dryRun="All"`` nothing is created.

    Raises RequestError for a Job that this cluster takes from nobody.
    """
    try:
        with refused_as_request():
            cluster.create(job, **query)
    except ApiError as error:
        if error.status != CONFLICT:
            raise


class BlockJob(JobState):
    @property
    def block(self) -> int:
        return int(self.name.rpartition("-")[2])


def jobs(cluster: Cluster, labels: Mapping[str, str]) -> list[BlockJob]:
    """Return the Jobs in the cluster with these labels: of a sweep, or of one block of it."""
    live = cluster.listed("batch/v1/jobs", labels)
    pods = cluster.listed("v1/pods", labels)
    states = []
    for job in live:
        uid = job["metadata"]["uid"]
        of_job = [pod for pod in pods if uid in _owner_uids(pod)]
        events = []
        if not of_job:
            events = events_of(cluster, job["metadata"]["name"])
        states.append(BlockJob.of_job(job, of_job, events))
    return states


def _owner_uids(pod: Object) -> list[str]:
    references = pod["metadata"].get("ownerReferences", [])
    return [reference["uid"] for reference in references]


def remove(cluster: Cluster, name: str) -> None:
    """Remove a Job with its pod and the pods that it has opened; harmless if there is none."""
    with not_found_is_fine():
        cluster.delete("batch/v1/jobs", name)


def remove_all(cluster: Cluster, sweep: str, removed: Sequence[BlockJob]) -> None:
    """Remove Jobs of a sweep, and wait until their pods are gone, with those that these have opened.

    Raises MeasurementError if some are still there after ``GONE_WITHIN_S``.
    """
    blocks = {str(job.block) for job in removed}
    owning = set()
    for job in removed:
        labels = {SWEEP_LABEL: sweep, BLOCK_LABEL: str(job.block)}
        pods = cluster.listed("v1/pods", labels)
        owning |= {pod["metadata"]["uid"] for pod in pods}
        remove(cluster, job.name)

    def remaining() -> Iterator[str]:
        for pod in cluster.listed("v1/pods", MANAGED):
            about = pod["metadata"]
            labels = about["labels"]
            if labels.get(SWEEP_LABEL) == sweep and labels.get(BLOCK_LABEL) in blocks:
                owning.add(about["uid"])
                yield about["name"]
            elif owning.intersection(_owner_uids(pod)):
                yield about["name"]

    await_gone(cluster, "pods", lambda: list(remaining()), GONE_WITHIN_S)


class JobProcess:
    """The Job of a block, followed through the log of its pod. See ``BlockProcess``.

    A Job outlives this process: stopping leaves it in the cluster, and the next run of the sweep follows it. If its pod
    is preempted or evicted after it has sent records, the Job is made anew with them: in the same Job another pod would
    measure those trials again.
    """

    def __init__(self, cluster: Cluster, make_job: Callable[[], Object], logs: Path, poll_s: float) -> None:
        """Make the Job, unless it is there already. ``logs`` is the directory for what the pod writes apart from files.

        ``make_job`` returns it with the records that the block has by then. Raises RequestError for a Job that this
        cluster takes from nobody.
        """
        job = make_job()
        self._cluster = cluster
        self._make_job = make_job
        self._poll_s = poll_s
        about = job["metadata"]
        self._labels = {name: about["labels"][name] for name in (SWEEP_LABEL, BLOCK_LABEL)}
        self._job = BlockJob("waiting", "", name=about["name"])
        self._log = logs / f"kubernetes-{self._job.block:03d}.log"
        self._output: dict[str, list[str]] = {}
        """The lines of each pod so far, those of files left empty."""
        self._sender: str | None = None
        """The pod of this Job that has sent files; None before there is one."""
        self._stays = False
        self._stopped = threading.Event()
        submit(cluster, job)

    @property
    def where(self) -> str:
        return self._job.reason

    def lines(self) -> Generator[str, None, None]:
        looks_after_end = 0
        try:
            while looks_after_end <= MOST_LOOKS:
                if self._stopped.is_set():
                    raise MeasurementError("it is not followed any more", kind="stopped")
                self._look()
                if self._is_replaced():
                    self._renew()
                    continue
                looks_after_end += self._job.state in ("complete", "failed")
                if self._job.begun and self._job.pod:
                    yield from self._new_lines(self._job.pod)
                self._stopped.wait(self._poll_s)
        except MeasurementError:  # the Job may run on, unlike one that is refused or lost
            self._stays = True
            raise

    def _look(self) -> None:
        live = jobs(self._cluster, self._labels)
        if not live:
            raise MeasurementError("its Job was removed", kind="lost", remedy="bench sweep run tries it again")
        self._job = live[0]
        why = self._job.failure or self._job.hindrance
        if why and why.kind in FINAL and not self._job.begun:
            raise RequestError(f"the pod of bench does not begin: {why.message}", remedy=why.remedy)

    def _is_replaced(self) -> bool:
        """Return whether the pod that has sent files is gone, and the Job waits for another or has one."""
        return self._sender not in (None, self._job.pod) and self._job.state not in ("complete", "failed")

    def _renew(self) -> None:
        self._sender = None
        self._remove()
        if not self._stopped.is_set():
            submit(self._cluster, self._make_job())

    def _new_lines(self, pod: str) -> Iterator[str]:
        """Yield what is new in a pod's log until it is silent or ends."""
        output = self._output.setdefault(pod, [])
        old = len(output)
        try:
            log_lines = self._cluster.log_lines(pod, CONTAINER, SILENT_S)
            for number, line in enumerate(log_lines):
                if number < old:
                    continue
                output.append("" if line.startswith(FILE) else line)
                if line == ENDED or line.startswith(FILE):
                    self._sender = pod
                    yield line
                else:
                    with appending(self._log, self._log.parents[1]) as log:
                        log.write(f"{line}\n".encode())
                if self._stopped.is_set():
                    return
        except AwayError:  # it was silent, or the server is away: it is asked again
            return
        except ApiError as error:  # the pod has gone meanwhile
            if error.status != NOT_FOUND:
                raise

    def stop(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        """Remove the Job, unless it may run on, and wait until its name is free: the next try has the same one."""
        if not self._stays:
            self._remove()

    def _remove(self) -> None:
        remove(self._cluster, self._job.name)
        while jobs(self._cluster, self._labels) and not self._stopped.wait(self._poll_s):
            pass

    def lost(self) -> BenchError:
        pod = str(self._job.pod)
        written = self._output.get(pod, [])
        output = "\n".join(written)
        bench = [line for line in output.splitlines() if line.startswith("bench: ")]
        message = "\n".join(bench)
        refused = f"exit code {RequestError.exit_code}" in self._job.reason
        reason = self._job.reason or "its pod has ended"
        return lost(message, reason, self._log, refused=refused)
