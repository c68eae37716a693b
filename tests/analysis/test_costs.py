from typing import Any

import pytest

from analysis.compare.results import Comparison
from analysis.report.document import document, more_options
from suite.job.datasets import Dataset
from suite.job.distributed import DistributedJob
from suite.job.lab import LabSpec
from suite.job.profiles import Sizes
from suite.records.record import DataUse
from suite.records.usage import Resources, Usage
from suite.targets import TARGETS
from tests.analysis.conftest import Save, as_markdown, json_of, known, printed

MIB = 1 << 20
WORK = Sizes(batch=10, image_px=32, warmup_steps=1, steps=4)


def used(inside_s: float, all_in_s: float | None, energy: dict[str, float] | None = None) -> Resources:
    serving = Usage(cpu_s=all_in_s, peak_memory_bytes=700 * MIB, disk_read_bytes=0)
    worker = Usage(cpu_s=inside_s, peak_memory_bytes=500 * MIB, disk_read_bytes=3 * MIB, disk_written_bytes=0)
    return Resources(serving=serving, worker=worker, energy_j=energy)


def shown(comparison: Comparison, width: int) -> str:
    return printed(document(comparison, costs=True), width)


@pytest.mark.parametrize("devices", [1, 2])
def test_start_up_is_told_apart_from_the_rate_of_the_measured_steps(save: Save, devices: int) -> None:
    work = {"sizes": WORK, "devices": devices, "parallel": "none" if devices == 1 else "ddp"}
    work["details"] = {"devices": devices, "measured_usage": {"user_s": 0.3, "system_s": 0.1}}
    for block in range(3):
        save(block=block, **work, resources=used(1.0, 1.1, {"package-0": 20, "dram-0": 5}))
        save(block=block, **work, target="vm", resources=used(1.2, 2.2))
    base, vm = save.compare().groups[0].costs
    # 0.4 s for the 40 images of the measured steps. Processes of other devices are counted when they have ended.
    split = (None, None) if devices == 2 else (pytest.approx(10.0), pytest.approx(0.6))
    assert (base.cpu_steps_s, base.cpu_startup_s, base.unit) == (*split, "1,000 images")
    assert (base.cpu_inside_s, base.energy_j, vm.cpu_all_in_s) == pytest.approx((1.0, 25, 2.2))
    assert (vm.all_in_to_inside, known(vm.normalised).ratio) == pytest.approx((2.2 / 1.2, 2.0))
    assert known(vm.normalised).interval
    assert (base.normalised, vm.energy_j, vm.disk_written_all_in_bytes) == (None, None, None)
    assert (vm.disk_read_inside_bytes, vm.disk_read_all_in_bytes) == (3 * MIB, 0)


def test_what_was_used_is_held_against_what_was_allocated(save: Save) -> None:
    save(sizes=WORK, resources=used(8.0, 10.0))  # two CPUs and 2 GiB for 20 s
    comparison = save.compare()
    (base,) = comparison.groups[0].costs
    memory = (base.memory_used_gib_s, base.memory_allocated_gib_s)
    assert (base.cpu_all_in_s, base.cpu_allocated_s, *memory) == pytest.approx((10, 40, 20 * 700 / 1024, 40))
    text = " ".join(shown(comparison, 160).split())
    assert "10.0 40.0 25 %" in text
    assert "13.7 40.0 34 %" in text


@pytest.mark.parametrize("devices", [1, 2])
def test_all_in_costs_of_a_distributed_job_are_those_of_the_images_of_all_ranks(devices: int, save: Save) -> None:
    job = DistributedJob(strategy="parameter-server", workers=2, servers=1, network="host", lab=LabSpec(nodes=3))
    given = {"devices": devices, "parallel": "parameter-cpu"} if devices > 1 else {}
    work = {"sizes": WORK, "scenario": "distributed", "distributed": job, **given, "details": {"devices": devices}}
    save(**work, resources=used(1.0, 2.5))
    (base,) = save.compare().groups[0].costs
    # 2.5 CPU seconds of everything for 100 images on each device; 1 of the worker that trained on half of them.
    assert (base.cpu_all_in_s, base.cpu_inside_s, base.all_in_to_inside) == pytest.approx((2.5, 1.0, 1.25))


@pytest.mark.parametrize(
    "changes",
    [
        {"details": {"measured_usage": {"user_s": -1.0, "system_s": 0.1}}},
        {"details": {"measured_usage": "much"}},
        {"details": {"measured_usage": {"user_s": 0.3, "system_s": 0.1}}, "data": "generated", "scenario": "real"},
    ],
    ids=["negative", "text", "loaders"],
)
def test_what_is_not_known_of_the_measured_steps_alone_is_not_shown(save: Save, changes: dict[str, Any]) -> None:
    read = real(3 * MIB) if "scenario" in changes else {}
    save(**{**read, **changes, "sizes": WORK, "resources": used(1.0, 1.1)})
    (base,) = save.compare().groups[0].costs
    assert (base.cpu_inside_s, base.cpu_steps_s, base.cpu_startup_s) == pytest.approx((1.0, None, None))


def test_the_costs_of_four_targets_are_one_table_of_80_columns_shown_when_asked_for(save: Save) -> None:
    for target in TARGETS:
        save(target=target, sizes=WORK, resources=used(1.0, 1.1, {"package-0": 20}))
    comparison = save.compare()
    lines = shown(comparison, 80).splitlines()
    assert sum(line.split() == list(TARGETS) for line in lines) == 1
    assert max(map(len, lines)) <= 80
    assert "500 MiB" not in printed(document(comparison), 80)
    assert more_options(comparison, "overview", costs=False) == "; more: --verbose, --costs, --explain"


