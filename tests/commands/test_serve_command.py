"""``bench serve``: what it serves, what it refuses before anything is started, and how it ends."""

import json
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from commands import serve as command
from provisioning.machines.ssh import free_port
from suite.results.store import Run
from tests.commands.conftest import Bench, refused
from tests.integration.bench import REPOSITORY
from worker.serving.generator import write_model
from worker.training.build import build_network
from worker.weights import weights_sha256
from worker.workloads.adversarial import GAN
from worker.workloads.workload import Shape

SHAPE = Shape(28, 1, 0, 0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The file of a model that a run has kept: of the part of a GAN's network that makes images."""
    run = Path(shutil.copytree(REPOSITORY / "tests/samples/runs/kept", tmp_path / "run"))
    (run / "models").mkdir(exist_ok=True)
    kept = next(kept for record in Run(run).records() for kept in record.kept)
    network = build_network(GAN, SHAPE, 1).get_submodule(GAN.image_network)
    digest = weights_sha256(network)
    for record in (run / "trials").iterdir():
        record.write_text(record.read_text().replace(kept.weights_sha256, str(digest)))
    file = run / "models" / f"{digest}.pt"
    write_model(file, SHAPE, network, {})
    return file


@pytest.fixture
def serve(bench: Bench) -> Bench:
    return lambda *words: bench("serve", *map(str, words))


def test_what_cannot_be_served_is_refused_in_one_sentence(
    serve: Bench, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_run", lambda _: pytest.fail("it must not start"))
    shutil.copy(model, "copy.pt")
    shutil.copy(model, model.parent / "another.pt")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for words, why in (
            (("gone.pt",), "bench: no file gone.pt"),
            (("run",), "bench: no file run"),
            (("copy.pt",), "bench: copy.pt is not a model that a run has kept"),
            (("run/plan.json",), "bench: run/plan.json is not a model that a run has kept"),
            (("run/models/another.pt",), "another.pt is not a model that a run has kept"),
            ((model, "--port", port), f"bench: port {port}: Address already in use"),
        ):
            done = serve(*words)
            refused(done, why)
            assert done.output.count("what to do: ") == 1


def test_names_and_sizes_are_those_of_the_trial_that_kept_the_model(
    serve: Bench, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs: list[Any] = []
    monkeypatch.setattr(command, "_run", specs.append)
    assert serve(model, "--port", free_port(), "--threads", 2).exit_code == 0
    (spec,) = specs
    assert (spec.model, spec.dataset, spec.image_px, spec.channels) == ("gan", "mnist", 28, 1)
    assert (spec.address, spec.threads) == ("127.0.0.1", 2)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough)]
)
def test_a_service_answers_and_nothing_of_it_is_left(model: Path, number: signal.Signals) -> None:
    port = free_port()
    argv = [sys.executable, "cli.py", "serve", str(model), "--port", str(port)]
    with subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout
        assert service.stdout.readline().strip() == f"http://127.0.0.1:{port}"
        with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            connection.request("POST", "/generate", json.dumps({"dataset": "mnist", "model": "gan", "seed": 7}))
            assert connection.getresponse().read().startswith(b"\x89PNG")
        children = psutil.Process(service.pid).children(recursive=True)
        assert children
        service.send_signal(number)
        assert service.wait(60) == (-9 if number == signal.SIGKILL else 0)
    _, left = psutil.wait_procs(children, timeout=30)
    assert left == []


@pytest.mark.parametrize(
    "content",
    [
        b"no archive",
        pytest.param({"image_px": 28, "channels": 1, "network": {"weights": 1}}, marks=pytest.mark.thorough),
    ],
)
def test_a_file_that_holds_another_thing_ends_the_service_with_2(serve: Bench, model: Path, content: Any) -> None:
    if isinstance(content, bytes):
        model.write_bytes(content)
    else:
        torch.save(content, model)
    done = serve(model, "--port", free_port())
    assert (done.exit_code, "cannot be served" in done.output) == (2, True), done.output


def test_a_model_with_other_weights_than_its_digest_says_is_not_served(serve: Bench, model: Path) -> None:
    write_model(model, SHAPE, build_network(GAN, SHAPE, 2).get_submodule(GAN.image_network), {})
    done = serve(model, "--port", free_port())
    assert (done.exit_code, "it was changed" in done.output) == (2, True), done.output
