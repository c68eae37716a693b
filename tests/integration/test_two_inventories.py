"""One machine under two inventories, each with a CPU quota that nothing on it can see."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from analysis.audit.audit import audited
from analysis.compare.by import compare_by
from analysis.compare.results import Contrast
from analysis.load.records import load
from provisioning.cgroup.limits import ROOT
from provisioning.isa import CPUINFO, reports_hypervisor
from tests.integration.machine import require_root_and_image
from tests.integration.ssh_machines import NAMES, ssh_machines
from tests.integration.test_run import bench
from tests.integration.test_ssh_sweep import place

pytestmark = [pytest.mark.integration, pytest.mark.thorough, pytest.mark.timeout(1800)]

SHARES = dict(zip(NAMES, (1.0, 0.7), strict=True))
PERIOD_US, MOST_WEIGHT = 100_000, 262_144
JOB = ("--model", "alexnet", "--profile", "quick", "--batch", "2", "--image-px", "64", "--steps", "40")
CPU = min(os.sched_getaffinity(0))
AGAIN = "again"
PRICES = """
[[place]]
match = {{ inventory = "{name}" }}
currency = "EUR"
source = "this test"
date = 2026-11-01
per_hour = {per_hour}
"""
PER_HOUR = {"one": 1.0, "two": 0.5, AGAIN: 1.0}
"""What makes the slower one cheaper: 0.5 / 0.7 = 71 % of the money of the other."""


@contextmanager
def quota(name: str) -> Iterator[list[str]]:
    """Words before a command that runs it where every control group is made inside one with the machine's quota."""
    group = ROOT / f"cpu/vb-inventory-{name}"
    inside = group / "inside"
    inside.mkdir(parents=True)
    try:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(round(SHARES[name] * PERIOD_US)))
        (group / "cpu.shares").write_text(str(MOST_WEIGHT))  # so that the quota decides, whatever else runs here
        mount = f'mount --bind {inside} {ROOT}/cpu && exec "$@"'
        yield ["unshare", "--mount", "sh", "-c", mount, "sh"]
    finally:
        for directory in (*inside.glob("*/"), inside, group):
            directory.rmdir()


def throughput(records: Path, key: str) -> Contrast:
    found = compare_by(audited(load([records / name for name in NAMES])), (key,))
    _, second = (row for row in found.contrasts if row.metric.name == "throughput")
    return second


def decision(records: Path, *inventories: Path) -> str:
    """What ``bench compare --job`` decides between runs of inventories: its first sentence, with short names."""
    prices = records / "prices.toml"
    prices.write_text("".join(PRICES.format(name=path, per_hour=PER_HOUR[path.stem]) for path in inventories))
    runs = [str(records / path.stem) for path in inventories]
    words = ("--job", "1e6 images", "--prices", str(prices), "--by", "inventory", "--json")
    ended = bench("compare", *runs, *words)
    assert ended.returncode == 0, ended.stderr
    first: str = json.loads(ended.stdout)["answer"][0]
    for path in inventories:
        first = first.replace(str(path), path.stem)
    return first


def test_the_inventory_with_a_quota_of_70_percent_is_slower_by_as_much(tmp_path: Path) -> None:
    require_root_and_image()
    if not (ROOT / "cpu/cpu.shares").exists():
        pytest.skip("needs control groups of version 1, whose controller of CPUs has a tree of its own to mount over")
    with ExitStack() as stack:
        before = {name: stack.enter_context(quota(name)) for name in NAMES}
        inventory = stack.enter_context(ssh_machines(place(), before=before))
        nodes = dict(zip(NAMES, inventory.read_text().split("[[node]]")[1:], strict=True))
        virtual = "virtual = true\n" if reports_hypervisor(CPUINFO.read_text()) else ""
        paths = {name: inventory.with_name(f"{name}.toml") for name in (*NAMES, AGAIN)}
        for name, lines in (nodes | {AGAIN: nodes["one"]}).items():
            paths[name].write_text(f'[[node]]\n{lines.strip()}\ncpus = "{CPU}"\n{virtual}')
        # By turns: a machine that has become slower between two whole runs would be taken for a slower inventory.
        for blocks in ("2", "4", "6"):
            for name, path in paths.items():
                begun = (*JOB, "--inventory", str(path), "--target", "bare-metal", "--threads", "1", "--out")
                words = begun if blocks == "2" else ("--continue",)
                ended = bench("run", *words, str(tmp_path / name), "--blocks", blocks)
                assert ended.returncode == 0, ended.stderr
    second = throughput(tmp_path, "inventory")
    slower, same = decision(tmp_path, paths["one"], paths["two"]), decision(tmp_path, paths["one"], paths[AGAIN])
    assert second.interval
    assert second.verdict
    assert second.interval[0] <= SHARES["two"] <= second.interval[1], second
    assert second.verdict.name == "slower"
    share = r"(\d+) % \((\d+) % to (\d+) %\)"
    times = re.fullmatch(rf"two takes {share} longer and costs {share} less per 1,000,000 images than one\.", slower)
    assert times, slower
    assert int(times[2]) <= 100 * (1 / SHARES["two"] - 1) <= int(times[3]), slower
    assert same.startswith("again "), same
    assert not re.search("longer|less time|costs .* (more|less) ", same), same
