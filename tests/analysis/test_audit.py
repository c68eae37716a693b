"""The audit: what contradicts itself is refused by name, what a reader should know is named, and real runs pass."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis.audit.audit import audit, audited
from analysis.audit.findings import grouped, warning_of
from analysis.audit.numbers import GAP_S, GAP_SHARE, GAP_STEP_S
from analysis.compare.comparison import compare
from analysis.load.records import Records, load
from analysis.report.rows import as_json
from suite.errors import RequestError
from suite.results.store import Run
from tests.analysis.conftest import bench

RUNS = Path(__file__).parents[1] / "samples" / "runs"
NAMES = sorted(path.parent.relative_to(RUNS).as_posix() for path in RUNS.rglob("plan.json"))
Json = dict[str, Any]
Edit = Callable[[Json], None]


def copied(name: str, place: Path) -> Path:
    """Return a copy of a sample run, without a manifest."""
    run = place / Path(name).name
    shutil.copytree(RUNS / name / "trials", run / "trials")
    shutil.copy(RUNS / name / "plan.json", run)
    return run


def edited(run: Path, trial: str, edit: Edit) -> Path:
    path = run / "trials" / f"{trial}.json"
    record = json.loads(path.read_text())
    edit(record)
    path.write_text(json.dumps(record, indent=1))
    return path


def kinds(run: Path) -> dict[str, str]:
    """Return the severity of each kind of finding."""
    return {one.kind: one.severity for one in audit(load([run], warm_ups=True)).findings if one.kind != "no-manifest"}


PODMAN, DOCKER = "synthetic-alexnet-container-b001", "synthetic-alexnet-container-b000"
DISTRIBUTED, BESIDE = "distributed-alexnet-container-b000", "shared-alexnet-container-beside-cpu-b001"


def held(record: Any, path: str) -> tuple[Any, Any]:
    """Return what holds the value at a path, such as ``ranks.1.role``, and its key there."""
    *parts, last = (int(part) if part.isdigit() else part for part in path.split("."))
    for part in parts:
        record = record[part]
    return record, last


def put(path: str, value: object) -> Edit:
    def edit(record: Json) -> None:
        holder, key = held(record, path)
        holder[key] = value

    return edit


def times(paths: str, factor: float) -> Edit:
    """Multiply the values at paths, of a list the first."""

    def edit(record: Json) -> None:
        for path in paths.split():
            holder, key = held(record, path)
            value = holder[key]
            holder[key] = [value[0] * factor, *value[1:]] if isinstance(value, list) else value * factor

    return edit


def swap_seconds(rank: Json) -> None:
    rank["compute_s"], rank["communicate_s"] = rank["communicate_s"], rank["compute_s"]


@pytest.fixture
def podman(tmp_path: Path) -> Path:
    return copied("synthetic-podman", tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_real_runs_pass_and_only_lack_a_manifest(name: str) -> None:
    found = audit(load([RUNS / name], warm_ups=True))
    # The models of one are too large to be stored with it.
    gone = [("models", "2 of its 2 models are not in models/")] * 4
    lacking = gone if name == "kept" else [("no-manifest", "there is no manifest.json")]
    assert [(one.kind, one.what) for one in found.findings] == lacking


def over_a_limit_that_nothing_sets(record: Json) -> None:
    times("resources.worker.peak_memory_bytes", 100)(record)
    record["substitutes"] = ["memory:not-limited"]


def lines_late_by(first_s: float, last_s: float, launch_s: float) -> Edit:
    """Make a record of a machine on which launching takes longer, and the worker's lines come in so late."""

    def edit(record: Json) -> None:
        timeline, span_s = record["timeline"], record["elapsed_s"]
        record["elapsed_s"] = span_s - timeline["launch_s"] + launch_s - first_s + last_s
        timeline["launch_s"] = launch_s
        record["conditions"]["interval_s"] += record["elapsed_s"] - span_s

    return edit


@pytest.mark.parametrize(
    ("run", "trial", "edit", "refused"),
    [
        ("synthetic-podman", PODMAN, lines_late_by(first_s=1.4, last_s=0.0, launch_s=2.9), False),
        ("synthetic-podman", PODMAN, lines_late_by(first_s=6.0, last_s=1.0, launch_s=9.0), False),
        ("synthetic-podman", PODMAN, lines_late_by(first_s=0.0, last_s=2.0, launch_s=2.9), False),
        ("synthetic-podman", PODMAN, lines_late_by(first_s=1.4, last_s=0.0, launch_s=0.2), True),
        ("synthetic-podman", PODMAN, lines_late_by(first_s=0.0, last_s=2.0, launch_s=0.2), True),
        ("synthetic-podman", PODMAN, times("timeline.launch_s", 100), True),
        ("synthetic-all", "synthetic-alexnet-vm-b000", times("timeline.exit_s", 1.5), True),
    ],
)
def test_lines_may_come_in_late_on_machines_that_launch_slowly_be_they_emulated_or_not(
    run: str, trial: str, edit: Edit, refused: bool, tmp_path: Path
) -> None:
    own = copied(run, tmp_path)
    edited(own, trial, edit)
    assert ("timeline" in {one.kind for one in audit(load([own])).refused}) == refused


