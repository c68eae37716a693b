"""The published JSON schemas, and the tables of docs/sweeps.md (keys of plan files) and docs/differences.md.

``python -m suite.schema`` writes them; tests hold them against the models.
"""

import json
from pathlib import Path

from pydantic import BaseModel

from suite.records.differences import as_table
from suite.records.record import TrialRecord
from suite.request.request import OPTIONS
from suite.sweep.model import CELL_KEYS, ELSEWHERE, Budget, OutputOptions, Sweep, SweepEngine

SCHEMA = Path(__file__).with_name("record.schema.json")
SWEEP_SCHEMA = Path(__file__).with_name("sweep.schema.json")
DOCUMENT = Path(__file__).parents[1] / "docs" / "sweeps.md"
DIFFERENCES = DOCUMENT.with_name("differences.md")


def record_schema() -> str:
    """Return the schema of a record, as it is published."""
    return json.dumps(TrialRecord.model_json_schema(), indent=1, sort_keys=True) + "\n"


def sweep_schema() -> str:
    """Return the schema of a plan file, as it is published."""
    return json.dumps(Sweep.model_json_schema(), indent=1, sort_keys=True) + "\n"


def with_key_tables(document: str) -> str:
    """Return the document with its two tables of keys made anew: those of all cells, and those of one."""
    own: dict[str, type[BaseModel]] = {"": Sweep, "budget.": Budget, "output.": OutputOptions, "engine.": SweepEngine}
    whole = {
        f"{prefix}{name}": str(field.description)
        for prefix, model in own.items()
        for name, field in sorted(model.model_fields.items(), key=lambda each: each[0] in ELSEWHERE)
    }
    whole |= {key: OPTIONS[name].description() for name, key in ELSEWHERE.items() if name != "budget"}
    tables = {
        "whole": ["| key | meaning |\n|---|---|", *(f"| `{key}` | {meaning} |" for key, meaning in whole.items())],
        "cell": [
            "| key | scenarios | meaning |\n|---|---|---|",
            *(f"| `{name}` | {OPTIONS[name].whose()} | {OPTIONS[name].description()} |" for name in CELL_KEYS),
        ],
    }
    for name, rows in tables.items():
        document = _with(document, f"keys: {name}", name, "\n".join(rows))
    return document


def with_differences(document: str) -> str:
    """Return the document with its table of fields made anew."""
    return _with(document, "fields", "fields", as_table())


def _with(document: str, begin: str, end: str, text: str) -> str:
    """Return the document with other text between two comments."""
    first, last = f"<!-- {begin} -->\n", f"\n<!-- end: {end} -->"
    before, _, rest = document.partition(first)
    return "".join([before, first, text, last, rest.partition(last)[2]])


if __name__ == "__main__":
    SCHEMA.write_text(record_schema())
    SWEEP_SCHEMA.write_text(sweep_schema())
    DOCUMENT.write_text(with_key_tables(DOCUMENT.read_text()))
    DIFFERENCES.write_text(with_differences(DIFFERENCES.read_text()))
