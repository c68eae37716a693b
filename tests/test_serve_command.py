"""``bench serve``: what it serves, what it refuses before anything is started, and how it ends."""

import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import zipfile
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from click.testing import CliRunner

import cli
from commands import serve as command
from suite.results.store import Run
from tests.integration.browser import REPOSITORY
from worker.serving.generator import model_content, write_model
from worker.training.build import build_network
from worker.workloads.adversarial import GAN
from worker.workloads.workload import Shape

SHAPE = Shape(28, 1, 0, 0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A kept model of a GAN: the part of it that makes images."""
    network = build_network(GAN, SHAPE, 1).get_submodule(GAN.image_network)
    write_model(tmp_path / "kept.pt", SHAPE, network, {})
    return tmp_path / "kept.pt"


def bench(*words: object) -> Any:
    return CliRunner().invoke(cli.main, ["serve", *map(str, words)], prog_name="bench")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch evil",)


def test_what_cannot_be_served_is_refused_in_one_sentence(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_run", lambda _: pytest.fail("it must not start"))
    (tmp_path / "text.pt").write_text("no archive")
    (tmp_path / "link.pt").symlink_to(model)
    with zipfile.ZipFile(tmp_path / "evil.pt", "w") as archive:
        archive.writestr("evil/data.pkl", pickle.dumps({"image_px": Evil(), "channels": 1}, protocol=2))
    with zipfile.ZipFile(tmp_path / "other.pt", "w") as archive:
        archive.writestr("other/data.pkl", pickle.dumps({"weights": [1]}, protocol=2))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for words, why in (
            (("gone.pt",), "bench: gone.pt: No such file"),
            (("text.pt",), "bench: text.pt: it is not a model"),
            (("evil.pt",), "bench: evil.pt: it is not a model"),
            (("other.pt",), "bench: other.pt: it is not a model"),
            (("link.pt",), "bench: link.pt: it is a link"),
            ((model,), "no generator is named"),
            ((model, "--model", "resnet50"), "no generator resnet50"),
            ((model, "--model", "gan", "--port", port), f"bench: port {port}: Address already in use"),
        ):
            done = bench(*words)
            assert (done.exit_code, why in done.output) == (2, True), (words, done.output)
            assert done.output.count("what to do: ") == 1
    assert not (tmp_path / "evil").exists()


def test_the_names_are_those_of_the_run_that_kept_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    shutil.copytree(Path(__file__).parent / "samples/runs/kept", tmp_path / "run")
    kept = next(kept for record in Run(tmp_path / "run").records() for kept in record.kept)
    file = tmp_path / "run" / "models" / f"{kept.weights_sha256}.pt"
    file.parent.mkdir(exist_ok=True)
    shutil.copy(model, file)
    specs: list[Any] = []
    monkeypatch.setattr(command, "_run", specs.append)
    assert bench(file, "--port", free_port()).exit_code == 0
    assert bench(file, "--port", free_port(), "--model", "vae", "--dataset", "faces").exit_code == 0
    assert [(spec.model, spec.dataset) for spec in specs] == [("gan", "mnist"), ("vae", "faces")]
    assert (specs[0].image_px, specs[0].channels, specs[0].address) == (28, 1, "127.0.0.1")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_service_answers_and_nothing_of_it_is_left(model: Path, tmp_path: Path, number: signal.Signals) -> None:
    port = free_port()
    argv = [sys.executable, "cli.py", "serve", str(model), "--model", "gan", "--port", str(port)]
    environment = {**os.environ, "VIRTBENCH_HOME": str(tmp_path / "home")}
    with subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, env=environment) as service:
        assert service.stdout
        assert service.stdout.readline().strip() == f"http://127.0.0.1:{port}"
        with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            connection.request("POST", "/generate", json.dumps({"dataset": "synthetic", "model": "gan", "seed": 7}))
            assert connection.getresponse().read().startswith(b"\x89PNG")
        children = psutil.Process(service.pid).children(recursive=True)
        assert children
        service.send_signal(number)
        assert service.wait(60) == (-9 if number == signal.SIGKILL else 0)
    _, left = psutil.wait_procs(children, timeout=30)
    assert left == []


def test_a_file_of_another_size_or_generator_ends_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTBENCH_HOME", str(tmp_path / "home"))
    content = model_content(SHAPE, build_network(GAN, SHAPE, 1))
    content["network"] = {"weights": 1}
    torch.save(content, tmp_path / "other.pt")
    done = bench(tmp_path / "other.pt", "--model", "gan", "--port", free_port())
    assert (done.exit_code, "cannot be served" in done.output) == (2, True), done.output
