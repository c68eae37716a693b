"""The input pipeline: the same images whoever reads them, damage that is counted, and processes that end."""

import json
import multiprocessing
import os
import signal
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from PIL import Image

from suite.registries import DATA_KINDS
from suite.untrusted.parse import parse_object
from tests.scenarios.pictures import damage, encoded, folder, picture
from tests.worker.conftest import IMAGES
from worker.data.batches import LoaderUse, together, watching_loaders
from worker.data.decode import DEVIATION, MEAN, CpuNormaliser, CudaNormaliser, scale_of
from worker.data.loader import Loader, check_size, open_images, workers_of
from worker.data.sets import Order
from worker.protocol import Events, JobError
from worker.spec import Data, Spec, parse_spec
from worker.training.build import opened_batches
from worker.training.device import Numerics, import_torchvision

REFERENCE = Numerics()


@pytest.fixture
def parsed(spec: dict[str, Any]) -> Spec:
    return parse_spec(json.dumps({**spec, "batch": 4, "image_px": 16}))


def data(directory: Path, workers: int = 0, kind: str = "imagefolder") -> Data:
    return Data(DATA_KINDS.place(kind), str(directory), workers, "auto")


def opened(spec: Spec, given: Data, part: int = 0, numerics: Numerics = REFERENCE) -> "closing[Loader]":
    return closing(Loader(spec, given, open_images(given), part, numerics))


