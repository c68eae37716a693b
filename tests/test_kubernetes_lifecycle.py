"""A pipeline from up to down on a server that keeps objects as a real one does, and what its faults say."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from click.testing import CliRunner, Result

import cli
from commands.kubernetes import lifecycle
from provisioning.kubernetes.cluster import Cluster, Object
from provisioning.kubernetes.refusals import ApiError
from suite.errors import RequestError
from tests.provisioning.kubernetes.namespace import DEPLOYMENT, JOB, Namespace, defaulted

IMAGE = f"registry.example.org/virtbench@sha256:{'a' * 64}"
FAILED = {"conditions": [{"type": "Failed", "status": "True", "message": "it has reached its limit"}]}
NOWHERE = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes: Insufficient cpu"}]}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Namespace:
    found = Namespace()
    monkeypatch.setattr(Cluster, "connect", lambda *_: found)
    monkeypatch.setattr(lifecycle, "LOOKED_EVERY_S", 0.001)
    monkeypatch.setattr(lifecycle, "SCHEDULED_WITHIN_S", 0.02)
    return found


def bench(command: str, *words: str) -> Result:
    return CliRunner().invoke(cli.main, ["kubernetes", "pipeline", command, *words])


def up(*words: str) -> Result:
    return bench("up", "--image", IMAGE, *words)


def kinds(server: Namespace) -> list[str]:
    return [place.split("/")[-2] for place in server.objects]


DATA = ("--data", "mnist:sets/digits", "--data", "cifar10:sets", "--epochs", "2")


@pytest.fixture
def claimed(server: Namespace) -> Namespace:
    """The server, with a claim of the user's."""
    server.objects[server.path("persistentvolumeclaims", "sets")] = {"metadata": {"name": "sets", "labels": {}}}
    return server


@pytest.mark.parametrize("last", ["no JSON", "{}", '{"event": "done", "trained": {"steps": -1}}'])
def test_a_job_whose_log_is_gone_or_garbage_has_no_times(claimed: Namespace, last: str) -> None:
    claimed.pod[JOB], claimed.log[:] = {"phase": "Succeeded"}, [last]
    up()
    assert "Job pipeline-train-gan-synthetic: complete\n" in bench("status").stdout


def test_a_job_that_exceeds_its_deadline_says_what_would_help(claimed: Namespace) -> None:
    late = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "Job was active longer"}
    claimed.status[JOB] = {"conditions": [late]}
    done = up(*DATA)
    assert done.exit_code == 1
    assert "Job pipeline-train-gan-mnist: Job was active longer" in done.stderr
    assert "give it fewer --epochs or more --deadline" in done.stderr


@pytest.mark.usefixtures("server")
def test_up_trains_then_serves_asks_for_an_image_and_says_where() -> None:
    done = up()
    assert done.exit_code == 0, done.output
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


def container(**state: Object) -> Object:
    """Return the status of a pod whose container is in this state."""
    return {"containerStatuses": [{"state": state}], "phase": "Running"}


def failing(server: Namespace, *, status: Object, pod: Object) -> Result:
    server.status[JOB], server.pod[JOB] = status, pod
    done = up()
    assert done.exit_code == 1, done.output
    assert "deployments" not in kinds(server), "nothing is served that was not trained"
    return done


def test_a_job_that_failed_is_told_with_its_reason_and_its_last_lines(server: Namespace) -> None:
    ended = container(terminated={"reason": "Error", "exitCode": 1}) | {"phase": "Failed"}
    server.log.extend(f"line {number}" for number in range(30))
    done = failing(server, status=FAILED, pod=ended)
    assert "Job pipeline-train-gan-synthetic: the pod has ended: Error: exit code 1" in done.stderr
    assert "line 29" in done.stderr
    assert "line 9\n" not in done.stderr
    assert "what to do: fix the cause, remove the pipeline with bench kubernetes pipeline down" in done.stderr


@pytest.mark.parametrize(
    ("pod", "said", "remedy"),
    [
        (
            container(waiting={"reason": "ImagePullBackOff", "message": "no such host"}),
            "ImagePullBackOff: no such host",
            "push it there",
        ),
        (NOWHERE, "the pod cannot be scheduled: 0/2 nodes: Insufficient cpu", "free what is missing"),
        (
            container(terminated={"reason": "OOMKilled"}),
            "it wanted more memory than its limit",
            "give it more with --memory",
        ),
    ],
)
def test_a_pod_that_does_not_come_is_told_with_what_to_do(
    server: Namespace, pod: Object, said: str, remedy: str
) -> None:
    done = failing(server, status={}, pod=pod)
    assert said in done.stderr
    assert remedy in done.stderr.partition("what to do:")[2]


def test_a_job_that_gets_no_pod_is_told_with_the_last_event(server: Namespace) -> None:
    server.status[JOB] = {}
    server.happened.append({"reason": "FailedCreate", "message": "exceeded quota: q"})
    done = up()
    assert done.exit_code == 1
    assert "Job pipeline-train-gan-synthetic: no pod was made: FailedCreate: exceeded quota: q" in done.stderr


