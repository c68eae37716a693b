"""What a training generates and keeps after its last step: the weights stay, and a line holds the model."""

import copy
import hashlib
import io
import json
import random
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from provisioning.machines.ssh import free_port
from suite.records.fields import checked_part
from suite.records.record import GENERATING_METRICS, Generated, MetricValue
from suite.registries import WORKLOADS
from suite.untrusted.grid import MOST_PNG_BYTES, check_grid
from tests.worker.conftest import EPOCHS, fails
from tests.worker.forked import events_of
from tests.worker.test_epochs import same
from worker.protocol import JobError
from worker.serving.generator import BATCH, COLUMNS, Generator, Pixels, encode_png, grid, read_model
from worker.spec import parse_spec
from worker.training.build import build_network
from worker.training.checkpoint import random_states
from worker.training.measure import ModelKeeper
from worker.weights import weights_sha256
from worker.workloads.adversarial import GAN
from worker.workloads.dcgan import DCGAN
from worker.workloads.workload import GENERATING, Shape

MAKING_IMAGES = [name for name in WORKLOADS.own if WORKLOADS.get(name).makes_images]


def noise(count: int, px: int, channels: int) -> Pixels:
    drawn = np.random.default_rng(5).integers(0, 256, (count, px, px, channels))
    return drawn.astype(np.uint8)


def pixels_of(png: bytes) -> Pixels:
    return np.asarray(Image.open(io.BytesIO(png)))


def generator(name: str, seed: int = 3) -> Generator:
    workload = WORKLOADS.get(name)
    px = 28 if workload.size_wanted(28) is None else 16
    shape = Shape(px, workload.channels)
    return Generator(workload, build_network(workload, shape, seed), shape)


@pytest.mark.parametrize("name", MAKING_IMAGES)
def test_generating_leaves_weights_statistics_modes_and_random_states_as_they_were(name: str) -> None:
    made = generator(name)
    random.random()
    before = copy.deepcopy((made.network.state_dict(), random_states()))
    modes = [each.training for each in made.network.modules()]
    said = made.measured(5, 3)
    assert same(made.network.state_dict(), before[0])
    assert same(random_states(), before[1])
    assert [each.training for each in made.network.modules()] == modes
    assert all(parameter.grad is None for parameter in made.network.parameters())
    of_images = made.network.get_submodule(WORKLOADS.get(name).image_network)
    assert said["generated"]["weights_sha256"] == weights_sha256(of_images)


def test_the_images_follow_from_weights_and_seed_alone_and_are_those_of_an_evaluation() -> None:
    first, other = generator("dcgan"), generator("dcgan")
    torch.manual_seed(99)
    said = [first.measured(5, 3)["generated"], other.measured(5, 3)["generated"], other.measured(5, 4)["generated"]]
    assert said[0] == said[1]
    assert said[2]["pixels_sha256"] != said[0]["pixels_sha256"]
    network = first.network.get_submodule("generator").eval()
    torch.manual_seed(3 + (1 << 31))
    with torch.no_grad():
        DCGAN.noise(1, torch.device("cpu"))
        by_hand = network(DCGAN.noise(5, torch.device("cpu"))).permute(0, 2, 3, 1)
    expected = ((by_hand + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).numpy()
    assert said[0]["pixels_sha256"] == hashlib.sha256(expected.tobytes()).hexdigest()
    drawn = pixels_of(b64decode(said[0]["png"]))
    assert (drawn == np.concatenate(list(expected[:4]), axis=1)).all(), "four of five: a row of the grid"


def test_images_are_made_in_batches_and_timed_one_by_one() -> None:
    said = generator("gan").measured(BATCH + 6, 3)
    metrics = {name: checked_part(MetricValue, value) for name, value in said["metrics"].items()}
    assert tuple(metrics) == GENERATING == GENERATING_METRICS
    assert [(one.unit, one.better) for one in metrics.values()] == [("s", "less"), ("images/s", "more"), ("s", "less")]
    assert [len(one.samples or ()) for one in metrics.values()] == [0, 2, 16]
    generated = checked_part(Generated, said["generated"])
    assert generated.images == BATCH + 6
    assert generated.png


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 15, 16, 40])
def test_a_grid_has_the_first_images_in_rows_of_four(count: int, channels: int) -> None:
    images = noise(count, 8, channels)
    png = grid(images)
    assert png
    drawn = pixels_of(png).reshape(-1, min(count, COLUMNS) * 8, channels)
    shown = min(count, 16) if count < COLUMNS else min(count, 16) // COLUMNS * COLUMNS
    for number in range(shown):
        row, column = divmod(number, COLUMNS)
        assert (drawn[row * 8 : row * 8 + 8, column * 8 : column * 8 + 8] == images[number]).all()
    assert drawn.size == shown * 8 * 8 * channels


