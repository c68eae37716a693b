"""A server of the user's own as the host sees it: the worker starts it on this machine, and asks it."""

import itertools
import json
import math
import random
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event as Moment
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from provisioning.machines import detached
from provisioning.machines.ssh import free_port
from scenarios.events import Event, EventLog
from scenarios.own_server import _ServedTrial, knee_per_s
from scenarios.reading import empty_page_cache
from scenarios.served_pair import StartedPair
from scenarios.served_requests import bodies_of
from scenarios.serving_options import CHAT, ServingOptions
from suite.errors import MeasurementError, RequestError
from suite.interfaces import Completed, Instance, Measurement, Node
from suite.job.profiles import PROFILES
from suite.job.serving import Limit, Serving, parse_limit
from suite.plan import Trial
from suite.records.record import MetricValue
from suite.request.request import RunRequest
from suite.request.scenario import scenario_of
from tests.provisioning.conftest import raises
from tests.scenarios.conftest import HereNode, failure
from tests.scenarios.test_serve import ENVELOPE, JOINED
from worker.probes.probe import quantile
from worker.serving.load import WARM_UP

STAND_IN = Path(__file__).parents[1] / "stand_ins/model_server.py"


@pytest.fixture
def measured(trial: Trial, here: HereNode, observer: Any) -> Any:
    """``measured("--step-s 0.01", requests=20)``: measure the stand-in with these words and options of a request."""

    def measure(words: str = "", snapshot: PausedServer | None = None, **options: Any) -> Measurement:
        port = free_port()
        command = f"{sys.executable} {STAND_IN} {port} {words}"
        given = {
            "requests": 20,
            "rates": "40",
            "clients": 2,
            "ready_limit": 20,
            "path": "/wait",
            "ready": "/",
            **options,
        }
        request = RunRequest.of({"scenario": "serve", "profile": "smoke", "command": command, "port": port, **given})
        scenario = scenario_of(request)
        part = scenario.part(request, PROFILES["smoke"], "")
        planned = trial.with_job(
            scenario="serve",
            model=scenario.models(request)[0],
            sizes=None,
            unit=scenario.unit(request, ""),
            distributed=JOINED,
            envelope=ENVELOPE,
            **part,
        )
        return scenario.measure(planned, instances(here, snapshot), observer, nullcontext())

    return measure


def instances(node: HereNode, snapshot: "PausedServer | None" = None) -> list[Instance]:
    return [Instance(node, "127.0.0.1", "lo", snapshot=snapshot) for _ in range(2)]


@dataclass
class PausedServer:
    """A snapshot of one process: it is stopped as if it were saved, and goes on where it is loaded."""

    node: HereNode
    place: Path
    fails_at: str = ""
    method: str = "its process was stopped"
    calls: list[str] = field(default_factory=list)

    @property
    def following(self) -> Sequence[str]:
        return self._program("follow")

    def _program(self, action: str) -> list[str]:
        return [sys.executable, "-I", "-c", Path(detached.__file__).read_text(), action, str(self.place / "detached")]

    def detach(self, argv: Sequence[str], first_line: bytes) -> None:
        self.place.mkdir()
        self.node.run([*self._program("start"), *argv], stdin=first_line + b"\n")
        self.calls.append("detach")

    def save(self) -> Path:
        self.send(signal.SIGSTOP)
        saved = self.place / "saved"
        saved.mkdir()
        (saved / "guest").write_bytes(b"x" * 5000)
        self.calls.append("save")
        return saved

    def start(self) -> None:
        self.calls.append("start")

    def connect(self) -> None:
        self.calls.append("connect")

    def load(self) -> None:
        if self.fails_at == "load":
            raise MeasurementError("the guest's snapshot: no room", kind="snapshot")
        time.sleep(LOADED_S)
        self.send(signal.SIGCONT)
        self.calls.append("load")

    def send(self, number: int) -> list[psutil.Process]:
        """Send a signal to all processes of the guest, and return them."""
        sent = []
        for process in psutil.process_iter(["cmdline"]):
            if str(STAND_IN) in (process.info["cmdline"] or ()):
                process.send_signal(number)
                sent.append(process)
        return sent


LOADED_S = 0.4


def is_left(path: Path) -> bool:
    return any(
        str(path) in process.info["cmdline"] for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"]
    )


