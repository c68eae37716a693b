"""A server of the user's own on real targets: llama.cpp's with drawn weights, and one with known delays."""

import json
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from suite.records.record import TrialRecord
from tests.integration.bench import bench, measured, on, some
from tests.integration.machine import require
from tests.stand_ins import llama

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("nothing_left")]

STAND_IN = Path(__file__).parents[1] / "stand_ins/model_server.py"
SERVE = ("--scenario", "serve", "--profile", "smoke", "--port", "8000")
COLD, WARM = ("--cache", "cold"), ("--cache", "warm")


def files(place: Path) -> tuple[str, str]:
    return "--command-files", str(place)


@pytest.fixture
def own_llama(tmp_path: Path) -> Path:
    """A directory with a model, llama.cpp's server, and the questions that it is asked."""
    package = find_spec("xllamacpp")
    if package is None or package.origin is None:
        pytest.skip("xllamacpp is not installed: pip install -e '.[dev]'")
    place = tmp_path / "llama"
    shutil.copytree(Path(package.origin).parent, place / "xllamacpp")
    llama.write_llama(place / "model.gguf")
    (place / "llama_server.py").write_text(llama.SERVER)
    questions = [{"prompt": f"w{number} w{number + 1}", "cache_prompt": False} for number in range(4)]
    (place / "questions.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    return place


def asked(place: Path, run: Path, *words: str) -> list[TrialRecord]:
    load = ("--requests", "20", "--rates", "2,8", "--clients", "2", "--max-tokens", "16", "--path", "/v1/completions")
    questions = (
        "--api",
        "openai",
        "--bodies",
        str(place / "questions.jsonl"),
        "--command",
        "python llama_server.py 8000",
    )
    return measured(run, *SERVE, *load, *questions, *files(place), *words)


@pytest.mark.thorough
@pytest.mark.timeout(1200)
def test_a_real_server_gives_the_same_answers_on_bare_metal_and_in_two_engines(own_llama: Path, tmp_path: Path) -> None:
    require("engine", "runc")
    require("engine", "podman")
    targets = ("--target", "bare-metal", "--target", "container", "--engine", "runc", "--engine", "podman")
    found = asked(own_llama, tmp_path / "run", *targets)
    assert len(found) == 3
    assert len({some(record.answers_sha256) for record in found}) == 1, "the same answers"
    for record in found:
        metrics = record.metrics
        assert 0 < metrics["inside-first-token"].value < metrics["first-token-p50"].value
        assert 0 < metrics["per-token-p50"].value < 1000
        assert metrics["start-to-ready"].value < metrics["start-to-first-token"].value
        assert (record.details["failed"], record.details["processes_left"]) == ({}, [])
    bench("audit", str(tmp_path / "run"))
    assert "latency" in bench("compare", str(tmp_path / "run"), "--by", "rate").stdout


@pytest.mark.thorough
@pytest.mark.timeout(1200)
def test_a_cold_start_reads_programs_and_model_anew(own_llama: Path, tmp_path: Path) -> None:
    require("engine", "runc")
    read_bytes = {}
    for name, state in (("cold", COLD), ("warm", WARM)):
        for record in asked(own_llama, tmp_path / name, *on("bare-metal", "container"), *state):
            usage = some(some(record.resources).serving)
            read_bytes[name, record.target] = usage.disk_read_bytes
        bench("audit", str(tmp_path / name))
    for target in ("bare-metal", "container"):
        assert some(read_bytes["cold", target]) > 20 << 20, "the interpreter, its libraries and the model"
        assert some(read_bytes["warm", target]) < 1 << 20
    text = bench("compare", str(tmp_path / "warm"), str(tmp_path / "cold"), "--by", "page_cache", "--json").stdout
    compared = {
        (row["target"], *row["values"])
        for row in json.loads(text)["rows"]
        if row["metric"] == "start-to-ready" and row["ratio"]
    }
    assert compared == {
        (target, f"page_cache={state}") for target in ("bare-metal", "container") for state in ("cold", "warm")
    }


@pytest.mark.thorough
@pytest.mark.timeout(3000)
def test_a_server_from_a_snapshot_neither_boots_nor_loads_again(tmp_path: Path) -> None:
    place = tmp_path / "own"
    place.mkdir()
    shutil.copy(STAND_IN, place)
    loading_s = 20
    load = ("--api", "openai", "--max-tokens", "4", "--requests", "10", "--rates", "2", "--clients", "2")
    server = ("--command", f"python model_server.py 8000 --loading-s {loading_s}")
    words = (*SERVE, *load, *server, *files(place), *on("vm"), *COLD)
    (started,) = measured(tmp_path / "started", *words, timeout_s=1400)
    (restored,) = measured(tmp_path / "restored", *words, "--from-snapshot", timeout_s=1400)
    cold = {name: metric.value for name, metric in started.metrics.items()}
    saved = {name: metric.value for name, metric in restored.metrics.items()}
    assert cold["start-to-ready"] > loading_s > saved["start-to-ready"], "the command does not load again"
    assert saved["cold-start-with-opening"] < cold["cold-start-with-opening"] - loading_s
    snapshot = restored.details["snapshot"]
    assert snapshot["size_bytes"] > 50 << 20, "a guest's kernel, its page cache and the server"
    assert 0 <= snapshot["page_cache_share"] <= 0.01
    assert snapshot["client_resent"] == 0, "what the client sent waited for the guest"
    assert some(restored.answers_sha256) == started.answers_sha256
    assert some(some(restored.job.serving).server).from_snapshot
    for name in ("started", "restored"):
        bench("audit", str(tmp_path / name))
    compared = bench(
        "compare", str(tmp_path / "started"), str(tmp_path / "restored"), "--by", "from_snapshot", "--json"
    )
    ratios = {
        row["values"][0]: row["ratio"]
        for row in json.loads(compared.stdout)["rows"]
        if row["metric"] == "start-to-ready"
    }
    assert ratios["from_snapshot=False"] == 1, "what was started is the base"
    assert ratios["from_snapshot=True"] < 0.5


STEP_S, STALL_S = 0.02, 0.1
ON_ENGINES = ("--target", "bare-metal", "--target", "container", "--engine", "runc", "--engine", "podman")


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("targets", [ON_ENGINES, ("--target", "vm")], ids=["engines", "guest"])
def test_known_delays_and_stalls_are_measured_under_every_layer(targets: Sequence[str], tmp_path: Path) -> None:
    for word in targets:
        if word in ("runc", "podman"):
            require("engine", word)
    (place := tmp_path / "own").mkdir()
    shutil.copy(STAND_IN, place)
    server = f"python model_server.py 8000 --step-s {STEP_S} --stall-s {STALL_S} --stall-every 5"
    words = ("--api", "openai", "--max-tokens", "10", "--requests", "30", "--rates", "2", "--command", server)
    answers_ms = 1e3 * (8 * STEP_S + 2 * STALL_S)
    for record in measured(tmp_path / "tokens", *SERVE, *words, *files(place), *targets, timeout_s=1500):
        told = {name: metric.value for name, metric in record.metrics.items()}
        assert 1e3 * STEP_S <= told["first-token-p50"] < 1e3 * STEP_S + 2 * told["path-first-token-p50"] + 10
        assert told["token-gap-p50"] == pytest.approx(1e3 * STEP_S, rel=0.2)
        assert told["token-gap-p95"] == pytest.approx(1e3 * STALL_S, rel=0.2), "two of nine"
        assert told["latency-p50"] == pytest.approx(answers_ms, rel=0.2)
    # A stall of 2 s at 50 requests a second keeps some 100 of them waiting, and one of a closed loop.
    server = "python model_server.py 8000 --step-s 0.005 --stall-s 2 --stall-every 150"
    words = ("--path", "/wait", "--ready", "/", "--requests", "200", "--rates", "50", "--clients", "16")
    asked_words = (*SERVE, *words, "--command", server, *files(place), *targets)
    for record in measured(tmp_path / "stall", *asked_words, timeout_s=1500):
        told = {name: metric.value for name, metric in record.metrics.items()}
        assert told["latency-p95"] < 200 < 1000 < told["latency-p95-at-50-per-s"]
    bench("audit", str(tmp_path / "tokens"))
    bench("audit", str(tmp_path / "stall"))


def test_a_server_starts_cold_with_little_of_its_programs_in_memory(tmp_path: Path) -> None:
    (place := tmp_path / "own").mkdir()
    shutil.copy(STAND_IN, place)
    load = ("--requests", "20", "--rates", "20", "--path", "/wait", "--ready", "/")
    words = ("--command", "python model_server.py 8000 --step-s 0.005")
    (record,) = measured(tmp_path / "run", *SERVE, *load, *words, *files(place), *on("bare-metal"), *COLD)
    assert 0 <= record.details["page_cache_share"] <= 0.01
    assert some(some(record.job.serving).server).page_cache == "cold"
    bench("audit", str(tmp_path / "run"))
