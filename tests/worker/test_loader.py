"""The input pipeline: the same images whoever reads them, decoded alike, damage that is counted, processes that end."""

import io
import json
import math
import multiprocessing
import os
import signal
import struct
from contextlib import closing, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from PIL import Image

from suite.registries import DATA_KINDS
from suite.untrusted.parse import parse_object
from tests.scenarios.pictures import damage, encoded, folder, picture
from tests.worker.conftest import IMAGES, fails
from worker.data import loader as loader_module
from worker.data.batches import LoaderUse, together, watching_loaders
from worker.data.decode import (
    DEVIATION,
    MEAN,
    CpuNormaliser,
    Crop,
    CudaNormaliser,
    DecodeError,
    Decoder,
    centre_crop,
    divisor,
    draw_crop,
    scale_of,
)
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
        for batch, other in zip(alone, taken(parsed, data(tmp_path, workers), 6), strict=True):
            assert all(map(torch.equal, batch, other))
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


def test_a_batch_is_not_refilled_before_its_copy_has_ended(
    parsed: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder(tmp_path, 10)
    event = Mock()
    monkeypatch.setattr(loader_module, "timing_event", lambda: event)
    for name in ("cudart", "check_error", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, Mock())
    on_cpu = CudaNormaliser(REFERENCE, "cpu", scale_of("imagenet", 3))
    monkeypatch.setattr(loader_module, "CudaNormaliser", lambda *_: on_cpu)
    with opened(replace(parsed, device="cuda"), data(tmp_path)) as loader:
        for _ in range(2):
            loader.prepared(loader.next()[0])
    assert [name for name, *_ in event.mock_calls] == ["synchronize", "record"] * 2


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


@pytest.mark.parametrize(
    ("images", "damaged", "labels"),
    [(8, 3, [0, 1, 2, 4, 4, 5, 6, 7]), (4, 3, [0, 0, 1, 2])],
    ids=["next", "first again"],
)
def test_a_damaged_image_is_replaced_by_the_next_counted_and_named(
    images: int, damaged: int, labels: list[int], parsed: Spec, tmp_path: Path
) -> None:
    folder(tmp_path, images, classes=images)
    name = damage(tmp_path, damaged)
    with opened(replace(parsed, batch=images), data(tmp_path)) as loader:
        assert sorted(loader.next()[1].tolist()) == labels
        use = loader.close()
    assert (use.images_read, use.damaged, use.damaged_files) == (images + 1, 1, [name])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_set_without_one_good_image_fails_and_names_files(workers: int, parsed: Spec, tmp_path: Path) -> None:
    folder(tmp_path, 6)
    names = [damage(tmp_path, number) for number in range(6)]
    with opened(parsed, data(tmp_path, workers)) as loader, fails(JobError, "data") as raised:
        loader.next()
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


@pytest.mark.parametrize(
    ("images", "damaged", "bears"), [(10, 3, True), (1000, 10, True), (0, 0, True), (10, 4, False), (1000, 11, False)]
)
def test_a_hundredth_of_damage_is_borne_and_more_fails_the_job_by_name(images: int, damaged: int, bears: bool) -> None:
    with nullcontext() if bears else fails(JobError, "data", rf"{damaged} of {images} .* such as a/1.jpg, a/2.jpg; 1%"):
        assert together([use(images, damaged, "a/1.jpg", "a/2.jpg")]).damaged == damaged


def test_several_loaders_are_told_of_as_one() -> None:
    whole = together([use(500, 1, "a", "b"), use(500, 2, "b", "c", "d", "e", "f", "g")])
    assert whole == LoaderUse("simplejpeg", 2, 1000, 2000, 3, ["a", "b", "c", "d", "e"])


@pytest.mark.parametrize(
    ("workers", "parts", "wanted"), [(4, 1, [4]), (5, 2, [3, 2]), (1, 2, [1, 1]), (0, 2, [0, 0]), (8, 3, [3, 3, 2])]
)
def test_processes_are_shared_among_the_devices(workers: int, parts: int, wanted: list[int]) -> None:
    assert [workers_of(data(Path("/mnt/data"), workers), parts, part) for part in range(parts)] == wanted


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
        with fails(JobError, "data", "DataLoader worker"), watching_loaders():
            until_noticed(loader)


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
    with fails(JobError, "data", "7 images, and one step takes 8"), opened_batches(spec):
        pass
    images = open_images(data(tmp_path))
    check_size(images, replace(spec, batch=3))
    with pytest.raises(JobError, match="3 epochs of the data set are 6 steps, and not 5"):
        check_size(images, replace(parsed, batch=3, epochs=3, steps=5))


def test_images_of_other_kinds_are_found_by_their_suffix(parsed: Spec, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number, kind in enumerate(["PNG", "WEBP", "JPEG", "BMP"]):
        (tmp_path / "a" / f"{number}.{kind}").write_bytes(encoded(picture(30, 20), kind))
    with opened(parsed, data(tmp_path)) as loader:
        assert loader.next()[0].isfinite().all()
        assert loader.close().damaged == 0


@pytest.mark.parametrize(("workload", "channels", "px"), [("classifier:ALEXNET", 3, 16), ("adversarial:GAN", 1, 28)])
def test_mnist_has_the_channels_size_and_scale_that_a_workload_asks_for(
    workload: str, channels: int, px: int, directory: Path, parsed: Spec
) -> None:
    spec = replace(parsed, workload=f"worker.workloads.{workload}", channels=channels, image_px=px)
    with opened(spec, data(directory, kind="mnist")) as loader:
        images, labels = loader.next()
        use = loader.close()
    assert images.shape == (4, channels, px, px)
    mean, deviation = (MEAN, DEVIATION) if channels == 3 else ((0.5,), (0.5,))
    grey = images * torch.tensor(deviation).view(-1, 1, 1) + torch.tensor(mean).view(-1, 1, 1)
    torch.testing.assert_close(grey[:, 0], grey[:, -1])
    assert 0 <= float(grey.min()) < 0.25 < 0.75 < float(grey.max()) <= 1
    assert set(labels.tolist()) < set(range(10))
    assert use == LoaderUse("none", 0, 4, IMAGES * 28 * 28, 0, [])


def square(name: str, data: Any, seed: int, image_px: int = 32) -> torch.Tensor:
    into = torch.empty(image_px, image_px, 3, dtype=torch.uint8)
    Decoder(name, image_px, "random").crop(data, seed, into)
    return into


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (33, 32), (1, 1), (1, 1000), (4000, 3)])
def test_a_crop_lies_inside_the_image_and_holds_a_pixel(size: tuple[int, int]) -> None:
    for seed in range(200):
        crop = draw_crop(*size, seed)
        assert 0 <= crop.left < crop.right <= size[0]
        assert 0 <= crop.top < crop.bottom <= size[1]


