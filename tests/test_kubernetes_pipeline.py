"""The pipeline: its manifests, its way from up to down on a server that keeps objects, and what its faults say."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings, strategies

import cli
from commands.kubernetes import command, lifecycle
from commands.kubernetes.manifests import NAME
from provisioning.kubernetes.cluster import Cluster, Object
from provisioning.kubernetes.refusals import ApiError
from suite.errors import RequestError
from suite.registries import DATA_KINDS
from tests.commands.conftest import ended_well, refused
from tests.kubernetes_schema import invalid
from tests.provisioning.kubernetes.namespace import DEPLOYMENT, JOB, Namespace
from worker.spec import ServeSpec, parse_spec, parsed

IMAGE = f"registry.example.org/virtbench@sha256:{'a' * 64}"
MODELS = ("--model", "gan", "--model", "dcgan")
SETS = (*MODELS, "--data", "mnist:digits/of/all", "--data", "cifar10:small", "--epochs", "50")
KINDS = {"Job", "PersistentVolumeClaim", "NetworkPolicy", "Deployment", "Service"}


def bench(command: str, *words: str) -> Result:
    return CliRunner().invoke(cli.main, ["kubernetes", "pipeline", command, *words])


def up(*words: str) -> Result:
    return bench("up", "--image", IMAGE, *words)


# ---- the manifests


def listed(*words: str) -> list[Object]:
    """Return the objects of a pipeline."""
    made = json.loads(ended_well(up("--dry-run", *words)).output)
    assert (made["apiVersion"], made["kind"]) == ("v1", "List")
    items: list[Object] = made["items"]
    return items


def container_of(made: Object) -> Object:
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


CLUSTER_DOMAINS = ("", ".svc", ".svc.cluster.local")


def test_a_job_for_each_pair_reads_its_claim_and_the_service_has_all_models() -> None:
    made = listed(*SETS, "--deadline", "1h30m", "--cpus", "2", "--seed", "7")
    jobs = [each for each in made if each["kind"] == JOB]
    (deployment,) = (each for each in made if each["kind"] == DEPLOYMENT)
    pairs = [(data, model) for data in ("mnist", "cifar10") for model in ("gan", "dcgan")]
    assert [job["metadata"]["name"] for job in jobs] == [f"pipeline-train-{model}-{data}" for data, model in pairs]
    *serves, served = container_of(deployment)["command"]
    service = parsed(ServeSpec, served)
    assert (serves[-1], service.threads, service.port, service.load_workload().generates) == ("--serve", 2, 5000, True)
    assert service.names == ("pipeline-serve", *(f"pipeline-serve.$(NAMESPACE){end}" for end in CLUSTER_DOMAINS))
    (namespace,) = (each for each in container_of(deployment)["env"] if each["name"] == "NAMESPACE")
    assert namespace["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.namespace"
    trainings = []
    for job, (data, model) in zip(jobs, pairs, strict=True):
        pod, container = job["spec"]["template"]["spec"], container_of(job)
        *trains, trained = container["command"]
        training = parse_spec(trained)
        trainings.append((data, model, training.workload, training.model_file, training.shape))
        assert (trains[-1], training.threads, training.seed) == ("--train", 2, 7)
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
    (job,) = (each for each in listed("--data", "mnist:digits", "--profile", "smoke") if each["kind"] == JOB)
    training = parse_spec(container_of(job)["command"][4])
    assert (training.steps, training.warmup_steps, training.epochs) == (2, 1, None)


def test_what_a_transcript_of_refusals_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line break in an argument, and a data set whose images no kind has."""
    monkeypatch.setattr(command, "shape_of", lambda _: {"channels": 1, "image_px": 30})
    for done, why in (
        (up("--model", "dcgan", "--data", "mnist:digits"), "--model dcgan cannot be trained on mnist: dcgan cannot"),
        (up("--data", "mnist:a\n"), "is not a data set on a claim"),
        (bench("status", "--name", "pipeline\n"), "is not a name of a pipeline"),
        (bench("down", "--name", "pipeline\n"), "is not a name of a pipeline"),
    ):
        assert (done.exit_code, why in done.output) == (2, True), done.output


