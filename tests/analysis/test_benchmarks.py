"""Benchmarks read the records of the suite: a stored one must hold what they need."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from analysis.statistics.ratios import locate

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


def test_the_power_benchmark_locates_as_the_suite_does_and_finds_the_promised_power() -> None:
    power = benchmark("power")
    values = np.random.default_rng(0).normal(0, 1, (3, 17))
    places = power.located(values)
    for number, row in enumerate(values):
        place = locate(row)
        assert place
        seen = (places.centres[number], places.errors[number], places.freedom)
        assert seen == pytest.approx((place.centre, place.standard_error, place.degrees_of_freedom))
    found = power.simulated(power.Setting("normal", 0.02), runs=2000, seed=1)
    assert 0.75 < found["power"] < 0.87
    assert found["false_positive"] < 0.075
