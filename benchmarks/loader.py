"""Compare the input pipeline with the one that torchvision's documentation has users write.

Both read the same images in the same order, crop them alike, and use as many processes; in pairs whose order is drawn.
Prints images per second of both, and the trimmed geometric mean of the pairs' ratios (ours over theirs) with its 95 %
interval; then how far the pixels of the decoders are apart, of 255. The data set (DIR/CLASS/*.jpg) should be in the
page cache, since no disk is to be measured here.

    python benchmarks/loader.py DIR --workers 2 --pairs 10
"""

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from parts.pairs import paired, parsed, parser_of, report
from torch.utils.data import DataLoader, Dataset

from suite.registries import DATA_KINDS
from worker.data.decode import DEVIATION, MEAN, Decoder, divisor, draw_crop
from worker.data.loader import Loader, open_images
from worker.data.sets import FileSet, Order
from worker.spec import Data, Spec
from worker.training.device import Numerics, import_torchvision

Take = Callable[[], object]


class Theirs(Dataset[tuple[torch.Tensor, int]]):
    """ImageFolder with its Pillow loader, and the usual transforms; the crop is given, and not drawn once more."""

    def __init__(self, directory: str, image_px: int, seed: int) -> None:
        vision = import_torchvision()
        self._folder = vision.datasets.ImageFolder(directory)
        self._order = Order(len(self._folder), seed)
        self._px = image_px
        self._resized_crop = vision.transforms.functional.resized_crop
        self._mirror = vision.transforms.functional.hflip
        self._end = vision.transforms.Compose(
            [vision.transforms.ToTensor(), vision.transforms.Normalize(MEAN, DEVIATION)]
        )

    def image(self, position: int) -> tuple[Any, int]:
        place = divmod(position, len(self._folder))
        image, label = self._folder[self._order.index(*place)]
        width, height = image.size
        crop = draw_crop(width, height, self._order.crop_seed(*place))
        top, left = int(crop.top), int(crop.left)
        image = self._resized_crop(image, top, left, int(crop.bottom) - top, int(crop.right) - left, [self._px] * 2)
        return self._mirror(image) if crop.mirrored else image, label

    def __getitem__(self, position: int) -> tuple[torch.Tensor, int]:
        image, label = self.image(position)
        return self._end(image), label


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    found = paired("ours", "theirs", partial(rate, options), options, "images")
    print(f"{options.workers} processes, {options.image_px} px, {options.pairs} pairs (theirs: torchvision, Pillow):")
    report(found, "images")
    for image_px in (options.image_px, options.image_px // 4):
        differences(options, image_px)


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("directory", help="directory of class folders with JPEG files")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="threads of the process that takes the batches")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--batches", type=int, default=30, help="batches to be timed on each side of a pair")
    parser.add_argument("--image-px", type=int, default=224)
    parser.add_argument("--decoder", default="auto", choices=("auto", "simplejpeg", "pillow"))
    parser.add_argument("--compared", type=int, default=200, help="images whose pixels are compared")
    options = parsed(parser)
    options.directory = str(Path(options.directory).resolve())
    return options


def rate(options: argparse.Namespace, side: str) -> float:
    """Return the images per second, after as many batches as the processes hold ready."""
    with opened_ours(options) if side == "ours" else opened_theirs(options) as take:
        for _ in range(2 * max(1, options.workers) + 1):
            take()
        begin_s = time.monotonic()
        for _ in range(options.batches):
            take()
        return float(options.batch * options.batches / (time.monotonic() - begin_s))


@contextmanager
def opened_ours(options: argparse.Namespace) -> Iterator[Take]:
    sizes = {name: getattr(options, name) for name in ("batch", "image_px", "threads", "seed")}
    place: dict[str, Any] = {"recipe": "reference", "device": "cpu", "devices": 1, "parallel": "none"}
    spec = Spec("worker.workloads.classifier:RESNET50", **sizes, **place, warmup_steps=0, steps=1)
    data = data_of(options, options.decoder)
    with closing(Loader(spec, data, open_images(data), 0, Numerics())) as loader:
        yield loader.next


@contextmanager
def opened_theirs(options: argparse.Namespace) -> Iterator[Take]:
    theirs = Theirs(options.directory, options.image_px, options.seed)
    batches = iter(DataLoader(theirs, batch_size=options.batch, sampler=itertools.count(), num_workers=options.workers))
    yield lambda: next(batches)


def data_of(options: argparse.Namespace, decoder: Literal["auto", "simplejpeg", "pillow"]) -> Data:
    return Data(DATA_KINDS.place("imagefolder"), options.directory, options.workers, decoder)


def differences(options: argparse.Namespace, image_px: int) -> None:
    """Print how far the decoders and torchvision are apart at a size; the smaller, the more images are scaled."""
    theirs = Theirs(options.directory, image_px, options.seed)
    images = open_images(data_of(options, "auto"))
    turbo, pillow = (Decoder(name, image_px, "random") for name in ("simplejpeg", "pillow"))
    order, scaled = Order(len(images), options.seed), 0
    apart: dict[str, list[torch.Tensor]] = {"simplejpeg, Pillow": [], "simplejpeg, torchvision": []}
    for position in range(min(options.compared, len(images))):
        content, seed = images.read(order.index(0, position)), order.crop_seed(0, position)
        one, other = (torch.empty(image_px, image_px, 3, dtype=torch.uint8) for _ in range(2))
        turbo.crop(content, seed, one)
        pillow.crop(content, seed, other)
        reference = torch.from_numpy(np.array(theirs.image(position)[0]))
        scaled += was_scaled(images, order.index(0, position), seed, image_px)
        apart["simplejpeg, Pillow"].append((one.int() - other.int()).abs().ravel())
        apart["simplejpeg, torchvision"].append((one.int() - reference.int()).abs().ravel())
    print(f"pixels at {image_px} px, {scaled} of {position + 1} images decoded at a smaller scale:")
    for name, found in apart.items():
        distances = torch.cat(found).numpy()
        print(f"  {name:24} mean {distances.mean():6.3f}, p99 {np.percentile(distances, 99):5.1f}")


def was_scaled(images: Any, index: int, seed: int, image_px: int) -> bool:  # noqa: ANN401 - FileSet, checked below
    from PIL import Image

    if not isinstance(images, FileSet):
        raise TypeError("a folder of images is needed")
    with Image.open(Path(images.root, images.name(index))) as image:
        return divisor(draw_crop(image.width, image.height, seed), image_px) > 1


if __name__ == "__main__":
    main()
