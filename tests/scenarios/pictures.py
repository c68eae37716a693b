"""Image files for the tests of the input pipeline: of real content, and damaged in every way that a file can be."""

import io
from pathlib import Path

import numpy as np
from PIL import Image


def picture(width: int, height: int, seed: int = 0, mode: str = "RGB") -> Image.Image:
    """Coarse shapes with some detail, so that neighbouring pixels are alike as they are in a photograph."""
    draw = np.random.default_rng(seed)
    coarse = draw.integers(0, 256, (4, 5, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), np.int16)
    noisy = smooth + draw.integers(-6, 7, smooth.shape)
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)).convert(mode)


def encoded(image: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def folder(directory: Path, images: int, classes: int = 2, size: tuple[int, int] = (48, 40)) -> Path:
    """An ImageFolder; the images are numbered through, class after class."""
    for number in range(images):
        path = directory / f"class-{number * classes // images:02d}" / f"{number:04d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(picture(*size, seed=number)))
    return directory


def damage(directory: Path, number: int) -> str:
    """Cut an image of ``folder`` off in its middle. Returns its name."""
    (path,) = directory.glob(f"*/{number:04d}.jpg")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return str(path.relative_to(directory))
