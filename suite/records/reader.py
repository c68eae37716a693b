"""Reads records, which a stranger may have written, by the table of their columns."""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, TypeVar, get_type_hints

import msgspec
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from suite.errors import RequestError
from suite.job.job import Job
from suite.part import LEAST_MEASURED, MOST_MEASURED, first_problem
from suite.records.columns import Column, declared_fields, part_of
from suite.records.environment import Environments
from suite.records.fields import LONGEST
from suite.records.record import SCHEMA_VERSION, TrialRecord
from suite.untrusted.parse import cleaned, parse

_CURRENT = re.compile(rb'\s*\{\s*"schema_version":\s*%d\s*[,}]' % SCHEMA_VERSION)
"""The beginning of a record as the store writes it. The version of any other text is found by parsing it."""
_MISSING = re.compile("Object missing required field `(.*)`")
_REMEMBERED_BYTES = 1 << 16
_MOST_REMEMBERED = 1000
"""The largest job or environment that is remembered, and how many are."""
_PARTS = ("job", "environment")
"""The fields that most records of a run have in common, and that are most of a record but for its steps."""
_ENVIRONMENTS = msgspec.json.Decoder(Environments)
_T = TypeVar("_T")


class NewerRecordError(RequestError):
    """A record that a later suite has written."""

    kind = "newer-record"


class UnusableRecordError(ValueError):
    """A text that is not a record, or one with a value that no record can have."""


def clean_record(content: bytes) -> bytes:
    """Return the text of a record without characters that could steer a terminal.

    Text that is not JSON comes back unchanged, for the model to refuse. Raises NewerRecordError.
    """
    # Such characters are escaped in JSON, or not ASCII: few records have to be parsed for them.
    odd = b"\\u" in content or b"\x7f" in content or not content.isascii()
    if _CURRENT.match(content) and not odd:
        return content
    try:
        record = parse(content)
    except ValueError:
        return content
    version = None
    if isinstance(record, dict):
        version = record.get("schema_version")
    if type(version) is int and version > SCHEMA_VERSION:
        raise NewerRecordError(
            f"its schema version is {version}, this suite reads up to {SCHEMA_VERSION}",
            remedy="read it with the suite that wrote it, or a newer one",
        )
    safe = cleaned(record) if odd else record
    if safe == record:
        return content
    return json.dumps(safe, indent=1).encode()