def test_crops_have_the_area_and_the_shape_of_random_resized_crop() -> None:
    crops = [draw_crop(500, 375, seed) for seed in range(4000)]
    sides = [(crop.right - crop.left, crop.bottom - crop.top) for crop in crops]
    areas = np.array([across * down / (500 * 375) for across, down in sides])
    ratios = np.array([math.log(across / down) for across, down in sides])
    transform = import_torchvision().transforms.RandomResizedCrop
    torch.manual_seed(1)
    image = torch.empty(3, 375, 500)
    theirs = [transform.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(4000)]
    their_areas = np.array([down * across / (500 * 375) for _, _, down, across in theirs])
    their_ratios = np.array([math.log(across / down) for _, _, down, across in theirs])
    for ours, other in ((areas, their_areas), (ratios, their_ratios)):
        standard_error = math.hypot(ours.std(), other.std()) / math.sqrt(4000)
        assert abs(ours.mean() - other.mean()) < 4 * standard_error
    assert 0.45 < np.mean([crop.mirrored for crop in crops]) < 0.55


@pytest.mark.parametrize(
    ("size", "wanted"),
    [((178, 218), Crop(0, 20, 178, 198)), ((320, 240), Crop(40, 0, 280, 240)), ((28, 28), Crop(0, 0, 28, 28))],
)
def test_the_centre_is_the_largest_square(size: tuple[int, int], wanted: Crop) -> None:
    assert centre_crop(*size, 5) == centre_crop(*size, 6) == wanted


def test_grey_is_repeated_where_three_channels_are_wanted_and_kept_where_one_is() -> None:
    grey = np.arange(28 * 28, dtype=np.uint8).reshape(28, 28, 1)
    for channels in (1, 3):
        into = torch.empty(28, 28, channels, dtype=torch.uint8)
        Decoder("auto", 28, "centre").crop(grey, 0, into)
        assert all(np.array_equal(into[..., each].numpy(), grey[..., 0]) for each in range(channels))


