"""``bench results pack`` and ``verify``: an archive from which a reader can recompute every number, and its check."""

import json
import math
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from commands.output import Output
from commands.paths import UserPath, complete_run_name, unpacked
from commands.run.options import shares
from provisioning import ledger
from provisioning.paths import RECIPE
from suite.differ import differ
from suite.errors import RequestError
from suite.results import files
from suite.results.anonymous import Anonymiser
from suite.results.archive import PackList, write_pack
from suite.results.contents import contents_of
from suite.results.layout import ENDING, PLAN, SWEEP, TRIALS
from suite.results.quality import FILE as QUALITY
from suite.results.store import ATTEMPTS, MANIFEST, ListedFile, Manifest, write_atomic
from suite.units import count
from suite.untrusted.parse import parse
from suite.version import suite_version

AUDIT, COMPARISON, PAGE = "audit.json", "comparison.json", "report.html"
_READ = {PLAN, MANIFEST, QUALITY, SWEEP}
"""The files of a run or a sweep, next to its records, that a comparison reads."""
_SHOWN = 10
_README = """\
Records of deep-learning training on bare metal, in containers and in virtual machines, made with virtbench.

runs/              a directory per run or sweep: its plan, and a JSON file per trial with all samples
comparison.json    every ratio with its interval and verdict, and the published claims judged by these records
audit.json         the checks of every record against itself, its plan and its manifest
report.html        tables, figures, environments and the commands that repeat the runs
image/             the recipe of the userland that ran in every target, with its lock file
environment.json   the Python packages that computed the numbers
pack.json          size and SHA-256 of every file; the suite's version with the digest of its code

bench results verify PACK    unpack in a temporary directory, audit and compare again, and hold every number and the
                             page against this pack, bit for bit
bench compare PACK           compare by any option of bench compare
bench reproduce PAPER --expect PACK    measure again, and compare with these records

Nothing in a pack is executed.
"""


class VerifiedPack(Output):
    """A pack that was audited and compared again."""

    pack: Path
    runs: tuple[str, ...]
    made_by: str
    verified_by: str
    """The suite's version with the digest of its code."""
    records: int
    refused: int
    """Records that the audit refuses."""
    numbers: int
    """The numbers of the audit and the comparison that were computed again."""
    differing: tuple[str, ...]
    """The values that differ: ``comparison.json: rows.3.ratio: 0.98 in the pack, 0.97 now``."""
    reworded: tuple[str, ...]
    """Those of them that hold no number: the page, and the advice of warnings."""
    rounded: tuple[str, ...]
    """Those of them that are of the last digits of a number: another processor rounds otherwise."""

    @property
    def decisive(self) -> tuple[str, ...]:
        """Return the differences but those of rounding, and those of words if another version of the suite wrote them.

        The page is drawn from the numbers: where they are rounded otherwise, it may have other bytes.
        """
        excused = set(self.rounded)
        if self.rounded or self.made_by != self.verified_by:
            excused.update(self.reworded)
        return tuple(text for text in self.differing if text not in excused)


_ROUNDING = 1e-12
"""The share by which numbers may differ that are computed by other instructions: some thousand times the last digit."""


@dataclass(frozen=True)
class _Difference:
    """A value of a pack that was computed again and differs."""

    text: str
    is_wording: bool = False
    """Whether it holds no number of its own: another version of the suite may write it in another way."""
    is_rounding: bool = False
    """Whether it is of the last digits of a number."""


