"""The manifests of the pipeline: what kubectl takes, what the worker understands, and what no pod of it may do."""

import json
import re
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings, strategies

import cli
from commands.kubernetes import command
from commands.kubernetes.manifests import NAME
from suite.registries import DATA_KINDS
from tests.kubernetes_schema import invalid
from worker.spec import ServeSpec, parse_spec, parsed

IMAGE = f"registry.example.org/virtbench@sha256:{'a' * 64}"
MODELS = ("--model", "gan", "--model", "dcgan")
SETS = (*MODELS, "--data", "mnist:digits/of/all", "--data", "cifar10:small", "--epochs", "50")
KINDS = {"Job", "PersistentVolumeClaim", "NetworkPolicy", "Deployment", "Service"}


def asked(*words: str) -> Result:
    return CliRunner().invoke(cli.main, ["kubernetes", "pipeline", "up", "--image", IMAGE, *words])


def listed(*words: str) -> list[dict[str, Any]]:
    result = asked("--dry-run", *words)
    assert result.exit_code == 0, result.output
    made = json.loads(result.output)
    assert (made["apiVersion"], made["kind"]) == ("v1", "List")
    items: list[dict[str, Any]] = made["items"]
    return items


def container_of(made: dict[str, Any]) -> dict[str, Any]:
    """Return the one container of a Job's or a Deployment's pod."""
    (container,) = made["spec"]["template"]["spec"]["containers"]
    return dict(container)


@pytest.mark.parametrize(
    "words", [(), ("--storage-class", "fast", "--access-mode", "ReadWriteMany", "--name", "faces"), SETS]
)
def test_every_object_is_valid_for_todays_api_and_for_1_20(words: tuple[str, ...]) -> None:
    made = listed(*words)
    assert {each["kind"] for each in made} == KINDS
    assert [problem for each in made for problem in invalid(each)] == []


def test_a_job_for_each_pair_reads_its_claim_and_the_service_has_all_models() -> None:
    made = listed(*SETS, "--deadline", "1h30m", "--cpus", "2", "--seed", "7")
    jobs = [each for each in made if each["kind"] == "Job"]
    (deployment,) = (each for each in made if each["kind"] == "Deployment")
    pairs = [(data, model) for data in ("mnist", "cifar10") for model in ("gan", "dcgan")]
    assert [job["metadata"]["name"] for job in jobs] == [f"pipeline-train-{model}-{data}" for data, model in pairs]
    service = parsed(ServeSpec, container_of(deployment)["command"][4])
    assert container_of(deployment)["command"][3] == "--serve"
    assert (service.port, service.load_workload().generates) == (5000, True)
    trainings = []
    for job, (data, model) in zip(jobs, pairs, strict=True):
        pod, container = job["spec"]["template"]["spec"], container_of(job)
        assert container["command"][3] == "--train"
        training = parse_spec(container["command"][4])
        assert (training.threads, training.seed) == (2, 7)
        trainings.append((data, model, training.workload, training.model_file, training.shape))
        assert (training.epochs, training.steps, training.warmup_steps, training.within_s) == (50, 0, 0, 5400)
        assert job["spec"]["activeDeadlineSeconds"] == 5400
        claim = {"mnist": "digits", "cifar10": "small"}[data]
        assert pod["volumes"][2]["persistentVolumeClaim"] == {"claimName": claim, "readOnly": True}
        assert container["volumeMounts"][2] == {"name": "data", "mountPath": f"/data/{claim}", "readOnly": True}
        assert training.data is not None
        assert training.data.directory == {"mnist": "/data/digits/of/all", "cifar10": "/data/small"}[data]
        assert (training.data.load_kind().name, training.data.loader_workers) == (data, 2)
    models = (service, *service.others)
    assert [(each.dataset, each.model, each.workload, each.model_file, each.shape) for each in models] == trainings
    assert [training[-1].px for training in trainings] == [28, 28, 32, 32]
    assert len(deployment["spec"]["template"]["spec"]["volumes"]) == 2, "the service reads no data"


@given(strategies.from_regex(NAME, fullmatch=True), strategies.sampled_from([*DATA_KINDS.own]))
@settings(max_examples=20)
def test_names_are_labels_of_their_own(name: str, kind: str) -> None:
    models = [word for model in ("gan", "gan-published", "dcgan-published") for word in ("--model", model)]
    jobs = [each["metadata"]["name"] for each in listed(*models, "--data", f"{kind}:c", "--name", name)][2:5]
    assert len({*jobs}) == 3
    assert all(re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", job) for job in jobs), jobs


def test_a_data_set_without_epochs_is_read_for_the_steps_of_the_profile() -> None:
    (job,) = (each for each in listed("--data", "mnist:digits", "--profile", "smoke") if each["kind"] == "Job")
    training = parse_spec(container_of(job)["command"][4])
    assert (training.steps, training.warmup_steps, training.epochs) == (2, 1, None)


def test_a_generator_that_cannot_take_a_data_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "shape_of", lambda _: {"channels": 1, "image_px": 30})
    result = asked("--model", "dcgan", "--data", "mnist:digits")
    assert result.exit_code == 2
    assert "--model dcgan cannot be trained on mnist: dcgan cannot take images of 30 px" in result.output


def test_a_path_on_a_claim_has_no_line_break() -> None:
    result = asked("--data", "mnist:a\n")
    assert (result.exit_code, "is not a data set on a claim" in result.output) == (2, True)


def test_the_schemas_find_misspelt_and_missing_fields_and_wrong_types() -> None:
    containers = [{"name": "c", "image": "i", "imagePullPolice": "Never"}]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": containers}}
    assert [line.rpartition(" is ")[2] for line in invalid(pod)] == ["unknown to 1.20", "unknown today"]
    cron = {"apiVersion": "batch/v1beta1", "kind": "CronJob", "metadata": {"name": 1}, "spec": {"schedule": "@daily"}}
    assert invalid(cron) == ["CronJob.metadata.name: 1 is no string", "CronJob.spec.jobTemplate is missing"]
    with pytest.raises(ValueError, match="roleRef"):  # the client's own word for it
        invalid({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "r"}})