@pytest.mark.parametrize(
    "edit", [put("environment.target.container_engine.network", "shared"), over_a_limit_that_nothing_sets]
)
def test_what_engines_without_root_cannot_give_contradicts_nothing(podman: Path, edit: Edit) -> None:
    edited(podman, PODMAN, edit)
    assert not audit(load([podman])).refused


def clock_at_half_speed(record: Json) -> None:
    """Make a record of what a worker tells whose clock is slow while it measures."""
    for name in ("elapsed_s", "compute_s", "data_s"):
        record["steps"][name] = [each / 2 for each in record["steps"][name]]
    times("timeline.measured_s", 0.5)(record)
    times("throughput_per_s", 2)(record)
    record["clock_ratio"] = None


CONTRADICTIONS: tuple[tuple[Edit, str], ...] = (
    (times("throughput_per_s", 100), "throughput"),
    (times("throughput_per_s", 1.0001), "throughput"),
    (times("steps.elapsed_s", 1.1), "steps"),
    (times("steps.compute_s", 0.9), "steps"),
    (lambda record: record["steps"].update(phases={"forward": record["steps"]["elapsed_s"]}), "steps"),
    (put("steps.losses", {"loss": [1.0]}), "steps"),
    (times("timeline.measured_s", 2), "throughput"),
    (times("elapsed_s", 0.5), "timeline"),
    (times("conditions.interval_s", 0.9), "interval"),
    (put("position", 7), "place"),
    (put("seed", 12), "place"),
    (put("job.sizes.batch", 64), "job"),
    (put("job.envelope.cpus", [4, 5]), "job"),
    (put("trial_id", "synthetic-alexnet-container-b007"), "not-of-the-plan"),
    *(
        (put(part, None), "evidence")
        for part in ("steps", "timeline", "conditions", "resources", "timeline.teardown_s")
    ),
    (put("outcome.message", "it was killed"), "outcome"),
    (put("outcome.output_tail", "Killed"), "outcome"),
    (put("environment.target.container_engine.name", "runc"), "inside"),
    (put("environment.target.container_engine.network", "host"), "inside"),
    (put("environment.target.container_engine", None), "inside"),
    (put("environment.target.container_engine.runtime", "kata"), "inside"),
    (put("environment.target.container_engine.kernel", "virtual machine"), "inside"),
    (put("environment.target.accelerator", "kvm"), "inside"),
    (put("environment.target.hypervisor", "KVM"), "inside"),
    (put("environment.target.machine", "n1"), "inside"),
    (put("resources.worker.cpu_s", 0.0), "cpu-time"),
    (times("resources.worker.cpu_s", 100), "cpu-time"),
    (times("resources.serving.cpu_s", 100), "cpu-time"),
    (times("resources.worker.peak_memory_bytes", 100), "memory"),
    (lambda record: record.update(opening={"container": record["open_s"] / 2}), "opening"),
    (put("generated", {"images": 8, "pixels_sha256": "ab" * 32}), "generated"),
    (put("job.generate", 8), "evidence"),
    (put("timeline.generating_s", 60.0), "timeline"),
    (put("timeline.generating_s", 0.001), "generated"),
)
EPOCHS, SERVED, GAN = "real-alexnet-container-b000", "serve-gan-container-b000", "real-gan-container-b000"


