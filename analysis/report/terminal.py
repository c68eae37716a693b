"""Documents on the terminal, printed by rich: every table in the widest form that fits."""

import textwrap
from collections.abc import Mapping, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from analysis.compare.results import Contrast, Effect
from analysis.report.elements import (
    Cell,
    CommandLine,
    Document,
    Head,
    Heading,
    Line,
    Notes,
    Styled,
    Table,
    line,
    styled,
)
from analysis.report.formatting import difference, ends, one_line, signed, times
from suite.units import number

STYLES: Mapping[str, str] = {
    "": "default",
    "strong": "bold",
    "part": "",
    "equivalent": "cyan",
    **dict.fromkeys(("dim", "undecided", "no verdict"), "dim"),
    **dict.fromkeys(("faster", "found", "confirmed"), "green"),
    **dict.fromkeys(("slower", "fails more", "refused", "missed", "missing", "unusable", "contradicted"), "red"),
}
"""The colours of styles and labels by their meaning; all others are yellow."""
_NARROW = 72  # columns; below, a table would break its words
_NOTE_WIDTH = 20  # columns; a longer note is broken at its blanks and hyphens


class Terminal:
    def __init__(self, document: Document) -> None:
        self.document = tuple(document)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns: set[str] = {""}
        in_part = False
        for element in self.document:
            match element:
                case Heading():
                    if in_part and element.rank < 4:
                        yield Text()
                    yield _heading(element)
                case Table():
                    if element.caption:
                        yield Text(element.caption, style="dim")
                    shown, form = _fitting(console, options, element)
                    columns |= {head.text for head in form.columns}
                    # The console cuts nothing, so that commands stay whole: what pads a table is cut here.
                    yield Padding(shown, 0, expand=False)
                case Line() if element.column in columns:
                    yield _line(element)
                case CommandLine():
                    label = Text(f"{element.label}:", style=_colour(element.label))
                    yield Padding(label, (0, 0, 0, 2), expand=False)
                    # Neither broken nor cut: it is to be pasted.
                    yield Text(element.text, no_wrap=True, overflow="ignore")
                case Notes() if element.lines:
                    yield Text("\n").join(Text(text, style="dim") for text in element.lines)
            in_part = not isinstance(element, Heading)


def _left_out(table: Table, form: Table) -> str:
    """Return the columns that a form of a table has no room for, and what shows them; empty for none."""
    shown = {head.text for head in form.columns} | {head.text for head, _ in form.rows}
    names = [head.text for head in table.columns if head.text not in shown]
    if names:
        return f"no room for {', '.join(names)}; COLUMNS=160 shows them"
    return ""


def _colour(style: str) -> str:
    return STYLES.get(style, "yellow")


def _heading(heading: Heading) -> Text:
    text = Text(heading.text, style="bold")
    if heading.context:
        text.append(f"  {heading.context}", style="not bold")
    notes = [f", {note}" for note in heading.notes]
    return text.append("".join(notes), style="not bold yellow")


def _line(element: Line) -> RenderableType:
    text = Text(one_line(element.text), style=_colour(element.style))
    if element.label:
        label = element.label if element.label.startswith("[") else f"{element.label}:"
        labelled = Text(f"{label} ", style=_colour(element.label))
        text = labelled.append_text(text)
    if element.indent:
        return Padding(text, (0, 0, 0, element.indent), expand=False)
    return text


def _fitting(console: Console, options: ConsoleOptions, table: Table) -> tuple[RenderableType, Table]:
    """Return the widest form of the table that fits: whole, narrower, turned, or as a list; and what it shows."""
    forms = [table]
    while forms[-1].narrower:
        forms.append(forms[-1].narrower)
    if not table.compact:
        forms.append(forms[-1].turned())
    for form in forms:
        shown = _if_fitting(console, options, form)
        if not shown:
            continue
        left_out = "" if form.corner else _left_out(table, form)
        if left_out:
            return Group(shown, Text(left_out, "dim")), form
        return Group(shown), form
    narrowest = forms[-1] if table.compact else forms[-2]
    return _list(narrowest), narrowest


