"""RunNotes and tags: kept beside a run, found by their words, and refused where they could mislead."""

import shutil
from pathlib import Path

import pytest

from suite.errors import RequestError
from suite.results.contents import contents_of
from suite.results.notes import (
    FILE,
    MOST_LETTERS,
    MOST_TAGS,
    RunNotes,
    matches,
    read_notes,
    readable_notes,
    write_notes,
)

RUNS = Path(__file__).parents[1] / "samples" / "runs"


def test_what_is_noted_is_read_again_and_taken_away_with_its_file(tmp_path: Path) -> None:
    assert read_notes(tmp_path) == RunNotes()
    notes = RunNotes.of("  after the update \r\nof the kernel\n", ["kernel-6.9", "baseline", "baseline"])
    write_notes(tmp_path, notes)
    assert read_notes(tmp_path) == notes
    assert (notes.text, notes.tags) == ("after the update\nof the kernel", ("kernel-6.9", "baseline"))
    write_notes(tmp_path, RunNotes())
    write_notes(tmp_path, RunNotes())
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize(
    ("text", "tags", "why"),
    [
        ("x" * (MOST_LETTERS + 1), [], "4,001 characters"),
        ("\x1b[2J", [], "steers terminals"),
        ("", ["two words"], "'two words' is no tag"),
        ("", ["x" * 41], "is no tag"),
        ("", [""], "'' is no tag"),
        ("", [f"t{number}" for number in range(MOST_TAGS + 1)], "21 tags are too many"),
    ],
)
def test_what_cannot_be_kept_is_refused(text: str, tags: list[str], why: str) -> None:
    with pytest.raises(RequestError, match=why):
        RunNotes.of(text, tags)


@pytest.mark.parametrize("content", ["{", '{"schema_version": 1, "tags": ["<b>"]}', '{"further": 1}', "\x00"])
def test_a_file_that_holds_no_notes_is_named_and_hides_no_run(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(RequestError, match="holds no notes"):
        read_notes(tmp_path)
    assert readable_notes(tmp_path) == RunNotes()


def test_a_link_in_their_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "else").write_text(RunNotes.of("secret", []).model_dump_json())
    (tmp_path / FILE).symlink_to(tmp_path / "else")
    assert readable_notes(tmp_path) == RunNotes()


def test_they_are_found_by_every_word_and_removed_with_the_run(tmp_path: Path) -> None:
    notes = RunNotes.of("After the Update", ["baseline"])
    assert matches("update BASE night", "results/night", None, notes)
    assert not matches("update other", "results/night", None, notes)
    run = shutil.copytree(RUNS / "failed", tmp_path / "run")
    write_notes(run, notes)
    assert run / FILE in contents_of(run).own