@pytest.mark.parametrize(
    ("run", "trial", "edit", "kind"),
    [
        *(("synthetic-podman", PODMAN, edit, kind) for edit, kind in CONTRADICTIONS),
        *(
            ("synthetic-all", f"synthetic-alexnet-{target}-b000", put("environment.target.accelerator", name), "inside")
            for target, name in (("vm", "none"), ("vm", "kvm"), ("container-vm", None), ("bare-metal", "tcg"))
        ),
        *(
            ("epochs", EPOCHS, times(f"metrics.{name}.{part}", 0.5), kind)
            for name in ("epoch", "first-epoch", "checkpoint")
            for part, kind in (("value", "epochs"), ("samples", "metrics"))
        ),
        ("epochs", EPOCHS, times("metrics.epoch.value metrics.epoch.samples", 0.5), "epochs"),
        ("epochs", EPOCHS, times("epochs.seconds", 0.5), None),
        ("epochs", EPOCHS, lambda one: one["epochs"]["seconds"].reverse(), None),
        ("epochs", EPOCHS, times("epochs.steps", 2), None),
        ("epochs", EPOCHS, lambda one: one["epochs"]["seconds"].append(1.0), "epochs"),
        ("epochs", EPOCHS, put("epochs.checkpoints", None), "epochs"),
        ("epochs", EPOCHS, times("timeline.between_epochs_s", 0.1), "epochs"),
        ("epochs", EPOCHS, put("epochs", None), "evidence"),
        ("serve", SERVED, put("metrics.latency-p50.samples", None), "metrics"),
        ("serve", SERVED, times("metrics.cold-start.value", 2), "metrics"),
        *(
            ("serve", SERVED, times(f"metrics.{name}.value", factor), "metrics")
            for name in ("cold-start-with-opening", *(f"latency-{p}" for p in ("p50", "p95", "p99", "p99-at-20-per-s")))
            for factor in (0.5, 2)
        ),
        ("probe", "probe-disk-bare-metal-b000", times("metrics.random-read-depth1-latency-p50.value", 1e3), "metrics"),
        ("command", "command-python3-container-b000", times("throughput_per_s", 2), "throughput"),
        ("command", "command-python3-container-b000", times("metrics.cpu-time.value", 0.5), "metrics"),
        ("distributed-overlay", DISTRIBUTED, lambda one: swap_seconds(one["ranks"][1]), "ranks"),
        ("distributed-overlay", DISTRIBUTED, times("details.devices", 2), "steps"),
        ("synthetic-docker", DOCKER, clock_at_half_speed, "timeline"),
        ("synthetic-docker", DOCKER, put("clock_ratio", None), "evidence"),
        ("synthetic-docker", DOCKER, put("clock_span_s", 0.5), "clocks"),
        ("synthetic-docker", DOCKER, times("resources.serving.cpu_s", 0.5), "cpu-time"),
        ("turns", "synthetic-alexnet-vm-alternating-b000", put("clock_ratio", None), "evidence"),
        ("kept", GAN, put("opening", {}), "opening"),
        ("kept", GAN, times("open_s", 2), "opening"),
        ("kept", GAN, put("kept", []), "evidence"),
        ("kept", GAN, put("timeline.generating_s", None), "evidence"),
        ("kept", GAN, put("kept.0.epoch", 2), "kept"),
        *(("kept", GAN, times(f"kept.{n}.training_s", 0.5), "kept") for n in (0, 1)),
        ("kept", GAN, put("kept.1.weights_sha256", "0" * 64), "kept"),
        ("kept", GAN, put("job.keep_model", "last"), "kept"),
    ],
)
def test_a_record_that_contradicts_its_parts_its_plan_or_its_job_is_refused(
    run: str, trial: str, edit: Edit, kind: str | None, tmp_path: Path
) -> None:
    """Or left out as it is read, where steps do not fit into their epochs."""
    path = edited(copied(run, tmp_path), trial, edit)
    records = load([path.parents[1]])
    refused = audit(records).refused
    if kind:
        assert kind in {one.kind for one in refused}
        assert {one.where for one in refused} == {path}
    else:
        assert [one.kind for one in records.warnings] == ["skipped-record"]


def test_a_model_of_another_size_is_refused(tmp_path: Path) -> None:
    own = copied("kept", tmp_path)
    (own / "models").mkdir()
    for model in json.loads((own / "trials" / f"{GAN}.json").read_text())["kept"]:
        (own / "models" / f"{model['weights_sha256']}.pt").touch()
    assert [kind for kind, severity in kinds(own).items() if severity == "refused"] == ["kept"]


