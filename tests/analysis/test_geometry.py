"""Every kind of figure is measured on a screen and in a column: overprints, squeezed panels, pale shapes."""

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from matplotlib.typing import ColorType

from analysis.figures.colours import GROUND, LEAST_CONTRAST, LEAST_CONTRAST_OF_TEXT, contrast, ink_on, palette, shades
from analysis.figures.drawing import style
from suite.targets import TARGETS
from tests.analysis.conftest import Save
from tests.analysis.every_figure import FORGES, Forged, charts_of
from tests.test_rooms import REPOSITORY

COLUMN_INCHES = 3.3
PAGE_INCHES = 8.5
STAMP = "smoke run"
Charts = Mapping[str, Figure]
Letters = Mapping[str, Sequence[Text]]


def lay_out(chart: Figure) -> list[Text]:
    """Lay out a figure, and return the texts that are drawn: of ticks, those on their axis."""
    drawn: dict[int, Text] = {}
    draw = Text.draw

    def recording(text: Text, renderer: RendererBase) -> None:
        if text.get_visible() and text.get_text().strip() and STAMP not in text.get_text():
            drawn[id(text)] = text
        draw(text, renderer)

    with pytest.MonkeyPatch.context() as patch, style():
        patch.setattr(Text, "draw", recording)
        chart.draw_without_rendering()
    return list(drawn.values())


@pytest.fixture(scope="module")
def forged(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Forged]:
    directory = tmp_path_factory.mktemp("forged")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        return {name: forge(Save(directory / name)) for name, forge in FORGES.items()}


@pytest.fixture(scope="module", params=[None, COLUMN_INCHES], ids=["screen", "column"])
def charts(request: pytest.FixtureRequest, forged: Mapping[str, Forged]) -> Charts:
    """Every figure of every forged run."""
    drawn = {}
    for name, comparison in forged.items():
        for stem, chart in charts_of(comparison, request.param).items():
            drawn[f"{name}/{stem}"] = chart
    return drawn


@pytest.fixture(scope="module")
def letters(charts: Charts) -> Letters:
    """The texts of every figure, which is laid out."""
    return {name: lay_out(chart) for name, chart in charts.items()}


@pytest.fixture(scope="module")
def on_screen(forged: Mapping[str, Forged]) -> Charts:
    names = ("command", "noisy", "shared", "by_rate", "trainings", "history")
    return {f"{name}/{stem}": chart for name in names for stem, chart in charts_of(forged[name]).items()}


def in_a_column(chart: Figure) -> bool:
    return chart.get_figwidth() == COLUMN_INCHES


def panels(chart: Figure) -> Iterator[Axes]:
    """Yield the axes that show something: all but the bar of a scale of colours."""
    for axes in chart.axes:
        if axes.get_label() != "<colorbar>":
            yield axes


def shown(texts: Iterable[Text]) -> list[tuple[str, Bbox, float]]:
    """Return texts, without the line from a name to its point, with their boxes and rotations."""
    return [(text.get_text(), Text.get_window_extent(text), float(text.get_rotation())) for text in texts]


def words(chart: Figure) -> str:
    every = [text for text in chart.findobj(Text) if isinstance(text, Text)]
    return " ".join(" ".join(text.get_text() for text in every).split())


def foot(chart: Figure) -> str:
    text = chart.legends[0].get_title().get_text() if chart.legends else chart.get_supxlabel()
    return " ".join(text.split())


def test_every_kind_of_figure_is_forged(charts: Charts) -> None:
    kinds = {re.sub(r"^[^/]*/(?:figure-\d+-)?", "", name).rpartition("-")[2] for name in charts}
    expected = {"forest", "throughput", "elapsed", "trials", "disk", "interference", "latency", "scaling", "together"}
    assert expected | {"epoch", "money", "rate", "relative"} <= kinds


