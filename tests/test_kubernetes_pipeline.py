"""The manifests of the pipeline: what kubectl takes, what the worker understands, and what no pod of it may do."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import cli
from provisioning.batch import kubernetes
from provisioning.batch.options import KubernetesOptions
from provisioning.kubernetes.pod import UNPRIVILEGED
from provisioning.timers import kubernetes as cronjobs
from tests.kubernetes_schema import invalid
from tests.provisioning.test_cronjobs import CLAIM, ENGINE, planned
from worker.spec import ServeSpec, parse_spec, parsed

IMAGE = f"registry.example.org/virtbench@sha256:{'a' * 64}"
KINDS = {"Job", "PersistentVolumeClaim", "NetworkPolicy", "Deployment", "Service"}


def asked(*words: str) -> Result:
    return CliRunner().invoke(cli.main, ["kubernetes", "pipeline", "up", "--image", IMAGE, *words])


def objects(*words: str) -> dict[str, Any]:
    """Return the objects by their kind."""
    result = asked("--dry-run", *words)
    assert result.exit_code == 0, result.output
    made = json.loads(result.output)
    assert (made["apiVersion"], made["kind"]) == ("v1", "List")
    return {each["kind"]: each for each in made["items"]}


def pods(made: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the pod of each program, and its container."""
    for kind in ("Job", "Deployment"):
        pod = made[kind]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        yield pod, container


@pytest.mark.parametrize(
    "words", [(), ("--storage-class", "fast", "--access-mode", "ReadWriteMany", "--name", "faces")]
)
def test_every_object_is_valid_for_todays_api_and_for_1_20(words: tuple[str, ...]) -> None:
    made = objects(*words)
    assert set(made) == KINDS
    assert [problem for each in made.values() for problem in invalid(each)] == []


def test_the_worker_understands_what_the_pods_tell_it_and_both_mean_one_file() -> None:
    made = objects("--model", "dcgan", "--profile", "smoke", "--cpus", "3", "--seed", "7")
    (_, trained), (_, served) = pods(made)
    assert trained["command"][:4] == ["/usr/bin/python3", "-m", "worker", "--train"]
    assert served["command"][:4] == ["/usr/bin/python3", "-m", "worker", "--serve"]
    training, service = parse_spec(trained["command"][4]), parsed(ServeSpec, served["command"][4])
    assert training.model_file == service.model_file
    assert (training.workload, training.shape, training.threads) == (service.workload, service.shape, 3)
    assert (training.seed, service.model, service.port) == (7, "dcgan", 5000)
    assert service.load_workload().generates


def test_pods_run_as_nobody_with_limits_and_nothing_of_the_cluster() -> None:
    made = objects("--cpus", "2", "--memory", "1G")
    for pod, container in pods(made):
        assert container["image"] == IMAGE
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert container["resources"]["limits"] == {"cpu": "2", "memory": str(1 << 30)}
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert pod["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)


def test_the_training_alone_writes_to_the_claim_and_the_service_is_probed() -> None:
    made = objects()
    claim = made["PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert claim["spec"]["resources"]["requests"]["storage"] == str(20 << 30)
    for (pod, container), read_only in zip(pods(made), (False, True), strict=True):
        assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        assert pod["volumes"][0]["persistentVolumeClaim"]["readOnly"] is read_only
        assert container["volumeMounts"][0]["readOnly"] is read_only
    (_, (_, container)) = pods(made)
    assert {container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")} == {
        "/health"
    }


def test_the_service_finds_the_pods_and_the_policy_covers_them_all() -> None:
    made = objects("--name", "faces")
    labels = [made[kind]["spec"]["template"]["metadata"]["labels"] for kind in ("Job", "Deployment")]
    assert made["Service"]["spec"]["selector"].items() <= labels[1].items()
    assert not made["Service"]["spec"]["selector"].items() <= labels[0].items(), "the training serves nothing"
    assert made["Service"]["spec"]["ports"][0]["port"] == 5000
    policy = made["NetworkPolicy"]["spec"]
    assert all(policy["podSelector"]["matchLabels"].items() <= each.items() for each in labels)
    assert policy["egress"] == []
    assert {each["metadata"]["labels"]["app.kubernetes.io/instance"] for each in made.values()} == {"faces"}
    parts = {kind: each["metadata"]["labels"]["app.kubernetes.io/component"] for kind, each in made.items()}
    assert {kind for kind, part in parts.items() if part == "serve"} == {"Deployment", "Service"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--image", "registry.example.org/virtbench:latest"), "--image 'registry.example.org/virtbench:latest'"),
        (("--name", "Faces"), "--name 'Faces'"),
        (("--model", "resnet50"), "the image holds no such generator"),
        (("--model", "nothing"), "the image holds no such generator"),
        (("--claim", "much"), "'much' is not an amount"),
    ],
)
def test_what_cannot_be_is_refused_with_a_remedy(words: tuple[str, ...], message: str) -> None:
    result = asked(*words)
    assert result.exit_code == 2
    assert message in result.output
    assert "what to do:" in result.output


def test_every_job_of_the_suite_is_made_in_one_way(tmp_path: Path) -> None:
    block = kubernetes.manifest(KubernetesOptions(image=IMAGE), "bench-smoke-1a2b3c4d", 3, "", ["bench"])
    firing = cronjobs.manifest(planned(tmp_path, ENGINE + CLAIM), "batch/v1")["spec"]["jobTemplate"]
    for job in (block, firing, objects()["Job"]):
        pod = job["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert ("podFailurePolicy" in job["spec"]) is (container["name"] == "bench"), "kubectl of 1.20 refuses it"
        assert (pod["restartPolicy"], pod["securityContext"]["runAsNonRoot"]) == ("Never", True)
        assert container["securityContext"].items() >= UNPRIVILEGED.items()
        assert pod["automountServiceAccountToken"] is ("serviceAccountName" in pod)
        assert container["resources"]["requests"] == container["resources"]["limits"]
