"""What goes into a paper: figures as wide as a column, tables as LaTeX, the methods and the testbed."""

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.text import Text

from analysis.figures.drawing import column
from analysis.figures.plots import draw, pictures
from analysis.report.document import document
from analysis.report.latex import escaped, latex
from analysis.report.methods import methods_document
from suite.errors import RequestError
from suite.units import parse_inches
from tests.analysis.conftest import Save, a_comparison, bench_compare, printed
from tests.analysis.test_answer import run
from tests.analysis.test_interference import sweep as interfere
from tests.analysis.test_plots import JOB, disk
from tests.analysis.test_plots import group as bars_of
from tests.analysis.test_stored_runs import NAMES, RUNS

_PARAGRAPH = r"p\{\\dimexpr[\d.]+\\linewidth-2\\tabcolsep\\relax\}"
_TOKEN = re.compile(
    rf"\\(?P<edge>begin|end)\{{(?P<environment>\w+)\}}(?P<columns>\{{(?:l|r|{_PARAGRAPH})+\}})?"
    r"|(?P<end>\\\\)|\\[A-Za-z]+\*?|\\[{}$&#_%]|(?P<special>[{}$&#%_^~\"<>|\\])"
)
"""What LaTeX reads as more than a letter; ``special`` is a character that nothing escapes."""


def tables(text: str) -> int:
    """Return how many tables a fragment has. Raises AssertionError for what LaTeX would refuse or misread."""
    opened: list[str] = []
    widths: list[int] = []
    cells = 1
    counts: Counter[str] = Counter()
    for token in _TOKEN.finditer(text):
        environment = token["environment"]
        match token["edge"] or token["end"] or token["special"]:
            case "begin":
                opened.append(environment)
                counts[environment] += 1
                if environment == "tabular":
                    columns = re.sub(_PARAGRAPH, "p", token["columns"])
                    widths.append(len(columns) - 2)
            case "end":
                assert opened.pop() == environment
            case "{":
                opened.append("{")
            case "}":
                assert opened.pop() == "{"
            case "$":
                opened.pop() if opened[-1:] == ["$"] else opened.append("$")
            case "&":
                assert opened[-1] == "tabular"
                cells += 1
            case "\\\\":
                assert opened[-1] == "tabular"
                assert cells == widths[-1], f"{cells} cells in a row of {widths[-1]}"
                cells = 1
            case str(special):
                pytest.fail(f"{special!r} stands unescaped in {text[max(token.start() - 40, 0) : token.end() + 20]!r}")
    assert opened == []
    return counts["tabular"]


@pytest.mark.parametrize("name", NAMES)
def test_every_table_of_a_run_is_latex_with_balanced_environments_and_whole_rows(name: str) -> None:
    for options in ((), ("--methods",)):
        shown = bench_compare(RUNS / name, "--force", "--latex", *options)
        assert shown.exit_code == 0, shown.output
        assert tables(shown.stdout) > 0


@pytest.mark.parametrize("name", ["synthetic-all", "probe", "shared", "sweep"])
def test_no_table_is_wider_than_a_column_of_3_3_inches(name: str) -> None:
    text = bench_compare(RUNS / name, "--force", "--latex").stdout
    unbroken = re.findall(r"\\begin\{tabular\}\{(l(?:r)+)\}(.*?)\\end\{tabular\}", text, re.DOTALL)
    for spec, rows in unbroken:
        cells = [row.split(" & ") for row in rows.replace("\\hline", "").split("\\\\") if row.strip()]
        assert sum(max(map(len, column)) for column in zip(*cells, strict=True)) + 2 * len(spec) < 56, rows
    broken = re.findall(r"\\begin\{tabular\}\{(p.*\})\}\n", text)
    for spec in broken:
        assert sum(map(float, re.findall(r"dimexpr([\d.]+)", spec))) < 1.005, "a share is of the whole width"
    assert unbroken
    assert broken


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX is installed: the parser has to do")
@pytest.mark.parametrize("options", [(), ("--methods",)])
def test_latex_takes_every_table_and_none_leaves_its_column(options: tuple[str, ...], tmp_path: Path) -> None:
    for name in ("synthetic-all", "probe", "shared"):
        (tmp_path / "tables.tex").write_text(bench_compare(RUNS / name, "--force", "--latex", *options).stdout)
        whole = r"\documentclass[twocolumn]{article}\begin{document}\input{tables.tex}\end{document}"
        (tmp_path / "whole.tex").write_text(whole)
        words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "whole.tex"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
        too_wide_points = map(float, re.findall(r"Overfull \\hbox \(([\d.]+)pt too wide\)", done.stdout))
        assert max(too_wide_points, default=0.0) < 15, done.stdout