@click.command()
@click.argument("places", nargs=-1, required=True, type=UserPath(), shell_complete=complete_run_name)
@click.option("--out", required=True, type=UserPath(), help=f"The archive to write, such as records{ENDING}.")
@click.option("--anonymous", is_flag=True, help="Replace the names of hosts and users, addresses and paths.")
@click.option("--margin", callback=shares, help="Overheads below it are equivalent. Default: the margin of the plans.")
def pack(places: tuple[Path, ...], out: Path, anonymous: bool, margin: float | None) -> None:
    """Pack runs or sweeps for readers who recompute the numbers.

    The pack holds everything that they need to judge them. Kept models and logs are left out.

    \b
    Examples:
      bench results pack results/night --out night.tar.gz
      bench results pack results/paper results/scaling --out artefact.tar.gz --anonymous
    """
    if not out.name.endswith(ENDING):
        raise RequestError(f"--out {out}: a pack is a tar archive compressed by gzip", remedy=f"name it x{ENDING}")
    with ledger.temporary("virtbench-pack") as directory:
        runs = tuple(_copy_runs(places, directory, anonymous=anonymous))
        write_pack(out, *_completed(directory, runs, margin, anonymous=anonymous))
    click.echo(f"packed: {out}, sha256 {ListedFile.of(out).sha256}", err=True)


@click.command()
@click.argument("file", type=UserPath())
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(file: Path, as_json: bool) -> None:
    """Recompute the numbers of a pack, and compare them.

    Its runs are audited and compared again; every number and the page are held against it, bit for bit.

    Another version of the suite may draw the page, and word advice, in another way. Another processor may compute other
    last digits, which are listed. Exit codes: 0 all holds; 1 a number differs, or the audit refuses records; 2 it is no
    pack, or a damaged one.

    \b
    Examples:
      bench results verify night.tar.gz
    """
    verified = _verified(file)
    if as_json:
        verified.tell()
    else:
        click.echo("\n".join(_lines(verified)))
    if verified.decisive or verified.refused:
        sys.exit(1)


def _verified(file: Path) -> VerifiedPack:
    """Audit and compare the runs of a pack again, and hold what comes of it against the pack."""
    with unpacked(file) as (directory, listed):
        remade = recompute(directory, listed.runs, listed.margin)
        packed = {}
        for name in remade:
            if name in listed.files:
                packed[name] = files.read(directory / name)
        audited = parse(remade[AUDIT])
    differences = list(_differences(packed, remade))
    refused = {finding["where"] for finding in audited["findings"] if finding["severity"] == "refused"}
    return VerifiedPack(
        pack=file,
        runs=listed.runs,
        made_by=listed.suite_version,
        verified_by=suite_version(),
        records=audited["records"],
        refused=len(refused),
        numbers=_count_numbers(audited) + _count_numbers(parse(remade[COMPARISON])),
        differing=tuple(difference.text for difference in differences),
        reworded=tuple(difference.text for difference in differences if difference.is_wording),
        rounded=tuple(difference.text for difference in differences if difference.is_rounding),
    )


def _lines(verified: VerifiedPack) -> Iterator[str]:
    runs = ", ".join(verified.runs)
    yield f"{runs}: {count(verified.records, 'record')}, {verified.refused} refused by the audit"
    equal = f"{count(verified.numbers, 'number')} computed again: equal, bit for bit"
    if not verified.differing:
        yield f"{equal}, as is the page"
        return
    if verified.rounded and not verified.decisive:
        equal_numbers = count(verified.numbers - len(verified.rounded), "number")
        yield f"{equal_numbers} computed again: equal, bit for bit; {len(verified.rounded)} to all digits but the last:"
        for text in verified.rounded[:_SHOWN]:
            yield f"  {text}"
        yield "this processor, or its numpy, rounds otherwise"
        return
    if not verified.decisive:
        versions = f"{verified.verified_by} than by {verified.made_by}"
        yield f"{equal}; the page and advice are written in another way by {versions}"
        return
    yield f"{count(len(verified.differing), 'difference')} from the pack:"
    for text in verified.differing[:_SHOWN]:
        yield f"  {text}"
    if verified.made_by != verified.verified_by:
        yield f"the pack was made by {verified.made_by}, and this is {verified.verified_by}: verify with the former"


