"""Documents as LaTeX: a fragment for ``\\input`` that needs no package."""

import unicodedata
from collections.abc import Iterator, Sequence

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

_ESCAPES = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    **{character: f"\\{character}" for character in "{}$&#_%"},
    # Behind the end of a row, these would be its options.
    **{character: f"{{{character}}}" for character in "[]*"},
    "\N{NO-BREAK SPACE}": "~",
    "\N{EN DASH}": "--",
    "\N{EM DASH}": "---",
    "\N{HORIZONTAL ELLIPSIS}": r"\ldots{}",
    "\N{MINUS SIGN}": "$-$",
    "\N{PLUS-MINUS SIGN}": r"$\pm$",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "\N{LEFTWARDS ARROW}": r"$\leftarrow$",
    "\N{RIGHTWARDS ARROW}": r"$\rightarrow$",
}
_SECTIONS = {2: "subsection*", 3: "subsubsection*", 4: "paragraph"}
_TEXT_WIDTH = 0.65
"""The share of a line that the columns of texts have together."""


def latex(document: Document) -> str:
    """Return a document as LaTeX; figures are left out. A table without a caption has the heading above it."""
    lines: list[str] = []
    heading = ""
    for element in with_explained_columns(document):
        if isinstance(element, Heading):
            heading = element.text
        lines += _block(element, heading)
    return "\n".join(lines) + "\n"


def _block(element: Element, heading: str) -> Iterator[str]:
    match element:
        case Heading():
            title = ": ".join(filter(None, (element.text, element.context)))
            yield f"\\{_SECTIONS[element.rank]}{{{escaped(title)}}}"
            yield from _items(element.notes)
        case Line():
            label = f"\\textbf{{{escaped(element.label)}:}} " if element.label else ""
            text = escaped(element.text)
            if element.style == "strong":
                text = f"\\textbf{{{text}}}"
            yield from (f"{label}{text}", "")
        case CommandLine():
            yield from (f"{escaped(element.label)}: \\texttt{{{escaped(element.text)}}}", "")
        case Notes():
            yield from _items(element.lines)
        case Table():
            yield from _table(element, element.caption or heading)


def _items(texts: Sequence[str]) -> Iterator[str]:
    if texts:
        yield r"\begin{itemize}"
        yield from (f"\\item {escaped(text)}" for text in texts)
        yield r"\end{itemize}"


def _table(table: Table, caption: str) -> Iterator[str]:
    wrapping = [head.wraps for head in table.columns]
    share = _TEXT_WIDTH / max(sum(wrapping), 1)
    columns = "".join(f"p{{{share:.2f}\\linewidth}}" if wraps else "r" for wraps in wrapping)
    yield r"\begin{table}[htbp]"
    yield r"\centering\small"
    if caption:
        yield f"\\caption{{{escaped(caption)}}}"
    yield f"\\begin{{tabular}}{{l{columns}}}"
    yield r"\hline"
    if table.headed:
        yield _row([table.corner, *map(str, table.columns)])
        yield r"\hline"
    for head, cells in table.rows:
        yield _row([str(head), *map(line, cells)])
    yield r"\hline"
    yield r"\end{tabular}"
    yield r"\end{table}"


def _row(texts: Sequence[str]) -> str:
    return " & ".join(map(escaped, texts)) + r" \\"


def escaped(text: str) -> str:
    """Return text that LaTeX prints as it stands; letters that it has not without a package become ``?``."""
    return "".join(_escaped(character) for character in one_line(text))


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    latin = unicodedata.name(character, "").startswith("LATIN")
    if (character.isascii() and character.isprintable()) or (latin and ord(character) < 0x180):
        return character
    return "?"
