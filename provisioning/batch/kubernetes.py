"""The blocks of a sweep as Jobs of a Kubernetes cluster, each with a pod that runs bench.

All state is in the cluster, as it is in the queue with Slurm: Jobs are found by a label made from the output directory.
The name of a block can belong to only one Job at a time, so that no block runs twice.
"""

import re
import subprocess
import sys
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from provisioning.batch.options import KubernetesOptions
from provisioning.batch.remote import lost
from provisioning.kubernetes import owned
from provisioning.kubernetes.cluster import MANAGED, Cluster, Object
from provisioning.kubernetes.owned import await_gone, not_found_is_fine
from provisioning.kubernetes.pod import HOSTNAME_LABEL, POD_FAILURES, PodVolume, job_manifest, pod_template
from provisioning.kubernetes.refusals import ApiError, AwayError, refused_as_request
from provisioning.kubernetes.states import JobState, events_of
from suite.errors import BenchError, MeasurementError, RequestError
from suite.results.files import appending
from suite.sweep.file_transfer import ENDED, FILE

CONTAINER = "bench"
SWEEP, BLOCK = "virtbench.dev/sweep", "virtbench.dev/block"
"""The labels by which Jobs and their pods are found."""
QUEUE = "kueue.x-k8s.io/queue-name"
GIVEN = "virtbench.dev/given"
"""The annotation with the files of a block, which its pod sees as a file: so a Job is one object, there or not."""
GIVEN_AT = "/given/lines"
RECORDS_AT = "/records"
MOST_GIVEN_BYTES = 250_000
"""The server takes 256 KiB of annotations."""
CLOSES_WITHIN_S = 120
GONE_WITHIN_S = CLOSES_WITHIN_S + 60.0
"""How long removed pods are waited for: the node may need a moment more than bench."""
KEPT_S = 7 * 24 * 3600
"""How long a Job that nobody has followed is kept, with its log."""
RIGHTS = {
    "jobs.batch": ("create", "get", "list", "delete"),
    "pods": ("list",),
    "pods/log": ("get",),
}
"""What the user who submits needs; the pods need what ``--engine kubernetes`` does."""
CONFLICT = 409
ALL_OF_THE_NODE = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
OF_ROOT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
"""The environment on the node, in place of the pod's."""
SILENT_S = 10.0
"""Seconds after which a log without new lines is opened again, and a stop is noticed."""
FINAL = ("image", "runtime-class", "admission", "namespace")
"""The kinds of hindrances that no waiting removes: unlike a quota, or nodes that are full."""
MOST_LOOKS = 3
"""The log of a pod that has just ended may be empty at first."""


@dataclass(frozen=True)
class BlockJob(JobState):
    """The Job of one block in the cluster."""

    block: int = 0


def label_of(job_name: str) -> str:
    """Return the value of the label of a sweep whose jobs elsewhere would have this name: 63 characters at most."""
    name, _, hashed = job_name.rpartition("-")
    return f"{re.sub('[._]', '-', name)[:40].strip('-')}-{hashed}"


