"""Facts that belong to a target and changed between its trials: named wherever the numbers are."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.audit.audit import audit, audited
from analysis.compare.comparison import compare
from analysis.compare.regression import regress
from analysis.compare.results import Comparison
from analysis.compare.validity import changes
from analysis.load.records import Facts, load
from analysis.report.document import document
from analysis.report.rows import as_csv
from suite.job.sharing import Sharing
from suite.records.environment import Engine, Environment, Environments
from suite.records.fields import checked_part
from suite.records.record import AggressorInstance
from suite.records.usage import GpuUsage, Resources
from tests.analysis.conftest import Save, as_markdown, bench_compare, json_of, measured, printed, record, without_plan
from tests.analysis.test_audit import PODMAN, copied, edited
from tests.analysis.test_interference import beside

HOST = Environment(userland_sha256="a" * 64, torch_cpu_capability="AVX2", cpu_model="a CPU", hostname="node7")
RUNC = "runc 1.1.5 -> 9.9"
MARK = f"changed between trials: {RUNC}"


def runc(version: str, host: Environment = HOST, **facts: Any) -> Environments:
    engine = Engine(name="runc", version=version, network="none", rootfs="directory")
    return Environments(host=host, target=replace(host, container_engine=engine, **facts))


def day(
    save: Save, run: str, number: int, version: str, *, container: float = 0.9, blocks: int = 5, **changes: Any
) -> None:
    """Save a run of bare metal and a container, on a day of its own."""
    times = {"started_at": f"2026-01-{number:02d}T00:00:00+00:00", "engine": "runc"}
    host = changes.pop("host", HOST)
    for block in range(blocks):
        save(run, block=block, environment=Environments(host=host, target=host), **measured(10.0), **times)
        where = {"environment": runc(version, host)} | changes
        save(run, block=block, target="container", **where, **measured(10 * container), **times)


def marks(comparison: Comparison) -> dict[str, list[str]]:
    return {row["target"]: row["notes"] for row in json_of(comparison)["rows"] if row["kind"] == "target"}


@pytest.fixture
def two(save: Save) -> Comparison:
    """Pool a run of runc 1.1.5 and one of runc 9.9."""
    day(save, "old", 1, "1.1.5", container=0.992, blocks=4)  # from ten blocks on their dependence is tested
    day(save, "new", 2, "9.9", container=0.902, blocks=4)
    return save.compare("new", "old")


def test_an_engine_that_changed_between_pooled_runs_is_a_warning_and_a_mark_at_its_target_alone(
    two: Comparison,
) -> None:
    (warning,) = two.warnings
    assert warning.kind == "changed"
    assert warning.message.endswith(f"{MARK}: container")
    assert {touched.target for touched in warning.touches} == {"container"}
    assert marks(two) == {"bare-metal": [], "container": [MARK]}
    assert {one.target: one.notes for one in two.groups[0].costs} == {"bare-metal": (), "container": (MARK,)}


def test_every_form_says_the_change_beside_the_number(two: Comparison, save: Save) -> None:
    page = save.page("old", "new")
    rows = list(csv.DictReader(io.StringIO(as_csv(two))))
    assert {row["notes"] for row in rows if row["target"] == "container"} == {MARK}
    assert f"container ({MARK})" in as_markdown(two)
    assert f'<small class="note">{MARK.replace(">", "&gt;")}</small>' in page
    overview = printed(document(two))
    assert f"[1] {MARK}" in overview
    assert "container [1] " in overview
    assert overview.count(RUNC) == 2, "the answer, and one note"
    assert RUNC in printed(document(two, "full"))
    assert [one.notes for one in save.explain("old", "new").explanations] == [(MARK,)]


def test_three_runs_and_runs_of_many_versions_are_told_in_the_order_of_time(save: Save) -> None:
    for number, version in enumerate(("1.1.5", "1.2", "9.9", "10.0", "11.0"), start=1):
        day(save, f"run-{9 - number}", number, version)
    runs = [f"run-{9 - number}" for number in range(1, 6)]
    assert marks(save.compare(*runs[:3]))["container"] == ["changed between trials: runc 1.1.5 -> 1.2 -> 9.9"]
    assert marks(save.compare(*runs))["container"] == ["changed between trials: runc 1.1.5 -> … -> 11.0 (5 values)"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"environment": runc("1.1.5", torch="2.2")}, "torch unknown -> 2.2"),
        ({"environment": runc("1.1.5", kernel="6.18")}, ""),
        ({"suite_version": "9"}, "suite version 0 -> 9"),
        ({"environment": runc("1.1.5", seccomp="filter")}, ""),
        ({"environment": runc("1.1.5", seccomp="disabled")}, "seccomp as expected -> disabled"),
        ({"environment": runc("1.1.5", seccomp="open")}, "seccomp as expected -> open"),
    ],
    ids=["torch", "a kernel that one run does not know", "suite", "the expected filter", "no filter", "an open one"],
)
def test_other_facts_are_looked_at_in_the_same_way(save: Save, changed: dict[str, Any], said: str) -> None:
    day(save, "old", 1, "1.1.5")
    day(save, "new", 2, "1.1.5", **changed)
    found = [mark for mark in marks(save.compare("old", "new"))["container"] if mark.startswith("changed")]
    assert found == ([f"changed between trials: {said}"] if said else [])


def on_host(**facts: Any) -> dict[str, Any]:
    return {"host": replace(HOST, **facts)}


def with_gpu(**state: Any) -> dict[str, Any]:
    return {"resources": Resources(gpus=[checked_part(GpuUsage, state)])}


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        (on_host(cpu_governor="performance"), on_host(cpu_governor="powersave"), "CPU governor"),
        (on_host(cpu_preference="performance"), on_host(cpu_preference="power"), "CPU energy preference"),
        (on_host(cpu_limit_mhz=3600), on_host(cpu_limit_mhz=2400), "CPU frequency limit in MHz"),
        (on_host(turbo=True), on_host(turbo=False), "CPU turbo"),
        (on_host(smt=True), on_host(smt=False), "SMT"),
        (on_host(transparent_hugepages="always"), on_host(transparent_hugepages="never"), "huge pages"),
        (with_gpu(power_limit_w=700), with_gpu(power_limit_w=350), "GPU power limit"),
        (with_gpu(ecc=True), with_gpu(ecc=False), "GPU memory with ECC"),
        (with_gpu(measured={"sm_mhz": 1980}), with_gpu(measured={"sm_mhz": 1410}), "GPU clock over the measured steps"),
        (with_gpu(measured={"sm_mhz": 1980}), with_gpu(measured={"sm_mhz": 1970}), ""),
    ],
    ids=[
        "governor",
        "preference",
        "limit",
        "turbo",
        "smt",
        "huge pages",
        "power",
        "ecc",
        "clock",
        "about the same clock",
    ],
)
def test_state_of_cpus_and_gpus_that_decides_a_speed_is_named(
    save: Save, before: dict[str, Any], after: dict[str, Any], named: str
) -> None:
    day(save, "old", 1, "1.1.5", blocks=2, **before)
    day(save, "new", 2, "1.1.5", blocks=2, **after)
    pooled = marks(save.compare("old", "new"))["container"]
    gate = regress(save.load("old"), save.load("new"))
    (noted,) = {change.notes for change in gate.changes if change.arm.target == "container"}
    for texts in (pooled, noted):
        assert any(named in text for text in texts) if named else not texts


def test_what_differs_between_hosts_has_not_changed_and_what_changed_on_one_of_them_names_it(save: Save) -> None:
    other = replace(HOST, hostname="node8")
    day(save, "old", 1, "1.1.5")
    day(save, "new", 2, "9.9", host=other)
    assert save.compare("old", "new").warnings == ()
    day(save, "newer", 3, "9.9")
    assert [one.where for one in save.compare("old", "new", "newer").warnings] == ["container on node7"]


def test_a_kernel_of_the_host_is_told_once_for_the_host_and_the_targets_that_share_it(save: Save) -> None:
    for number, (run, kernel) in enumerate((("old", "6.1"), ("new", "6.18")), start=1):
        host = replace(HOST, kernel=kernel)
        day(save, run, number, "1.1.5", host=host)
        guest = Environments(host=host, target=HOST)
        for block in range(5):
            save(run, block=block, target="vm", engine="runc", environment=guest, **measured(8.0))
    assert marks(save.compare("old", "new")) == {
        "bare-metal": ["changed between trials: kernel 6.1 -> 6.18"],
        "container": ["changed between trials: kernel 6.1 -> 6.18"],
        # That its own kernel is not the host's is another matter, and was a mark before.
        "vm": ["changed between trials: host kernel 6.1 -> 6.18"],
    }


def test_an_ablation_and_an_aggressor_are_arms_of_their_own(save: Save) -> None:
    sharing = {"scenario": "shared", "sharing": Sharing(aggressors=("cpu",)), "engine": "runc"}
    aggressors = {None: [AggressorInstance(environment=Environment())], "cpu": [beside(10.0, 5.0)]}
    for number, (run, version) in enumerate((("old", "1.1.5"), ("new", "9.9")), start=1):
        day(save, run, number, "1.1.5")
        for block in range(5):
            switched = {"target": "container", "ablation": "seccomp", "engine": "runc"}
            save(run, block=block, environment=runc(version, seccomp="disabled"), **switched, **measured(9.5))
            for aggressor, speed in ((None, 9.0), ("cpu", 5.0)):
                others = {"aggressor": aggressor, "aggressors": aggressors[aggressor]}
                where = {"target": "container", "environment": runc(version if aggressor else "1.1.5")}
                name = f"victim-{aggressor}-{block}"
                save(run, block=block, trial_id=name, **sharing, **others, **where, **measured(speed))
    found = save.compare("old", "new")
    wheres = {one.where: one.touches for one in found.warnings if one.kind == "changed"}
    assert wheres == {"container, seccomp off": (), "container beside cpu": ()}
    assert not any(MARK in row for row in marks(found).values())
    notes = {one.kind: one.notes for one in found.contrasts if one.metric.name == "throughput"}
    assert [notes[kind] for kind in ("ablation", "aggressor", "isolation")] == [(MARK,)] * 3


def test_a_change_inside_a_run_is_told_once_though_the_audit_finds_it_too(tmp_path: Path) -> None:
    run = copied("synthetic-podman", tmp_path)
    edited(run, PODMAN, lambda one: one["environment"]["target"]["container_engine"].update(version="9.9"))
    records = load([run])
    assert [one.what for one in audit(records).findings if "9.9" in one.what]
    (told,) = (one.message for one in compare(audited(records)).warnings if "9.9" in one.message)
    assert "podman 4.3.1 -> 9.9" in told or "podman 9.9 -> 4.3.1" in told


def test_several_values_of_one_side_are_listed_and_sides_of_the_same_values_are_no_change() -> None:
    one, other = (Facts({"container_engine.name": "runc", "container_engine.version": text}) for text in ("1", "2"))
    assert changes([one, other], [other]) == ("runc 1, 2 -> 2",)
    assert changes([one, other], [other, one]) == ()
    before, after = (Facts({"rank 0/kernel": kernel, "rank 1/kernel": "6.1"}) for kernel in ("6.1", "6.2"))
    assert changes([before], [after]) == ("rank 0 kernel 6.1 -> 6.2",)


def test_the_gate_names_what_changed_from_old_to_new_as_what_may_explain_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for run, version, number in (("old", "1.1.5", 1), ("new", "9.9", 2)):
        for block in range(6):
            for target, where in (("bare-metal", Environments(host=HOST, target=HOST)), ("container", runc(version))):
                values = measured(10 + block / 1000) | {"environment": where, "target": target, "engine": "runc"}
                when = f"2026-01-0{number}T0{block}:0{target == 'container':d}:00+00:00"
                without_plan(tmp_path / run).save(record(run, block=block, started_at=when, **values))
    gate = bench_compare("old", "new", "--fail-above", "5%", columns=200)
    assert gate.exit_code == 0, gate.output
    assert f"changed: {RUNC} on container: it may explain a difference\n" in gate.stdout
    told = json.loads(bench_compare("old", "new", "--fail-above", "5%", "--json").stdout)["changes"]
    assert {(one["target"], *one["notes"]) for one in told} == {("bare-metal",), ("container", RUNC)}
    shown = bench_compare("old", "new", "--markdown").stdout
    assert f"container ({MARK})" in shown
    assert "may explain" not in shown
    assert "new against old" not in shown
