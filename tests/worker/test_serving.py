"""The service, its generator and the load generator, each by itself and over HTTP on this machine."""

import io
import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import waitress
from msgspec.structs import asdict, replace
from PIL import Image

from provisioning.machines.ssh import free_port
from tests.analysis.test_benchmarks import REPOSITORY
from tests.forked import Forked
from tests.worker.conftest import Code, fails
from tests.worker.forked import run, worker
from tests.worker.judged import SERVICE, answered
from worker.protocol import JobError
from worker.serving.generator import Generator
from worker.serving.load import LoadRun, closed_loop, open_loop, wait_for_answer
from worker.serving.service import MOST_BODY_BYTES
from worker.spec import LoadRequest, ServeSpec, parsed
from worker.training.device import Device
from worker.workloads.workload import Shape, Workload

NAMES = {"dataset": "synthetic", "model": "gan"}
BODY = json.dumps(NAMES).encode()


@contextmanager
def listening(application: Any, **bounds: int) -> Iterator[int]:
    """Serve a WSGI application on a free port of this machine."""
    bounds = {"max_request_body_size": MOST_BODY_BYTES, **bounds}
    server = waitress.create_server(application, host="127.0.0.1", port=0, **bounds)

    def run() -> None:
        with suppress(OSError):  # its loop looks at the socket once more
            server.run()

    threading.Thread(target=run, daemon=True).start()
    yield int(server.effective_port)
    server.close()


def load(port: int, **changes: Any) -> LoadRequest:
    usual = {
        "address": "127.0.0.1",
        "port": port,
        "bodies": [BODY.decode()],
        "requests": 40,
        "clients": 4,
        "rates": [50.0],
    }
    more = {"seed": 1, "timeout_s": 10, "patience_s": 10, "threads": 1}
    return parsed(LoadRequest, json.dumps({**usual, **more, **changes}))


# ------------------------------------------------------------------------------------------------------- the service


def test_the_time_of_an_image_is_in_the_answer() -> None:
    with listening(SERVICE) as port, closing(HTTPConnection("127.0.0.1", port, timeout=10)) as peer:
        peer.request("POST", "/generate", BODY)
        timing = peer.getresponse().headers["Server-Timing"]
    assert re.fullmatch(r"generate;dur=\d+\.\d{3}", timing)


def test_the_models_are_listed_with_their_training_and_the_memory_of_the_server() -> None:
    status, kind, body = answered(b"", method="GET", path="/models")
    listed = json.loads(body)
    assert (status, kind) == ("200 OK", "application/json")
    assert listed["models"] == [NAMES, {"epoch_s": [1.5, 2.0], "steps": 7, "dataset": "synthetic", "model": "vae"}]
    assert listed["memory_bytes"] > 1 << 20


