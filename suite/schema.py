"""The published JSON schemas of records and plan files. ``python -m suite.schema`` writes them."""

import json
from pathlib import Path

from suite.records.record import TrialRecord
from suite.sweep.file import Sweep

SCHEMA = Path(__file__).with_name("record.schema.json")
SWEEP_SCHEMA = Path(__file__).with_name("sweep.schema.json")


def record_schema() -> str:
    return json.dumps(TrialRecord.model_json_schema(), indent=1, sort_keys=True) + "\n"


def sweep_schema() -> str:
    return json.dumps(Sweep.model_json_schema(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(record_schema())
    SWEEP_SCHEMA.write_text(sweep_schema())
