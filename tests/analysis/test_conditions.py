import json
from pathlib import Path
from typing import Any

import pytest

from analysis.compare.comparison import compare
from analysis.load.records import load
from analysis.warnings.types import AnalysisWarning, notices, skipped_record
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
        ({"interval_s": 10, "steal_s": 1}, "steal-time", "5 % of the CPU time"),
        ({"interval_s": 10, "other_cpu_s": 4}, "other-load", "20 % of the CPU time"),
        ({"interval_s": 10, "throttled_s": 2}, "throttled", "20 % of the time"),
        ({"thermal_throttles": 3}, "thermal-throttling", "3 times"),
        ({"swapped_bytes": 5 << 20}, "swapping", "5 MiB"),
        ({"governor": "powersave"}, "governor", "governor"),
        ({"siblings_shared": True}, "smt-siblings", "same core"),
        ({"numa_nodes": [0, 1]}, "numa-crossing", "2 nodes"),
    ],
)
def test_a_disturbed_trial_gives_a_typed_warning_with_advice(
    tmp_path: Path, save: Any, given: dict[str, object], kind: str, word: str
) -> None:
    (warning,) = found(tmp_path, save, given)
    assert word in warning.message
    assert "vm in 1 of 1 trials" in warning.message
    assert warning.advice
    assert warning.kind == kind


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
    assert warning.kind == "clock-drift"
    assert "2 % apart" in warning.message


@pytest.mark.parametrize(("unfinished_s", "kinds"), [(0.01, []), (1.0, ["unfinished-work"]), (None, [])])
def test_work_that_goes_on_after_the_last_step_is_named(
    unfinished_s: float | None, kinds: list[str], tmp_path: Path, save: Any
) -> None:
    warnings = found(tmp_path, save, None, unfinished_s=unfinished_s)
    assert [one.kind for one in warnings] == kinds
    assert all("had started and not waited for" in one.message and "up to 1 s" in one.message for one in warnings)


def test_other_mitigations_inside_a_target_are_named(tmp_path: Path, save: Any) -> None:
    host, inside = ({"meltdown": how, "mds": "Not affected"} for how in ("Mitigation: PTI", "Vulnerable"))
    place = {"userland_sha256": "a" * 64, "torch_cpu_capability": "AVX2", "cpu_model": "a CPU"}
    environment = Environments(
        host=Environment.model_validate(place | {"mitigations": host}),
        target=Environment.model_validate(place | {"mitigations": inside}),
    )
    warnings = found(tmp_path, save, None, environment=environment)
    (warning,) = [one for one in warnings if one.kind == "mitigations-differ"]
    assert warning.message.endswith("other CPU mitigations than the host (meltdown): vm")


def test_what_several_targets_share_is_told_once_and_of_one_job_without_its_name() -> None:
    loads = [AnalysisWarning("other-load", "a job: other load", "", f"{target} in 1") for target in ("container", "vm")]
    others = [
        AnalysisWarning("other-load", "another job: other load", "", "vm in 2"),
        AnalysisWarning("mitigations-differ", "a job: other mitigations", "", "vm"),
        skipped_record("a.json", "torn"),
    ]
    told = [one.message for one in notices([loads[0], *others, loads[1]], ["a job"])]
    assert told == [
        "other load: container in 1; vm in 1",
        "another job: other load: vm in 2",
        "other mitigations: vm",
        "a.json is left out: torn",
    ]
    assert notices(loads, ["a job", "another job"])[0].message.startswith("a job: ")
