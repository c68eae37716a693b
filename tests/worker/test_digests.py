"""The digests of a training: of its weights, and of what it draws, which is equal on every CPU."""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from scenarios.job import CAPS
from suite.registries import WORKLOADS
from tests.forked import Forked
from tests.scenarios.pictures import folder
from tests.worker.drawn_digests import digests, spec_of
from tests.worker.forked import run
from tests.worker.test_loader import data, opened
from tests.worker.test_training import run_measure
from tests.worker.test_worker_program import REPOSITORY
from worker.data.batches import SyntheticBatches
from worker.distributed.rendezvous import listener
from worker.training.build import build_trainer, opened_batches
from worker.training.device import Device, Numerics
from worker.weights import DAMAGED, read_tensors, weights_sha256
from worker.workloads.workload import Workload


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Linear(3, 2, bias=False))


def test_the_digest_is_that_of_names_types_shapes_and_raw_bytes_in_the_order_of_the_names() -> None:
    pair = nn.Module()
    pair.register_parameter("later", nn.Parameter(torch.tensor([[1.0, -2.0]])))
    pair.register_buffer("earlier", torch.tensor(7))
    by_hand = b"earlier torch.int64 []\n" + (7).to_bytes(8, "little")
    by_hand += b"later torch.float32 [1, 2]\n" + bytes.fromhex("0000803f000000c0")
    assert weights_sha256(pair) == hashlib.sha256(by_hand).hexdigest()


def bomb(path: Path) -> None:
    """A file of 5 kB that torch would unpack to 4 MiB; one of 5 MB took 5.4 GB."""
    torch.save({"network": torch.zeros(1 << 20)}, path)
    packed_file = path.with_name("packed")
    with zipfile.ZipFile(path) as stored, zipfile.ZipFile(packed_file, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in stored.namelist():
            packed.writestr(name, stored.read(name))
    packed_file.replace(path)
    assert torch.load(path, weights_only=True)["network"].numel() == 1 << 20


def link(path: Path) -> None:
    torch.save({}, path.with_name("other"))
    path.symlink_to("other")


def flipped(path: Path) -> None:
    """One bit of a weight is another: torch loads that without a word."""
    torch.save({"weights": torch.zeros(10_000)}, path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert torch.load(path, weights_only=True)["weights"].count_nonzero() == 1


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (os.mkfifo, "not a regular file"),
        (link, "symbolic links"),
        (bomb, "compressed archive"),
        (flipped, "a checksum differs"),
        (Path.mkdir, "directory"),
    ],
)
def test_what_is_no_file_of_its_own_size_is_not_read(tmp_path: Path, make: Callable[[Path], object], why: str) -> None:
    make(path := tmp_path / "model.pt")
    with pytest.raises(DAMAGED, match=why):
        read_tensors(path)


def test_memory_format_is_no_part_of_the_digest_and_the_type_is() -> None:
    model = network()
    assert weights_sha256(model.to(memory_format=torch.channels_last)) == weights_sha256(network())  # type: ignore[call-overload]
    assert weights_sha256(model.to(torch.bfloat16)) != weights_sha256(network())


def test_tensors_that_are_sparse_empty_or_not_tensors_at_all_have_a_digest_and_nothing_has_none() -> None:
    class Odd(nn.Module):
        def get_extra_state(self) -> object:
            return {"no": "tensor"}

        def set_extra_state(self, state: object) -> None: ...

    model = Odd()
    model.register_buffer("empty", torch.empty(0, 3))
    model.register_buffer("sparse", torch.eye(2).to_sparse())
    other = Odd()
    other.register_buffer("empty", torch.empty(0, 3))
    other.register_buffer("sparse", torch.eye(2))
    assert weights_sha256(model) == weights_sha256(other)
    assert weights_sha256(nn.Flatten()) is None


def test_a_training_says_the_digest_of_its_final_weights() -> None:
    parsed, said = spec_of("gan"), []
    for _ in range(2):
        with opened_batches(parsed) as batches:
            trainer = build_trainer(parsed, [Device("cpu")], batches)
            first = weights_sha256(trainer.network)
            said.append(run_measure(parsed, trainer)[-1]["weights_sha256"])
            assert said[-1] == weights_sha256(trainer.network) != first
    assert said[0] == said[1], "the same seed is the same training"


def program(*words: str) -> "subprocess.Popen[str]":
    """Start a program on a CPU without AVX, as far as torch sees."""
    argv, env = [sys.executable, "-m", *words], {**os.environ, **CAPS["default"]}
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, env=env)


def output(process: "subprocess.Popen[str] | Forked") -> str:
    text = process.communicate(timeout=300)[0]
    assert process.returncode == 0
    return text