def taken(spec: Spec, given: Data, batches: int, part: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    with opened(spec, given, part) as loader:
        return [(images.clone(), labels.clone()) for images, labels in (loader.next() for _ in range(batches))]


def used(spec: Spec, given: Data) -> LoaderUse:
    """Return what was read for the first batch."""
    with opened(spec, given) as loader:
        loader.next()
        return loader.close()


def test_an_epoch_has_every_image_once_and_each_is_shuffled_anew() -> None:
    order, other = Order(50, 1), Order(50, 2)
    first, second = ([order.index(epoch, place) for place in range(50)] for epoch in range(2))
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert first != sorted(first)
    assert first != [other.index(0, place) for place in range(50)]
    assert first == [order.index(0, place) for place in range(50)], "going back is the same order"
    assert order.crop_seed(1, 0) == order.crop_seed(0, 49) + 1


def test_the_images_are_the_same_for_any_number_of_processes(parsed: Spec, tmp_path: Path) -> None:
    folder(tmp_path, 10)
    alone = taken(parsed, data(tmp_path, 0), 6)
    for workers in (1, 2):
        for (images, labels), (others, other_labels) in zip(
            alone, taken(parsed, data(tmp_path, workers), 6), strict=True
        ):
            assert torch.equal(images, others)
            assert torch.equal(labels, other_labels)
    assert not torch.equal(alone[0][0], alone[1][0])


def test_two_devices_share_an_epoch_between_them(parsed: Spec, tmp_path: Path) -> None:
    folder(tmp_path, 16, classes=16)
    spec = replace(parsed, devices=2, parallel="ddp")
    labels = [taken(spec, data(tmp_path), 2, part)[step][1] for step in range(2) for part in range(2)]
    assert sorted(int(label) for batch in labels for label in batch) == list(range(16))
    one = taken(replace(parsed, batch=8), data(tmp_path), 2)
    assert torch.equal(torch.cat(labels), torch.cat([batch for _, batch in one])), "as one device with both batches"


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("threads", [0, 1, 2, 9])
@pytest.mark.parametrize(
    ("pixels", "mean", "deviation"),
    [
        ("imagenet", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ("signed", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        ("unit", (0.0,), (1.0,)),
    ],
)
def test_pixels_are_normalised_as_torchvision_does(
    threads: int, channels_last: bool, pixels: str, mean: tuple[float, ...], deviation: tuple[float, ...]
) -> None:
    transforms, numerics = import_torchvision().transforms, Numerics(channels_last=channels_last)
    images = torch.randint(0, 256, (3, 20, 20, len(mean)), dtype=torch.uint8)
    scale = scale_of(pixels, len(mean))
    if threads:
        with closing(CpuNormaliser(3, 20, numerics, threads, scale)) as normalise:
            found = normalise(images)
    else:
        found = CudaNormaliser(numerics, "cpu", scale)(images)  # its arithmetic is the same on every device
    wanted = transforms.Compose([transforms.ToTensor(), transforms.Normalize(mean, deviation)])
    torch.testing.assert_close(found, torch.stack([wanted(image.numpy()) for image in images]))
    layout = torch.channels_last if channels_last else torch.contiguous_format
    assert found.is_contiguous(memory_format=layout)


def test_a_batch_stays_until_the_next_one_is_taken(parsed: Spec, tmp_path: Path) -> None:
    folder(tmp_path, 10)
    with opened(parsed, data(tmp_path, 2)) as loader:
        for _ in range(12):
            images, labels = loader.next()
            before = images.clone(), labels.clone()
            loader._tally.use(0, 0, str)
            assert torch.equal(images, before[0])
            assert torch.equal(labels, before[1])


def test_what_was_read_is_counted_with_its_bytes(parsed: Spec, tmp_path: Path) -> None:
    folder(tmp_path, 4)
    size_bytes = sum(path.stat().st_size for path in tmp_path.rglob("*.jpg"))
    assert used(parsed, data(tmp_path)) == LoaderUse("simplejpeg", 0, 4, size_bytes, 0, [])


def test_what_the_processes_read_ahead_is_counted_too(parsed: Spec, tmp_path: Path) -> None:
    folder(tmp_path, 8)
    with opened(parsed, data(tmp_path, 2)) as loader:
        loader.next()
        use = loader.close()
        assert loader.close() == use, "closing again is harmless"
    assert use.loader_workers == 2
    assert 4 <= use.images_read <= 4 * (1 + 2 * 2 + 1)
    assert multiprocessing.active_children() == []


def test_a_damaged_image_is_replaced_by_the_next_counted_and_named(parsed: Spec, tmp_path: Path) -> None:
    folder(tmp_path, 8, classes=8)
    name = damage(tmp_path, 3)
    with opened(replace(parsed, batch=8), data(tmp_path)) as loader:
        labels = sorted(loader.next()[1].tolist())
        use = loader.close()
    assert labels == [0, 1, 2, 4, 4, 5, 6, 7]
    assert (use.images_read, use.damaged, use.damaged_files) == (9, 1, [name])


def test_after_the_last_image_comes_the_first(parsed: Spec, tmp_path: Path) -> None:
    folder(tmp_path, 4, classes=4)
    damage(tmp_path, 3)
    assert sorted(taken(parsed, data(tmp_path), 1)[0][1].tolist()) == [0, 0, 1, 2]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_set_without_one_good_image_fails_and_names_files(workers: int, parsed: Spec, tmp_path: Path) -> None:
    folder(tmp_path, 6)
    names = [damage(tmp_path, number) for number in range(6)]
    with opened(parsed, data(tmp_path, workers)) as loader, pytest.raises(JobError) as raised:
        loader.next()
    assert raised.value.kind == "data"
    assert sum(name in str(raised.value) for name in names) == 5
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(("kinds", "decoders"), [(["PNG"], "pillow"), (["JPEG", "PNG"], "simplejpeg and pillow")])
def test_the_record_names_the_libraries_that_decoded(
    kinds: list[str], decoders: str, parsed: Spec, tmp_path: Path
) -> None:
    for number in range(8):
        path = tmp_path / f"c{number % 2}" / f"{number}.{kinds[number % len(kinds)].lower()}"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (20, 20)).save(path, kinds[number % len(kinds)])
    use = used(replace(parsed, batch=8), data(tmp_path, 2))
    assert use.decoder == decoders
    assert together([use, use]).decoder == decoders


def test_a_damaged_image_whose_name_is_no_utf_8_is_named_to_the_host(parsed: Spec, tmp_path: Path) -> None:
    folder(tmp_path, 8)
    damaged = tmp_path / damage(tmp_path, 3)
    damaged.rename(os.fsdecode(os.fsencode(damaged.parent) + b"/B\xe4r.jpg"))
    use = used(replace(parsed, batch=8), data(tmp_path))
    assert use.damaged_files == [f"{damaged.parent.name}/B\udce4r.jpg"]
    reading, writing = os.pipe()
    Events(writing).emit("done", data_use=asdict(use), other="\\udce4 \U0001f43b")
    said = parse_object(os.read(reading, 1 << 16))
    assert said["data_use"]["damaged_files"] == [f"{damaged.parent.name}/B\\udce4r.jpg"]
    assert said["other"] == "\\udce4 \U0001f43b"


def use(images: int, damaged: int, *files: str) -> LoaderUse:
    return LoaderUse("simplejpeg", 1, images, 1000, damaged, list(files))


@pytest.mark.parametrize(("images", "damaged"), [(10, 3), (1000, 10), (0, 0)])
def test_a_little_damage_is_borne(images: int, damaged: int) -> None:
    assert together([use(images, damaged)]).damaged == damaged


@pytest.mark.parametrize(("images", "damaged"), [(10, 4), (1000, 11)])
def test_more_than_a_hundredth_fails_the_job_by_name(images: int, damaged: int) -> None:
    with pytest.raises(JobError, match=rf"{damaged} of {images} .* such as a/1.jpg, a/2.jpg; 1%") as raised:
        together([use(images, damaged, "a/1.jpg", "a/2.jpg")])
    assert raised.value.kind == "data"


def test_several_loaders_are_told_of_as_one() -> None:
    whole = together([use(500, 1, "a", "b"), use(500, 2, "b", "c", "d", "e", "f", "g")])
    assert whole == LoaderUse("simplejpeg", 2, 1000, 2000, 3, ["a", "b", "c", "d", "e"])


@pytest.mark.parametrize(
    ("workers", "parts", "wanted"), [(4, 1, [4]), (5, 2, [3, 2]), (1, 2, [1, 1]), (0, 2, [0, 0]), (8, 3, [3, 3, 2])]
)
def test_processes_are_shared_among_the_devices(workers: int, parts: int, wanted: list[int]) -> None:
    given = data(Path("/mnt/data"), workers)
    assert [workers_of(given, parts, part) for part in range(parts)] == wanted


def test_a_process_that_is_killed_fails_the_job_and_does_not_hang(parsed: Spec, tmp_path: Path) -> None:
    folder(tmp_path, 8)

    def until_noticed(loader: Loader) -> None:
        while True:
            loader.next()

    with opened(parsed, data(tmp_path, 1)) as loader:
        loader.next()
        (child,) = multiprocessing.active_children()
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(JobError, match="DataLoader worker") as raised, watching_loaders():
            until_noticed(loader)
    assert raised.value.kind == "data"


def test_other_errors_are_not_taken_for_a_dead_process() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2"), watching_loaders():
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


def test_a_job_that_fails_leaves_no_process(parsed: Spec, tmp_path: Path) -> None:
    folder(tmp_path, 8)
    spec = replace(parsed, data=data(tmp_path, 2))
    with pytest.raises(ZeroDivisionError), opened_batches(spec) as batches:
        1 // len(batches[0].next()[1][:0])
    assert multiprocessing.active_children() == []


def test_a_set_smaller_than_one_step_is_refused_with_the_numbers(parsed: Spec, tmp_path: Path) -> None:
    folder(tmp_path, 7)
    spec = replace(parsed, devices=2, parallel="parameter-cpu", data=data(tmp_path))
    with pytest.raises(JobError, match="7 images, and one step takes 8") as raised, opened_batches(spec):
        pass
    assert raised.value.kind == "data"
    images = open_images(data(tmp_path))
    check_size(images, replace(spec, batch=3))
    with pytest.raises(JobError, match="3 epochs of the data set are 6 steps, and not 5"):
        check_size(images, replace(parsed, batch=3, epochs=3, steps=5))


def test_imagenet_is_read_from_its_training_folder(tmp_path: Path) -> None:
    folder(tmp_path / "train", 4)
    for number, name in enumerate(("n01440764", "n01443537")):
        (tmp_path / "train" / f"class-{number:02d}").rename(tmp_path / "train" / name)
    folder(tmp_path / "val", 2)
    whole = open_images(data(tmp_path, kind="imagenet"))
    assert len(whole) == len(open_images(data(tmp_path / "train", kind="imagenet"))) == 4
    assert whole.name(0) == "n01440764/0000.jpg"


def test_images_of_other_kinds_are_found_by_their_suffix(parsed: Spec, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number, kind in enumerate(["PNG", "WEBP", "JPEG", "BMP"]):
        (tmp_path / "a" / f"{number}.{kind}").write_bytes(encoded(picture(30, 20), kind))
    with opened(parsed, data(tmp_path)) as loader:
        assert loader.next()[0].isfinite().all()
        assert loader.close().damaged == 0


def test_mnist_becomes_images_of_three_channels_at_the_wanted_size(directory: Path, parsed: Spec) -> None:
    with opened(parsed, data(directory, kind="mnist")) as loader:
        images, labels = loader.next()
        assert images.shape == (4, 3, 16, 16)
        grey = images * torch.tensor(DEVIATION).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)
        torch.testing.assert_close(grey[:, 0], grey[:, 2])
        assert set(labels.tolist()) < set(range(10))
        assert loader.close() == LoaderUse("none", 0, 4, IMAGES * 28 * 28, 0, [])


def test_mnist_is_of_one_channel_and_of_the_scale_that_a_workload_asks_for(directory: Path, parsed: Spec) -> None:
    grey = replace(parsed, workload="worker.workloads.adversarial:GAN", channels=1, image_px=28)
    with opened(grey, data(directory, kind="mnist")) as loader:
        images, _ = loader.next()
        assert images.shape == (4, 1, 28, 28)
        assert -1 <= float(images.min()) < -0.5
        assert 0.5 < float(images.max()) <= 1
        loader.close()
