import pytest

from suite.errors import RequestError
from suite.job.datasets import parse_data
from suite.registries import DATA_KINDS


def test_what_is_drawn_or_made_here_needs_no_directory() -> None:
    assert parse_data("synthetic") == ("synthetic", None)
    assert parse_data("generated") == ("generated", None)
    assert parse_data("generated:/d") == ("generated", "/d")


@pytest.mark.parametrize("kind", DATA_KINDS.own)
def test_a_kind_and_its_directory_are_told_apart_at_the_first_colon(kind: str) -> None:
    assert parse_data(f"{kind}:/a:b") == (kind, "/a:b")


@pytest.mark.parametrize(
    "text", ["", "imagenet", "imagenet:", "generated:", "synthetic:", "synthetic:/d", "coco:/d", "/d"]
)
def test_anything_else_is_refused_with_what_would_do(text: str) -> None:
    with pytest.raises(RequestError, match="is not a data set") as caught:
        parse_data(text)
    assert caught.value.remedy
    assert "generated:DIR, imagenet:DIR, imagefolder:DIR" in caught.value.remedy


def test_what_is_refused_cannot_play_with_the_terminal() -> None:
    with pytest.raises(RequestError) as caught:
        parse_data("\x1b[31mred")
    assert "\x1b" not in caught.value.message