@pytest.mark.usefixtures("letters")
def test_panels_keep_a_share_of_their_figure(charts: Charts) -> None:
    squeezed = {}
    for name, chart in charts.items():
        # Beside the axes of a forest stand the names of its rows and their verdicts.
        least = 0.18 if name.endswith("forest") else 0.55
        for axes in panels(chart):
            spec = axes.get_subplotspec()
            assert spec
            grid = spec.get_gridspec()
            across = axes.bbox.width / (chart.bbox.width / grid.ncols)
            down = axes.bbox.height / (chart.bbox.height / grid.nrows)
            if across < least or down < 0.2:
                squeezed[name] = (round(across, 2), round(down, 2))
    assert squeezed == {}


def test_no_text_lies_on_another_one(letters: Letters) -> None:
    overprinted = {}
    for name, texts in letters.items():
        upright = [(text, box.padded(-1.5)) for text, box, rotation in shown(texts) if rotation in (0, 90)]
        pairs = []
        for (first, box), (second, second_box) in itertools.combinations(upright, 2):
            if box.overlaps(second_box):
                pairs.append((first, second))
        if pairs:
            overprinted[name] = pairs[:4]
    assert overprinted == {}


def test_every_text_lies_inside_the_figure(charts: Charts, letters: Letters) -> None:
    outside = {}
    for name, chart in charts.items():
        frame = chart.bbox.padded(2)
        beyond = [
            text
            for text, box, _ in shown(letters[name])
            if box.x0 < frame.x0 or box.x1 > frame.x1 or box.y0 < frame.y0 or box.y1 > frame.y1
        ]
        if beyond:
            outside[name] = beyond
    assert outside == {}


def test_figures_of_a_column_fit_a_page(charts: Charts) -> None:
    heights = {name: chart.get_figheight() for name, chart in charts.items() if in_a_column(chart)}
    assert {name: height for name, height in heights.items() if height > PAGE_INCHES} == {}


def pale(artist: Patch) -> bool:
    """Return whether neither the face nor the edge of a shape stands out from the ground."""
    face = to_rgba(artist.get_facecolor())
    colours = [artist.get_edgecolor()] if artist.get_linewidth() else []
    if artist.get_fill() and face[3]:
        colours.append(face)
    return all(contrast(colour, GROUND) < LEAST_CONTRAST for colour in colours)


@pytest.mark.usefixtures("letters")
def test_shapes_and_lines_stand_out_from_their_ground(charts: Charts) -> None:
    faint = {}
    for name, chart in charts.items():
        for axes in panels(chart):
            bars = [patch for container in axes.containers for patch in container if isinstance(patch, Patch)]
            if any(map(pale, (*bars, *axes.patches))):
                faint[name] = "bars"
            if any(contrast(line.get_color(), GROUND) < LEAST_CONTRAST or line.get_alpha() for line in axes.lines):
                faint[name] = "lines"
        for legend in chart.legends:
            if any(pale(patch) for patch in legend.get_patches()):
                faint[name] = "legend"
    assert faint == {}


def test_the_colours_of_targets_and_the_ink_on_any_ground_have_the_contrast_of_wcag() -> None:
    assert min(contrast(colour, GROUND) for colour in palette((*TARGETS, "another")).values()) >= LEAST_CONTRAST
    assert (contrast("black", "white"), contrast("0.2", "0.2")) == pytest.approx((21, 1))
    greys = [str(level / 100) for level in range(101)]
    assert min(contrast(ink_on(grey), grey) for grey in greys) >= LEAST_CONTRAST_OF_TEXT


def in_a_dark_page(colour: ColorType) -> ColorType:
    """Return a colour as the dark page shows it: ``invert(.9) hue-rotate(180deg)`` of CSS Filter Effects."""
    weights = np.array([0.213, 0.715, 0.072])
    red, green, blue = np.clip((2 * weights - np.eye(3)) @ (0.9 - 0.8 * np.array(to_rgb(colour))), 0, 1)
    return (float(red), float(green), float(blue))


def test_a_dark_page_which_inverts_figures_leaves_them_their_contrast() -> None:
    ground = in_a_dark_page(GROUND)
    colours = [in_a_dark_page(colour) for colour in palette((*TARGETS, "another")).values()]
    assert min(contrast(colour, ground) for colour in colours) >= LEAST_CONTRAST
    assert "invert(.9) hue-rotate(180deg)" in (REPOSITORY / "analysis/report/page.html.j2").read_text()
    for share in range(101):
        shade = shades()(share / 100)
        ink = ink_on(shade)
        assert contrast(ink, shade) >= LEAST_CONTRAST_OF_TEXT
        assert contrast(in_a_dark_page(ink), in_a_dark_page(shade)) >= LEAST_CONTRAST_OF_TEXT


