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
_LINE = 51.0
"""The small letters of a line of 3.3 inches, the column of a paper in two columns: 4.6 points each."""
_GAP = 2.6
"""The letters that ``\\tabcolsep`` takes on both sides of a column."""
_NARROWEST = 16
_WIDEST = 40
"""The least and most letters by which columns that are broken into lines share the width."""


def latex(document: Document) -> str:
    """Return a document as LaTeX without its figures, whose tables fit a column of 3.3 inches.

    A table without a caption has the heading above it.
    """
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
    """Yield a table that fits a column: those of numbers in parts below each other, in which rows keep their heads."""
    yield r"\begin{table}[htbp]"
    yield r"\centering\small"
    if caption:
        yield f"\\caption{{{escaped(caption)}}}"
    for number, part in enumerate(_parts(table)):
        if number:
            yield r"\par\smallskip"
        yield from _tabular(part)
    yield r"\end{table}"


def _parts(table: Table) -> Iterator[Table]:
    """Yield a table as several that are narrow enough, or have one column; whole if its texts can be broken."""
    if any(head.wraps for head in table.columns):
        yield table
        return
    head, *columns = _letters(table)
    places: list[int] = []
    width = head + _GAP
    for place, letters in enumerate(columns):
        width += letters + _GAP
        if places and width > _LINE:
            yield table.only(*places)
            places = []
            width = head + letters + 2 * _GAP
        places.append(place)
    yield table.only(*places)


def _letters(table: Table) -> list[int]:
    """Return the letters of the widest cell of each column, that of the heads first."""
    columns = [[table.corner, *(str(head) for head, _ in table.rows)]]
    for place, head in enumerate(table.columns):
        columns.append([str(head), *(line(cells[place]) for _, cells in table.rows)])
    return [max(map(len, texts)) for texts in columns]


def _tabular(table: Table) -> Iterator[str]:
    letters = _letters(table)
    broken = any(head.wraps for head in table.columns) or sum(letters) + _GAP * len(letters) > _LINE
    columns = "l" + "r" * len(table.columns)
    if broken:
        shared = [min(max(number, _NARROWEST), _WIDEST) for number in letters]
        columns = "".join(_paragraph(number / sum(shared)) for number in shared)
    yield f"\\begin{{tabular}}{{{columns}}}"
    yield r"\hline"
    if table.headed:
        yield _row([table.corner, *map(str, table.columns)])
        yield r"\hline"
    for head, cells in table.rows:
        yield _row([str(head), *map(line, cells)])
    yield r"\hline"
    yield r"\end{tabular}"


def _paragraph(share: float) -> str:
    """Return a column of broken lines that has a share of the width."""
    return f"p{{\\dimexpr{share:.3f}\\linewidth-2\\tabcolsep\\relax}}"


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
