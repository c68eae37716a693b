"""The pod that runs bench: its template, and how it starts the bench of its node."""

import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath

from provisioning.batch.options import KubernetesOptions
from provisioning.batch.remote import CLOSES_WITHIN_S
from provisioning.kubernetes.cluster import Object
from provisioning.kubernetes.owned import FIELDS
from provisioning.kubernetes.pod import PodVolume, pod_template
from suite.errors import RequestError

CONTAINER = "bench"
GIVEN_IN = "virtbench.dev/given"
"""The annotation with the files of a pod, which sees it as one at ``GIVEN_AT``: so a Job is one object, or none."""
GIVEN_AT = "/given/lines"
RECORDS_AT = "/records"
MOST_GIVEN_BYTES = 250_000
"""The server takes 256 KiB of annotations."""
ALL_OF_THE_NODE = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
OF_ROOT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
"""The environment on the node, in place of the pod's."""


def bench_template(options: KubernetesOptions, labels: Mapping[str, str], given: str, command: Sequence[str]) -> Object:
    """Return a pod that runs bench, without rights on its node; it reaches the cluster through the API.

    ``given`` is the content of the file ``GIVEN_AT``. Raises RequestError if it is more than a pod holds.
    """
    if len(given.encode()) > MOST_GIVEN_BYTES:
        message = f"the pod needs {len(given.encode())} bytes of files, and a Job takes {MOST_GIVEN_BYTES}"
        raise RequestError(message, remedy="give [engine] a claim, on which the records of earlier tries stay")
    file = {"path": PurePosixPath(GIVEN_AT).name, "fieldRef": {"fieldPath": f"metadata.annotations['{GIVEN_IN}']"}}
    records = {"persistentVolumeClaim": {"claimName": options.claim}} if options.claim else {"emptyDir": {}}
    variables = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in FIELDS.items()]
    return pod_template(
        {
            "name": CONTAINER,
            "image": options.image,
            "command": list(command),
            "env": variables,
        },
        # No CPU is requested: whole CPUs belong to the measured pods, and bench waits while they run.
        {"memory": options.memory},
        [
            PodVolume("given", {"downwardAPI": {"items": [file]}}, str(PurePosixPath(GIVEN_AT).parent), read_only=True),
            PodVolume("records", records, RECORDS_AT),
        ],
        labels,
        {GIVEN_IN: given},
        serviceAccountName=options.service_account,
        terminationGracePeriodSeconds=CLOSES_WITHIN_S,
    )


def run_outside(bench: str, words: Sequence[str], lines: Iterable[str]) -> int:
    """Run bench in the namespaces of the node's first process, with lines as its input; return the exit status.

    All its output goes to standard output, the pod's one log. Its input stays open while it runs: it ends in order
    when this process does, however that ends. Raises RequestError if there is no such command.
    """
    argv = ["nsenter", "--target", "1", *ALL_OF_THE_NODE, "--", bench, *words]
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stderr=sys.stdout.fileno(),
        text=True,
        env=OF_ROOT,
    )
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
        remedy = "set virtbench up there, and give its command as engine.privileged_bench"
        raise RequestError(f"the node cannot start {bench}", remedy=remedy)
    return process.returncode