@pytest.mark.usefixtures("letters")
def test_numbers_of_a_heat_map_can_be_read_on_their_cells_and_zero_has_no_sign(charts: Charts) -> None:
    (chart,) = (chart for name, chart in charts.items() if name.endswith("shared-interference"))
    numbers = 0
    for axes in panels(chart):
        mesh: Any
        (mesh,) = (artist for artist in axes.collections if isinstance(artist, QuadMesh))
        grounds = mesh.get_facecolor().reshape(*mesh.get_array().shape, 4)
        for text in axes.texts:
            column, row = map(int, text.get_position())
            ground = tuple(grounds[row, column])
            if not ground[3]:  # an empty cell
                ground = to_rgba(GROUND)
            assert contrast(text.get_color(), ground) >= LEAST_CONTRAST_OF_TEXT, text.get_text()
            assert not re.search(r"-0\b", text.get_text()), text.get_text()
            numbers += 1
    assert numbers == 4 * 4 * 3


def test_bars_without_a_verdict_are_hollow_and_the_legend_says_so(on_screen: Charts) -> None:
    chart = on_screen["shared/figure-10-shared-elapsed"]
    (axes,) = chart.axes
    hollow = {}
    for target, bars in zip(TARGETS, axes.containers, strict=False):
        hollow[target] = {to_rgba(patch.get_facecolor()) == to_rgba(GROUND) for patch in bars}
    assert hollow == {target: {target == "container"} for target in TARGETS}
    assert "hollow: no verdict" in [text.get_text() for text in chart.legends[0].get_texts()]


def test_a_noise_floor_that_the_axis_does_not_hold_is_in_the_foot_and_not_in_the_legend(on_screen: Charts) -> None:
    (chart,) = (chart for name, chart in on_screen.items() if name.startswith("noisy/") and name.endswith("throughput"))
    assert "noise floor" not in [text.get_text() for text in chart.legends[0].get_texts()]
    assert "noise floor outside the axis: resnet50 45.0 %" in foot(chart)


def test_the_legend_of_every_trial_has_the_marks_that_are_drawn(on_screen: Charts) -> None:
    (chart,) = (chart for name, chart in on_screen.items() if name == "trainings/synthetic-trials")
    drawn = {str(line.get_marker()) for line in chart.axes[0].lines if line.get_marker() not in ("None", "", None)}
    handles = chart.legends[0].legend_handles
    assert all(isinstance(handle, Line2D) for handle in handles)
    assert {str(handle.get_marker()) for handle in handles if isinstance(handle, Line2D)} == drawn
    assert len(drawn) == len(TARGETS)


def test_rates_are_relative_to_a_rate_and_a_command_has_no_data_of_the_name_none(on_screen: Charts) -> None:
    (chart,) = (chart for name, chart in on_screen.items() if name.endswith("by-rate-latency-p99"))
    assert chart.axes[0].get_ylabel().startswith("relative to rate=1")
    of_command = [chart for name, chart in on_screen.items() if name.startswith("command/")]
    assert of_command
    assert not any("none data" in words(chart) for chart in of_command)


def test_a_history_of_ratios_of_rates_says_slower_and_faster_as_bars_do(on_screen: Charts) -> None:
    (chart,) = (chart for name, chart in on_screen.items() if name.endswith("-resnet50-throughput-relative"))
    assert chart.axes[0].get_ylabel().endswith("slower \N{LEFTWARDS ARROW} \N{RIGHTWARDS ARROW} faster")


def test_rows_and_panels_that_a_page_has_no_room_for_are_counted_in_the_foot(charts: Charts) -> None:
    for name, what in (("many/synthetic-forest", "rows"), ("serve/serve-own-latency", "panels")):
        chart = charts[name]
        assert bool(re.search(rf"\d+ of \d+ {what}, the table holds the others", foot(chart))) == in_a_column(chart)
