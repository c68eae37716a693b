"""docs/results.md says what every exported column is."""

from pathlib import Path

import pytest

from analysis.load.fields import COLUMNS
from analysis.report.export import NOT_EXPORTED, STEP_COLUMNS

TEXT = (Path(__file__).parents[1] / "docs" / "results.md").read_text()


EXPORTED = [name for name in COLUMNS if name not in ("metrics", *NOT_EXPORTED)]


@pytest.mark.parametrize("column", [*EXPORTED, "path", *STEP_COLUMNS])
def test_every_column_of_an_export_is_documented(column: str) -> None:
    assert f"`{column}`" in TEXT