def test_a_server_is_measured_from_its_start_to_its_end_and_the_path_apart(measured: Any) -> None:
    found = measured("--step-s 0.01")
    metrics = found.metrics
    # The bounds leave a busy machine a margin above what the server takes.
    assert 10 <= metrics["latency-p50"].value < 30
    assert metrics["path-latency-p50"].value < 10
    assert metrics["inside-latency"].value < metrics["latency-p50"].value
    if not found.details["withheld"]:  # the load generator of a busy machine is late
        assert 20 < found.throughput_per_s <= 100
    assert metrics["start-to-ready"].value < metrics["cold-start"].value
    before_s = found.timeline.launch_s + found.timeline.imports_s + found.timeline.build_s
    assert before_s == pytest.approx(metrics["cold-start"].value), "no part counts twice"
    assert found.details["ended_by"] == "TERM"
    assert found.details["processes_left"] == []
    assert found.details["failed"] == {}
    requests = found.details["requests"]["40/s"]
    assert {name: len(column) for name, column in requests.items()} == dict.fromkeys(requests, 20)
    moments = zip(requests["due_s"], requests["sent_s"], requests["ended_s"], strict=True)
    assert all(due <= sent <= ended for due, sent, ended in moments)
    assert not is_left(STAND_IN)


def test_first_token_and_token_have_the_times_of_the_server(measured: Any) -> None:
    options = {"api": "openai", "max_tokens": 10, "path": "/v1/chat/completions", "rates": "2"}
    found = measured("--step-s 0.02 --needs-model", **options)
    metrics = found.metrics
    assert 20 <= metrics["first-token-p50"].value < 40
    assert metrics["per-token-p50"].value == pytest.approx(20, rel=0.2)
    assert 200 <= metrics["latency-p50"].value < 260
    assert 35 < found.throughput_per_s <= 50
    assert found.details["answers_differ"] == 0


@pytest.mark.parametrize(
    ("words", "kind", "message", "remedy"),
    [
        ("--die-after-s 0.8", "command", "the server ended by itself with exit status 3", ""),
        ("--loading-s 60", "network", "not ready after 1 s: / answered 503; it listens at 0.0.0.0", "--ready-limit"),
        ("--loading-s 60 --host 127.0.0.1", "network", "it listens at 127.0.0.1", "have it listen at 0.0.0.0"),
        ("--fork", "command", "the server went into the background", "in the foreground"),
    ],
)
def test_a_server_that_cannot_be_measured_is_named_with_the_reason(
    measured: Any, words: str, kind: str, message: str, remedy: str
) -> None:
    error = failure(measured, f"--step-s 0.01 {words}", ready_limit=1)
    assert error.kind == kind
    assert message in error.message
    assert remedy in (error.remedy or "")
    assert not is_left(STAND_IN)


def test_a_server_that_ignores_its_end_is_killed_and_what_it_leaves_named(measured: Any, observer: Any) -> None:
    found = measured("--step-s 0.01 --ignore-term --child --log-bytes 1000000")
    assert found.details["ended_by"] == "KILL"
    assert 8 <= found.details["ending_s"] < 12
    (left,) = found.details["processes_left"]
    assert left.startswith("python")
    assert any("was killed 8 s after SIGTERM" in note for note in observer.notes)
    assert not is_left(STAND_IN)


def test_a_start_whose_line_was_read_after_the_answer_has_no_time() -> None:
    def lines(**arrived_s: float) -> Any:
        events = {name: Event(name, 0.0, moment_s, {}) for name, moment_s in arrived_s.items()}
        return SimpleNamespace(
            job=SimpleNamespace(log=EventLog(phases={}, events=events, begun_s=1.0)), instance=opened
        )

    opened = SimpleNamespace(node=SimpleNamespace(opening=SimpleNamespace(seconds=0.5)))
    pair = StartedPair(lines(launched=3.0), lines(ready=2.9, answered=3.1), Moment(), tokens=False)
    told = {name: metric.value for name, metric in pair.openings().items()}
    assert told == pytest.approx({"cold-start": 2.1, "cold-start-with-opening": 2.6})


SERVICE_S, RATES, LIMIT = 0.01, (20.0, 50.0, 80.0, 95.0), Limit(percentile="p95", most_ms=45)


def queued_p95_ms(rate: float) -> float:
    """Return the percentile of a queue with equal services, for the schedule of a rate (Lindley 1952)."""
    draw = random.Random(f"7/{rate:g}")
    due_s = itertools.accumulate(draw.expovariate(rate) for _ in range(20_000))
    latencies_ms, free_s = [], 0.0
    for due in due_s:
        free_s = max(due, free_s) + SERVICE_S
        latencies_ms.append((free_s - due) * 1e3)
    return quantile(latencies_ms, 0.95)


