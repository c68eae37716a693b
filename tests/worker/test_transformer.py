"""The language model: a step beside a plain script, and decoding with kept keys and values beside decoding without."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from scenarios.serve import Serve
from suite.errors import RequestError
from suite.job.profiles import PROFILES
from suite.job.serving import LOADS, TOKEN_LOADS, Serving
from suite.registries import WORKLOADS
from suite.request.request import RunRequest
from tests.worker.test_serving import listening, load
from worker.data.batches import SyntheticBatches
from worker.protocol import JobError
from worker.serving import answers
from worker.serving.generator import Generator
from worker.serving.load import Connection, closed_loop
from worker.serving.service import Service
from worker.spec import ServeSpec, Spec, parse_spec
from worker.training.build import build_network, build_trainer
from worker.training.decoder import TokenDecoder
from worker.training.device import Device, Numerics
from worker.training.step import Samples
from worker.workloads import transformer
from worker.workloads.transformer import TRANSFORMER, VOCABULARY
from worker.workloads.workload import Extent, Workload

FEW = 503
"""The tokens of the comparison with the plain script, for speed."""
SMOKE = PROFILES["smoke"].sizes_of("transformer")
PLAIN = {
    "tokens": "words",
    "positions": "places",
    "attention_norm": "ln_1",
    "layers_norm": "ln_2",
    "attention": "attend",
    "projection": "project",
}
"""The names of the plain script by those of the suite."""


@pytest.fixture
def language(spec: dict[str, Any]) -> Spec:
    sizes = {name: value for name, value in SMOKE.model_dump().items() if value is not None}
    own = {name: value for name, value in spec.items() if name != "image_px"}
    return parse_spec(json.dumps({**own, **sizes, "workload": WORKLOADS.place("transformer")}))


def plain_name(name: str) -> str:
    return ".".join(PLAIN.get(part, part) for part in name.split("."))


@pytest.mark.usefixtures("double")
def test_a_step_is_that_of_a_plain_script(language: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer, "VOCABULARY", FEW)
    script = import_module("benchmarks.parts.transformer_loop")
    monkeypatch.setattr(script, "VOCABULARY", FEW)
    plain = script.Model(SMOKE.depth or 0, SMOKE.tokens or 0)
    first = build_network(TRANSFORMER, language.shape, language.seed).state_dict()
    plain.load_state_dict({plain_name(name): tensor for name, tensor in first.items()})
    batches = SyntheticBatches(language, 0, Numerics())
    trainer = build_trainer(language, [Device("cpu")], [batches])
    samples = Samples.allocate(1, trainer.phases, trainer.parts)
    trainer.step(samples, 0)

    inputs, labels = batches.next()
    assert inputs.shape == labels.shape == (2, 16)
    assert inputs[:, 1:].equal(labels[:, :-1])
    optimizer = torch.optim.AdamW(plain.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1)
    loss = cross_entropy(plain(inputs).view(-1, FEW), labels.view(-1))
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    torch.testing.assert_close(trainer.loss(), loss.item())
    for name, tensor in trainer.network.state_dict().items():
        torch.testing.assert_close(tensor, plain.state_dict()[plain_name(name)], rtol=0, atol=1e-9, msg=name)
        assert not tensor.equal(first[name]) or not tensor.any(), name


@pytest.mark.parametrize(("profile", "millions"), [("smoke", 6.8), ("quick", 16.0), ("paper", 124.0)])
def test_the_parameters_are_as_stated(profile: str, millions: float) -> None:
    sizes = PROFILES[profile].sizes_of("transformer")
    with torch.device("meta"):
        network = TokenDecoder(sizes.depth or 0, VOCABULARY, sizes.tokens or 0)
    assert round(sum(each.numel() for each in network.parameters()) / 1e6, 1) == millions


@pytest.mark.parametrize("prompt", [1, 5, 9])
def test_decoding_with_kept_keys_and_values_is_decoding_without(prompt: int) -> None:
    torch.manual_seed(4)
    network = TokenDecoder(depth=3, vocabulary=101, positions=12).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(8)  # logits far apart: a token must not hang on the last bit
    whole = torch.randint(101, (2, prompt))
    decoded = torch.stack(list(network.decode(whole)), dim=1)
    assert decoded.shape == (2, 12 - prompt)
    with torch.no_grad():
        while whole.shape[1] < 12:
            whole = torch.cat([whole, network(whole)[:, -1:].argmax(-1)], dim=1)
    assert decoded.equal(whole[:, prompt:])
    assert len(set(decoded.flatten().tolist())) > 1


def test_an_extent_is_one_of_those_that_there_are() -> None:
    extent: Extent = "words"  # type: ignore[assignment]
    with pytest.raises(ValueError, match="the extent of the workload mine is 'words', not image_px or tokens"):
        Workload(name="mine", sizes={"smoke": (4, 16)}, extent=extent)


@pytest.fixture
def served(language: Spec) -> Generator:
    own = {name: getattr(language, name) for name in ("workload", "tokens", "depth", "threads", "seed", "device")}
    spec = ServeSpec(**own, dataset="synthetic", model="transformer", address="127.0.0.1", port=1)
    return Generator.loaded(spec, Device("cpu"))


def test_tokens_are_sent_as_they_are_decoded_and_timed_by_the_client(
    served: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, timed = threading.Event(), threading.Event()

    def now() -> float:
        timed.set()
        return time.monotonic()

    def held(_seed: int | None) -> Iterator[bytes]:
        tokens = served.tokens()
        yield next(tokens)
        gate.wait(60)
        yield from tokens

    with listening(Service({("synthetic", "gan"): held})) as port, Connection(load(port, tokens=8)) as connection:
        monkeypatch.setattr(answers, "time", SimpleNamespace(monotonic=now))
        asking = ThreadPoolExecutor(1).submit(lambda: (connection.send(0).first_s, time.monotonic()))
        assert timed.wait(60), "the first token is timed while the others are held back"
        opened_s = time.monotonic()
        gate.set()
        first_s, last_s = asking.result(60)
    assert first_s < opened_s < last_s


def test_a_load_of_tokens_measures_the_first_and_the_others(served: Generator) -> None:
    with listening(Service({("synthetic", "gan"): served.tokens})) as port:
        measured = closed_loop(load(port, tokens=8), 2, 20)
        with pytest.raises(JobError, match="the server answered 200 OK"):
            closed_loop(load(port, tokens=9), 1, 1)
    readings = measured.readings()
    assert list(readings) == [f"{name}-p{n}" for name in ("latency", "first-token", "per-token") for n in (50, 95)]
    for latency_s, first_s, per_token_s in zip(
        measured.latencies_s, measured.first_token_s, measured.per_token_s, strict=True
    ):
        assert 0 < first_s < latency_s
        assert latency_s == pytest.approx(first_s + 7 * per_token_s)


def test_a_language_model_is_served_with_its_own_load_and_shape() -> None:
    asked = RunRequest.of({"scenario": "serve", "model": "transformer", "tokens": 32})
    serving = Serve().part(asked, PROFILES["smoke"], "transformer")["serving"]
    assert isinstance(serving, Serving)
    assert serving.model_dump(exclude_none=True) == {**TOKEN_LOADS["smoke"].model_dump(), "tokens": 32, "depth": 2}
    assert set(TOKEN_LOADS) == set(LOADS)
    wrong = RunRequest.of({"scenario": "serve", "model": "transformer", "image_px": 32})
    with pytest.raises(RequestError, match="transformer has no images"):
        Serve().part(wrong, PROFILES["smoke"], "transformer")