def _copy_runs(places: Sequence[Path], directory: Path, *, anonymous: bool) -> Iterator[str]:
    """Copy what a comparison reads of runs and sweeps below a directory; yield their names there."""
    names: list[str] = []
    texts: dict[str, bytes] = {}
    for number, place in enumerate(places, start=1):
        plain = f"runs/{place.resolve().name}"
        name = f"runs/run-{number}" if anonymous or plain in names else plain
        names.append(name)
        cells = _cells(place) if anonymous else {}
        for path, text in _read_run(place.resolve()):
            first, *others = path.parts
            renamed = "/".join((cells.get(first, first), *others))
            texts[f"{name}/{renamed}"] = _with_cells(text, cells) if first == SWEEP else text
    if anonymous:
        texts = _anonymised(texts)
    for name, text in texts.items():
        write_atomic(directory / name, text, below=directory)
    yield from names


def _cells(place: Path) -> dict[str, str]:
    """Return names for the cells of a sweep in place of those that hold its settings; none for a run."""
    if not (place / SWEEP).is_file():
        return {}
    cells = [path for path in sorted(place.iterdir()) if path.is_dir()]
    return {path.name: f"cell-{number}" for number, path in enumerate(cells, start=1)}


def _with_cells(text: bytes, cells: Mapping[str, str]) -> bytes:
    """Return the file of a sweep with other names of its cells."""
    value = _value(SWEEP, text)
    if isinstance(value, dict) and isinstance(value.get("cells"), dict):
        value["cells"] = {cells.get(name, name): settings for name, settings in value["cells"].items()}
    return json.dumps(value).encode()