LARGE = ("alexnet", "resnet50", "inception_v3", "progressive-gan")
SMALL = tuple(name for name in WORKLOADS.own if name not in LARGE)


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="this CPU has no further instructions")
@pytest.mark.parametrize("models", [("alexnet", *SMALL), pytest.param(LARGE[1:], marks=pytest.mark.thorough)])
def test_every_workload_draws_the_same_with_other_instructions_though_weights_differ(models: tuple[str, ...]) -> None:
    native = {model: digests(model) for model in models}
    basic = json.loads(output(program("tests.worker.drawn_digests", *models)))
    assert {model: drawn for model, (drawn, _) in native.items()} == {m: drawn for m, (drawn, _) in basic.items()}
    rounded = {model for model in models if native[model][1] != basic[model][1]}
    assert rounded == {model for model in models if not WORKLOADS.get(model).communicates}


@pytest.mark.parametrize(
    "model", [pytest.param(name, marks=pytest.mark.thorough if name in LARGE else ()) for name in WORKLOADS.own]
)
def test_every_workload_draws_otherwise_by_seed_steps_and_batch(model: str) -> None:
    honest, again = digests(model)[0], digests(model)[0]
    changed = {digests(model, seed=4)[0], digests(model, steps=3)[0], digests(model, batch=2 * spec_of(model).batch)[0]}
    assert honest == again
    assert len({honest, *changed}) == 4


def test_noise_is_in_the_digest_of_what_has_no_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = type(WORKLOADS.get("gan"))
    honest, noise = digests("gan")[0], workload.noise
    monkeypatch.setattr(workload, "noise", lambda self, count, device: noise(self, 2 * count, device)[:count])
    assert digests("gan")[0] != honest


CHANGES: dict[str, Callable[[Path], object]] = {
    "one byte": lambda path: path.write_bytes(path.read_bytes()[:-3] + b"\0" + path.read_bytes()[-2:]),
    "another order in its class": lambda path: path.rename(path.with_name("9999.jpg")),
    "another label": lambda path: path.rename(path.parent.parent / "class-01" / path.name),
}


def taken_sha256(directory: Path, workers: int = 0, seed: int = 3, batches: int = 2) -> str:
    spec = replace(spec_of("dcgan"), batch=4, image_px=16, seed=seed)
    with opened(spec, data(directory, workers)) as loader:
        for _ in range(batches):
            loader.next()
        return loader.taken_sha256()


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_read_is_in_the_digest_and_who_reads_it_is_not(change: str, tmp_path: Path) -> None:
    folder(tmp_path, 9, classes=3)
    honest = taken_sha256(tmp_path)
    assert honest == taken_sha256(tmp_path, workers=2)
    assert len({honest, taken_sha256(tmp_path, seed=4), taken_sha256(tmp_path, batches=1)}) == 3
    CHANGES[change](min(path for path in tmp_path.rglob("*") if path.is_file()))
    assert taken_sha256(tmp_path, batches=8) != honest


class Normal(Workload):
    """A workload of a user that draws normal floats, which instruction sets round differently."""

    def draw(self, batch: int, shape: Any, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        del shape
        images = torch.randn(batch, 3, 8, 8, generator=generator)
        return images * self.smallest_batch, torch.randint(9, (batch,), generator=generator)


def test_normal_floats_are_in_the_digest_by_their_generator_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def digest(scale: int, **changes: Any) -> str:
        made = Normal(name="normal", sizes={}, smallest_batch=scale)
        monkeypatch.setattr("worker.spec.Spec.load_workload", lambda _: made)
        batches = SyntheticBatches(spec_of("vae", **changes), 0, Numerics())
        batches.next()
        return batches.taken_sha256()

    assert digest(1) == digest(2)
    assert len({digest(1), digest(1, seed=4), digest(1, batch=8)}) == 3


@pytest.mark.parametrize(
    ("strategy", "model", "workers", "servers"),
    [
        ("split", "gan", 2, 0),
        pytest.param("all-reduce", "collectives", 2, 0, marks=pytest.mark.thorough),
        pytest.param("parameter-server", "alexnet", 2, 1, marks=pytest.mark.thorough),
    ],
)
def test_the_workers_of_a_distributed_job_draw_the_same_on_every_cpu_each_of_them_something_else(
    strategy: str, model: str, workers: int, servers: int
) -> None:
    def drawn(*, basic: bool) -> list[list[str]]:
        port, listening = listener("127.0.0.1")
        os.close(listening)
        common = {"strategy": strategy, "workers": workers, "servers": servers, "master": "127.0.0.1", "port": port}
        ranks: list[subprocess.Popen[str] | Forked] = []
        for rank in range(workers + servers):
            membership = {**common, "rank": rank, "interface": "lo", "timeout_s": 120, "join_timeout_s": 120}
            words = "--train", spec_of(model, distributed=membership).encoded().decode()
            ranks.append(program("worker", *words) if basic else Forked(run, *words))
        ends = [json.loads(output(rank).splitlines()[-1]) for rank in ranks]
        return [end["drawn"] for end in ends if "drawn" in end]

    native = drawn(basic=False)
    assert len(native) == workers
    assert native[0] != native[1]
    assert drawn(basic=True) == native
