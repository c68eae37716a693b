import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.compare.comparison import compare
from analysis.compare.convergence import should_stop_run
from analysis.compare.regression import regress
from analysis.compare.results import Comparison
from analysis.load.records import load
from analysis.report.document import document
from analysis.report.markdown import as_markdown
from analysis.statistics.sequential import EXTRA_BLOCKS
from tests.analysis.conftest import WITHIN_2, printed, probe


def disk(factor: float, rng: np.random.Generator) -> dict[str, Any]:
    noise = [math.exp(rng.normal(0, 0.002)) for _ in range(4)]
    return probe(
        "disk",
        seq_read_throughput=(500 * factor * noise[0], "MiB/s", "more"),
        seq_write_throughput=(300 * noise[1], "MiB/s", "more"),
        random_read_iops=(9000 * factor * noise[2], "1/s", "more"),
        random_read_latency_p99=(80 / factor * noise[3], "us", "less"),
    )


def sweep(path: Path, save: Any, blocks: int = 8) -> Comparison:
    """Training and two probes in one run; the VM's disk is at 0.8, its memory as bare metal's."""
    rng = np.random.default_rng(0)
    for block in range(blocks):
        for target, factor in (("bare-metal", 1.0), ("vm", 0.8)):
            notes = ["accelerator:tcg"] if target == "vm" else []
            save(block=block, target=target, substitutes=notes, **disk(factor, rng))
            triad = 20 * math.exp(rng.normal(0, 0.002))
            save(block=block, target=target, **probe("memory", triad=(triad, "GB/s", "more")))
            save(block=block, target=target)
    return compare(load([path / "run"]))


def test_each_probe_is_a_group_with_metrics_of_its_own(tmp_path: Path, save: Any) -> None:
    comparison = sweep(tmp_path, save)
    found = {group.model: group for group in comparison.groups}
    assert list(found) == ["resnet50", "disk", "memory"]
    assert [metric.name for metric in found["memory"].metrics] == ["triad"]
    assert [metric.name for metric in found["resnet50"].metrics] == ["throughput", "elapsed", "opening", "step-tail"]
    vm = found["disk"].of_target("vm")
    assert found["disk"].targets[1].notes == ("accelerator:tcg",)
    verdicts = {name: one.verdict.name for name, one in vm.items() if one.verdict}
    assert verdicts == {
        "seq-read-throughput": "slower",
        "seq-write-throughput": "equivalent",
        "random-read-iops": "slower",
        "random-read-latency-p99": "slower",
    }
    assert vm["random-read-latency-p99"].ratio == pytest.approx(1 / 0.8, rel=0.01)
    assert (noise := vm["random-read-iops"].noise)
    assert noise.method == "across-blocks"
    assert comparison.of_kind("models") == {}
    assert comparison.warnings == ()


@pytest.mark.parametrize("width", [40, 80, 120])
def test_many_metrics_are_rows_and_few_are_columns(tmp_path: Path, save: Any, width: int) -> None:
    comparison = sweep(tmp_path, save, 2)
    text = printed(document(comparison), width)
    assert max(map(len, text.splitlines())) <= width
    for word in ("random-read-latency-p99", "seq-write-throughput", "accelerator:tcg", "triad"):
        assert word in text
    markdown = as_markdown(comparison)
    assert "| metric | bare-metal | vm (accelerator:tcg) |" in markdown
    assert "| target | triad GB/s | trials |" in markdown


def test_a_probe_of_another_userland_is_refused_and_without_bare_metal_the_advice_names_the_probe(
    tmp_path: Path, save: Any
) -> None:
    rng = np.random.default_rng(0)
    save(**disk(1, rng))
    save(target="vm", userland="b" * 64, **disk(1, rng))
    first, second = compare(load([tmp_path / "run"])).warnings
    assert first.kind == "incomparable"
    assert second.kind == "not-normalised"
    assert second.advice == ("bench run --scenario probe --profile quick --probe disk --target bare-metal --target vm")


def test_a_metric_in_another_unit_is_left_out_and_named(tmp_path: Path, save: Any) -> None:
    save(**probe("memory", triad=(20.0, "GB/s", "more")))
    save(target="vm", **probe("memory", triad=(20_000.0, "MB/s", "more")))
    comparison = compare(load([tmp_path / "run"]))
    assert comparison.groups[0].of_target("vm") == {}
    (warning,) = (one for one in comparison.warnings if one.kind == "metric-redefined")
    assert "memory/triad is not in GB/s, or has another direction, in 1 records" in warning.message


def test_a_probe_whose_every_trial_failed_and_one_that_gained_a_metric_are_no_error(tmp_path: Path, save: Any) -> None:
    save("failed", scenario="probe", model="disk", failed="fio is missing")
    (group,) = compare(load([tmp_path / "failed"])).groups
    assert (group.metrics, group.targets[0].failed) == ((), 1)
    assert "failed" in as_markdown(compare(load([tmp_path / "failed"])))
    save(**probe("memory", triad=(20.0, "GB/s", "more")))
    save(target="vm", **probe("memory", triad=(10.0, "GB/s", "more"), copy=(5.0, "GB/s", "more")))
    vm = compare(load([tmp_path / "run"])).groups[0].of_target("vm")
    assert vm["triad"].ratio == pytest.approx(0.5)
    assert vm["copy"].ratio is None


def test_the_same_name_in_two_probes_is_two_metrics(tmp_path: Path, save: Any) -> None:
    for target, factor in (("bare-metal", 1), ("vm", 0.5)):
        save(target=target, **probe("memory", rate=(20.0 * factor, "GB/s", "more")))
        save(target=target, **probe("network", rate=(9.0, "Gbit/s", "more")))
    memory, network = compare(load([tmp_path / "run"])).groups
    assert memory.of_target("vm")["rate"].ratio == pytest.approx(0.5)
    assert network.of_target("vm")["rate"].ratio == pytest.approx(1.0)
    assert network.metrics[0].unit == "Gbit/s"


def test_probes_are_stopped_by_their_own_metrics_and_compared_across_time(tmp_path: Path, save: Any) -> None:
    rng = np.random.default_rng(0)
    for block in range(5 + EXTRA_BLOCKS):
        for target in ("bare-metal", "vm"):
            save(block=block, target=target, **disk(1, rng))
    records = load([tmp_path / "run"])
    assert should_stop_run(records, WITHIN_2, max_blocks=99).stop
    changes = regress(records, records).changes
    assert {change.metric.name for change in changes} == {
        *("seq-read-throughput", "seq-write-throughput", "random-read-iops", "random-read-latency-p99")
    }
