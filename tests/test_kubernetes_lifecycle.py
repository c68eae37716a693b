"""A pipeline from up to down on a server that keeps objects as a real one does, and what its faults say."""

import json
from collections.abc import Iterator, Mapping
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


@pytest.mark.parametrize("last", ["no JSON", "{}", '{"event": "done", "trained": {"steps": -1}}'])
def test_a_job_whose_log_is_gone_or_garbage_has_no_times(server: Namespace, last: str) -> None:
    server.pod[JOB], server.log[:] = {"phase": "Succeeded"}, [last]
    assert "there is no claim sets in the namespace lab" in up("--data", "mnist:sets/digits").stderr
    server.objects[server.path("persistentvolumeclaims", "sets")] = {"metadata": {"name": "sets", "labels": {}}}
    up("--data", "mnist:sets/digits")
    assert "Job pipeline-train-gan-mnist: complete\n" in bench("status").stdout


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


def container(phase: str = "Running", **state: Object) -> Object:
    """Return the status of a pod whose container is in this state."""
    return {"containerStatuses": [{"state": state}], "phase": phase}


LATE = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "Job was active longer"}
CRASHED = container(waiting={"reason": "CrashLoopBackOff"})
CRASHED["containerStatuses"][0]["lastState"] = {"terminated": {"reason": "Error", "exitCode": 2}}
FAULTS: dict[str, tuple[str, Object | None, Object | None, str, str]] = {
    "late": (JOB, {"conditions": [LATE]}, None, "Job was active longer", "fewer --epochs or more --deadline"),
    "ended": (
        *(JOB, FAILED, container("Failed", terminated={"reason": "Error", "exitCode": 1})),
        *("the pod has ended: Error: exit code 1", "fix the cause, remove the pipeline with bench kubernetes pipel"),
    ),
    "without an image": (
        *(JOB, {}, container(waiting={"reason": "ImagePullBackOff", "message": "no such host"})),
        *("ImagePullBackOff: no such host", "push it there"),
    ),
    "nowhere": (JOB, {}, NOWHERE, "the pod cannot be scheduled: 0/2 nodes: Insufficient cpu", "free what is missing"),
    "killed": (JOB, {}, container(terminated={"reason": "OOMKilled"}), "than its limit", "give it more with --memory"),
    "without a pod": (JOB, {}, None, "no pod was made: FailedCreate: exceeded quota: q", "free some of it"),
    "a server that crashes": (DEPLOYMENT, {}, CRASHED, "ends again and again: Error, exit code 2", "fix the cause"),
}


@pytest.mark.parametrize(("kind", "status", "pod", "said", "remedy"), FAULTS.values(), ids=FAULTS)
def test_what_does_not_go_on_is_told_with_its_reason_its_last_lines_and_what_to_do(
    server: Namespace, kind: str, status: Object, pod: Object | None, said: str, remedy: str
) -> None:
    server.status[kind] = status
    server.pod.update({kind: pod} if pod else {})
    server.happened.append({"reason": "FailedCreate", "message": "exceeded quota: q"})
    server.log.extend(f"line {number}" for number in range(30))
    done = up()
    assert done.exit_code == 1, done.output
    named = "Job pipeline-train-gan-synthetic: " if kind == JOB else "Deployment pipeline-serve: "
    assert said in done.stderr.partition(f"bench: {named}")[2]
    assert remedy in done.stderr.partition("what to do:")[2]
    assert ("line 29" in done.stderr, "line 9\n" in done.stderr) == (pod is not None, False)
    assert (kind == DEPLOYMENT) == ("deployments" in kinds(server)), "nothing is served that was not trained"
    assert (kind == JOB) or "it does not answer" in bench("status").stdout


def test_a_claim_of_another_access_mode_and_a_job_of_another_model_are_refused(server: Namespace) -> None:
    up()
    done = up("--access-mode", "ReadWriteMany")
    assert done.exit_code == 2
    assert "has the access mode ReadWriteOnce, and ReadWriteMany is requested" in done.stderr
    done = up("--model", "dcgan")
    assert done.exit_code == 2
    assert "Deployment pipeline-serve exists already, and differs from the request: spec.template.spec" in done.stderr
    assert "bench kubernetes pipeline down" in done.stderr.partition("what to do:")[2]
    assert len(kinds(server)) == 5, "nothing is trained that could not be served"
    next(each for place, each in server.objects.items() if "/services/" in place)["spec"]["type"] = "LoadBalancer"
    assert 'spec.type: "LoadBalancer" instead of "ClusterIP"' in up().stderr


@pytest.mark.parametrize("command", ["status", "down"])
def test_a_name_with_a_line_break_is_a_wrong_request(command: str, server: Namespace) -> None:
    up()
    done = bench(command, "--name", "pipeline\n")
    assert (done.exit_code, "is not a name of a pipeline" in done.stderr) == (2, True)
    assert len(kinds(server)) == 5


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


def test_a_namespace_that_is_missing_is_a_wrong_request(server: Namespace) -> None:
    missing = 'the namespace is missing: namespaces "lab" not found'
    server.refusals["persistentvolumeclaims"] = ApiError(missing, 404, kind="namespace", remedy="create it")
    done = up()
    assert (done.exit_code, missing in done.stderr) == (2, True)
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


def test_an_answer_that_is_no_image_is_an_error_and_a_path_that_is_barred_is_none(server: Namespace) -> None:
    server.image["text"] = "<html>"
    done = up()
    assert done.exit_code == 1
    assert "Service pipeline-serve: no image, but <html>" in done.stderr
    server.refusals["proxy/generate"] = ApiError("cannot create resource services/proxy", 403)
    done = up()
    assert done.exit_code == 0
    assert "not reachable from here: cannot create resource services/proxy" in done.stderr
