"""The cluster as the kubeconfig reaches it, with what every failure says; and commands over the server's stream."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from provisioning import ledger
from provisioning.batch.patience import AwayError
from provisioning.engines.base import get_engine
from provisioning.engines.kubernetes import KUBERNETES
from provisioning.kubernetes import owned, refusals
from provisioning.kubernetes.cluster import OWNER, Cluster, labels
from provisioning.kubernetes.execution import PodProcess
from provisioning.kubernetes.opening import STAGES, Opening
from provisioning.kubernetes.refusals import ApiError, BusyError, refused_as_request
from suite.errors import MeasurementError, RequestError
from suite.interfaces import Stopwatch
from suite.job.ablations import properties_of
from suite.records.course import failed
from tests.provisioning.kubernetes.conftest import Answer, Server

PODS, EVENTS = "/api/v1/namespaces/lab/pods", "/api/v1/namespaces/lab/events"
NAME = "virtbench-0123456789ab"
REVIEW = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def test_the_context_decides_server_namespace_and_credentials(server: Server, cluster: Cluster) -> None:
    server.answers["GET /version"] = 200, {"gitVersion": "v1.20.2"}
    assert (cluster.namespace, cluster.version()) == ("lab", "v1.20.2")
    assert server.asked == ["GET /version Bearer secret"]


def test_a_token_that_the_server_repeats_is_hidden(server: Server, cluster: Cluster) -> None:
    server.answers["GET /version"] = 403, {"message": f"{'x' * 995} Bearer secret"}
    with pytest.raises(ApiError) as caught:
        cluster.version()
    assert caught.value.message.endswith("x ***")
    record = failed(MeasurementError("no", output_tail="header: Bearer secret", kind="kubernetes"))
    assert record.output_tail == "header: ***"


@pytest.mark.parametrize(
    ("context", "content", "said"),
    [
        (None, None, "there is no kubeconfig"),
        (None, "here", "has no current context"),
        ("there", "here", "no context 'there'"),
        (None, "", "empty"),
    ],
)
def test_a_kubeconfig_that_does_not_serve_is_told(
    server: Server, tmp_path: Path, context: str | None, content: str | None, said: str
) -> None:
    path = tmp_path / "config"
    if content == "here":
        server.kubeconfig(path)
    elif content is not None:
        path.write_text(content)
    with pytest.raises(RequestError, match=said) as error:
        Cluster.connect(context, config=str(path))
    assert error.value.remedy


def test_without_the_client_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(RequestError) as error:
        Cluster.connect()
    assert error.value.remedy == "pip install 'virtbench[kubernetes]'"


def test_a_right_that_is_missing_is_named_with_its_verb(
    server: Server, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers[REVIEW] = 201, {"status": {"allowed": False}}
    with pytest.raises(RequestError, match="may not create pods/exec in lab"):
        cluster.demand({"pods/exec": ("create",)})
    with pytest.raises(RequestError, match=r"may not delete jobs.batch in lab"):
        cluster.demand({"jobs.batch": ("delete",)})
    reviewed = [json.loads(body)["spec"]["resourceAttributes"] for body in server.sent]
    assert [(each["group"], each["resource"], each["subresource"]) for each in reviewed] == [
        ("", "pods", "exec"),
        ("batch", "jobs", ""),
    ]
    monkeypatch.setenv("KUBECONFIG", cluster.kubeconfig)
    with pytest.raises(RequestError, match="may not create services in lab"):
        KUBERNETES.configured({"context": "here"}).hindrance(properties_of("node-port"))


PAGE = "<!DOCTYPE html><title>Sign in</title>"


@pytest.mark.parametrize("answer", [PAGE, "Welcome to nginx", '{"cut', "[1]", {"version": "3.2"}])
def test_another_server_at_the_kubeconfigs_address_is_named(server: Server, cluster: Cluster, answer: Any) -> None:
    server.answers["GET /version"] = 200, answer
    with pytest.raises(MeasurementError, match="what answers /version is not the server of a cluster") as caught:
        cluster.version()
    assert "the context here in" in str(caught.value.remedy)


def test_a_page_in_place_of_a_list_is_named_and_what_pods_print_is_free(server: Server, cluster: Cluster) -> None:
    server.answers |= {f"GET {PODS}": (200, PAGE), f"GET {PODS}/p/log": (200, PAGE), f"GET {PODS}/q/log": (200, "a\n")}
    with pytest.raises(MeasurementError, match="Sign in"):
        cluster.listed("v1/pods", {})
    with pytest.raises(MeasurementError, match="Sign in"):
        list(cluster.events(PODS, 1.0))
    assert cluster.get(f"{PODS}/p/log") == {"text": PAGE}
    assert list(cluster.log_lines("q", "bench", 1.0)) == ["a"]
    assert "container=bench" in server.asked[-1]


@pytest.mark.parametrize(
    ("command", "hint", "said", "remedy"),
    [
        ("gke-auth-plugin-that-is-not-installed", "install the plugin", "is not installed", "install the plugin"),
        ("aws-iam-authenticator-not-there", None, "is not installed", "install aws-iam-authenticator-not-there"),
        ("false", None, "has given none: exec: process returned 1", "sign in"),
        ("./expired", None, "has given none: .*run: cloud login", "sign in"),
    ],
)
def test_a_plugin_that_gives_no_credentials_is_named_before_anything_is_asked(
    server: Server,
    tmp_path: Path,
    command: str,
    hint: str | None,
    said: str,
    remedy: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "expired").write_text("#!/bin/sh\necho 'your session is over; run: cloud login' >&2\nexit 1\n")
    (tmp_path / "expired").chmod(0o755)
    config = json.loads(Path(server.kubeconfig(tmp_path / "config", current="here")).read_text())
    plugin = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": command, "installHint": hint}
    config["users"] = [{"name": "u", "user": {"exec": plugin}}]
    (tmp_path / "config").write_text(json.dumps(config))
    with pytest.raises(RequestError, match=f"the context here come from {command}, which {said}") as caught:
        Cluster.connect(config=str(tmp_path / "config"))
    assert remedy in str(caught.value.remedy)
    assert server.asked == []
    assert capfd.readouterr().err == ""


def test_a_server_that_is_away_is_waited_for_only_where_there_is_patience(
    server: Server, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.url, url = "http://127.0.0.1:1", server.url
    gone = Cluster.connect("here", config=server.kubeconfig(tmp_path / "gone"))
    with pytest.raises(AwayError, match="does not answer") as error:
        gone.version()
    assert error.value.kind == "kubernetes-away"
    server.url = url
    server.answers["GET /version"] = 200, {"gitVersion": "v1"}
    monkeypatch.setattr("time.sleep", lambda _: object.__setattr__(gone, "api", cluster.api))
    assert gone.request("GET", "/version", patience_s=60.0) == {"gitVersion": "v1"}


def test_only_what_has_the_owners_label_is_removed_and_its_end_is_awaited(server: Server, cluster: Cluster) -> None:
    there = [NAME]

    def listed() -> Answer:
        return 200, {"items": [{"metadata": {"name": name}} for name in there]}

    def deleted() -> Answer:
        there.clear()
        return 200, {}

    server.answers |= {f"GET {PODS}": listed, f"DELETE {PODS}/{NAME}": deleted}
    with ledger.holding("kubernetes", owned.entry(cluster, NAME, ("v1/pods",))):
        assert labels(NAME)[OWNER] == NAME
    assert not there
    assert all(f"labelSelector=virtbench.dev/owner%3D{NAME}" in one for one in server.asked if one.startswith("GET"))
    assert any("gracePeriodSeconds=0" in one for one in server.asked)


def test_an_entry_names_the_kubeconfig_from_wherever_it_is_read(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.kubeconfig(tmp_path / "config", current="here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", "none.yaml::config")
    entry = json.loads(owned.entry(Cluster.connect(), NAME, ("v1/pods",)))
    assert entry[0] == f"{tmp_path}/none.yaml:{tmp_path}/config"
    monkeypatch.chdir("/")
    assert Cluster.connect(config=entry[0]).context == "here"


@pytest.mark.parametrize("order", ["empty.yaml:config:other", "config:empty.yaml:other", "none.yaml:config:other"])
def test_the_first_of_several_kubeconfigs_names_the_context(
    order: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Path(server.kubeconfig(tmp_path / "config", current="here"))
    (tmp_path / "other").write_text(config.read_text().replace('"here"', '"there"'))
    nothing = dict.fromkeys(("clusters", "contexts", "users")) | {"current-context": ""}
    (tmp_path / "empty.yaml").write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **nothing}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", order)
    assert Cluster.connect().context == "here"
    assert Cluster.connect("there").context == "there"


def test_what_was_removed_already_is_no_error(server: Server, cluster: Cluster) -> None:
    answers: list[Answer] = [(200, {"items": []}), (200, {"items": [{"metadata": {"name": NAME}}]})]
    server.answers |= {f"GET {PODS}": answers.pop, f"DELETE {PODS}/{NAME}": (404, {"message": "gone"})}
    owned.remove_selected(cluster, {OWNER: NAME}, ("v1/pods",))


def test_an_entry_without_a_name_of_the_suites_is_left_alone(cluster: Cluster) -> None:
    foreign = json.dumps([cluster.kubeconfig, "here", "lab", "v1/pods", "production"])
    with pytest.raises(ledger.LedgerError, match="no name that the suite gives"), ledger.holding("kubernetes", foreign):
        raise AssertionError("it must not be held")


Start = Callable[..., PodProcess]
GONE = MeasurementError("it is gone", kind="evicted")


@pytest.fixture
def start(cluster: Cluster) -> Iterator[Start]:
    with ExitStack() as stack:

        def started(*argv: str, stdin: bytes | IO[bytes] = b"", fate: MeasurementError | None = GONE) -> PodProcess:
            process = PodProcess.start(cluster, "pod", argv, stdin, lambda: fate)
            stack.callback(process.close)
            return process

        yield started


def test_output_and_exit_status_come_back(start: Start) -> None:
    process = start("sh", "-c", "echo said; echo why >&2; exit 7")
    assert list(process.lines(10)) == ["said"]
    assert (process.wait(10), process.output_tail(), process.running()) == (7, "why\n", False)
    assert start("true").wait(10) == 0


def test_input_has_an_end_and_arrives_whole_while_the_command_answers(start: Start) -> None:
    content = bytes(range(32, 127)) * 20_000
    process = start("cat", stdin=content)
    assert "\n".join(process.lines(30)).encode() == content
    assert process.wait(10) == 0


def test_a_pipe_is_passed_on_as_it_comes_and_its_end_as_an_empty_line(start: Start) -> None:
    reading, writing = os.pipe()
    script = 'while read line && [ -n "$line" ]; do echo got $line; done; echo over'
    process = start("sh", "-c", script, stdin=os.fdopen(reading, "rb"))
    os.write(writing, b"one\n")
    assert next(process.lines(10)) == "got one"
    os.close(writing)
    assert list(process.lines(10)) == ["over"]
    assert process.wait(10) == 0


def test_a_command_that_has_ended_kills_nothing_else_of_its_pod(server: Server, start: Start) -> None:
    """All commands share the pod: the end of a short one must not be the end of the worker."""
    worker = start("sleep", "1000")
    for _ in range(50):
        short = start("echo", "said")
        assert list(short.lines(10)) == ["said"]
        short.close()
    assert worker.running()
    assert not any(each.returncode for each in server.started)


def test_a_command_that_is_killed_with_its_pod_says_so_and_one_that_is_killed_alone_does_not(start: Start) -> None:
    words = ("sh", "-c", "kill -KILL $$")
    with pytest.raises(MeasurementError, match="it is gone"):
        start(*words).wait(10)
    assert start(*words, fate=None).wait(10) == 128 + signal.SIGKILL


def test_a_stream_that_ends_before_its_command_says_why(server: Server, start: Start) -> None:
    server.cuts = True
    process = start("sh", "-c", "echo begun; sleep 1000")
    assert list(process.lines(10)) == ["begun"]
    with pytest.raises(MeasurementError, match="it is gone") as error:
        process.wait(10)
    assert error.value.kind == "evicted"


def test_pods_alone_have_requests_and_less_than_their_limits_only_once() -> None:
    half = properties_of("pod-requests")
    assert KUBERNETES.configured({"context": "here"}).hindrance(half) is None
    asked = KUBERNETES.configured({"context": "here", "pod_requests": "50%"})
    assert "less than their limits already" in str(asked.hindrance(half))
    assert KUBERNETES.hindrance(properties_of("pinning")) == "a pod cannot be given it"
    assert [get_engine(name).hindrance(half) for name in ("runc", "podman")] == ["pods alone have requests"] * 2


POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {}}


def test_a_runtime_class_that_its_node_lacks_is_called_so_at_the_first_event(server: Server, cluster: Cluster) -> None:
    said = 'rpc error: failed to get sandbox runtime: no runtime for "kata" is configured'
    server.answers |= {f"POST {PODS}": (201, POD), f"GET {PODS}": (200, "")}
    event = {"type": "Warning", "reason": "FailedCreatePodSandBox", "message": said}
    server.answers[f"GET {EVENTS}"] = 200, json.dumps({"type": "ADDED", "object": event})
    with pytest.raises(MeasurementError, match="does not have this runtime class: FailedCreatePodSandBox") as raised:
        Opening(cluster, "p", Stopwatch()).open(POD)
    assert "--runtime-class" in str(raised.value.remedy)


def test_a_mount_that_fails_for_a_moment_does_not_fail_the_pod_and_explains_one_that_never_starts(
    server: Server, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = {"type": "Warning", "reason": "FailedMount", "message": 'configmap "c" not registered'}
    running = POD | {"spec": {"nodeName": "n1"}, "status": {"phase": "Running"}}
    server.answers |= {f"POST {PODS}": (201, POD), f"GET {PODS}/p": (200, POD)}
    server.answers[f"GET {EVENTS}"] = 200, json.dumps({"type": "ADDED", "object": event})
    server.answers[f"GET {PODS}"] = 200, ""
    monkeypatch.setattr("provisioning.kubernetes.opening.OPENED_WITHIN_S", 1.0)
    with pytest.raises(
        MeasurementError, match=r'cannot mount a volume.*within 1 s.*FailedMount: configmap "c"'
    ) as late:
        Opening(cluster, "p", Stopwatch()).open(POD)
    assert (late.value.kind, str(late.value.remedy)[:24]) == ("volume", "see kubectl describe pod")
    server.answers[f"GET {PODS}"] = 200, json.dumps({"type": "MODIFIED", "object": running})
    opening = Opening(cluster, "p", Stopwatch())
    opening.open(POD)
    assert opening.ended == len(STAGES)


BUSY = 'Internal error occurred: failed calling webhook "m.example.org": failed to call webhook: deadline exceeded'


@pytest.mark.parametrize(
    ("status", "message"), [(500, BUSY), (429, "too many requests"), (409, "the object has been modified")]
)
def test_a_busy_server_is_asked_again_and_one_that_stays_busy_is_named(
    server: Server, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, status: int, message: str
) -> None:
    answers: Iterator[Answer] = iter([(status, {"message": message}), (status, {"message": message}), (201, POD)])
    server.answers[f"POST {PODS}"] = lambda: next(answers)
    monkeypatch.setattr("provisioning.kubernetes.cluster.RETRIED_EVERY_S", 0.01)
    assert cluster.create(POD) == POD
    monkeypatch.setattr("provisioning.kubernetes.cluster.BUSY_AT_MOST_S", 0.05)
    server.answers[f"POST {PODS}"] = status, {"message": message}
    with pytest.raises(BusyError, match=message[:20]) as busy:
        cluster.create(POD)
    assert "the cluster is busy" in str(busy.value.remedy)
    server.answers[f"POST {PODS}"] = 409, {"message": 'pods "p" already exists'}
    asked = len(server.asked)
    with pytest.raises(ApiError, match="already exists"):
        cluster.create(POD)
    assert len(server.asked) == asked + 1


def test_an_apply_is_one_patch_under_the_suites_name_and_its_refusals_name_fields_and_managers(
    server: Server, cluster: Cluster
) -> None:
    """The answers are those of a server of 1.20."""
    path = "/apis/apps/v1/namespaces/lab/deployments/serve"
    manifest = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "serve"}, "spec": {"replicas": 1}}
    server.answers[f"PATCH {path}"] = 201, manifest
    assert cluster.apply(manifest, dryRun="All") == manifest
    assert server.asked == [f"PATCH {path}?fieldManager=virtbench&dryRun=All Bearer secret"]
    assert (json.loads(server.sent[-1]), server.types[-1]) == (manifest, "application/apply-patch+yaml")
    conflict = {"message": 'conflict with "kubectl-edit" using apps/v1', "field": ".spec.replicas"}
    template = f"Invalid value: core.PodTemplateSpec{{{'x' * 4000}}}: field is immutable"
    immutable = {"message": template, "field": "spec.template"}
    for status, cause, words in (
        (409, conflict, 'given a field another value: spec.replicas: conflict with "kubectl-edit" using apps/v1'),
        (
            422,
            immutable,
            r"rejects it: spec.template: Invalid value: core.PodTemplateSpec\{x+ … x+\}: field is immutable",
        ),
    ):
        server.answers[f"PATCH {path}"] = status, {"message": "Apply failed", "details": {"causes": [cause]}}
        with pytest.raises(RequestError, match=f"{words}$") as refused, refused_as_request():
            cluster.apply(manifest)
        assert refused.value.remedy
    server.answers[f"PATCH {path}"] = 422, {"message": "it is invalid", "details": None}
    with pytest.raises(ApiError, match="rejects it: it is invalid"):
        cluster.apply(manifest)


FORBIDDEN = 'pods "p" is forbidden: '


def test_what_is_refused_is_a_wrong_request_and_remedies_name_the_keys_of_a_plan(
    server: Server, cluster: Cluster
) -> None:
    server.answers[f"POST {PODS}"] = 403, {"message": f"{FORBIDDEN}maximum cpu usage per Pod is 16, but request is 17"}
    with pytest.raises(RequestError, match="maximum cpu usage per Pod is 16") as refused, refused_as_request():
        cluster.create(POD)
    assert refused.value.exit_code == 2
    for cause in refusals._CAUSES:
        remedy = str(RequestError("", remedy=cause.remedy).spelled(lambda name: f"options.{name}").remedy)
        assert "--" not in remedy.replace("--image of a pipeline", ""), cause.kind


GATED = {"reason": "SchedulingGated", "message": "Scheduling is blocked due to non-empty scheduling gates"}


def test_a_pod_that_cannot_be_opened_before_the_plan_names_node_and_cpus(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", server.kubeconfig(tmp_path / "config"))
    info = {"bootID": "b1", "kubeletVersion": "v1.36.0", "containerRuntimeVersion": "containerd://2"}
    node = {"metadata": {"name": "n1"}, "status": {"nodeInfo": info, "allocatable": {"cpu": "2"}}}
    unplaced = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes: Insufficient cpu"}
    live: dict[str, Any] = POD | {"status": {"conditions": [unplaced]}}
    server.answers |= {
        REVIEW: (201, {"status": {"allowed": True}}),
        "GET /api/v1/nodes": (200, {"items": [node]}),
        f"POST {PODS}": lambda: (201, json.loads(server.sent[-1])),
        f"GET {PODS}": (200, {"type": "ADDED", "object": POD, "items": []}),  # the answer to a watch, and to a list
        f"GET {EVENTS}": (200, ""),
    }
    monkeypatch.setattr("provisioning.kubernetes.opening.SCHEDULED_WITHIN_S", 0.01)
    get = Cluster.get
    monkeypatch.setattr(
        Cluster, "get", lambda self, path, **query: live if "/pods/" in path else get(self, path, **query)
    )
    image: Any = SimpleNamespace(digest="f" * 64, tree=tmp_path, file=lambda name: tmp_path / name)
    engine = KUBERNETES.configured({"context": "here", "registry": "registry.example.org"})
    with pytest.raises(RequestError, match=r"a pod of 2 CPUs on the node n1, 2 whole ones.*: Insufficient"):
        engine.allotment(image, 2, 1 << 30)
    live["status"]["conditions"] = [unplaced | GATED]
    with pytest.raises(RequestError, match=r"node n1.*non-empty scheduling gates") as held:
        engine.allotment(image, 2, 1 << 30)
    assert "until its queue admits it" in str(held.value.remedy)
    server.answers[f"POST {PODS}"] = 403, {"message": f'{FORBIDDEN}pod rejected: RuntimeClass "kata" not found'}
    with pytest.raises(RequestError, match=r"node n1.*does not have this runtime class"):
        engine.allotment(image, 2, 1 << 30)
    server.answers["GET /apis/storage.k8s.io/v1/storageclasses"] = 200, {"items": [{"metadata": {"name": "fast"}}]}
    with pytest.raises(RequestError, match="the cluster has no storage class slow") as raised:
        KUBERNETES.configured({**engine.settings, "storage_class": "slow"}).allotment(image, 2, 1 << 30)
    assert raised.value.remedy == "choose --storage-class from: fast"