def share_below(rate: float, latency_s: float) -> float:
    """Return the share of latencies up to this one in an M/D/1 queue (Erlang 1909)."""
    waited_s = latency_s - SERVICE_S
    terms = (rate * (number * SERVICE_S - waited_s) for number in range(int(waited_s / SERVICE_S) + 1))
    summed = math.fsum(term**number / math.factorial(number) * math.exp(-term) for number, term in enumerate(terms))
    return (1 - rate * SERVICE_S) * summed


def test_the_knee_of_a_known_queue_is_that_of_its_theory() -> None:
    served = {
        f"latency-p95-at-{rate:g}-per-s": MetricValue(value=queued_p95_ms(rate), unit="ms", better="less")
        for rate in RATES
    }
    keeping = [rate for rate in RATES if share_below(rate, LIMIT.most_ms / 1e3) >= 0.95]
    load = Serving(requests=100, rates=RATES, clients=8)
    assert knee_per_s(load, LIMIT, served) == max(keeping) == 50
    assert knee_per_s(load, None, served) is None
    assert knee_per_s(load, Limit(percentile="p95", most_ms=5), served) is None
    assert knee_per_s(load, Limit(percentile="p99", most_ms=500), served) is None, "it was not measured"


@pytest.mark.parametrize(
    ("limit", "latencies", "note"),
    [
        ("p95=500ms", {"latency-p95-at-1-per-s": 20.0}, []),
        ("p95=10ms", {"latency-p95-at-1-per-s": 20.0}, ["p95 at the lowest rate, 1/s, is 20 ms"]),
        ("p99=10ms", {"latency-p99-at-4-per-s": 5.0}, ["p99 at the lowest rate, 1/s, was not measured"]),
    ],
)
def test_a_trial_without_a_knee_says_why(limit: str, latencies: Mapping[str, float], note: Sequence[str]) -> None:
    asked = SimpleNamespace(
        server=SimpleNamespace(limit=parse_limit(limit)), serving=Serving(requests=100, rates=(4.0, 1.0), clients=2)
    )
    metrics = {name: MetricValue(value=value, unit="ms", better="less") for name, value in latencies.items()}
    knee = knee_per_s(asked.serving, asked.server.limit, metrics)
    known = {"knee": MetricValue(value=knee, unit="requests/s", better="more")} if knee else {}
    told = [*_ServedTrial.notes_on_knee(cast(Any, asked), metrics | known)]
    assert [text.removeprefix("no knee: ").partition(", and the limit is ")[0] for text in told] == list(note)


def queued(rate: float, seed: int, services_s: Sequence[float]) -> list[float]:
    """Return the latencies in ms of a queue with these services, for the schedule of a rate (Lindley 1952)."""
    draw = random.Random(f"{seed}/{rate:g}")
    latencies_ms = []
    due_s = free_s = 0.0
    for service_s in services_s:
        due_s += draw.expovariate(rate)
        free_s = max(due_s, free_s) + service_s
        latencies_ms.append((free_s - due_s) * 1e3)
    return latencies_ms


@pytest.mark.thorough
def test_a_known_queue_is_measured_as_its_theory_foretells_up_to_the_knee(measured: Any, trial: Trial) -> None:
    requests = 300
    options = {"requests": requests, "rates": "20,50,80", "clients": 32, "limit": f"p95={LIMIT.most_ms:g}ms"}
    found = measured(f"--step-s {SERVICE_S}", **options)
    if found.details["withheld"]:
        pytest.skip(f"the machine is too busy for the load generator: {found.details['withheld']}")
    metrics = found.metrics
    served_in_s = metrics["latency-p50"].value / 1e3
    assert served_in_s == pytest.approx(SERVICE_S, abs=0.005)
    for rate in (20.0, 50.0, 80.0):
        foretold = queued(rate, trial.seed, [served_in_s] * requests)
        for percent in (50, 95):
            latency = metrics[f"latency-p{percent}-at-{rate:g}-per-s"].value
            assert latency == pytest.approx(quantile(foretold, percent / 100), rel=0.2, abs=5), (rate, percent)
    assert metrics["knee"].value == max(rate for rate in RATES if share_below(rate, LIMIT.most_ms / 1e3) >= 0.95)


