import json
from pathlib import Path
from typing import Any

import pytest

from analysis.compare.comparison import compare
from analysis.load.records import load
from analysis.warnings import conditions
from analysis.warnings.types import AnalysisWarning, SkippedRecord
from suite.records.environment import Environment, Environments


def found(path: Path, save: Any, conditions_of_vm: dict[str, object] | None, **changes: Any) -> list[AnalysisWarning]:
    """The warnings of a comparison whose second trial was taken under these conditions."""
    save()
    made = save(target="vm", **changes)
    file = path / "run" / "trials" / f"{made.trial_id}.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"conditions": conditions_of_vm}))
    return list(compare(load([path / "run"])).warnings)


@pytest.mark.parametrize(
    ("given", "kind", "word"),
    [
        ({"interval_s": 10, "steal_s": 1}, conditions.StealTime, "5 % of the CPU time"),
        ({"interval_s": 10, "other_cpu_s": 4}, conditions.OtherLoad, "20 % of the CPU time"),
        ({"interval_s": 10, "throttled_s": 2}, conditions.Throttled, "20 % of the time"),
        ({"thermal_throttles": 3}, conditions.ThermalThrottling, "3 times"),
        ({"swapped_bytes": 5 << 20}, conditions.Swapping, "5 MiB"),
        ({"governor": "powersave"}, conditions.SlowGovernor, "governor"),
        ({"siblings_shared": True}, conditions.SharedSiblings, "same core"),
        ({"numa_nodes": [0, 1]}, conditions.NumaCrossing, "2 nodes"),
    ],
)
def test_a_disturbed_trial_gives_a_typed_warning_with_advice(
    tmp_path: Path, save: Any, given: dict[str, object], kind: type[AnalysisWarning], word: str
) -> None:
    (warning,) = found(tmp_path, save, given)
    assert type(warning) is kind
    assert word in warning.message
    assert "vm in 1 of 1 trials" in warning.message
    assert warning.advice
    assert warning.as_json()["kind"] == kind.kind


@pytest.mark.parametrize(
    "given",
    [
        None,
        {},
        {"interval_s": 10, "steal_s": 0, "other_cpu_s": 0.01, "throttled_s": 0, "swapped_bytes": 0},
        {"governor": "performance", "siblings_shared": False, "numa_nodes": [0], "thermal_throttles": 0},
    ],
)
def test_quiet_and_unknown_conditions_give_no_warning(
    tmp_path: Path, save: Any, given: dict[str, object] | None
) -> None:
    assert found(tmp_path, save, given) == []


def test_a_clock_that_drifts_is_named(tmp_path: Path, save: Any) -> None:
    (warning,) = found(tmp_path, save, None, clock_ratio=1.02)
    assert type(warning) is conditions.ClockDrift
    assert "2 % apart" in warning.message


def test_other_mitigations_inside_a_target_are_named(tmp_path: Path, save: Any) -> None:
    host, inside = ({"meltdown": how, "mds": "Not affected"} for how in ("Mitigation: PTI", "Vulnerable"))
    place = {"userland_sha256": "a" * 64, "torch_cpu_capability": "AVX2", "cpu_model": "a CPU"}
    environment = Environments(
        host=Environment.model_validate(place | {"mitigations": host}),
        target=Environment.model_validate(place | {"mitigations": inside}),
    )
    warnings = found(tmp_path, save, None, environment=environment)
    (warning,) = [one for one in warnings if one.kind == "mitigations-differ"]
    assert isinstance(warning, conditions.MitigationsDiffer)
    assert warning.names == ("meltdown",)


def test_what_several_targets_share_is_told_once_and_of_one_job_without_its_name() -> None:
    load = [conditions.OtherLoad("a job", target, 1, 2, "up to 5 %") for target in ("container", "vm")]
    others = [
        conditions.OtherLoad("another job", "vm", 2, 2, "up to 9 %"),
        conditions.MitigationsDiffer("a job", "vm", ("meltdown",)),
        SkippedRecord(Path("a.json"), "torn"),
    ]
    told = [message for message, _ in conditions.notices([load[0], *others, load[1]], ["a job"])]
    assert told == [
        "other processes used the CPUs of the trial: container in 1 of 2 trials (up to 5 %); "
        "vm in 1 of 2 trials (up to 5 %)",
        "another job: other processes used the CPUs of the trial: vm in 2 of 2 trials (up to 9 %)",
        "the kernel inside has other CPU mitigations than the host (meltdown): vm",
        "a.json is left out: torn",
    ]
    assert conditions.notices(load, ["a job", "another job"])[0][0].startswith("a job: ")