@pytest.mark.parametrize(
    "broken",
    [r"\begin{table}", r"\begin{table}\end{tabular}", "50 % slower", "a_b", r"\begin{tabular}{lr} a \\ \end{tabular}"],
)
def test_the_check_of_latex_finds_what_latex_would_refuse_or_misread(broken: str) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception, IndexError)):
        tables(broken)


@given(st.text())
def test_any_text_is_escaped_for_latex(text: str) -> None:
    shown = f"\\begin{{tabular}}{{lr}} {escaped(text)} & {escaped(text)} \\\\ \\end{{tabular}}"
    assert tables(shown) == 1
    assert shown.isprintable()


def test_latex_escapes_specials_and_names_letters_that_it_has_not() -> None:
    assert escaped(r"a_b & 50 % \input{x} [b] é 字") == (r"a\_b \& 50 \% \textbackslash{}input\{x\} {[}b{]} é ?")


def letters_of(chart: Figure) -> list[Text]:
    chart.canvas.draw()
    every = chart.findobj(Text)
    return [text for text in every if isinstance(text, Text) and text.get_text().strip() and text.get_visible()]


def test_figures_of_a_column_are_as_wide_and_have_letters_of_six_to_eight_points_inside(save: Save) -> None:
    comparison = run(save, 0.9, blocks=6, targets=("container", "vm"), models=("alexnet", "resnet50"), profile="quick")
    with column(3.3):
        charts = [each.drawing.chart for each in pictures(comparison, comparison.jobs[0], {})]
        charts += [each.drawing.chart for each in pictures(a_comparison(bars_of()), JOB, {})]
    assert len(charts) >= 4
    for chart in charts:
        assert chart.get_figwidth() == 3.3
        for text in letters_of(chart):
            assert 6 <= float(text.get_fontsize()) <= 8, (text.get_text(), text.get_fontsize())
            box = text.get_window_extent()
            assert -1 <= box.x0 <= box.x1 <= chart.bbox.x1 + 1, text.get_text()


def overlapping(texts: Sequence[Text]) -> list[tuple[str, str]]:
    """Return the neighbours along an axis of which one lies on the other."""
    found = []
    for first, second in pairwise(texts):
        # A turned name has a bounding box larger than its letters, and its neighbour begins beside it.
        if not first.get_rotation() and first.get_window_extent().overlaps(second.get_window_extent()):
            found.append((first.get_text(), second.get_text()))
    return found


def test_names_of_rows_and_places_in_a_column_do_not_overprint_each_other(tmp_path: Path, save: Save) -> None:
    long_names = ("dcgan-published", "progressive-gan", "transformer")
    targets = ("container", "container-vm")
    comparisons = [run(save, 0.9, blocks=6, targets=targets, models=long_names, profile="quick")]
    beside = Save(tmp_path / "beside")
    interfere(beside)
    comparisons.append(beside.compare())
    for comparison in comparisons:
        with column(3.3):
            charts = [each.drawing.chart for each in pictures(comparison, comparison.jobs[0], {})]
        for chart in charts:
            letters_of(chart)
            for axes in chart.axes:
                for ticks in (axes.get_xticklabels(), axes.get_yticklabels()):
                    assert overlapping([tick for tick in ticks if tick.get_text()]) == []