@pytest.mark.parametrize(
    ("px", "shown"), [(32, (4, 4)), (48, (4, 2)), (100, (2, 1)), (140, (1, 1)), (200, None), (1024, (3, 1))]
)
def test_a_grid_of_images_that_are_too_large_shows_fewer_or_none(px: int, shown: tuple[int, int] | None) -> None:
    """The largest are all of equal pixels, of which 16 MiB would be one small file."""
    png = grid(noise(16, px, 3) if px < 1024 else np.zeros((16, px, px, 1), np.uint8))
    assert len(png or b"") <= MOST_PNG_BYTES
    assert (png and Image.open(io.BytesIO(png)).size) == (shown and (shown[0] * px, shown[1] * px))


def test_every_picture_of_the_worker_passes_the_check_of_the_host() -> None:
    for channels in (1, 3):
        for images in (noise(16, 28, channels), np.full((16, 28, 28, channels), 7, np.uint8)):
            text = b64encode(grid(images) or b"").decode()
            assert check_grid(text) == text
            single = b64encode(encode_png(images[0])).decode()
            assert check_grid(single) == single


def test_keeping_and_generating_leave_weights_and_losses_as_they_are(last: dict[str, Any]) -> None:
    before, events = (events_of({**last, **more}) for more in ({"keep_model": None}, {"generate": 6}))
    names = [event["event"] for event in events]
    assert names[-5:] == ["steps", "model", "generating", "generated", "done"]
    assert [event["event"] for event in before] == [*names[:-4], "done"]
    for name in ("weights_sha256", "losses"):
        assert events[-5][name] == before[-2][name]
    assert checked_part(Generated, events[-2]["generated"]).weights_sha256 != events[-5]["weights_sha256"]
    assert [event["t"] for event in events] == sorted(event["t"] for event in events)
    assert GAN.image_network == "generator"


def models_of(given: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    events = events_of(given)
    return [event for event in events if event["event"] == "model"], [event["event"] for event in events]


@pytest.mark.parametrize(("name", "joined"), [("gan", False), ("gan", True), ("vae", True)])
def test_the_last_model_is_that_of_the_trained_generator(
    name: str, joined: bool, last: dict[str, Any], tmp_path: Path
) -> None:
    place = {"master": "127.0.0.1", "port": free_port(), "interface": "lo", "timeout_s": 10.0}
    membership = {"strategy": "all-reduce", "rank": 0, "workers": 1, "servers": 0, **place}
    (model,), _ = models_of({**last, "workload": WORKLOADS.place(name), "distributed": membership if joined else None})
    assert model["epoch"] is None
    file, workload = tmp_path / "model.pt", WORKLOADS.get(name)
    file.write_bytes(b64decode(model["text"], validate=True))
    served = build_network(workload, Shape(28, 1), 5)
    generator = served.get_submodule(workload.image_network)
    assert weights_sha256(generator) != model["weights_sha256"]
    for network, part in ((copy.deepcopy(generator), ""), (served, workload.image_network)):
        read_model(network, file, Shape(28, 1), part)
        assert weights_sha256(network.get_submodule(part)) == model["weights_sha256"], "a service takes it, too"


def test_each_epoch_has_a_model_of_its_own(epochs: dict[str, Any]) -> None:
    models, names = models_of({**epochs, "keep_model": "each"})
    assert [model["epoch"] for model in models] == [*range(1, EPOCHS + 1)]
    assert len({model["weights_sha256"] for model in models}) == EPOCHS
    training_s = [model["training_s"] for model in models]
    assert training_s == sorted(training_s)
    assert names.index("measured") < names.index("model"), "while steps are measured nothing is said"


def test_models_that_no_line_or_no_job_holds_are_refused_before_the_first_step(epochs: dict[str, Any]) -> None:
    def keep(which: str, inputs: int, outputs: int) -> None:
        network = torch.nn.ModuleDict({"generator": torch.nn.Linear(inputs, outputs)})
        ModelKeeper(parse_spec(json.dumps({**epochs, "keep_model": which})), network)

    keep("last", 1 << 11, 1 << 11)
    with fails(JobError, "model", r"3 models of 21\.3 MiB are 64\.0 MiB as text"):
        keep("each", 1 << 11, 1 << 11)
    with fails(JobError, "model", r"1 models of 42\.7 MiB are 42\.7 MiB as text; one may have 31 MiB"):
        keep("last", 1 << 13, 1 << 10)