def _if_fitting(console: Console, options: ConsoleOptions, table: Table) -> RichTable | None:
    if options.max_width < _NARROW and not table.compact:
        return None
    shown = RichTable(
        box=None,
        pad_edge=False,
        padding=(0, 1 if table.compact else 2, 0, 0),
        header_style="dim",
        show_header=table.headed,
    )
    columns = _columns(table)
    spare = _add_columns(shown, columns, table)
    without_heads = [texts[1:] for texts in columns]
    for (head, _), *texts in zip(table.rows, *without_heads, strict=True):
        shown.add_row(*texts, style=head.style and _colour(head.style))
    # Measured on a console without an end: on this one rich would take any table to fit, and cut its cells.
    endless = options.update(max_width=10_000)
    needed = console.measure(shown, options=endless).maximum - spare
    return shown if needed <= options.max_width else None


def _add_columns(shown: RichTable, columns: Sequence[Sequence[Text]], table: Table) -> int:
    """Add the heads of columns. Returns by how much all columns together may be narrower than their longest lines."""
    whole = table.compact and table.narrower is not None
    wrapping = [True, *(head.wraps for head in table.columns)]
    spare = 0
    for texts, wraps in zip(columns, wrapping, strict=True):
        least = 0
        longest = 0
        if wraps and not whole:
            least, longest = _widths(texts)
        shown.add_column(
            texts[0],
            justify="left" if wraps else "right",
            no_wrap=not wraps,
            min_width=least or None,
        )
        spare += longest - least
    return spare


def _columns(table: Table) -> list[list[Text]]:
    heads_of_rows = [_head(head, table, "  ") for head, _ in table.rows]
    columns = [[Text(table.corner), *heads_of_rows]]
    for index, head in enumerate(table.columns):
        cells_of_column = [_cell(cells[index]) for _, cells in table.rows]
        columns.append([_head(head, table, ""), *cells_of_column])
    return columns


def _widths(texts: Sequence[Text]) -> tuple[int, int]:
    """Return the width of a column whose words stand below each other, and of one that keeps its lines."""
    least = longest = 0
    for text in texts:
        first, *rest = text.plain.splitlines() or [""]
        # The words of a head may be broken, but its notes keep their lines.
        least = max(least, *map(len, [*first.split(), *rest, ""]))
        longest = max(longest, *map(len, [first, *rest]))
    return least, longest


def _head(head: Head, table: Table, indent: str) -> Text:
    text = Text(head.text)
    for note in head.notes:
        if table.compact:
            text.append(f" {note}", style="yellow")
        else:
            lines = textwrap.wrap(note, _NOTE_WIDTH, break_long_words=False)
            text.append("".join(f"\n{indent}{row}" for row in lines), style="yellow")
    return text


def _list(table: Table) -> Text:
    text = Text()
    for head, cells in table.rows:
        text.append(head.text, style="" if table.compact else "bold")
        if table.compact:
            notes = [f" {note}" for note in head.notes]
            text.append("".join(notes), style="yellow")
            lines = filter(None, map(line, cells))
            text.append(f": {' '.join(lines)}\n")
            continue
        notes = [f", {note}" for note in head.notes]
        text.append("".join(notes) + "\n", style="yellow")
        for column, cell in zip(table.columns, cells, strict=True):
            text.append(f"  {column}: ", style="dim")
            text.append(f"{line(cell)}\n")
    text.rstrip()
    return text


def _cell(cell: Cell) -> Text:
    """Return below each other the value and, if there are, the ratio, its interval and the verdict."""
    if isinstance(cell, Styled):
        return Text(cell.text, style=_colour(cell.style))
    if isinstance(cell, tuple):
        return Text("\n".join(cell))
    if not isinstance(cell, Effect):
        return Text(line(cell))
    ratio = "" if cell.ratio is None else f"{times(cell.ratio)}x"
    if cell.difference:
        ratio = signed(cell.difference.mean)
    first_line = ratio
    if isinstance(cell, Contrast) and cell.value is not None:
        first_line = f"{number(cell.value)} {ratio:>6}".rstrip()
    text = Text(first_line)
    if cell.difference:
        interval = difference(cell.difference).removeprefix(ratio)
        below = interval.replace(" (", "\n").removesuffix(")")
        text.append(below, style="dim")
        if cell.verdict:
            return text.append("\n").append_text(_cell(styled(cell.verdict)))
        return text
    if cell.interval:
        text.append(f"\n{ends(cell.interval)}", style="dim")
        if cell.verdict:
            text.append("\n").append_text(_cell(styled(cell.verdict)))
    return text
