"""A CronJob, whose pod fires the schedule in the cluster: it submits the blocks as Jobs and follows them."""

import json
import os
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath

from provisioning.batch.options import KubernetesOptions
from provisioning.kubernetes.bench_pod import GIVEN_AT, RECORDS_AT, bench_template
from provisioning.kubernetes.cluster import MANAGED, Cluster, Object
from provisioning.kubernetes.pod import POD_FAILURES, job_manifest
from provisioning.timers.base import ScheduledJob, ScheduleEntry, Timer
from suite.errors import BenchError, RequestError
from suite.sweep.file import load_sweep

SCHEDULE = "virtbench.dev/schedule"
"""The label with the name of a schedule."""
TODAYS = "batch/v1"
RIGHTS = {"cronjobs.batch": ("create", "get", "list", "update", "delete")}
LATE_AT_MOST_S = 600
"""How late a firing may begin that was missed, by a controller that was away or by an earlier firing."""
LOCALTIME = Path("/etc/localtime")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?")
"""A CronJob's name has 52 characters at most, ten of which are the prefix."""
_ZONE = re.compile(r"[A-Z]\w*([/+-]\w+)*", re.ASCII)


class KubernetesTimer(Timer):
    """A CronJob in the namespace of the kubeconfig's current context."""

    kind = "kubernetes"

    def missing(self) -> str | None:
        try:
            self._cluster.version()
            self._cluster.demand({"cronjobs.batch": ("list",)})
        except BenchError as error:
            return error.message
        return None

    def render(self, job: ScheduledJob) -> Mapping[str, str]:
        cronjob = manifest(job, self._group)
        return {f"cronjobs/{cronjob['metadata']['name']}": json.dumps(cronjob, indent=2)}

    def install(self, name: str, rendered: Mapping[str, str]) -> None:
        self._cluster.demand(RIGHTS)
        (cronjob,) = map(json.loads, rendered.values())
        if name in {entry.name for entry in self.installed()}:
            self._cluster.request("PUT", f"{self._cluster.path_of(cronjob)}/{cronjob['metadata']['name']}", cronjob)
        else:
            self._cluster.create(cronjob)

    def installed(self) -> list[ScheduleEntry]:
        cluster = self._cluster
        return [
            ScheduleEntry(
                item["metadata"]["labels"][SCHEDULE],
                f"{item['spec']['schedule']} ({item['spec'].get('timeZone', 'in the time zone of the cluster')})",
                f"cronjobs/{item['metadata']['name']} in {cluster.namespace} of {cluster.context}",
            )
            for item in cluster.listed(f"{self._group}/cronjobs", {**MANAGED, SCHEDULE: ""}, patience_s=0)
        ]

    def remove(self, name: str) -> None:
        self._cluster.delete(f"{self._group}/cronjobs", f"virtbench-{name}")

    @cached_property
    def _cluster(self) -> Cluster:
        return Cluster.connect()

    @cached_property
    def _group(self) -> str:
        """The version of CronJobs on the server; today's if no server answers: a dry run needs none."""
        try:
            resources = self._cluster.get(f"/apis/{TODAYS}")["resources"]
        except BenchError:
            return TODAYS
        if any(item["name"] == "cronjobs" for item in resources):
            return TODAYS
        return "batch/v1beta1"


def manifest(job: ScheduledJob, group: str) -> Object:
    """Return the CronJob: its pod holds the plan file and writes the firings onto the claim of the plan.

    Raises RequestError for a name, a plan or options that a pod cannot be given.
    """
    if not _NAME.fullmatch(job.name):
        raise RequestError(
            f"{job.name!r} cannot be the name of a CronJob",
            remedy="use small letters, digits and - (at most 42), with --name",
        )
    labels = {**MANAGED, SCHEDULE: job.name}
    into = f"{RECORDS_AT}/{PurePosixPath(job.log).stem}"
    firing = ["bench", "sweep", "schedule-run", GIVEN_AT, "--into", into, *job.options]
    template = bench_template(_options(job), labels, job.plan.read_text(), firing)
    spec = {
        "schedule": job.schedule.cron,
        "timeZone": time_zone(),  # dropped by servers before 1.25
        "concurrencyPolicy": "Forbid",
        "startingDeadlineSeconds": LATE_AT_MOST_S,
        "jobTemplate": {
            "metadata": {"labels": labels},
            "spec": job_manifest(job.name, labels, template, podFailurePolicy=POD_FAILURES)["spec"],
        },
    }
    metadata = {"name": f"virtbench-{job.name}", "labels": labels}
    return {
        "apiVersion": group,
        "kind": "CronJob",
        "metadata": metadata,
        "spec": spec,
    }


def time_zone() -> str:
    """Return the name of this host's time zone: ``Europe/Berlin``. Raises RequestError if it has none."""
    configured = os.environ.get("TZ") or (str(LOCALTIME.resolve()) if LOCALTIME.exists() else "Etc/UTC")
    name = configured.lstrip(":").rpartition("zoneinfo/")[2]
    if not _ZONE.fullmatch(name):
        raise RequestError(f"{configured} does not name a time zone", remedy="set TZ to one, such as TZ=Europe/Berlin")
    return name


def _options(job: ScheduledJob) -> KubernetesOptions:
    engine = load_sweep(job.plan).engine
    if engine.kind != KubernetesTimer.kind:
        raise RequestError(
            f"{job.plan} runs its blocks by the engine {engine.kind}, and a CronJob runs none itself",
            remedy='write kind = "kubernetes" into [engine], see docs/guide/kubernetes.md; or choose another --with',
        )
    options = KubernetesOptions.model_validate(engine.table)
    if options.context or options.namespace:
        raise RequestError(
            f"{job.plan} names a context or a namespace, which its pod does not know",
            remedy="leave both out of [engine]; the kubeconfig's current ones are used",
        )
    if not options.claim:
        raise RequestError(
            f"{job.plan} names no claim, and the records of a firing would go with its pod",
            remedy="name a volume claim in [engine]: claim = ...",
        )
    local = [word for word in job.options if word in ("--baseline", "--notify")]
    if local:
        raise RequestError(
            f"{', '.join(local)}: a pod has neither the files nor the programs of this host",
            remedy="leave it out, and use bench compare or bench history with what the claim holds",
        )
    return options