@pytest.mark.parametrize(
    ("least", "image_px", "wanted"),
    [(224, 224, 1), (447, 224, 1), (448, 224, 2), (300, 64, 4), (512, 64, 8), (9, 64, 1)],
)
def test_the_crop_stays_at_least_as_large_as_the_square(least: int, image_px: int, wanted: int) -> None:
    assert divisor(Crop(10, 20, 10 + least, 20 + least + 50), image_px) == wanted


@pytest.mark.parametrize("image_px", [16, 40, 120])
@pytest.mark.parametrize("size", [(301, 203), (97, 256)])
def test_both_decoders_give_the_same_pixels(size: tuple[int, int], image_px: int) -> None:
    data = encoded(picture(*size))
    for seed in range(20):
        assert torch.equal(square("simplejpeg", data, seed, image_px), square("pillow", data, seed, image_px))


@pytest.mark.parametrize(("size", "px", "scaled"), [((100, 80), 60, False), ((400, 300), 24, True)])
def test_the_square_is_what_pillow_makes_of_the_crop(size: tuple[int, int], px: int, scaled: bool) -> None:
    """To a level where nothing is decoded at a smaller scale, and else nearly so."""
    data = encoded(picture(*size))
    crops = [draw_crop(*size, seed) for seed in range(10)]
    assert {crop.mirrored for crop in crops} == {False, True}
    for seed, crop in enumerate(crops):
        image = Image.open(io.BytesIO(data)).crop((int(crop.left), int(crop.top), int(crop.right), int(crop.bottom)))
        wanted = torch.from_numpy(np.array(image.resize((px, px), Image.Resampling.BILINEAR))).int()
        apart = (square("auto", data, seed, px).int() - (wanted.flip(1) if crop.mirrored else wanted)).abs()
        assert (divisor(crop, px) > 1) is scaled
        assert apart.float().mean() < 5 if scaled else apart.max() <= 1


@pytest.mark.parametrize(
    "data",
    [
        encoded(picture(60, 50), "PNG"),
        encoded(picture(60, 50, mode="P"), "PNG", transparency=0),
        encoded(picture(60, 50, mode="RGBA"), "PNG"),
        encoded(picture(60, 50, mode="L"), "PNG"),
        encoded(picture(60, 50, mode="CMYK")),
        encoded(picture(60, 50, mode="L")),
        encoded(picture(60, 50), progressive=True),
        encoded(picture(60, 50), subsampling=0),
        encoded(picture(60, 50), "WEBP"),
        encoded(picture(1, 1)),
    ],
)
def test_whatever_pillow_can_read_is_decoded(data: bytes) -> None:
    assert torch.equal(square("auto", data, 3), square("auto", data, 3))
    if data[:2] != b"\xff\xd8":
        with pytest.raises(DecodeError):
            square("simplejpeg", data, 3)


def claims(width: int, height: int) -> bytes:
    """A JPEG whose header says that it is so large."""
    data = bytearray(encoded(picture(16, 16)))
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(data)


@pytest.mark.parametrize("name", ["auto", "simplejpeg", "pillow"])
@pytest.mark.parametrize(
    "data",
    [b"", b"\xff\xd8", b"not an image", encoded(picture(60, 50))[:-400], bytes(1000), claims(65000, 65000)],
    ids=["empty", "two bytes", "text", "truncated", "zeros", "bomb"],
)
def test_what_is_no_whole_image_is_refused(name: str, data: bytes) -> None:
    with pytest.raises(DecodeError):
        square(name, data, 1)


@pytest.mark.parametrize("error", [TypeError("no integer"), RecursionError("too deep"), struct.error("short")])
@pytest.mark.parametrize("decoder", ["auto", "pillow"])
def test_whatever_a_decoder_raises_is_a_damaged_file(
    decoder: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "open", Mock(side_effect=error))
    with pytest.raises(DecodeError, match=str(error)):
        square(decoder, b"II*", 1)
    for stop in (MemoryError, KeyboardInterrupt):
        monkeypatch.setattr(Image, "open", Mock(side_effect=stop))
        with pytest.raises(stop):
            square(decoder, b"II*", 1)


def test_a_tiff_whose_tags_are_of_another_type_is_damaged() -> None:
    written = io.BytesIO()
    Image.new("RGB", (24, 20)).save(written, "tiff")
    tag = struct.pack("<HH", 273, 4)  # the place of the pixels, as a number: here as a fraction
    content = written.getvalue().replace(tag, struct.pack("<HH", 273, 5))
    assert content != written.getvalue()
    with pytest.raises(DecodeError):
        square("auto", content, 1)