@pytest.mark.parametrize(
    ("run", "trial", "edit", "found"),
    [
        ("kept", GAN, lambda one: one.pop("opening"), {"gap": "named", "models": "named"}),
        ("synthetic-podman", PODMAN, put("conditions.steal_s", None), {"gap": "named"}),
        ("synthetic-podman", PODMAN, put("conditions.busiest", {"python": 1.0}), {}),
        ("synthetic-podman", PODMAN, put("run_id", "0" * 16), {"mixed-block": "named", "not-of-the-plan": "refused"}),
        ("synthetic-podman", PODMAN, put("environment.target.kernel", "1.0"), {"changed": "named"}),
        ("synthetic-podman", PODMAN, lambda one: one.update(global_batch=one["job"]["sizes"]["batch"]), {}),
        (
            "synthetic-podman",
            PODMAN,
            lambda one: one.update(global_batch=2 * one["job"]["sizes"]["batch"]),
            {"steps": "refused"},
        ),
        ("distributed-overlay", DISTRIBUTED, put("ranks.1.sent_bytes", 1), {"traffic": "named"}),
        ("distributed-overlay", DISTRIBUTED, put("ranks.1.throughput_per_s", 99.0), {"ranks": "refused"}),
        ("distributed-overlay", DISTRIBUTED, put("ranks.1.role", "server"), {"ranks": "refused"}),
        ("shared", BESIDE, put("aggressors.0.aggression.steps.0", 10**9), {"aggressors": "refused"}),
    ],
)
def test_what_does_not_fit_the_rest_of_a_run_is_named_or_refused_by_its_kind(
    run: str, trial: str, edit: Edit, found: dict[str, str], tmp_path: Path
) -> None:
    own = copied(run, tmp_path)
    edited(own, trial, edit)
    assert kinds(own) == found


@pytest.mark.parametrize(("device", "refused"), [("cpu", True), ("cuda", False)])
def test_between_steps_on_a_gpu_the_host_may_take_its_time(device: str, refused: bool, tmp_path: Path) -> None:
    own = copied("synthetic-podman", tmp_path)

    def edit(record: Json) -> None:
        record["job"]["devices"]["device"] = device
        measured_s = record["timeline"]["measured_s"]
        steps = record["steps"]
        gap_s = GAP_SHARE * measured_s + GAP_S + GAP_STEP_S * len(steps["elapsed_s"]) / 2
        factor = (measured_s - gap_s) / sum(steps["elapsed_s"])
        for name in ("elapsed_s", "data_s", "compute_s"):
            steps[name] = [factor * step_s for step_s in steps[name]]

    edited(own, PODMAN, edit)
    assert ("steps" in kinds(own)) is refused


def test_a_refused_record_takes_part_in_nothing_unless_it_is_forced_and_then_has_a_mark(podman: Path) -> None:
    def container(records: Records) -> int:
        return compare(records).groups[0].of_target("container")["throughput"].blocks

    before = container(load([podman]))
    edited(podman, PODMAN, times("throughput_per_s", 100))
    left = audited(load([podman]))
    assert [warning.kind for warning in left.warnings] == ["audit-throughput"]
    assert "is left out" in left.warnings[0].message
    forced = audited(load([podman]), force=True)
    assert (container(left), container(forced)) == (before - 1, before)
    (summary,) = (one for one in compare(forced, force=True).groups[0].targets if one.target == "container")
    assert any("forced: audit throughput" in mark for mark in summary.marks)


def test_nothing_left_to_compare_is_an_error_that_names_the_reason(podman: Path) -> None:
    for path in (podman / "trials").iterdir():
        edited(podman, path.stem, times("throughput_per_s", 2))
    with pytest.raises(RequestError, match="refuses every record") as error:
        audited(load([podman]))
    assert "--force" in str(error.value.remedy)


@pytest.mark.parametrize(("strategy", "shares_batch"), [("split", None), ("all-reduce", True)])
def test_the_ranks_of_a_split_gan_train_on_one_batch_and_messages_are_of_all_ranks(
    strategy: str, shares_batch: bool | None, tmp_path: Path
) -> None:
    """The throughput of the whole is that of the first rank, and all other jobs sum them."""
    run = copied("distributed-overlay", tmp_path)

    def split(record: Json) -> None:
        record["job"].update(shares_batch=shares_batch)
        record["job"]["distributed"].update(strategy=strategy, servers=0)
        record["job"]["distributed"]["lab"].update(nodes=2)
        record["ranks"] = [{**one, "rank": number, "links": []} for number, one in enumerate(record["ranks"][1:])]
        record["throughput_per_s"] = record["ranks"][0]["throughput_per_s"]

    path = edited(run, "distributed-alexnet-container-b001", split)
    assert not [one for one in audit(load([run])).findings if one.where == path and one.kind == "ranks"]


@pytest.mark.parametrize(("factor", "contradicts"), [(2, False), (1, True)])
def test_the_devices_of_each_worker_count(factor: int, contradicts: bool, tmp_path: Path) -> None:
    run = copied("distributed-overlay", tmp_path)

    def several(record: Json) -> None:
        for part in (record["job"]["devices"], record["details"]):
            part.update(device="cuda", devices=2, parallel="parameter-cpu")
        for part in (record, *record["ranks"][1:]):
            part["throughput_per_s"] *= factor

    path = edited(run, DISTRIBUTED, several)
    assert ("ranks" in {one.kind for one in audit(load([run])).findings if one.where == path}) == contradicts