def test_the_title_of_a_forest_names_targets_with_the_same_answer_once(save: Save) -> None:
    comparison = run(save, 0.9, blocks=2, targets=("container", "vm"))
    with column(3.3):
        (chart,) = [
            each.drawing.chart for each in pictures(comparison, comparison.jobs[0], {}) if "forest" in each.stem
        ]
    title = " ".join(chart.get_suptitle().split())
    assert title.count("not yet measured") == 1, title
    assert re.match(r"container.* and vm.*: not yet measured: 2 blocks of 5", title), title


def test_numbers_below_a_narrow_forest_do_not_touch(save: Save) -> None:
    comparison = run(save, 1.0, blocks=2, targets=("container", "vm"), models=("inception_v3",))
    with column(3.3):
        (chart,) = [
            each.drawing.chart for each in pictures(comparison, comparison.jobs[0], {}) if "forest" in each.stem
        ]
        chart.canvas.draw()
    texts = [text for text in chart.axes[0].get_xticklabels() if text.get_text()]
    boxes = sorted((text.get_window_extent() for text in texts), key=lambda box: box.x0)
    inside = [box for box in boxes if chart.axes[0].bbox.x0 <= (box.x0 + box.x1) / 2 <= chart.axes[0].bbox.x1]
    assert len(inside) >= 2
    for before, after in pairwise(inside):
        assert after.x0 - before.x1 > 2, texts


def test_a_pdf_has_the_width_that_was_asked_for_and_the_next_figure_its_own(tmp_path: Path) -> None:
    comparison = a_comparison(bars_of(), disk(0.5))
    widths = []
    for width in (3.3, None):
        for path in draw(comparison, tmp_path / "plots", formats=("pdf",), width=width):
            box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+)", path.read_bytes())
            assert box
            widths.append(float(box[1]) / 72)
    assert widths[:3] == pytest.approx([3.3] * 3, abs=0.01)
    assert min(widths[3:]) > 6


@pytest.mark.parametrize(("text", "inches"), [("3.3in", 3.3), ("84mm", 84 / 25.4), ("8.4cm", 8.4 / 2.54)])
def test_a_width_is_inches_or_millimetres(text: str, inches: float) -> None:
    assert parse_inches(text) == pytest.approx(inches)


def test_a_width_without_a_unit_one_of_no_room_and_one_without_figures_are_refused() -> None:
    with pytest.raises(RequestError, match="is not a width"):
        parse_inches("3.3")
    for words, message in (
        (("--figures", "pdf", "--width", "1in"), "letters of 6 points do not fit"),
        (("--width", "3.3in"), "--width needs --figures"),
    ):
        refused = bench_compare(RUNS / "synthetic", *words)
        assert refused.exit_code == 2
        assert message in refused.output


def test_the_methods_say_what_a_referee_asks() -> None:
    shown = bench_compare(RUNS / "synthetic-all", "--force", "--methods", columns=400).stdout
    text = " ".join(shown.split())
    for words in (
        "A block held one trial of each target (bare-metal, container, vm, container-vm)",
        "blocks were measured, of 2 that were fixed before",
        "Weights and data were drawn by the seed 0.",
        "pinned CPUs (0-1), 2 GiB of memory and 2 threads",
        "two one-sided tests (Schuirmann 1987) at a margin of 2 %, corrected for all comparisons of a job (Holm 1979)",
        "The records were made by virtbench",
        "CPU",
        "PyTorch",
        "container: engine",
    ):
        assert words in text, text


def test_what_holds_for_some_runs_alone_is_said_of_these() -> None:
    text = bench_compare(RUNS / "synthetic", RUNS / "real", "--methods", "--force", columns=400).stdout
    joined = " ".join(text.split())
    assert "(synthetic)." in joined
    assert "(real)." in joined


def test_a_run_without_a_plan_still_has_its_statistics_and_versions(save: Save) -> None:
    comparison = run(save, 1.0, blocks=5)
    text = " ".join(printed(methods_document(save.load(), comparison)).split())
    assert "None of 10 trials failed." in text
    assert "virtbench 0." in text
    assert tables(latex(methods_document(save.load(), comparison))) == 1
    assert tables(latex(document(comparison))) > 0
