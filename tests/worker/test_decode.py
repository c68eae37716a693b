"""From a file to the square that a model is given: what is drawn, how it is decoded, and what is no image."""

import io
import math
import struct
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.scenarios.pictures import encoded, picture
from worker.data.decode import Crop, DecodeError, Decoder, centre_crop, divisor, draw_crop
from worker.training.device import import_torchvision


def square(name: str, data: Any, seed: int, image_px: int = 32) -> torch.Tensor:
    into = torch.empty(image_px, image_px, 3, dtype=torch.uint8)
    Decoder(name, image_px, "random").crop(data, seed, into)
    return into


def seed_that(mirrored: bool) -> int:
    return next(seed for seed in range(100) if draw_crop(100, 80, seed).mirrored is mirrored)


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


def test_the_centre_of_a_face_is_what_pytorchs_dcgan_trains_on() -> None:
    image, into = picture(178, 218), torch.empty(64, 64, 3, dtype=torch.uint8)
    Decoder("pillow", 64, "centre").crop(encoded(image, "PNG"), 0, into)
    transforms = import_torchvision().transforms
    theirs = torch.from_numpy(np.array(transforms.Compose([transforms.Resize(64), transforms.CenterCrop(64)])(image)))
    assert (into.float() - theirs.float()).abs().mean() < 3  # whole pixels of the smaller image, 2.8 of the larger


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


@pytest.mark.parametrize("mirrored", [True, False])
def test_what_is_not_scaled_is_what_torchvision_makes(mirrored: bool) -> None:
    functional, seed = import_torchvision().transforms.functional, seed_that(mirrored)
    data = encoded(picture(100, 80))
    crop = draw_crop(100, 80, seed)
    left, top, right, bottom = (int(edge) for edge in (crop.left, crop.top, crop.right, crop.bottom))
    image = functional.resized_crop(Image.open(io.BytesIO(data)), top, left, bottom - top, right - left, [60, 60])
    wanted = np.array(functional.hflip(image) if mirrored else image)
    found = square("auto", data, seed, 60)
    assert (found.int() - torch.from_numpy(wanted).int()).abs().max() <= 1


def test_decoding_at_a_smaller_scale_keeps_the_picture() -> None:
    data = encoded(picture(400, 300))
    image = Image.open(io.BytesIO(data))
    for seed in range(10):
        crop = draw_crop(400, 300, seed)
        box = (int(crop.left), int(crop.top), int(crop.right), int(crop.bottom))
        wanted = torch.from_numpy(np.array(image.crop(box).resize((24, 24), Image.Resampling.BILINEAR)))
        found = square("auto", data, seed, 24)
        assert divisor(crop, 24) > 1
        apart = ((found.flip(1) if crop.mirrored else found).int() - wanted.int()).abs().float()
        assert apart.mean() < 5


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
