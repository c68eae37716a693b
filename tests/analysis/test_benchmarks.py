"""Benchmarks read the records of the suite: a stored one must hold what they need."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

REPOSITORY = Path(__file__).parents[2]


def benchmark(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / f"benchmarks/{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_bare_script_gets_the_job_of_the_suites_trial() -> None:
    record = json.loads((REPOSITORY / "tests/samples/v3.record.json").read_text())
    job = record["job"]
    argv = benchmark("intrusion").bare_argv(Path("/tree"), record)
    assert argv[:2] == ["taskset", "--cpu-list"]
    sizes = [str(job["sizes"][name]) for name in ("batch", "image_px", "warmup_steps", "steps")]
    assert argv[-7:] == [job["model"], *sizes, str(job["envelope"]["threads"]), str(record["seed"])]