def test_a_block_whose_trials_lie_days_apart_is_named(podman: Path) -> None:
    edited(podman, PODMAN, put("started_at", "2030-01-01T00:00:00+00:00"))
    found = kinds(podman)
    assert found.pop("block-order", "named") == "named"
    assert found == {"block-apart": "named"}


def test_two_trials_of_a_block_at_the_same_time_are_both_refused(podman: Path) -> None:
    for trial in ("synthetic-alexnet-container-b001", "synthetic-alexnet-bare-metal-b001"):
        edited(podman, trial, put("started_at", "2026-01-01T00:00:00+00:00"))
    assert len({one.where for one in audit(load([podman])).refused if one.kind == "same-time"}) == 2


def test_edited_missing_and_added_files_are_seen(podman: Path) -> None:
    Run(podman).seal()
    shutil.copytree(podman, copy := podman.with_name("copy"))
    assert {*kinds(podman), *kinds(copy)} == set()
    path = podman / "trials" / f"{PODMAN}.json"
    text = path.read_text()
    path.write_text(text.replace('"replica": 0', '"replica":  0'))
    assert {*kinds(podman)} == {"edited"}
    path.write_text(text)
    path.rename(podman / "away")
    assert {*kinds(podman)} == {"missing"}
    (podman / "away").rename(path)
    record = json.loads((podman / "manifest.json").read_text())
    del record["files"][f"trials/{PODMAN}.json"]
    (podman / "manifest.json").write_text(json.dumps(record))
    assert {*kinds(podman)} == {"unlisted"}


def test_an_edit_that_keeps_the_size_is_seen_and_an_edited_plan_refuses_its_run(podman: Path) -> None:
    Run(podman).seal()
    path = podman / "trials" / f"{PODMAN}.json"
    path.write_text(path.read_text().replace("glibc 2.36", "glibc 2.63"))
    assert "edited" in kinds(podman)
    (podman / "plan.json").write_text((podman / "plan.json").read_text() + "\n")
    with pytest.raises(RequestError, match="refuses every record"):
        audited(load([podman]))


def test_to_continue_a_run_does_not_hide_an_edit_and_a_record_written_anew_is_listed_anew(podman: Path) -> None:
    run = Run(podman)
    run.seal()
    edited(podman, PODMAN, put("close_s", 1.0))
    run.seal()
    assert {*kinds(podman)} == {"edited"}
    edited(podman, PODMAN, lambda one: one["outcome"].update(status="failed", kind="x", message="x"))
    with run.sealed():  # that trial will be run again
        assert {*kinds(podman)} == {"unlisted"}
    assert kinds(podman) == {}


def test_the_command_prints_worst_first_in_80_columns_and_its_exit_code_says_what_was_found(podman: Path) -> None:
    place = os.path.relpath(podman)
    assert bench("audit", place).exit_code == 0
    edited(podman, PODMAN, times("throughput_per_s", 100))
    done = bench("audit", place)
    assert done.exit_code == 1
    assert done.stdout.startswith("refused: throughput")
    assert max(map(len, done.stdout.splitlines())) <= 80
    told = json.loads(bench("audit", place, "--json").stdout)
    assert [one["severity"] for one in told["findings"]] == ["refused", "named"]
    assert bench("audit", f"{place}/nothing").exit_code == 2


def test_findings_of_a_kind_and_run_are_told_together(podman: Path) -> None:
    for block in (0, 1):
        edited(podman, f"synthetic-alexnet-container-b00{block}", times("throughput_per_s", 100))
    (group,) = grouped(audit(load([podman])).refused)
    assert "1 other record for the same reason" in warning_of(group).message
    assert json.loads(as_json(compare(audited(load([podman])))))["warnings"][0]["kind"] == "audit-throughput"


@pytest.mark.parametrize(
    ("chosen", "cpus", "found"), [(True, [7], set()), (True, [7, 8], {"job"}), (False, [7], {"job"})]
)
def test_only_the_numbers_of_cpus_that_a_node_has_chosen_may_be_others_than_the_plans(
    chosen: bool, cpus: list[int], found: set[str], podman: Path
) -> None:
    plan = json.loads((podman / "plan.json").read_text())
    own = plan["jobs"][0]["envelope"] | {"cpus": [0], "node_chosen": chosen}
    plan["jobs"][0]["envelope"] = own
    (podman / "plan.json").write_text(json.dumps(plan))
    for path in (podman / "trials").iterdir():
        edited(podman, path.stem, put("job.envelope", own | {"cpus": cpus}))
    assert kinds(podman).keys() & {"job"} == found
