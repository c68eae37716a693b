"""The digest of a network's weights: the same for the same numbers, and for no others."""

import hashlib
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.worker.test_training import run_measure
from worker.spec import parse_spec
from worker.training.build import build_trainer, opened_batches
from worker.training.device import Device
from worker.weights import DAMAGED, read_tensors, weights_sha256

SIZES = {"batch": 2, "image_px": 64, "warmup_steps": 1, "steps": 2}


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


def one_bit(model: nn.Module) -> None:
    with torch.no_grad():
        weight = model.get_parameter("0.weight")
        weight.view(torch.int32)[0, 0, 0, 0] ^= 1


def statistics(model: nn.Module) -> None:
    model.get_buffer("1.running_mean")[1] = 1e-30


def shape(model: nn.Module) -> None:
    weight = model.get_parameter("2.weight")
    weight.data = weight.data.reshape(3, 2)


def bomb(path: Path) -> None:
    """A file of 5 kB that torch would unpack to 4 MiB; one of 5 MB took 5.4 GB."""
    torch.save({"network": torch.zeros(1 << 20)}, path)
    with (
        zipfile.ZipFile(path) as stored,
        zipfile.ZipFile(path.with_name("packed"), "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in stored.namelist():
            packed.writestr(name, stored.read(name))
    path.with_name("packed").replace(path)
    assert torch.load(path, weights_only=True)["network"].numel() == 1 << 20


def link(path: Path) -> None:
    torch.save({}, path.with_name("other"))
    path.symlink_to("other")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (os.mkfifo, "not a regular file"),
        (link, "symbolic links"),
        (bomb, "compressed archive"),
        (Path.mkdir, "directory"),
    ],
)
def test_what_is_no_file_of_its_own_size_is_not_read(tmp_path: Path, make: Callable[[Path], object], why: str) -> None:
    make(path := tmp_path / "model.pt")
    with pytest.raises(DAMAGED, match=why):
        read_tensors(path)


@pytest.mark.parametrize("change", [one_bit, statistics, shape])
def test_one_bit_of_a_weight_a_statistic_or_another_shape_is_another_digest(
    change: Callable[[nn.Module], None],
) -> None:
    model = network()
    change(model)
    assert weights_sha256(model) != weights_sha256(network())


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64])
def test_memory_format_is_no_part_of_the_digest_and_the_type_is(kind: torch.dtype) -> None:
    model = network()
    assert weights_sha256(model.to(memory_format=torch.channels_last)) == weights_sha256(network())  # type: ignore[call-overload]
    assert weights_sha256(model.to(kind)) != weights_sha256(network())


def test_tensors_that_are_sparse_empty_or_not_tensors_at_all_have_a_digest() -> None:
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


def test_a_training_says_the_digest_of_its_final_weights(spec: dict[str, Any]) -> None:
    parsed = parse_spec(json.dumps({**spec, **SIZES}))
    said = []
    for _ in range(2):
        with opened_batches(parsed) as batches:
            trainer = build_trainer(parsed, [Device("cpu")], batches)
            first = weights_sha256(trainer.network)
            said.append(run_measure(parsed, trainer)[-1]["weights_sha256"])
            assert said[-1] == weights_sha256(trainer.network) != first
    assert said[0] == said[1], "the same seed is the same training"


def test_a_network_that_holds_nothing_has_no_digest() -> None:
    assert weights_sha256(torch.nn.Flatten()) is None
