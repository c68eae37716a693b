"""Modules as programs of a node: which words reach them."""

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest

from provisioning.processes import program_argv


@pytest.mark.parametrize("word", ["virtbench-0123456789ab", "--", "-c", "a b", "$(false)"])
def test_the_first_word_is_the_programs_first(word: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    spec = importlib.util.spec_from_file_location("program", tmp_path / "program.py")
    assert spec
    argv = program_argv(importlib.util.module_from_spec(spec), word, "last")
    said = subprocess.run(argv, capture_output=True, check=True).stdout
    assert json.loads(said) == [word, "last"]