def manifest(options: KubernetesOptions, sweep: str, block: int, given: str, bench: Sequence[str]) -> Object:
    """Return the Job of a block.

    ``given`` are the files that it begins with, from ``file_transfer.packed``; ``bench`` is the command that runs a
    block, whose number is put behind it. Raises RequestError for more files than a Job holds.
    """
    labels = {**MANAGED, SWEEP: sweep, BLOCK: str(block)}
    queued = {QUEUE: options.queue} if options.queue else {}
    node_bench = ["--on-node", options.privileged_bench] if options.privileged_bench else []
    template = bench_template(options, labels, given, [*bench, *node_bench, str(block)])
    # Two blocks on one node would measure each other.
    alone = {
        "labelSelector": {"matchExpressions": [{"key": SWEEP, "operator": "Exists"}]},
        "topologyKey": HOSTNAME_LABEL,
    }
    template["spec"]["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [alone]}}
    if options.nodes:
        on_nodes = {"key": HOSTNAME_LABEL, "operator": "In", "values": list(options.nodes)}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [on_nodes]}]}
        template["spec"]["affinity"]["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    if node_bench:
        # The pod enters the namespaces of its node's first process, as root, without a token of the cluster.
        template["spec"].update(hostPID=True, automountServiceAccountToken=False, securityContext={"runAsUser": 0})
        template["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    name, labels = f"{sweep}-{block:03d}", {**labels, **queued}
    job = job_manifest(name, labels, template, podFailurePolicy=POD_FAILURES, ttlSecondsAfterFinished=KEPT_S)
    # A Job that the pod of a CronJob has made is removed with that pod.
    job["metadata"]["ownerReferences"] = owned.owners()
    return job


def bench_template(options: KubernetesOptions, labels: Mapping[str, str], given: str, command: Sequence[str]) -> Object:
    """Return a pod that runs bench, without rights on its node; it reaches the cluster through the API.

    ``given`` is the content of the file ``GIVEN_AT``. Raises RequestError if it is more than a pod holds.
    """
    if len(given.encode()) > MOST_GIVEN_BYTES:
        raise RequestError(
            f"the pod needs {len(given.encode())} bytes of files, and a Job takes {MOST_GIVEN_BYTES}",
            remedy="give [engine] a claim, on which the records of earlier tries stay",
        )
    file = {"path": PurePosixPath(GIVEN_AT).name, "fieldRef": {"fieldPath": f"metadata.annotations['{GIVEN}']"}}
    records = {"persistentVolumeClaim": {"claimName": options.claim}} if options.claim else {"emptyDir": {}}
    variables = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in owned.FIELDS.items()]
    return pod_template(
        {"name": CONTAINER, "image": options.image, "command": list(command), "env": variables},
        # No CPU is requested: whole CPUs belong to the measured pods, and bench waits while they run.
        {"memory": options.memory},
        [
            PodVolume("given", {"downwardAPI": {"items": [file]}}, str(PurePosixPath(GIVEN_AT).parent), read_only=True),
            PodVolume("records", records, RECORDS_AT),
        ],
        labels,
        {GIVEN: given},
        serviceAccountName=options.service_account,
        terminationGracePeriodSeconds=CLOSES_WITHIN_S,
    )


def submit(cluster: Cluster, job: Object, **query: object) -> bool:
    """Create the Job of a block; return False if the block has one already.

    With ``dryRun="All"`` nothing is created. Raises RequestError for a Job that this cluster takes from nobody.
    """
    try:
        with refused_as_request():
            cluster.create(job, **query)
    except ApiError as error:
        if error.status == CONFLICT:
            return False
        raise
    return True


def jobs(cluster: Cluster, sweep: str, block: int | None = None) -> list[BlockJob]:
    """Return the Jobs of a sweep in the cluster, or of one block of it."""
    labels = {SWEEP: sweep} | ({} if block is None else {BLOCK: str(block)})
    live, pods = (cluster.listed(kind, labels) for kind in ("batch/v1/jobs", "v1/pods"))
    states = []
    for job in live:
        about, uid = job["metadata"], job["metadata"]["uid"]
        its = [pod for pod in pods if any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences", []))]
        state = BlockJob.of(job, its, [] if its else events_of(cluster, about["name"]))
        states.append(replace(state, block=int(about["labels"][BLOCK])))
    return states


def remove(cluster: Cluster, name: str) -> None:
    """Remove a Job with its pod and the pods that it has opened; harmless if there is none."""
    with not_found_is_fine():
        cluster.delete("batch/v1/jobs", name)


def remove_all(cluster: Cluster, sweep: str, removed: Sequence[BlockJob]) -> None:
    """Remove Jobs of a sweep, and wait until their pods are gone, with those that these have opened.

    Raises MeasurementError if some are still there after ``GONE_WITHIN_S``.
    """
    blocks, owners = {str(job.block) for job in removed}, set()
    for job in removed:
        owners |= {pod["metadata"]["uid"] for pod in cluster.listed("v1/pods", {SWEEP: sweep, BLOCK: str(job.block)})}
        remove(cluster, job.name)

    def remaining() -> Iterator[str]:
        for pod in cluster.listed("v1/pods", MANAGED):
            about = pod["metadata"]
            if about["labels"].get(SWEEP) == sweep and about["labels"].get(BLOCK) in blocks:
                owners.add(about["uid"])
                yield about["name"]
            elif owners.intersection(owner["uid"] for owner in about.get("ownerReferences", [])):
                yield about["name"]

    await_gone(cluster, "pods", lambda: list(remaining()), GONE_WITHIN_S)


class JobProcess:
    """The Job of a block, followed through the log of its pod. See ``pool.BlockProcess``.

    A Job outlives this process: stopping leaves it in the cluster, and the next run of the sweep follows it.
    """

    def __init__(self, cluster: Cluster, sweep: str, block: int, manifest: Object, logs: Path, poll_s: float) -> None:
        """Make the Job, unless it is there already. ``logs`` is the directory for what the pod writes apart from files.

        Raises RequestError for a Job that this cluster takes from nobody.
        """
        self._cluster, self._sweep, self._block, self._poll_s = cluster, sweep, block, poll_s
        self._log = logs / f"kubernetes-{block:03d}.log"
        self._job = BlockJob(manifest["metadata"]["name"], "waiting", "", block=block)
        self._output: dict[str, list[str]] = {}
        """The lines of each pod so far, those of files left empty."""
        self._stays = False
        self._stopped = threading.Event()
        submit(cluster, manifest)

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
                looks_after_end += self._job.state in ("complete", "failed")
                if self._job.begun and self._job.pod:
                    yield from self._new_lines(self._job.pod)
                self._stopped.wait(self._poll_s)
        except MeasurementError:  # the Job may run on, unlike one that is refused or lost
            self._stays = True
            raise

    def _look(self) -> None:
        live = jobs(self._cluster, self._sweep, self._block)
        if not live:
            raise MeasurementError("its Job was removed", kind="lost", remedy="bench sweep run tries it again")
        self._job = live[0]
        why = self._job.failure or self._job.hindrance
        if why and why.kind in FINAL and not self._job.begun:
            raise RequestError(f"the pod of bench does not begin: {why.message}", remedy=why.remedy)

    def _new_lines(self, pod: str) -> Iterator[str]:
        """Yield what is new in a pod's log until it is silent or ends."""
        output = self._output.setdefault(pod, [])
        old = len(output)
        try:
            for number, line in enumerate(self._cluster.log_lines(pod, CONTAINER, SILENT_S)):
                if number < old:
                    continue
                output.append("" if line.startswith(FILE) else line)
                if line == ENDED or line.startswith(FILE):
                    yield line
                else:
                    with appending(self._log, self._log.parents[1]) as log:
                        log.write(f"{line}\n".encode())
                if self._stopped.is_set():
                    return
        except AwayError:  # it was silent, or the server is away: it is asked again
            return
        except ApiError as error:  # the pod has gone meanwhile
            if error.status != owned.NOT_FOUND:
                raise

    def stop(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        """Remove the Job, unless it may run on, and wait until its name is free: the next try has the same one."""
        if self._stays:
            return
        remove(self._cluster, self._job.name)
        while jobs(self._cluster, self._sweep, self._block) and not self._stopped.wait(self._poll_s):
            pass

    def lost(self) -> BenchError:
        output = "\n".join(filter(None, self._output.get(str(self._job.pod), [])))
        refused = f"exit code {RequestError.exit_code}" in self._job.reason
        bench = [line for line in output.splitlines() if line.startswith("bench: ")]
        return lost("\n".join(bench), self._job.reason or "its pod has ended", self._log, refused=refused)


def run_outside(bench: str, words: Sequence[str], lines: Iterable[str]) -> int:
    """Run bench in the namespaces of the node's first process, with lines as its input; return the exit status.

    All its output goes to standard output, the pod's one log. Its input stays open while it runs: it ends in order
    when this process does, however that ends. Raises RequestError if there is no such command.
    """
    argv = ["nsenter", "--target", "1", *ALL_OF_THE_NODE, "--", bench, *words]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=sys.stdout.fileno(), text=True, env=OF_ROOT)
    with suppress(BrokenPipeError), process:  # what it has died of is in the log
        assert process.stdin is not None  # noqa: S101 (opened as a pipe)
        process.stdin.writelines(f"{line}\n" for line in lines)
        process.stdin.flush()
        try:
            process.wait()
        finally:
            process.stdin.close()  # it ends in order, before the pod and all in it do
            process.wait()
    if process.returncode in (126, 127):  # as shells have it, for a command that cannot be started
        raise RequestError(
            f"the node cannot start {bench}",
            remedy="set virtbench up there, and give its command as engine.privileged_bench",
        )
    return process.returncode