def test_a_generator_that_fails_gives_no_traceback_away(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, said = answered(json.dumps({**NAMES, "model": "vae"}).encode())
    assert status.startswith("500")
    assert b"secret" not in said
    assert b"ZeroDivisionError" not in said
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_over_http_garbage_is_answered_and_the_next_request_served() -> None:
    with listening(SERVICE) as port:
        for body, status in ((b"{", 400), (b"x" * 100_000, 413), (BODY, 200)):
            peer = HTTPConnection("127.0.0.1", port, timeout=10)
            peer.request("POST", "/generate", body)
            assert peer.getresponse().status == status
            peer.close()


@pytest.mark.parametrize(
    ("place", "px", "channels", "different"),
    [
        ("adversarial:GAN", 28, 1, 5),
        ("vae:VAE", 28, 1, 5),
        ("dcgan:DCGAN", 32, 3, 5),
        ("dcgan:DCGAN_PUBLISHED", 28, 1, 1),  # untrained, it makes the same image of any noise
        ("progressive_gan:PROGRESSIVE_GAN", 16, 3, 5),
    ],
)
def test_images_have_the_size_of_the_model_and_follow_from_the_seed_even_while_others_draw(
    place: str, px: int, channels: int, different: int
) -> None:
    generator = loaded(None, f"worker.workloads.{place}", px, channels)
    image = generator(7)
    shown = Image.open(io.BytesIO(image))
    assert (shown.size, shown.mode) == ((px, px), "L" if channels == 1 else "RGB")
    with ThreadPoolExecutor(8) as pool:
        made = [*pool.map(generator, [7, None, 7, None, 8, 7, None, 7])]
    assert {made[number] for number in (0, 2, 5, 7)} == {image}
    assert len({*made}) == different


@pytest.mark.parametrize(("pixels", "values"), [("signed", (-1, 0, 1, 7)), ("unit", (0, 0.502, 1, 7))])
def test_the_scale_of_a_workload_becomes_that_of_bytes(pixels: Any, values: tuple[float, ...]) -> None:
    class Fixed(Workload):
        def generate(self, network: torch.nn.Module, count: int) -> torch.Tensor:
            del network
            return torch.tensor(values).reshape(count, 1, 2, 2)

    generator = Generator(Fixed(name="fixed", sizes={}, pixels=pixels), torch.nn.Identity(), Shape(2, 1))
    assert list(Image.open(io.BytesIO(generator())).tobytes()) == [0, 128, 255, 255]


def test_what_a_training_writes_is_what_is_served(tmp_path: Path, spec: dict[str, Any]) -> None:
    file = tmp_path / "generator.pt"
    trained = {**spec, "workload": "worker.workloads.vae:VAE", "batch": 2, "image_px": 28, "channels": 1}
    status, _, errors = worker("", "--train", json.dumps({**trained, "model_file": str(file)}))
    assert status == 0, errors
    assert [path.name for path in tmp_path.iterdir()] == ["generator.pt"]
    served = loaded(file, trained["workload"], 28, 1)
    fresh = loaded(None, trained["workload"], 28, 1)
    numbers = [[*each.network.state_dict().values()] for each in (served, fresh)]
    assert len(numbers[0]) == len(numbers[1]) > 0
    assert not all(bool((one == other).all()) for one, other in zip(*numbers, strict=True))
    took: Any = served.training
    assert (took["epoch_s"], took["steps"], took["data"]) == ([], trained["steps"], None)
    assert took["losses"].keys() > {"reconstruction"}
    assert took["peak_memory_bytes"] > 1 << 20
    written = torch.load(file, weights_only=True)["network"]
    assert all(bool((value == written[name]).all()) for name, value in served.network.state_dict().items())
    with pytest.raises(JobError, match="channels=3"):
        loaded(file, trained["workload"], 28, 3)


@pytest.mark.parametrize("held", [Code("exploded"), {"network": 1}, [], {"image_px": 28, "channels": 1, "network": {}}])
def test_a_file_that_is_no_model_is_refused_and_none_of_its_code_run(
    held: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(held, "generator.pt")
    with fails(JobError, "model", "cannot be served"):
        loaded(tmp_path / "generator.pt", "worker.workloads.vae:VAE", 28, 1)
    assert not Path("exploded").exists()
    for file, content in (("empty.pt", b""), ("text.pt", b"no model"), ("missing.pt", None)):
        if content is not None:
            Path(file).write_bytes(content)
        with pytest.raises(JobError, match="cannot be served"):
            loaded(tmp_path / file, "worker.workloads.vae:VAE", 28, 1)


def test_a_service_of_several_generators_answers_for_each_and_ends_when_it_is_told() -> None:
    port = free_port()
    other = {"workload": "worker.workloads.dcgan:DCGAN", "dataset": "cifar10", "model": "dcgan", "seed": 1}
    others = [{**other, "image_px": 32, "channels": 3}]
    spec = {**asdict(serve_spec("worker.workloads.adversarial:GAN", 28, 1)), "port": port, "others": others}
    process = Forked(run, "--serve", json.dumps(spec))
    wait_for_answer(load(port, patience_s=60))
    for dataset, model, size in (("synthetic", "gan", 28), ("cifar10", "dcgan", 32)):
        with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as peer:
            peer.request("POST", "/generate", json.dumps({"dataset": dataset, "model": model}))
            assert Image.open(io.BytesIO(peer.getresponse().read())).size == (size, size)
    process.terminate()
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert json.loads(said.splitlines()[-1])["event"] == "done"


def loaded(file: Path | None, workload: str, px: int, channels: int) -> Generator:
    spec = replace(serve_spec(workload, px, channels), model_file=str(file) if file else None)
    return Generator.loaded(spec, Device("cpu"))


def serve_spec(workload: str, px: int, channels: int) -> ServeSpec:
    spec = {**NAMES, "workload": workload, "image_px": px, "channels": channels, "threads": 1, "seed": 1}
    more = {"device": "cpu", "address": "127.0.0.1", "port": 5000}
    return parsed(ServeSpec, json.dumps({**spec, **more}))


# ------------------------------------------------------------------------------------------------ the load generator


def test_a_percentile_that_so_few_requests_do_not_have_is_left_out() -> None:
    def names(count: int) -> list[str]:
        return list(LoadRun([0.001 * number for number in range(1, count + 1)], 1.0).readings("-at-5-per-s"))

    assert names(19) == ["latency-p50-at-5-per-s"]
    assert names(20) == ["latency-p50-at-5-per-s", "latency-p95-at-5-per-s"]
    assert len(names(100)) == 3
    readings = LoadRun([0.001 * number for number in range(1, 101)], 2.0).readings()
    assert [one.value for one in readings.values()] == pytest.approx([50, 95, 99])
    assert {(one.unit, one.better) for one in readings.values()} == {("ms", "less")}
    assert [len(one.samples or []) for one in readings.values()] == [100, 0, 0]


def test_requests_that_a_stall_keeps_waiting_are_charged_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that, one request in 20 would be late; at this rate most are due while the server stalls."""
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks")
    known = import_module("parts.known_server")
    service = known.Service(0.002, 20, 0.5)
    told, true = import_module("serve_error").measured(service, 50.0, 60, 4, 1)
    with known.serving(service) as port:
        naive = closed_loop(load(port), 1, 60).readings()["latency-p50"].value
    assert true["latency-p50"] > 100
    assert naive < told["latency-p50"] / 2
    # Not closer, and not from above: on a busy machine the known server itself is late.
    assert all(told[name] > 0.8 * value for name, value in true.items())


def test_the_schedule_is_that_of_the_seed_and_has_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(SERVICE) as port:
        begun = open_loop(load(port, requests=100), 200.0)
        saturated = closed_loop(load(port), 4, 40)
    schedules: list[list[float]] = []
    monkeypatch.setattr("worker.serving.load._driven", lambda _request, _clients, due_s: schedules.append(due_s))
    for seed in (1, 1, 2):
        open_loop(replace(load(1, requests=100), seed=seed), 200.0)
    first, again, other = schedules
    assert first == again != other
    assert 100 / first[-1] == pytest.approx(200, rel=0.3)
    assert begun.per_s <= 101 / first[-1]  # a busy machine may be late, and is never early
    assert len(saturated.latencies_s) == 40
    assert min((*begun.latencies_s, *saturated.latencies_s)) > 0


@pytest.mark.parametrize(("model", "status"), [("nothing", 422), ("vae", 500)])
def test_an_answer_without_an_image_ends_the_measurement(model: str, status: int) -> None:
    body = json.dumps({**NAMES, "model": model})
    with listening(SERVICE) as port, fails(JobError, "serve", f"the server answered {status} "):
        closed_loop(load(port, bodies=[body]), 2, 10)


def test_a_server_that_is_not_there_is_given_up() -> None:
    with listening(SERVICE) as port:
        wait_for_answer(load(port))
    for begin in (lambda: closed_loop(load(port), 1, 1), lambda: wait_for_answer(load(port, patience_s=1))):
        with fails(JobError, "network"):
            begin()
