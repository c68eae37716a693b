"""Documents as Markdown."""

import re
from collections.abc import Iterator

from analysis.report.elements import (
    CommandLine,
    Document,
    Element,
    Heading,
    Line,
    Notes,
    Table,
    line,
    with_explained_columns,
)
from analysis.report.formatting import one_line


def markdown(document: Document) -> str:
    """Return a document as Markdown; figures are left out."""
    blocks: list[str] = []
    in_list = False
    for element in with_explained_columns(document):
        is_item = isinstance(element, Line) and bool(element.label or element.indent)
        blocks += [""] if blocks and not (is_item and in_list) else []
        blocks += _block(element)
        in_list = is_item
    return re.sub(r"\n{3,}", "\n\n", "\n".join(blocks)).strip() + "\n"


def _block(element: Element) -> Iterator[str]:
    match element:
        case Heading():
            yield f"{'#' * element.rank} {_escaped(': '.join(filter(None, (element.text, element.context))))}"
            for note in element.notes:
                yield f"- {_escaped(note)}"
        case Line():
            text = f"{element.label}: {element.text}" if element.label else element.text
            if element.style == "strong":
                strong = f"**{_escaped(text)}**"
            else:
                strong = _escaped(text)
            yield f"- {strong}" if element.label else f"{' ' * element.indent}{strong}"
        case CommandLine():
            fence = "`" * (3 + element.text.count("`"))
            yield from (f"{element.label}:", "", f"{fence}sh", element.text, fence)
        case Notes():
            yield from (f"- {_escaped(text)}" for text in element.lines)
        case Table():
            yield from _pipes(element)


def _pipes(table: Table) -> Iterator[str]:
    yield from (_escaped(table.caption), "") if table.caption else ()
    yield _row([table.corner, *map(str, table.columns)])
    yield "|:---|" + "---:|" * len(table.columns)
    for head, cells in table.rows:
        yield _row([str(head), *map(line, cells)])


def _row(texts: list[str]) -> str:
    return f"| {' | '.join(map(_escaped, texts))} |"


def _escaped(text: str) -> str:
    # A link or an image of a name would lead whoever reads the page elsewhere.
    return re.sub(r"([\\|\[\]`])", r"\\\1", one_line(text)).replace("<", "&lt;")
