"""The images that targets generated: the same as on bare metal, or how far apart, in every form of the results."""

import io
import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from rich.console import Console

from analysis.compare.comparison import compare
from analysis.load.records import load
from analysis.report.answers.answer import answer
from analysis.report.document import document
from analysis.report.markdown import as_markdown
from analysis.report.page import write_report
from analysis.report.rows import as_json
from analysis.report.terminal import Terminal
from suite.records.record import Generated, Grid
from tests.analysis.conftest import Save
from tests.analysis.test_same_work import DIGEST, compared, of_arms, work

OTHER = "cd" * 32
PLAIN = np.full((16, 32), 100, np.uint8)
EMULATED: dict[str, Any] = {"accelerator": "tcg", "cpu_model": "QEMU TCG CPU"}


def changed(*differences: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
    pixels = PLAIN.copy()
    for row, column, difference in differences:
        pixels[row, column] += difference
    return pixels


def images(
    pixels: npt.NDArray[np.uint8] | None = PLAIN, weights: str = DIGEST, digest: str = DIGEST, **inside: Any
) -> dict[str, Any]:
    """Return fields of a record whose generator has these weights, and made these pixels."""
    out = io.BytesIO()
    if pixels is not None:
        Image.fromarray(pixels).save(out, format="PNG")
    grid = None if pixels is None else Grid(b64encode(out.getvalue()).decode())
    generated = Generated(images=16, weights_sha256=weights, pixels_sha256=digest, png=grid)
    return {**work(weights=weights, **inside), "generated": generated, "generate": 16}


def test_the_same_pixels_of_the_same_weights_are_said(save: Save, tmp_path: Path) -> None:
    found = compared(save, tmp_path, images(), container=images(), vm=images(**EMULATED))
    assert answer(found).facts[-2:] == (
        "All targets computed the same weights, bit for bit.",
        "All targets generated the same images from the same weights.",
    )
    for one in of_arms(found).values():
        assert one.image
        assert (one.image.trials, one.image.other_weights, one.image.other_pixels, one.image.most) == (2, 0, 0, None)


@pytest.mark.parametrize(
    ("own", "clause", "most", "mean"),
    [
        (
            images(changed((0, 0, 3), (5, 5, 1)), digest=OTHER, **EMULATED),
            "the same weights: pixels at most 3",
            3,
            4 / 512,
        ),
        (images(changed((0, 0, 5)), OTHER, OTHER, **EMULATED), "other weights: pixels at most 5 of 255", 5, 5 / 512),
        (images(PLAIN, OTHER, OTHER, **EMULATED), "other weights: pixels at most 0 of 255", 0, 0.0),
        (images(changed((0, 0, 5))[:8], OTHER, OTHER, **EMULATED), "other weights: pixels at most 5", 5, 5 / 256),
        (images(None, OTHER, OTHER, **EMULATED), "other weights", None, None),
        (images(np.stack([PLAIN] * 3, axis=-1), OTHER, OTHER, **EMULATED), "other weights", None, None),
    ],
)
def test_other_pixels_are_said_with_their_greatest_and_mean_difference(
    own: dict[str, Any], clause: str, most: int | None, mean: float | None, save: Save, tmp_path: Path
) -> None:
    found = compared(save, tmp_path, images(), container=images(), vm=own)
    sentence = answer(found).facts[-1]
    assert sentence.startswith(f"Beside bare-metal, vm generated other images from {clause}")
    assert sentence.endswith("; container generated the same images from the same weights.")
    assert ("pixels" in sentence) == (most is not None)
    image = of_arms(found)["vm"].image
    assert image
    assert (image.trials, image.other_pixels, image.most) == (2, 2, most)
    assert image.mean == pytest.approx(mean)
    assert [Path(path).parent.name for path in image.records] == ["trials", "trials"]


def test_the_pair_that_differs_most_is_the_one_that_is_told_and_shown(save: Save, tmp_path: Path) -> None:
    for block, difference in enumerate((1, 9, 4)):
        save(block=block, seed=block, **images())
        save(block=block, seed=block, target="vm", **images(changed((2, 2, difference)), digest=OTHER, **EMULATED))
    image = of_arms(compare(load([tmp_path / "run"])))["vm"].image
    assert image
    assert image.most == 9
    assert [path.rpartition("-")[2] for path in image.records] == ["b001.json", "b001.json"]


def test_a_record_without_images_is_held_against_nothing(save: Save, tmp_path: Path) -> None:
    found = compared(save, tmp_path, work(), container=work())
    assert of_arms(found)["container"].image is None
    assert "generated" not in " ".join(answer(found).lines)


def test_other_weights_on_equal_machines_are_a_typed_warning(save: Save, tmp_path: Path) -> None:
    found = compared(save, tmp_path, images(), container=images(changed((0, 0, 1)), OTHER, OTHER))
    (warning,) = (one for one in found.warnings if one.kind == "incomparable")
    assert "computed other weights" in warning.message
    assert warning.advice.startswith("machine, threads and vector instructions agree: ")


def test_other_weights_where_rounding_may_differ_are_no_warning(save: Save, tmp_path: Path) -> None:
    found = compared(save, tmp_path, images(), vm=images(weights=OTHER, **EMULATED))
    assert "incomparable" not in {one.kind for one in found.warnings}


def test_every_form_of_the_results_says_it_and_the_page_shows_the_grids(save: Save, tmp_path: Path) -> None:
    own = images(changed((0, 0, 3)), digest=OTHER)
    found = compared(save, tmp_path, images(), container=own)
    sentence = (
        "Beside bare-metal, container generated other images from the same weights: pixels at most 3 of 255 apart"
    )
    assert sentence in as_markdown(found)
    shown = io.StringIO()
    Console(width=200, file=shown).print(Terminal(document(found)))
    assert sentence in shown.getvalue()
    (row,) = json.loads(as_json(found))["groups"][0]["same_work"]
    assert (row["image"]["most"], row["image"]["other_weights"]) == (3, 0)
    page = write_report(load([tmp_path / "run"]), tmp_path / "report.html").read_text()
    assert sentence in page
    places = [page.index(f"data:image/png;base64,{each['generated'].png.root}") for each in (images(), own)]
    assert places == sorted(places)
    assert [page.count(f"generated on {arm}</figcaption>") for arm in ("bare-metal", "container")] == [1, 1]
