from pathlib import Path
from typing import Any

from analysis.compare.comparison import compare
from analysis.load.records import load
from suite.records.environment import Environment, Environments

FACTS = {"userland_sha256": "a" * 64, "torch_cpu_capability": "AVX2", "cpu_model": "a CPU", "cpus": [0, 1]}


def of(name: str, **changes: Any) -> dict[str, Any]:
    """The environment of a record that was made on this host."""
    host = Environment.model_validate({**FACTS, "hostname": name, "memory_bytes": 64 << 30, "kernel": "6.1"} | changes)
    return {"environment": Environments(host=host, target=Environment.model_validate(FACTS))}


def test_records_of_hosts_that_are_not_equal_are_compared_with_a_warning_that_names_the_difference(
    tmp_path: Path, save: Any
) -> None:
    for target in ("bare-metal", "container"):
        save("a", target=target, block=0, **of("a", mitigations={"mds": "on"}))
        save("b", target=target, block=1, **of("b", mitigations={"mds": "off"}, memory_bytes=32 << 30))
    found = compare(load([tmp_path / "a", tmp_path / "b"]))
    (warning,) = [one for one in found.warnings if one.kind == "hosts-differ"]
    assert warning.message.endswith("(a, b): memory: a 64 GiB, b 32 GiB; mitigations of mds: not the same on a and b")


def test_equal_hosts_are_pooled_without_a_word(tmp_path: Path, save: Any) -> None:
    for target in ("bare-metal", "container"):
        save(target=target, block=0, **of("a"))
        save(target=target, block=1, **of("b"))
    found = compare(load([tmp_path / "run"]))
    assert "hosts-differ" not in [one.kind for one in found.warnings]
    (group,) = found.groups
    assert group.of_target("container")["throughput"].blocks == 2


def test_no_ratio_is_formed_of_trials_of_two_hosts_also_when_they_are_equal(tmp_path: Path, save: Any) -> None:
    save(target="bare-metal", block=0, **of("a"))
    save(target="container", block=0, **of("b"))
    found = compare(load([tmp_path / "run"]))
    (refusal,) = [one for one in found.warnings if one.kind == "incomparable"]
    assert "host b against a" in refusal.message