def _read_run(place: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield the files of a run or a sweep that a comparison reads, by their paths in it."""
    contents = contents_of(place)
    for path in contents.own:
        if path.name in _READ or path.parent.name in (TRIALS, ATTEMPTS):
            yield path.relative_to(place), files.read(path)


def _anonymised(texts: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files of runs without names of hosts and users, addresses and paths. Raises RequestError."""
    values = {name: _value(name, text) for name, text in texts.items()}
    anonymiser = Anonymiser([*values.values()])
    renamed: dict[str, bytes] = {}
    for name, value in values.items():
        content = json.dumps(anonymiser.replaced(value), indent=1).encode() + b"\n"
        anonymiser.refuse_remains(name, content)
        renamed[name] = content
    for name in values:
        if Path(name).name == MANIFEST:
            renamed[name] = _relisted(Path(name).parent, texts, renamed)
    return renamed


def _value(name: str, text: bytes) -> Any:  # noqa: ANN401 (any value of JSON)
    try:
        return parse(text)
    except ValueError as error:
        raise RequestError(f"{name} is not JSON: {error}", remedy="remove it, or pack without --anonymous") from error


def _relisted(run: Path, texts: Mapping[str, bytes], renamed: Mapping[str, bytes]) -> bytes:
    """Return the manifest of renamed files. One that was edited before keeps its old digest, and is found by it."""
    listed = Manifest.model_validate_json(texts[f"{run}/{MANIFEST}"])
    described: dict[str, ListedFile] = {}
    for name, file in listed.files.items():
        before = texts.get(f"{run}/{name}")
        unchanged = before is not None and ListedFile.of_content(before) == file
        described[name] = ListedFile.of_content(renamed[f"{run}/{name}"]) if unchanged else file
    return Manifest(files=described).model_dump_json(indent=1).encode() + b"\n"


def _completed(
    directory: Path, runs: tuple[str, ...], margin: float | None, *, anonymous: bool
) -> tuple[dict[str, Path], PackList]:
    """Return all files of a pack by their names, and the list of them. What is computed is written to the directory."""
    texts = {
        "README.txt": _README.encode(),
        "environment.json": json.dumps(_packages(), indent=1).encode() + b"\n",
        **recompute(directory, runs, margin),
    }
    for name, text in texts.items():
        write_atomic(directory / name, text)
    contents = {}
    for path in _files_below(directory):
        contents[path.relative_to(directory).as_posix()] = path
    for path in _files_below(RECIPE):
        contents[f"image/{path.relative_to(RECIPE)}"] = path
    contents["CITATION.cff"] = (Path(__file__).parent / "CITATION.cff").resolve()
    described = {}
    for name in sorted(contents):
        described[name] = ListedFile.of(contents[name])
    listed = PackList(
        suite_version=suite_version(),
        anonymous=anonymous,
        runs=runs,
        margin=margin,
        files=described,
    )
    return contents, listed


def _files_below(directory: Path) -> Iterable[Path]:
    paths = []
    for path in directory.rglob("*"):
        if path.is_file():
            paths.append(path)
    return sorted(paths)


def _packages() -> dict[str, object]:
    """Return the versions of Python and of the suite's packages, which compute the numbers and draw the page."""
    pinned = [line.split("==") for line in metadata.requires("virtbench") or ()]
    versions = {}
    for name, *version in pinned:
        if len(version) == 1:  # the others are those of an extra, which need not be installed
            versions[name] = metadata.version(name)
    return {"python": platform.python_version(), "machine": platform.machine(), "packages": versions}


def recompute(directory: Path, runs: Sequence[str], margin: float | None) -> dict[str, bytes]:
    """Audit and compare the runs of an unpacked directory; return the audit, the comparison and the page as files."""
    # Not at the top: pandas and Matplotlib take a second, and listing runs needs neither.
    from analysis.audit.audit import audit, audited
    from analysis.compare.comparison import compare
    from analysis.compare.published import judge_claims
    from analysis.explain.attribution import explain
    from analysis.load.records import load
    from analysis.report.page import render
    from analysis.report.rows import comparison_output
    from commands.audit import audit_output

    with chdir(directory):  # the names in its files are then those of the pack, wherever it is unpacked
        places = list(map(Path, runs))
        evidence = load(places, warm_ups=True)
        records = audited(load(places))
        compared = compare(records, margin=margin)
        comparison = judge_claims(compared)
        page = "".join(render(records, comparison, explain(records, compared)))
        audit_text = audit_output(audit(evidence), evidence).model_dump_json(indent=1)
        return {
            COMPARISON: comparison_output(comparison).model_dump_json(indent=1).encode(),
            AUDIT: audit_text.encode(),
            PAGE: page.encode(),
        }


def _differences(packed: Mapping[str, bytes], remade: Mapping[str, bytes]) -> Iterator[_Difference]:
    """Yield the values in which the files of a pack differ from those that were computed again."""
    for name, content in remade.items():
        before = packed.get(name)
        if before is None:
            yield _Difference(f"{name} is missing", is_wording=name == PAGE)
        elif before != content and name == PAGE:
            text = f"{name} has other bytes (other packages than in environment.json can draw it otherwise)"
            yield _Difference(text, is_wording=True)
        elif before != content:
            first = dict(_leaves(parse(before)))
            second = dict(_leaves(parse(content)))
            for fact in differ(first, second):
                text = f"{name}: {fact.path}: {fact.first} in the pack, {fact.second} now"
                of_warning = name == COMPARISON and fact.path.startswith("warnings.")
                yield _Difference(
                    text,
                    is_wording=of_warning and fact.path.endswith(".advice"),
                    is_rounding=_is_rounding(fact.first, fact.second),
                )


def _is_rounding(first: object, second: object) -> bool:
    """Return whether two numbers differ by what processors and versions of numpy round otherwise."""
    if not isinstance(first, float) or not isinstance(second, float):
        return False
    return math.isclose(first, second, rel_tol=_ROUNDING, abs_tol=0.0)


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield every value that holds no other, by the dotted path to it."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _leaves(item, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{path}.{number}")
    else:
        yield path, value


def _count_numbers(value: object) -> int:
    return sum(type(item) in (int, float) for _, item in _leaves(value))