@pytest.mark.thorough
def test_a_stall_is_charged_to_every_request_that_it_kept_waiting(measured: Any, trial: Trial) -> None:
    requests, every, stall_s, step_s = 300, 200, 2.0, 0.005
    words = f"--step-s {step_s} --stall-every {every} --stall-s {stall_s}"
    metrics = measured(words, requests=requests, rates="50", clients=16).metrics
    assert metrics["latency-p99"].value < 50, "in a closed loop a stall is one request of 300"
    # Before come the first answer and the warm-up, which the server counts, too.
    before = 1 + WARM_UP + requests
    numbers = range(before + 1, before + 1 + requests)
    services_s = [step_s + (stall_s - step_s) * (number % every == 0) for number in numbers]
    foretold = queued(50, trial.seed, services_s)
    for percent in (95, 99):  # the median is of requests after a stall, which a busy machine catches up later
        latency = metrics[f"latency-p{percent}-at-50-per-s"].value
        assert latency == pytest.approx(quantile(foretold, percent / 100), rel=0.1, abs=20), percent
    assert metrics["latency-p95-at-50-per-s"].value > 1000


@pytest.mark.thorough
def test_a_gigabyte_of_log_ends_clearly_and_is_kept_nowhere(measured: Any) -> None:
    found = measured("--step-s 0.01 --log-mib 1024", ready_limit=300)
    assert found.details["ended_by"] == "TERM"
    assert found.details["processes_left"] == []
    assert found.metrics["latency-p50"].value < 30, "the log was read before"
    assert len(str(found.details)) < 1 << 20
    assert not is_left(STAND_IN)


def test_a_warm_server_has_run_once_before(measured: Any, here: HereNode) -> None:
    launched = len(here.processes)
    found = measured("--step-s 0.01", cache="warm")
    assert len(here.processes) - launched == 2 * 2 + 2, "the path, the first run, the measured one"
    assert found.metrics["start-to-ready"].value > 0


def test_a_server_from_a_snapshot_starts_when_that_is_loaded(measured: Any, here: HereNode, tmp_path: Path) -> None:
    loading_s = 1.0
    paused = PausedServer(here, tmp_path / "guest")
    words = {"from_snapshot": True, "snapshot": paused, "ready": "/wait", "cache": "warm"}
    found = measured(f"--step-s 0.01 --loading-s {loading_s}", **words)
    assert paused.calls == ["detach", "save", "start", "connect", "load"]
    metrics = {name: metric.value for name, metric in found.metrics.items()}
    assert LOADED_S <= metrics["restore-memory"] <= metrics["start-to-ready"] < loading_s, "the command loads no more"
    parts = ("restore-hypervisor", "restore-memory", "restore-answer")
    assert sum(metrics[name] for name in parts) == pytest.approx(metrics["start-to-ready"])
    assert metrics["cold-start-with-opening"] >= metrics["start-to-ready"]
    assert "cold-start" not in metrics, "there is no ready target before"
    snapshot = found.details["snapshot"]
    assert (snapshot["size_bytes"], snapshot["page_cache_share"]) == (5000, 1)
    assert snapshot["save_s"] > 0
    before_s = found.timeline.launch_s + found.timeline.imports_s + found.timeline.build_s
    assert before_s == pytest.approx(metrics["cold-start-with-opening"])
    assert found.usage is None, "its account began before it was saved"
    assert found.details["ended_by"] == "TERM"
    assert not is_left(STAND_IN)


@pytest.mark.parametrize(
    ("words", "fails_at", "message"),
    [
        ("--die-after-s 0.8 --loading-s 60", "", "the server ended by itself with exit status 3"),
        ("--loading-s 60", "", "/ answered 503; it listens at 0.0.0.0"),
        ("", "load", "no room"),
    ],
)
def test_a_server_that_cannot_be_saved_is_named_with_the_reason(
    measured: Any, here: HereNode, tmp_path: Path, words: str, fails_at: str, message: str
) -> None:
    paused = PausedServer(here, tmp_path / "guest", fails_at)
    options = {"from_snapshot": True, "snapshot": paused, "ready_limit": 2}
    error = failure(measured, f"--step-s 0.01 {words}", **options)
    assert message in error.message
    assert ("save" in paused.calls) is bool(fails_at)
    killed = paused.send(signal.SIGKILL)  # a guest would have ended with it
    psutil.wait_procs(killed, timeout=10)
    assert not is_left(STAND_IN)


def test_an_instance_that_nothing_saves_fails_the_trial(measured: Any) -> None:
    assert failure(measured, "--step-s 0.01", from_snapshot=True).kind == "snapshot"


def test_a_cold_start_is_refused_where_the_programs_are_the_machines_own(measured: Any) -> None:
    error = failure(measured, "--step-s 0.01", cache="cold")
    assert error.kind == "page-cache"
    assert "its programs are those of this machine" in error.message
    assert "--cache warm" in (error.remedy or "")