def test_a_server_that_ends_again_and_again_is_a_failure(server: Namespace) -> None:
    server.status[DEPLOYMENT] = {}
    server.pod[DEPLOYMENT] = container(waiting={"reason": "CrashLoopBackOff"})
    (crashed,) = server.pod[DEPLOYMENT]["containerStatuses"]
    crashed["lastState"] = {"terminated": {"reason": "Error", "exitCode": 2}}
    done = up()
    assert done.exit_code == 1
    assert "Deployment pipeline-serve: the container ends again and again: Error, exit code 2" in done.stderr
    assert "it does not answer" in bench("status").stdout


def test_a_claim_of_another_access_mode_and_a_job_of_another_model_are_refused(server: Namespace) -> None:
    up()
    done = up("--access-mode", "ReadWriteMany")
    assert done.exit_code == 2
    assert "has the access mode ReadWriteOnce, and ReadWriteMany is requested" in done.stderr
    done = up("--model", "dcgan")
    assert done.exit_code == 2
    assert "Deployment pipeline-serve exists already, and differs from the request: spec.template.spec" in done.stderr
    assert len(kinds(server)) == 5, "nothing is trained that could not be served"


@pytest.mark.parametrize("command", ["status", "down"])
def test_a_name_with_a_line_break_is_a_wrong_request(command: str, server: Namespace) -> None:
    up()
    done = bench(command, "--name", "pipeline\n")
    assert (done.exit_code, "is not a name of a pipeline" in done.stderr) == (2, True)
    assert len(kinds(server)) == 5


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("networkpolicies", lambda spec: spec["ingress"].append({}), "spec.ingress: "),
        ("services", lambda spec: spec.update(type="LoadBalancer"), 'spec.type: "LoadBalancer" instead of "ClusterIP"'),
        ("networkpolicies", lambda spec: spec["ingress"][0].update(more=1), "spec.ingress[0].more: 1 instead of null"),
        ("jobs", lambda spec: spec["template"]["spec"].update(hostPID=True), "spec.template.spec.hostPID: true"),
    ],
)
def test_an_object_of_its_name_that_somebody_else_has_made_is_refused_with_what_differs(
    kind: str, change: Callable[[Object], object], said: str, server: Namespace
) -> None:
    up()
    change(next(each for place, each in server.objects.items() if f"/{kind}/" in place)["spec"])
    done = up()
    assert done.exit_code == 2, done.output
    assert "exists already, and differs from the request: " in done.stderr
    assert said in done.stderr
    assert "bench kubernetes pipeline down" in done.stderr.partition("what to do:")[2]


def test_an_object_without_the_labels_is_refused_and_said_to_be_of_somebody_else(server: Namespace) -> None:
    up()
    for place in list(server.objects):
        kept = server.objects[place]["metadata"]
        server.objects[place]["metadata"] = {**kept, "labels": {"app.kubernetes.io/instance": "pipeline"}}
        done = up()
        assert done.exit_code == 2, place
        assert (
            "exists already, and does not belong to this pipeline: it has no label app.kubernetes.io/managed"
            in done.stderr
        )
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
    up()
    tried = 0
    for manifest in json.loads(up("--dry-run").stdout)["items"][1:]:
        path = f"{server.path_of(manifest)}/{manifest['metadata']['name']}"
        selector = {"selector": server.objects[path]["spec"]["selector"]} if manifest["kind"] == JOB else {}
        made = defaulted(manifest, given=False)
        server.objects[path] = made | {"spec": made["spec"] | selector}
        lifecycle.ensure(server, manifest)
        for spec in mutations(made["spec"]):
            server.objects[path] = made | {"spec": spec | selector}
            with pytest.raises(RequestError, match="differs from the request"):
                lifecycle.ensure(server, manifest)
            tried += 1
    assert tried > 300


def test_a_namespace_that_is_missing_is_a_wrong_request(server: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> Object:
        raise ApiError('the namespace is missing: namespaces "lab" not found', 404, kind="namespace", remedy="create")

    monkeypatch.setattr(Namespace, "create", missing)
    done = up()
    assert (done.exit_code, 'namespaces "lab" not found' in done.stderr) == (2, True)
    assert not server.objects


def test_a_right_that_is_missing_is_named_before_anything_is_made(server: Namespace) -> None:
    server.denied.add(("create", "deployments"))
    done = up()
    assert done.exit_code == 2
    assert "may not create deployments.apps in lab" in done.stderr
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
    assert done.exit_code == 1
    assert "Service pipeline-serve: no image, but <html>" in done.stderr
    asked = Namespace.request

    def barred(self: Namespace, method: str, path: str, *more: Any, **others: Any) -> Object:
        if path.endswith("proxy/generate"):
            raise ApiError("cannot create resource services/proxy", 403)
        return asked(self, method, path, *more, **others)

    monkeypatch.setattr(Namespace, "request", barred)
    done = up()
    assert done.exit_code == 0
    assert "not reachable from here: cannot create resource services/proxy" in done.stderr