def test_the_schemas_find_misspelt_and_missing_fields_and_wrong_types() -> None:
    container = {"name": "c", "image": "i", "ports": [{"containerPort": 80}], "resources": {"limits": {"cpu": "1"}}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}}
    assert invalid(pod) == []
    container["imagePullPolice"] = "Never"
    misspelt = "Pod.spec.containers[0].imagePullPolice is unknown"
    assert invalid(pod) == [f"{misspelt} to 1.20", f"{misspelt} today"]
    job = {"apiVersion": "batch/v1beta1", "kind": "CronJob", "metadata": {"name": 1}, "spec": {"schedule": "@daily"}}
    assert invalid(job) == ["CronJob.metadata.name: 1 is no string", "CronJob.spec.jobTemplate is missing"]
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        with pytest.raises(ValueError, match="roleRef"):  # the client's own word for it
            invalid({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": "r"}})


# ---- from up to down


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Namespace:
    found = Namespace()
    monkeypatch.setattr(Cluster, "connect", lambda *_: found)
    monkeypatch.setattr(lifecycle, "LOOKED_EVERY_S", 0.001)
    monkeypatch.setattr(lifecycle, "SCHEDULED_WITHIN_S", 0.02)
    return found


def kinds(server: Namespace) -> list[str]:
    return [place.split("/")[-2] for place in server.objects]


@pytest.mark.parametrize("last", ["no JSON", "{}", '{"event": "done", "trained": {"steps": -1}}'])
def test_a_job_whose_log_is_gone_or_garbage_has_no_times(server: Namespace, last: str) -> None:
    server.pod[JOB], server.log[:] = {"phase": "Succeeded"}, [last]
    up()
    assert "Job pipeline-train-gan-synthetic: complete\n" in bench("status").stdout


@pytest.mark.usefixtures("server")
def test_up_trains_then_serves_asks_for_an_image_and_says_where() -> None:
    done = ended_well(up())
    assert done.stderr.splitlines() == [
        "Job pipeline-train-gan-synthetic: complete",
        "Deployment pipeline-serve: ready",
        "the service returned a test image of gan synthetic",
    ]
    assert done.stdout.splitlines() == [
        "inside the cluster: http://pipeline-serve.lab:5000/generate",
        "from here: kubectl --context here -n lab port-forward service/pipeline-serve 5000",
    ]
    assert json.loads(bench("status", "--json").stdout)["address"] == "http://pipeline-serve.lab:5000/generate"
    assert up().exit_code == 0, "what is there is gone on with"


def test_down_removes_what_has_its_labels_and_the_claim_only_when_asked(server: Namespace) -> None:
    up("--name", "faces")
    up("--name", "others")
    assert "removed deployments/faces-serve" in bench("down", "--name", "faces").stdout
    left = json.loads(bench("status", "--name", "faces", "--json").stdout)
    assert [part["kind"] for part in left["parts"]] == ["PersistentVolumeClaim"]
    assert left["address"] is None
    assert bench("down", "--name", "faces", "--claim").stdout == "removed persistentvolumeclaims/faces-model\n"
    assert bench("down", "--name", "faces", "--claim").stdout == "nothing is there\n"
    assert len(kinds(server)) == 5, "the other pipeline is whole"


def condition(kind: str, **more: str) -> Object:
    return {"conditions": [{"type": kind, "status": "False" if kind == "PodScheduled" else "True", **more}]}


def container(phase: str = "Running", **state: Object) -> Object:
    """Return the status of a pod whose container is in this state."""
    return {"containerStatuses": [{"state": state}], "phase": phase}


LATE = condition("Failed", reason="DeadlineExceeded", message="Job was active longer")
NOWHERE = condition("PodScheduled", message="0/2 nodes: Insufficient cpu")
ENDED = container("Failed", terminated={"reason": "Error", "exitCode": 1})
ABSENT = container(waiting={"reason": "ImagePullBackOff", "message": "no such host"})


@pytest.mark.parametrize(
    ("status", "pod", "said", "remedy"),
    [
        (LATE, None, "Job was active longer", "give it fewer --epochs or more --deadline"),
        (condition("Failed"), ENDED, "the pod has ended: Error: exit code 1", "fix the cause, remove the pipeline"),
        ({}, ABSENT, "ImagePullBackOff: no such host", "push it there"),
        ({}, NOWHERE, "the pod cannot be scheduled: 0/2 nodes: Insufficient cpu", "free what is missing"),
        ({}, container(terminated={"reason": "OOMKilled"}), "it wanted more memory", "give it more with --memory"),
        ({}, None, "no pod was made: FailedCreate: exceeded quota: q", "raise the quota"),
    ],
)
def test_a_job_that_fails_or_gets_no_pod_is_told_with_its_reason_its_last_lines_and_what_to_do(
    server: Namespace, status: Object, pod: Object | None, said: str, remedy: str
) -> None:
    server.status[JOB] = status
    if pod is None:
        server.happened.append({"reason": "FailedCreate", "message": "exceeded quota: q"})
    else:
        server.pod[JOB] = pod
    server.log.extend(f"line {number}" for number in range(30))
    done = up()
    assert done.exit_code == 1, done.output
    assert "Job pipeline-train-gan-synthetic: " in done.stderr
    assert said in done.stderr
    assert remedy in done.stderr.partition("what to do:")[2]
    assert ("line 29" in done.stderr) == (pod is not None)
    assert "line 9\n" not in done.stderr
    assert "deployments" not in kinds(server), "nothing is served that was not trained"


def test_a_server_that_ends_again_and_again_is_a_failure(server: Namespace) -> None:
    server.status[DEPLOYMENT] = {}
    server.pod[DEPLOYMENT] = container(waiting={"reason": "CrashLoopBackOff"})
    (crashed,) = server.pod[DEPLOYMENT]["containerStatuses"]
    crashed["lastState"] = {"terminated": {"reason": "Error", "exitCode": 2}}
    crashing = "Deployment pipeline-serve: the container ends again and again: Error, exit code 2"
    assert ((done := up()).exit_code, crashing in done.stderr) == (1, True)
    assert "it does not answer" in bench("status").stdout


def edit(server: Namespace, kind: str, **changed: Any) -> None:
    """Change fields of a specification as ``kubectl edit`` does."""
    (path,) = (place for place in server.objects if f"/{kind}/" in place)
    live = server.objects[path]
    server.request("PUT", path, {**live, "spec": {**live["spec"], **changed}}, query={"fieldManager": "kubectl-edit"})


def test_another_request_changes_what_may_change_and_is_refused_for_the_rest(server: Namespace) -> None:
    up()
    refused(up("--access-mode", "ReadWriteMany"), "has the access mode ReadWriteOnce, and ReadWriteMany is requested")
    made = len(server.changes)
    rejected = "the Job pipeline-train-gan-synthetic exists already: the server rejects it: spec.template: Invalid"
    refused(done := up("--seed", "1"), rejected)
    assert re.search(r"core\.PodTemplateSpec\{x+ … x+\}: field is immutable$", done.stderr.splitlines()[0])
    assert "remove it with bench kubernetes pipeline down" in done.stderr.partition("what to do:")[2]
    assert len(server.changes) == made, "nothing is changed for a request that is refused"
    ended_well(up("--model", "dcgan"))
    (deployment,) = (each for place, each in server.objects.items() if "/deployments/" in place)
    assert parsed(ServeSpec, container_of(deployment)["command"][-1]).model == "dcgan"
    assert sorted(kinds(server)).count("jobs") == 2, "the Job of the other model stays"


@pytest.mark.parametrize(
    ("kind", "changed", "found"),
    [
        ("services", {"type": "LoadBalancer"}, "kubectl-edit has added to it: spec.type"),
        (
            "networkpolicies",
            {"ingress": [{}]},
            'a field another value: spec.ingress: conflict with "kubectl-edit" using v1',
        ),
        ("deployments", {"replicas": 3}, 'spec.replicas: conflict with "kubectl-edit" using v1'),
    ],
)
def test_what_somebody_else_has_changed_is_refused_by_field_and_manager(
    server: Namespace, kind: str, changed: Object, found: str
) -> None:
    up()
    edit(server, kind, **changed)
    made = len(server.changes)
    refused(done := up(), found)
    assert "remove it with bench kubernetes pipeline down" in done.stderr.partition("what to do:")[2]
    assert len(server.changes) == made


def test_an_object_without_the_labels_is_refused_and_said_to_be_of_somebody_else(server: Namespace) -> None:
    up()
    for place in list(server.objects):
        kept = server.objects[place]["metadata"]
        server.objects[place]["metadata"] = {**kept, "labels": {"app.kubernetes.io/instance": "pipeline"}}
        refused(up(), "does not belong to this pipeline: it has no label app.kubernetes.io/managed")
        server.objects[place]["metadata"] = {**kept, "labels": {**kept["labels"], "team": "vision"}}
        assert up().exit_code == 0, "labels of its own do not matter"


def mutations(value: Any) -> Iterator[Any]:
    """Yield the value with each of its parts changed, removed or added to, one at a time."""
    if isinstance(value, Mapping):
        yield {**value, "added": True}
        for key in value:
            yield {name: each for name, each in value.items() if name != key}
            yield from ({**value, key: each} for each in mutations(value[key]))
    elif isinstance(value, list):
        yield [*value, {}]
        for number in range(len(value)):
            yield [each for place, each in enumerate(value) if place != number]
            yield from ([*value[:number], each, *value[number + 1 :]] for each in mutations(value[number]))
    else:
        yield not value if isinstance(value, bool) else f"{value}x"


def test_every_single_change_of_a_specification_is_found(server: Namespace) -> None:
    """Each is refused, by the server at once or by ``up`` with who made it, or taken back."""
    up()
    outcomes: Counter[str] = Counter()
    for manifest in listed()[1:]:
        path = f"{server.path_of(manifest)}/{manifest['metadata']['name']}"
        made = server.objects[path]
        lifecycle.ensure(server, manifest)
        assert server.objects[path] == made
        for spec in mutations(made["spec"]):
            server.objects[path] = made
            outcomes[outcome(server, path, {**made, "spec": spec}, manifest)] += 1
    assert outcomes["refused by the server"] > 150  # the template of a Job
    assert outcomes["refused by field and manager"] > 150
    assert outcomes["taken back"] > 20
    assert set(outcomes) == {"refused by the server", "refused by field and manager", "taken back", "a default"}


def outcome(server: Namespace, path: str, changed: Object, manifest: Object) -> str:
    """Store a change as ``kubectl edit`` does and apply the manifest again; return what became of the change."""
    made = server.objects[path]
    try:
        stored = server.request("PUT", path, changed, query={"fieldManager": "kubectl-edit"})
    except ApiError:
        return "refused by the server"
    if stored["spec"] == made["spec"]:
        return "a default"
    try:
        lifecycle.ensure(server, manifest)
    except RequestError as error:
        return "refused by field and manager" if "kubectl-edit" in error.message else error.message
    assert server.objects[path]["spec"] == made["spec"], changed["spec"]
    return "taken back"


def test_a_namespace_or_a_right_that_is_missing_is_a_wrong_request_before_anything_is_made(
    server: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.denied.add(("create", "deployments"))
    refused(up(), "may not create deployments.apps in lab")
    server.denied.clear()

    def missing(*_: object, **__: object) -> Object:
        raise ApiError('the namespace is missing: namespaces "lab" not found', 404, kind="namespace", remedy="create")

    monkeypatch.setattr(Namespace, "apply", missing)
    refused(up(), 'namespaces "lab" not found')
    assert not server.objects


def test_ctrl_c_leaves_the_training_and_says_how_to_go_on(server: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    server.status[JOB] = {}
    monkeypatch.setattr(lifecycle, "SCHEDULED_WITHIN_S", 60.0)  # a busy machine takes longer than that of other tests
    monkeypatch.setattr("time.sleep", interrupt)
    done = up()
    assert done.exit_code == 130
    assert "follow it again with the same command; remove it with bench kubernetes pipeline down" in done.stderr
    assert "jobs" in kinds(server)


def test_an_answer_that_is_no_image_is_an_error_and_a_path_that_is_barred_is_none(
    server: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.image["text"] = "<html>"
    done = up()
    assert (done.exit_code, "Service pipeline-serve: no image, but <html>" in done.stderr) == (1, True)
    asked = Namespace.request

    def barred(self: Namespace, method: str, path: str, *more: Any, **others: Any) -> Object:
        if path.endswith("proxy/generate"):
            raise ApiError("cannot create resource services/proxy", 403)
        return asked(self, method, path, *more, **others)

    monkeypatch.setattr(Namespace, "request", barred)
    assert "not reachable from here: cannot create resource services/proxy" in ended_well(up()).stderr