class Projection:
    """Some columns of records. ``columns`` are in the order of the values that ``row`` returns.

    ``further`` are fields that are decoded, and no values of a row. ``parts`` are the fields that are kept as text;
    ``model`` declares the others with their bounds.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        further: Sequence[Column] = (),
        parts: Collection[str] = _PARTS,
        model: type[BaseModel] = TrialRecord,
    ) -> None:
        self._parts = parts
        by_part: dict[str, list[Column]] = defaultdict(list)
        for column in columns:
            part = column.path.partition(".")[0]
            by_part[part if part in _PARTS else ""].append(column)
        names = _names((*by_part[""], *further)) | dict.fromkeys(parts, msgspec.Raw)
        record_type = _struct("Record", names, model)
        self._decoder = msgspec.json.Decoder(record_type, dec_hook=_validated)
        self._own, job, environment = (_Values(by_part[name]) for name in ("", *_PARTS))
        self._job_row = remembered(lambda text: job.of(SimpleNamespace(job=job_of(text))))
        self._environment_row = remembered(
            lambda text: environment.of(SimpleNamespace(environment=environments_of(text)))
        )
        self.columns = (*self._own.columns, *job.columns, *environment.columns)

    def decode(self, content: bytes) -> Any:  # noqa: ANN401 (its type is made of the columns)
        """Return a record as an object of the fields that the columns are made of; ``job`` and ``environment`` as text.

        Raises UnusableRecordError with the field that is wrong, and NewerRecordError.
        """
        text = clean_record(content)
        try:
            record = self._decoder.decode(text)
        except (ValueError, RecursionError) as error:  # those of msgspec and of UTF-8 are ValueErrors
            raise UnusableRecordError(_diagnosis(text, error)) from error
        for name in self._parts:
            setattr(record, name, bytes(getattr(record, name)))
        return record

    def values(self, record: Any) -> list[Any]:  # noqa: ANN401
        """Return the values of the columns that are neither of the job nor of the environment."""
        return self._own.of(record)

    def row(self, record: Any) -> tuple[Any, ...]:  # noqa: ANN401
        """Return the values of a decoded record. Raises UnusableRecordError for an unusable job or environment."""
        return (*self._own.of(record), *self._job_row(record.job), *self._environment_row(record.environment))


class _Values:
    """The values of columns, from an object and the objects in it."""

    def __init__(self, columns: Sequence[Column]) -> None:
        by_object: dict[str, list[Column]] = defaultdict(list)
        for column in columns:
            by_object[column.path.rpartition(".")[0]].append(column)
        self.columns = tuple(column for group in by_object.values() for column in group)
        self._groups = []
        for path, group in by_object.items():
            names = [column.path.rpartition(".")[2] for column in group]
            self._groups.append((path.split(".") if path else [], _getter(names), len(group)))
        self._derived = [
            (number, column.kind.derive) for number, column in enumerate(self.columns) if column.kind.derive
        ]

    def of(self, record: Any) -> list[Any]:  # noqa: ANN401
        values: list[Any] = []
        for path, fields, count in self._groups:
            part = record
            for name in path:
                part = getattr(part, name) if part is not None else None
            values += (None,) * count if part is None else fields(part)
        for number, derive in self._derived:
            if values[number] is not None:
                values[number] = derive(values[number])
        return values


def _getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda part: (getattr(part, names[0]),)


def _names(columns: Sequence[Column]) -> dict[str, Any]:
    """Return the names of the fields that the columns are made of, with those inside; None for a whole field."""
    whole = dict.fromkeys(column.path for column in columns if column.is_decoded)
    tree: dict[str, Any] = {}
    for path in whole:
        *above, last = path.split(".")
        if whole.keys().isdisjoint(".".join(above[:end]) for end in range(1, len(above) + 1)):
            node = tree
            for name in above:
                node = node.setdefault(name, {})
            node[last] = None
    return tree


def _struct(name: str, names: dict[str, Any], part: type | None) -> Any:  # noqa: ANN401
    """Return the type, for msgspec, of an object with these fields of a part; without one any value will do."""
    fields: list[Any] = []
    types = get_type_hints(part, include_extras=True) if part else {}
    for key, inner in names.items():
        if inner is msgspec.Raw:
            fields.append((key, inner))
        elif part is None:
            fields.append((key, Any, None))
        else:
            declared = declared_fields(part)[key]
            fields.append((key, *_field(key, inner, types[key], declared)))
    return msgspec.defstruct(name, fields, kw_only=True, gc=False)


def _field(key: str, names: dict[str, Any] | None, kind: Any, field: FieldInfo) -> tuple[Any, ...]:  # noqa: ANN401
    """Return the type of a field, and its default if it has one. Every record has a version."""
    default = None
    if names is None:
        default = field.get_default(call_default_factory=True)
    else:
        kind = _struct(key, names, part_of(kind))
    if field.is_required() or key == "schema_version":
        return (kind,)
    if default is None:
        kind |= None
    return kind, default


def _validated(model: type, value: Any) -> Any:  # noqa: ANN401 (a hook of msgspec)
    """Return a value that has a model of its own in place of bounds: a picture."""
    if not issubclass(model, BaseModel):
        raise NotImplementedError
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise ValueError(first_problem(error)) from error


def bounded(part: Any) -> None:  # noqa: ANN401 (any value of JSON)
    """Raise ValueError for numbers and texts that no table can hold."""
    for value in _inside(part):
        number = abs(value) if isinstance(value, int | float) else 0
        if number > MOST_MEASURED or 0 < number < LEAST_MEASURED or (isinstance(value, str) and len(value) > LONGEST):
            raise ValueError("no job and no machine has such a number, or so long a text")


def _inside(value: object) -> Iterator[object]:
    parts: Iterable[object] = ()
    if isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, list):
        parts = value
    for part in parts:
        yield part
        yield from _inside(part)


def remembered(make: Callable[[bytes], _T]) -> Callable[[bytes], _T]:
    """Return the function with its results remembered for texts that are not too long to keep."""
    short = lru_cache(_MOST_REMEMBERED)(make)
    return lambda text: short(text) if len(text) <= _REMEMBERED_BYTES else make(text)


@remembered
def job_of(text: bytes) -> Job:
    """Return the job of a decoded record. Raises UnusableRecordError."""
    try:
        job = Job.model_validate_json(text)
        bounded(job.model_dump(mode="json"))
    except ValidationError as error:
        raise UnusableRecordError(f"job.{first_problem(error)}") from error
    except ValueError as error:
        raise UnusableRecordError(f"job: {error}") from error
    return job


@remembered
def environments_of(text: bytes) -> Environments:
    """Return the machines of a decoded record. Raises UnusableRecordError."""
    try:
        return _ENVIRONMENTS.decode(text)
    except ValueError as error:
        raise UnusableRecordError(f"environment: {error}") from error


def _diagnosis(content: bytes, error: Exception) -> str:
    """Return why a text is not a record, from the most to the least foreign."""
    try:
        record = msgspec.json.decode(content)
    except (ValueError, RecursionError) as reason:
        return f"it is not JSON ({reason})"
    if not isinstance(record, dict) or not isinstance(record.get("schema_version"), int):
        return "it is not a record of this suite (it has no schema_version)"
    message, _, path = str(error).partition(" - at `$")
    missing = _MISSING.fullmatch(message)
    if missing:
        message = "field required"
        path = f"{path.rstrip('`')}.{missing[1]}"
    return f"{path.strip('.`') or 'the record'}: {message}"