@pytest.mark.parametrize("width", [40, 80, 100, 160])
def test_the_costs_stand_in_every_form_with_a_dash_where_nothing_is_known(save: Save, width: int) -> None:
    save(sizes=WORK, resources=used(1.0, 1.1))
    # An emulated CPU can count more seconds inside than the emulator took: shown as it is, with the substitute.
    save(sizes=WORK, target="vm", resources=used(4.0, 2.2), substitutes=["accelerator:tcg"])
    save(sizes=WORK, target="container", resources=used(1.0, None))
    comparison = save.compare()
    text = shown(comparison, width)
    assert max(map(len, text.splitlines())) <= width
    for word in ("0.550", "2.000x", "accelerator:tcg", "500 MiB", "700 MiB", "per 1,000"):
        assert word in " ".join(text.split())
    row = "| container | - | - | 1.00 | - | - | - | 500 MiB / 700 MiB | 3.00 MiB / 0 B | 0 B / - | - |"
    assert row in as_markdown(comparison)
    rows = json_of(comparison)["groups"][0]["costs"]
    assert [row["target"] for row in rows] == ["bare-metal", "container", "vm"]
    normalised = rows[2]["normalised"]
    assert (normalised["ratio"], normalised["blocks"], normalised["interval"]) == (pytest.approx(2), 1, None)
    assert (rows[1]["cpu_all_in_s"], rows[1]["normalised"], rows[2]["notes"]) == (None, None, ["accelerator:tcg"])


def test_records_that_counted_nothing_have_no_table_of_costs(save: Save) -> None:
    save(resources=None)
    save(target="vm", resources=None)
    comparison = save.compare()
    assert comparison.groups[0].costs == ()
    assert "CPU s inside" not in as_markdown(comparison)


def data(sha256: str = "d" * 64, **changes: Any) -> DataUse:
    values = {"images": 100, "size_bytes": 100 * MIB, "images_read": 50, "bytes_read": 50 * MIB, "loader_workers": 1}
    return DataUse(kind="imagefolder", sha256=sha256, decoder="pillow", **(values | changes))


def real(read: int | None, state: str = "cold", **changes: Any) -> dict[str, Any]:
    return {
        "scenario": "real",
        "data": "generated",
        "page_cache": state,
        "data_use": data(**changes),
        "dataset": Dataset(kind="imagenet", sha256=changes.get("sha256", "d" * 64), images=10, size_bytes=10 * MIB),
        "resources": Resources(worker=Usage(disk_read_bytes=read), serving=Usage(disk_read_bytes=0)),
    }


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"read": 20 * MIB}, "cold-not-read", "vm in 1 of 1 trials (up to 60 % of the bytes missing)"),
        ({"read": 50 * MIB, "damaged": 3}, "damaged-images", "vm in 1 of 1 trials (up to 3 in a trial)"),
    ],
)
def test_a_cold_trial_that_did_not_read_its_images_from_the_disk_and_damaged_ones_are_named(
    save: Save, changes: dict[str, Any], kind: str, words: str
) -> None:
    save(**real(50 * MIB))
    save(target="vm", **real(**changes))
    (found,) = save.compare().warnings
    assert (found.kind, found.message.endswith(words)) == (kind, True), found


def test_a_warm_trial_more_than_an_epoch_and_an_unknown_counter_are_no_cause_to_warn(save: Save) -> None:
    save("warm", **real(0, "warm"))
    save("epochs", **real(100 * MIB, bytes_read=900 * MIB))
    save("unknown", **(real(None) | {"resources": None}))
    assert [save.compare(run).warnings for run in ("warm", "epochs", "unknown")] == [()] * 3


def test_cold_and_warm_runs_and_other_data_sets_are_groups_of_their_own(save: Save) -> None:
    for run, state, sha256 in (("a", "cold", "d"), ("b", "warm", "d"), ("c", "warm", "e")):
        for target in ("bare-metal", "vm"):
            save(run, target=target, **real(60 * MIB, state, sha256=sha256 * 64))
        save(run, block=1, **(real(60 * MIB, state) | {"failed": "no", "data_use": None}))
    assert [group.job.variant for group in save.compare(*"abc").groups] == [
        f"data_sha256={'d' * 12}, page_cache=cold",
        f"data_sha256={'d' * 12}, page_cache=warm",
        f"data_sha256={'e' * 12}, page_cache=warm",
    ]


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"state": "warm"}, "page cache warm against cold"),
        ({"sha256": "e" * 64}, f"data set {'e' * 12} against {'d' * 12}"),
    ],
)
def test_another_data_set_or_page_cache_in_a_block_is_refused_and_named(
    save: Save, changes: dict[str, str], difference: str
) -> None:
    save(**real(60 * MIB))
    save(target="vm", **real(60 * MIB, **changes))
    (found,) = [each for each in save.compare().warnings if each.kind == "incomparable"]
    assert found.message.endswith(f"no ratio is formed: {difference}")


def test_less_all_in_than_inside_is_explained(save: Save) -> None:
    for target, all_in_s in (("bare-metal", 1.1), ("vm", 0.676)):
        save(target=target, sizes=WORK, resources=used(1.0, all_in_s))
    text = shown(save.compare(), 200)
    assert "CPU seconds all-in below inside (vm): the clock inside runs on" in text
    assert "QEMU's own threads, which share the CPUs of a VM" in " ".join(text.split())