def test_a_server_needs_a_port_and_takes_nothing_of_a_generator() -> None:
    with raises(RequestError, "--scenario serve with --command needs --port", "add --port 8000"):
        scenario_of(RunRequest.of({"scenario": "serve", "command": "python server.py"}))
    own = {"scenario": "serve", "command": "python server.py", "port": 8000}
    with raises(RequestError, "--image-px would change nothing", "leave it out"):
        scenario_of(RunRequest.of({**own, "image_px": 28}))
    limited = scenario_of(RunRequest.of({**own, "limit": "p99=5ms", "requests": 50}))
    with raises(RequestError, "--limit p99=5ms: a rate has no p99 in 50 requests", "use --requests 100 or more"):
        limited.part(RunRequest.of({**own, "limit": "p99=5ms", "requests": 50}), PROFILES["smoke"], "")
    with raises(
        RequestError, "--port and --network bridge exclude each other: it publishes ports 29501 to 30011", "give one"
    ):
        RunRequest.of({**own, "network": "bridge"})
    assert RunRequest.of({**own, "network": "bridge", "port": 30000}).scenario == "serve"
    assert RunRequest.of({"command": "python server.py", "port": 8000}).scenario == "serve", "a port implies it"
    assert RunRequest.of({"command": "python train.py"}).scenario == "command"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "holds 0 bodies"),
        ('{"prompt": "a"}\nhello', "line 2 of .* is not a JSON object with prompt or messages"),
        ('{"text": "a"}', "line 1 of .* is not a JSON object with prompt or messages"),
    ],
)
def test_a_file_that_asks_nothing_is_refused(tmp_path: Path, lines: str, message: str) -> None:
    (file := tmp_path / "bodies.jsonl").write_text(lines)
    with pytest.raises(RequestError, match=message):
        bodies_of(ServingOptions(api="openai", bodies=file), CHAT)


def test_bodies_are_completed_as_streams_and_drawn_ones_are_always_the_same(tmp_path: Path) -> None:
    (file := tmp_path / "bodies.jsonl").write_text('{"prompt": "a", "max_tokens": 3, "temperature": 1}\n')
    (body,) = map(json.loads, bodies_of(ServingOptions(api="openai", bodies=file), CHAT))
    assert body["messages"] == [{"role": "user", "content": "a"}]
    assert (body["max_tokens"], body["temperature"], body["stream"]) == (3, 1, True)
    (prompt,) = map(json.loads, bodies_of(ServingOptions(api="openai", bodies=file), "/v1/completions"))
    assert prompt["prompt"] == "a"
    drawn = bodies_of(ServingOptions(api="openai", prompt_words=20), CHAT)
    assert drawn == bodies_of(ServingOptions(api="openai", prompt_words=20), CHAT)
    assert len(set(drawn)) == 16
    lengths = [len(json.loads(body)["messages"][0]["content"].split()) for body in drawn]
    assert 10 <= min(lengths) <= max(lengths) <= 30
    assert bodies_of(ServingOptions(), "/") == ("",)
    assert bodies_of(ServingOptions(bodies=file), "/") == (file.read_text().strip(),)


@dataclass
class CachingNode:
    """A node whose page cache still holds this share after it was emptied; None where its kernel hides that."""

    share: float | None = 0.004
    userland: str | None = "/"
    data: str | None = "/mnt/data"
    backing: "CachingNode | None" = None
    name: str = "n"
    asked: list[str] = field(default_factory=list)

    def run(self, argv: Sequence[str], **_: object) -> Completed:
        self.asked = list(argv)
        return Completed(0, json.dumps({"page_cache_share": self.share}), "")


def empty(node: CachingNode, trial: Trial) -> float:
    return empty_page_cache(trial, cast(Node, node), lambda *_: ["worker"])


def test_a_page_cache_is_emptied_by_who_can_see_it(trial: Trial) -> None:
    node = CachingNode(share=None, backing=CachingNode())
    assert empty(node, trial) == 0.004
    assert node.asked == []
    assert node.backing
    assert node.backing.asked == ["worker", "--page-cache", "empty", "/", "/mnt/data"]


@pytest.mark.parametrize(
    ("node", "ablation", "message"),
    [
        (CachingNode(share=None), None, "its kernel hides which files are in memory"),
        (CachingNode(share=0.03), None, "3.0% of its programs and files stay in memory, 2% may"),
        (CachingNode(), "disk-cache", "its disks are read through the host's page cache"),
    ],
)
def test_a_cold_start_that_cannot_be_had_is_refused_with_the_reason(
    node: CachingNode, ablation: str | None, message: str, trial: Trial
) -> None:
    error = failure(empty, node, trial.model_copy(update={"ablation": ablation}))
    assert message in error.message
    assert "use --cache warm" in (error.remedy or "")
