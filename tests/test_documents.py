"""The pages are true to the code: generated parts are up to date, links lead somewhere, every column is described."""

import abc
import pkgutil
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import cli
from analysis.load.records import COLUMNS
from analysis.report.export import NOT_EXPORTED, STEP_COLUMNS
from commands.run.validate import refuse_ignored
from suite.errors import RequestError
from tests import reference

REPOSITORY = Path(__file__).parents[1]
DOCUMENTS = [*sorted(REPOSITORY.glob("*.md")), *sorted(REPOSITORY.glob("docs/**/*.md"))]
FOLDERS = "|".join((*reference.ROOMS, "tests", "benchmarks", "docker", "plans", "docs"))
EXPORTED = [name for name in COLUMNS if name not in ("metrics", *NOT_EXPORTED)]


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings, as GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield the links to other files or headings: as written, the file, and the anchor."""
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if not link.startswith(("https://", "http://")):
            path, _, anchor = link.partition("#")
            yield link, (page.parent / path).resolve() if path else page, anchor


@pytest.mark.parametrize("page", reference.PAGES, ids=lambda page: page.stem)
def test_a_generated_page_is_up_to_date(page: Path) -> None:
    assert reference.generated(page.read_text()) == page.read_text(), "run: python -m tests.reference"


def test_every_generated_part_is_on_a_page() -> None:
    text = "".join(page.read_text() for page in reference.PAGES)
    assert set(re.findall(r"<!-- ([a-z-]+) -->\n", text)) == {*reference.GENERATED, "end"}


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_links_lead_to_files_and_headings(page: Path) -> None:
    broken = [
        link
        for link, file, anchor in links(page)
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file))
    ]
    assert broken == []


def named(pattern: str) -> set[tuple[Path, str]]:
    """Return what matches on each page, in text, in code and in links."""
    return {(page, match) for page in DOCUMENTS for match in re.findall(pattern, page.read_text())}


def test_pages_name_files_folders_and_classes_that_exist() -> None:
    found = named(rf"(?<![\w./-])((?:{FOLDERS})/[\w./-]*\w)")
    assert len(found) > 30
    assert {
        (page, path) for page, path in found if not ((REPOSITORY / path).exists() or (page.parent / path).exists())
    } == set()
    names = {name for _, name in named(rf"`((?:{FOLDERS})(?:\.\w+)+)`")}
    assert {type(pkgutil.resolve_name(name)) for name in names} <= {type, abc.ABCMeta}
    assert names


def test_pages_name_files_that_the_suite_writes_or_a_test_reads() -> None:
    """A bare name is that of a file here, or occurs in code: figures, ``manifest.json``, ``my_model.py``."""
    files = [path for folder in FOLDERS.split("|") for path in (REPOSITORY / folder).rglob("*") if path.is_file()]
    code = "".join(path.read_text() for path in files if path.suffix == ".py")
    found = named(r"`(?:[\w.-]+/)*([\w.-]+\.(?:png|svg|html|md|py|json|toml|yaml))`")
    assert len(found) > 30
    here = {path.name for path in (*files, *DOCUMENTS)}
    assert {(page, name) for page, name in found if name not in here and name not in code} == set()


def test_the_index_names_every_page() -> None:
    named = {file for _, file, _ in links(REPOSITORY / "docs" / "README.md")}
    assert {page.resolve() for page in REPOSITORY.glob("docs/*/*.md")} <= named


def test_code_and_tests_name_pages_that_exist() -> None:
    files = (path for room in (*reference.ROOMS, "tests", "benchmarks") for path in (REPOSITORY / room).rglob("*.py"))
    named = {(path, page) for path in files for page in re.findall(r"docs/[\w/-]+\.md", path.read_text())}
    assert {(path, page) for path, page in named if not (REPOSITORY / page).exists()} == set()


def refusal(words: list[str]) -> str:
    """Return why a command line is refused before this machine is looked at, else nothing."""
    command: click.Command | None = cli.main
    context, name = None, None
    try:
        while command is not None:
            context = command.make_context(name, words, parent=context)
            words = [*context._protected_args, *context.args]
            name, command, words = (
                command.resolve_command(context, words) if isinstance(command, click.Group) else (None, None, [])
            )
        if request := context and context.params.get("request"):
            refuse_ignored(request)
    except click.exceptions.Exit:
        return ""
    except click.UsageError as error:
        return error.format_message()
    except RequestError as error:
        return "" if error.message.startswith(READERS) else error.message
    return ""


READERS = ("no run in ",)
"""The beginnings of refusals of files that only the reader has."""


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_commands_on_a_page_exist_with_their_options(page: Path) -> None:
    code = re.sub(r"\\\n\s*", "", "\n".join(re.findall(r"^    .*$|^```[^`]*```", page.read_text(), re.MULTILINE)))
    typed = (re.split(" [>|] ", line)[0] for line in re.findall(r"^\s*bench (.*)", code, re.MULTILINE))
    lines = [shlex.split(line, comments=True) for line in typed]
    own = "extending.md"  # its options are those of the examples of that page
    assert [found for words in lines if (found := refusal(words)) and page.name != own] == []


@pytest.mark.parametrize("column", [*EXPORTED, "path", *STEP_COLUMNS])
def test_every_column_of_an_export_is_described(column: str) -> None:
    assert f"`{column}`" in (REPOSITORY / "docs/reference/outputs.md").read_text()
