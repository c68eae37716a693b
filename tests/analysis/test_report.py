import html.parser
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.load.records import load
from analysis.report.page import write_report
from suite.errors import BenchError


def page(path: Path, **options: Any) -> str:
    return write_report(load([path / "run"]), path / "report.html", **options).read_text()


def sweep(save: Any, blocks: int = 6, models: tuple[str, ...] = ("resnet50", "alexnet")) -> None:
    rng = np.random.default_rng(0)
    for block in range(blocks):
        for model in models:
            for target, factor in (("bare-metal", 1.0), ("container", 1.0), ("vm", 0.9)):
                speed = 10 * factor * math.exp(rng.normal(0, 0.002))
                save(block=block, model=model, target=target, throughput_per_s=speed, elapsed_s=200 / speed)


class Links(html.parser.HTMLParser):
    """Everything that a browser would fetch, the ids, and whether each element that opens closes."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.alternatives: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag not in ("meta", "img", "link", "br"):
            self.open.append(tag)
        if tag == "img":
            self.alternatives.append(values.get("alt"))
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_needs_no_network_and_every_picture_has_a_text(tmp_path: Path, save: Any) -> None:
    sweep(save)
    text = page(tmp_path)
    found = Links()
    found.feed(text)
    assert found.open == []
    assert all(target.startswith(("data:", "#")) for target in found.fetched)
    assert "<script" not in text
    assert "url(" not in text
    assert len(found.alternatives) == 5
    assert all(found.alternatives)
    assert len(set(found.ids)) == len(found.ids)


def test_the_answer_comes_first_in_words(tmp_path: Path, save: Any) -> None:
    sweep(save)
    text = page(tmp_path)
    for sentence in (
        "resnet50, container",
        "within the margin of 2 %",
        "beyond the margin of 2 %",
        "with opening, a trial takes 2.2",
        "noise floor (bare metal across 6 blocks)",
        "How to read the numbers",
        "bench compare",
    ):
        assert sentence in text
    assert text.index("x bare metal") < text.index("why:") < text.index("<h2")


def test_the_page_of_one_comparison_begins_with_its_verdict_and_ends_the_answer_with_what_decides(
    tmp_path: Path, save: Any
) -> None:
    for target in ("bare-metal", "vm"):
        save(target=target, weights_sha256="a" * 64)
    (tmp_path / "run/plan.json").write_text("{}")
    text = page(tmp_path)
    words = ("x bare metal", "at least 5 blocks are needed", "bench run --continue", "at least 4", "the same weights")
    places = [text.index(one) for one in words]
    assert places == sorted(places)
    assert [text.count(one) for one in words[1:]] == [1] * 4
    assert '<small class="verdict ">no verdict</small>' in text


def test_what_records_hold_is_text_and_never_markup(tmp_path: Path, save: Any) -> None:
    save()
    save(target="vm", failed="<img src=x onerror=alert(1)>", substitutes=["<b>bold</b>"])
    text = page(tmp_path)
    assert "&lt;img src=x" in text
    assert "<img src=x" not in text
    assert "<b>" not in text


def test_the_same_records_give_the_same_bytes(tmp_path: Path, save: Any) -> None:
    sweep(save, 2, ("resnet50",))
    assert page(tmp_path) == page(tmp_path)


@pytest.mark.parametrize("target", ["bare-metal", "vm"])
def test_a_single_trial_makes_a_page_that_says_what_is_missing(tmp_path: Path, save: Any, target: str) -> None:
    save(target=target)
    text = page(tmp_path)
    assert "resnet50" in text
    assert ("no bare-metal trial to compare with" in text) == (target == "vm")


def test_a_forced_comparison_is_marked_on_the_page(tmp_path: Path, save: Any) -> None:
    save()
    save(target="vm", capability="AVX512")
    assert "no ratio is formed: CPU capability AVX512 against AVX2" in page(tmp_path)
    assert "forced: CPU capability AVX512 against AVX2" in page(tmp_path, force=True)


def test_a_page_that_cannot_be_written_is_one_clear_error(tmp_path: Path, save: Any) -> None:
    save()
    (tmp_path / "file").write_text("")
    with pytest.raises(BenchError):
        write_report(load([tmp_path / "run"]), tmp_path / "file" / "report.html")


def test_no_number_on_the_page_is_missing_or_infinite(tmp_path: Path, save: Any) -> None:
    sweep(save, 2)
    save(block=9, target="container-vm", failed="no")
    visible = re.sub(r"data:[^\"]*", "", page(tmp_path))
    assert not re.search(r"\b(nan|inf|None)\b", visible)
