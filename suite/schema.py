"""The published JSON schema of a record: ``python -m suite.schema`` writes it; a test holds it against the model."""

import json
from pathlib import Path

from suite.records import TrialRecord

SCHEMA = Path(__file__).with_name("record.schema.json")


def record_schema() -> str:
    """The schema as it is published."""
    return json.dumps(TrialRecord.model_json_schema(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(record_schema())
