"""What the engines of sweeps have in common whose elements run on other machines. See docs/clusters.md."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ValidationError

from commands.sweep.blocks import elements_left, files_of, finished, next_round
from suite.errors import MeasurementError, RequestError
from suite.results.store import PLAN
from suite.suggest import nearest

if TYPE_CHECKING:
    from commands.sweep.backends.registry import SweepRequest
    from provisioning.batch.remote import RemotePlace
    from suite.records.record import TrialRecord
    from suite.sweep.model import Sweep

T = TypeVar("T", bound=BaseModel)
Wrap = Callable[[Sequence[str]], list[str]]
ELEMENT = ("sweep", "element")


def options_of(model: type[T], sweep: "Sweep") -> T:
    """The table ``[engine]`` as its engine understands it. Raises RequestError naming the key."""
    try:
        return model.model_validate(sweep.engine.table)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            said, remedy = f"unknown key engine.{key}", nearest(key, list(model.model_fields))
        elif first["type"] == "missing":
            said, remedy = f"engine.{key} is missing", f"add {key} to [engine]"
        else:
            said = f"engine.{key} = {first['input']!r}: {first['msg'].removeprefix('Value error, ')}"
            remedy = "docs/clusters.md has every key"
        raise RequestError(said, remedy=remedy) from error


def run_rounds(request: "SweepRequest", run: Callable[[list[int]], None], at_once: int) -> "list[TrialRecord]":
    """Round after round; returns the new records. Raises MeasurementError when elements did not come to their end."""
    before = finished(request)
    while blocks := next_round(request, at_once):
        run(blocks)
        if request.directory.stop_requested():
            break
        if lost := sorted({*blocks} & {*elements_left(request)}):
            raise MeasurementError(
                f"of {len(blocks)} elements {len(lost)} did not come to their end: {', '.join(map(str, lost))}",
                remedy=f"see what they say in {request.directory.path / 'logs'}; bench sweep run tries them again",
            )
    return [record for key, record in finished(request).items() if before.get(key) != record]


def run_pool(request: "SweepRequest", places: "Sequence[RemotePlace]", blocks: list[int]) -> None:
    from provisioning.batch.pool import Pool

    Pool(places, blocks, request.observer.note, request.directory.stop_requested).run()


def place_of(
    request: "SweepRequest", name: str, wrap: Wrap, element: list[str], take: Callable[[str], None]
) -> "RemotePlace":
    from provisioning.batch.remote import RemotePlace
    from provisioning.batch.slurm import job_name
    from suite.sweep.file_transfer import pack

    directory = request.directory.path.absolute()
    return RemotePlace(
        name=name,
        wrap=wrap,
        element=[*element, "--name", job_name(request.sweep.name, directory)],
        take=take,
        given=lambda block: [pack(directory, path) for path in files_of(directory, block)],
        log=directory / "logs" / f"{name}.log",
    )


def taker_of(directory: Path) -> Callable[[str], None]:
    """What all machines together write to the output directory, one file after the other."""
    from suite.plan import Plan
    from suite.results.store import write_atomic
    from suite.sweep.cell_run import CellRun
    from suite.sweep.file_transfer import opened
    from suite.sweep.pool import POOL, Machine, join_pool

    writing = threading.Lock()  # two machines may send a cell's plan at the same moment

    def take(line: str) -> None:
        name, text = opened(line)
        path = directory / name
        with writing:
            try:
                if name == POOL:
                    join_pool(directory, Machine.model_validate_json(text))
                elif path.name == PLAN:  # refused if it is another than the first machine's
                    CellRun(path.parent, retries=0).begin(Plan.model_validate_json(text))
                else:
                    write_atomic(path, text)
            except ValidationError as error:
                raise MeasurementError(f"{name} came, and is not what it should be", kind="parcel") from error

    return take
