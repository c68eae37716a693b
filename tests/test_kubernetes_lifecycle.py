"""A pipeline from up to down on a server that keeps objects as a real one does, and what its faults say."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pytest
from click.testing import CliRunner, Result

import cli
from commands.kubernetes import lifecycle
from provisioning.kubernetes.cluster import Cluster, Object
from provisioning.kubernetes.refusals import ApiError

IMAGE = f"registry.example.org/virtbench@sha256:{'a' * 64}"
JOB, DEPLOYMENT = "Job", "Deployment"
COMPLETE = {"conditions": [{"type": "Complete", "status": "True"}]}
FAILED = {"conditions": [{"type": "Failed", "status": "True", "message": "it has reached its limit"}]}
NOWHERE = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes: Insufficient cpu"}]}


@dataclass(frozen=True)
class Server(Cluster):
    """A namespace in memory; what the controllers of a cluster do to an object is in ``status`` and ``pod``."""

    objects: dict[str, Object] = field(default_factory=dict)
    status: dict[str, Object] = field(default_factory=lambda: {JOB: COMPLETE, DEPLOYMENT: {"readyReplicas": 1}})
    pod: dict[str, Object] = field(default_factory=dict)
    """The status of the pod that is made for an object of a kind."""
    denied: set[tuple[str, str]] = field(default_factory=set)
    image: Object = field(default_factory=lambda: {"text": "\ufffdPNG\r\n"})
    log: list[str] = field(default_factory=list)
    happened: list[Object] = field(default_factory=list)

    def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        patience_s: float = 0.0,  # noqa: ARG002
        within_s: float = 0.0,  # noqa: ARG002
        query: Mapping[str, object] = MappingProxyType({}),
    ) -> Object:
        if path.endswith("selfsubjectaccessreviews"):
            asked = (body or {})["spec"]["resourceAttributes"]
            return {"status": {"allowed": (asked["verb"], asked["resource"]) not in self.denied}}
        if path.endswith("proxy/generate"):
            return self.image
        if method == "POST" and body:
            self._take(path, body)
            return body
        if "labelSelector" in query:
            wanted = dict(pair.split("=") for pair in str(query["labelSelector"]).split(","))
            within = (each for place, each in self.objects.items() if place.rpartition("/")[0] == path)
            return {"items": [each for each in within if wanted.items() <= each["metadata"]["labels"].items()]}
        if path.endswith("events"):
            return {"items": self.happened}
        if path not in self.objects:
            raise ApiError(f"{path} not found", 404)
        return self.objects.pop(path) if method == "DELETE" else self.objects[path]

    def log_lines(self, pod: str, within_s: float) -> Iterator[str]:  # noqa: ARG002
        yield from self.log

    def _take(self, path: str, body: Object) -> None:
        kind, name = body["kind"], body["metadata"]["name"]
        self.objects[f"{path}/{name}"] = body | {"status": self.status.get(kind, {})}
        if kind in self.pod:
            template = body["spec"]["template"]
            pod = {"metadata": {"name": f"{name}-x", **template["metadata"]}, "spec": {"nodeName": "n1"}}
            self.objects[self.path("pods", f"{name}-x")] = pod | {"status": self.pod[kind]}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    found = Server("config", "here", "lab", None)
    monkeypatch.setattr(Cluster, "connect", lambda *_: found)
    monkeypatch.setattr(lifecycle, "LOOKED_EVERY_S", 0.001)
    monkeypatch.setattr(lifecycle, "SCHEDULED_WITHIN_S", 0.02)
    return found


def bench(command: str, *words: str) -> Result:
    return CliRunner().invoke(cli.main, ["kubernetes", "pipeline", command, *words])


def up(*words: str) -> Result:
    return bench("up", "--image", IMAGE, *words)


def kinds(server: Server) -> list[str]:
    return [place.split("/")[-2] for place in server.objects]


@pytest.mark.usefixtures("server")
def test_up_trains_then_serves_asks_for_an_image_and_says_where() -> None:
    done = up()
    assert done.exit_code == 0, done.output
    assert done.stderr.splitlines() == [
        "Job pipeline-train: complete",
        "Deployment pipeline-serve: ready",
        "asked for an image, it gave one",
    ]
    assert done.stdout.splitlines() == [
        "inside the cluster: http://pipeline-serve.lab:5000/generate",
        "from here: kubectl --context here -n lab port-forward service/pipeline-serve 5000",
    ]
    assert json.loads(bench("status", "--json").stdout)["address"] == "http://pipeline-serve.lab:5000/generate"
    assert up().exit_code == 0, "what is there is gone on with"


def test_down_removes_what_has_its_labels_and_the_claim_only_when_asked(server: Server) -> None:
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


def failing(server: Server, *, status: Object, pod: Object) -> Result:
    server.status[JOB], server.pod[JOB] = status, pod
    done = up()
    assert done.exit_code == 1, done.output
    assert "deployments" not in kinds(server), "nothing is served that was not trained"
    return done


def test_a_job_that_failed_is_told_with_its_reason_and_its_last_lines(server: Server) -> None:
    ended = container(terminated={"reason": "Error", "exitCode": 1}) | {"phase": "Failed"}
    server.log.extend(f"line {number}" for number in range(30))
    done = failing(server, status=FAILED, pod=ended)
    assert "Job pipeline-train: the pod has ended: Error: exit code 1" in done.stderr
    assert "line 29" in done.stderr
    assert "line 9\n" not in done.stderr
    assert "what to do: mend what it says, remove it with bench kubernetes pipeline down" in done.stderr


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
def test_a_pod_that_does_not_come_is_told_with_what_to_do(server: Server, pod: Object, said: str, remedy: str) -> None:
    done = failing(server, status={}, pod=pod)
    assert said in done.stderr
    assert remedy in done.stderr.partition("what to do:")[2]


def test_a_job_that_gets_no_pod_is_told_with_the_last_event(server: Server) -> None:
    server.status[JOB] = {}
    server.happened.append({"reason": "FailedCreate", "message": "exceeded quota: q"})
    done = up()
    assert done.exit_code == 1
    assert "Job pipeline-train: no pod was made: FailedCreate: exceeded quota: q" in done.stderr


def test_a_server_that_ends_again_and_again_is_a_failure(server: Server) -> None:
    server.status[DEPLOYMENT] = {}
    server.pod[DEPLOYMENT] = container(waiting={"reason": "CrashLoopBackOff"})
    (crashed,) = server.pod[DEPLOYMENT]["containerStatuses"]
    crashed["lastState"] = {"terminated": {"reason": "Error", "exitCode": 2}}
    done = up()
    assert done.exit_code == 1
    assert "Deployment pipeline-serve: the container ends again and again: Error, exit code 2" in done.stderr
    assert "it does not answer" in bench("status").stdout


def test_a_claim_of_another_access_mode_and_a_job_of_another_model_are_refused(server: Server) -> None:
    up()
    done = up("--access-mode", "ReadWriteMany")
    assert done.exit_code == 2
    assert "has the access mode ReadWriteOnce, and ReadWriteMany is asked for" in done.stderr
    done = up("--model", "dcgan")
    assert done.exit_code == 2
    assert "Job pipeline-train is there already, for another image, model or size" in done.stderr
    assert len(kinds(server)) == 5


def test_a_right_that_is_missing_is_named_before_anything_is_made(server: Server) -> None:
    server.denied.add(("create", "deployments"))
    done = up()
    assert done.exit_code == 2
    assert "may not create deployments.apps in lab" in done.stderr
    assert not server.objects


def test_ctrl_c_leaves_the_training_and_says_how_to_go_on(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    server.status[JOB] = {}
    monkeypatch.setattr("time.sleep", interrupt)
    done = up()
    assert done.exit_code == 130
    assert "follow it again with the same command; remove it with bench kubernetes pipeline down" in done.stderr
    assert "jobs" in kinds(server)


def test_an_answer_that_is_no_image_is_an_error_and_a_path_that_is_barred_is_none(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.image["text"] = "<html>"
    done = up()
    assert done.exit_code == 1
    assert "Service pipeline-serve: no image, but <html>" in done.stderr
    asked = Server.request

    def barred(self: Server, method: str, path: str, *more: Any, **others: Any) -> Object:
        if path.endswith("proxy/generate"):
            raise ApiError("cannot create resource services/proxy", 403)
        return asked(self, method, path, *more, **others)

    monkeypatch.setattr(Server, "request", barred)
    done = up()
    assert done.exit_code == 0
    assert "it could not be asked from here: cannot create resource services/proxy" in done.stderr
