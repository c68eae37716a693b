"""The elements of a document: headings, tables, lines and figures, which terminal, Markdown and page render."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from analysis.compare.results import Contrast, Effect
from analysis.report.formatting import one_line, ratio, verdict
from analysis.statistics.ratios import Verdict
from analysis.warnings.types import AnalysisWarning
from suite.units import number


@dataclass(frozen=True)
class Heading:
    """The heading of a part. ``context`` is the job, ``notes`` must be read with all numbers below it."""

    text: str
    context: str = ""
    notes: tuple[str, ...] = ()
    rank: int = 3
    """2 for a job, 3 for a model or a part, 4 for what stands close to the lines above it."""


@dataclass(frozen=True)
class Line:
    """A sentence. ``style`` is one of ``terminal.STYLES``; ``label`` stands before the text and is a style, too."""

    text: str
    style: str = ""
    label: str = ""
    indent: int = 0
    column: str = ""
    """The column that the line explains; without such a column above, it is left out."""


@dataclass(frozen=True)
class CommandLine:
    """A command with its remark, on a line that nothing breaks, so that it can be pasted; ``label`` stands above it."""

    text: str
    label: str


@dataclass(frozen=True)
class Notes:
    """Lines that explain what stands above them."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class Figure:
    """A picture as a data URI, with what it shows and the text that stands for it. Only the page shows it."""

    uri: str
    caption: str
    alternative: str
    small: bool = False
    """Whether it stands beside others."""
    folded: bool = False
    """Whether only its caption is shown until it is asked for."""


@dataclass(frozen=True)
class Styled:
    """A text in a style of its meaning: a verdict, an outcome."""

    text: str
    style: str


@dataclass(frozen=True)
class Bar:
    """One part of a waterfall, in per cent of the width. Only the page shows it."""

    left: float
    width: float
    kind: str


Cell = Effect | Styled | Bar | tuple[str, ...] | str | None
"""A number of the comparison, a text, or texts that belong together (inside and all-in); None if not measured."""


@dataclass(frozen=True)
class Head:
    """The head of a row or a column. Its numbers must not be read without the notes."""

    text: str
    notes: tuple[str, ...] = ()
    style: str = ""
    """The style of the whole row."""
    wraps: bool = False
    """Whether the texts of the column may be broken between words."""

    def __str__(self) -> str:
        return " ".join((self.text.strip(), *(f"({note})" for note in self.notes)))


@dataclass(frozen=True)
class Table:
    """Rows of cells under heads; ``corner`` says what the rows are, ``across`` what the columns are."""

    corner: str
    across: str
    columns: tuple[Head, ...]
    rows: tuple[tuple[Head, tuple[Cell, ...]], ...]
    caption: str = ""
    compact: bool = False
    """Whether every row is one line, with its notes beside its head; such a table is not turned."""
    narrower: "Table | None" = None
    """The same with fewer columns, for a terminal that has no room for all."""

    @property
    def headed(self) -> bool:
        """Whether the columns have heads; those of an answer need none."""
        return bool(self.corner) or any(head.text for head in self.columns)

    def only(self, *places: int) -> "Table":
        """Return the table with these columns alone, and with no narrower form."""
        rows = []
        for head, cells in self.rows:
            rows.append((head, tuple(cells[number] for number in places)))
        return replace(
            self,
            columns=tuple(self.columns[number] for number in places),
            rows=tuple(rows),
            narrower=None,
        )

    def turned(self) -> "Table":
        """Return the table with its rows as columns."""
        columns = tuple(head for head, _ in self.rows)
        rows = []
        for column, head in enumerate(self.columns):
            rows.append((head, tuple(cells[column] for _, cells in self.rows)))
        return Table(self.across, self.corner, columns, tuple(rows), self.caption)


Element = Heading | Table | Line | CommandLine | Notes | Figure
Document = Iterable[Element]


def with_explained_columns(document: Document) -> Iterator[Element]:
    """Yield a document without the lines on columns that it does not have."""
    columns: set[str] = set()
    for element in document:
        if isinstance(element, Table):
            columns |= {head.text for head in element.columns}
        if not isinstance(element, Line) or not element.column or element.column in columns:
            yield element


def line(cell: Cell) -> str:
    """Return a cell in one line: ``12.3 0.972x (0.951 to 0.989), slower``; a dash if nothing was measured."""
    match cell:
        case Contrast(value=float(value)):
            return f"{number(value)} {ratio(cell)}".rstrip()
        case Effect():
            return ratio(cell)
        case Styled():
            return cell.text
        case Bar():
            return ""
        case tuple():
            return " / ".join(cell)
        case _:
            return "-" if cell is None else cell


def styled(found: Verdict) -> Styled:
    return Styled(verdict(found), found.name or "no verdict")


def warnings(raised: Iterable[AnalysisWarning]) -> Iterator[Line]:
    for notice in raised:
        yield Line(one_line(notice.message), label="warning")
        yield Line(one_line(notice.advice), "dim", indent=2)
