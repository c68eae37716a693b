"""Training on a data set, as the host sees it: the set is the planned one, in its state; epochs are whole or scaled."""

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from scenarios.job import run_job, worker_argv
from scenarios.reading import data_of
from scenarios.training import Real, Synthetic
from suite.errors import CommandError, MeasurementError
from suite.interfaces import Completed, Instance
from suite.job.datasets import Dataset
from suite.job.envelope import GIB, Envelope
from suite.job.job import Loading
from suite.job.profiles import Sizes
from suite.plan import Trial
from suite.records.record import EPOCH_METRICS, DataUse
from tests.scenarios.conftest import Account, HereNode, ScriptedNode, ScriptedProcess, fails
from tests.scenarios.pictures import damage, folder
from tests.scenarios.test_job import STEPS, STORY, event
from worker.data.listing import listing
from worker.spec import Data, parse_spec
from worker.workloads.workload import OF_EVERY_TRAINING

SHA256, LISTING = "ab" * 32, "cd" * 32
USE: dict[str, Any] = {"decoder": "simplejpeg", "loader_workers": 2, "images_read": 20, "bytes_read": 4000}
USE |= {"damaged": 1, "damaged_files": ["a/1.jpg"]}
CHECKPOINTS = {"seconds": [0.25, 0.125], "size_bytes": 4096}
MOUNTS = """\
1 1 254:0 / / ro,noatime - ext4 /dev/vda ro
2 1 0:20 / /mnt rw - tmpfs tmpfs rw
3 2 254:16 / /mnt/data ro,noatime shared:1 master:2 - ext4 /dev/vdb ro
4 2 254:16 / /mnt/data2 ro,noatime - overlay overlay ro
"""
DENIED = CommandError(["env"], 1, "the data set cannot be read: [Errno 13] Permission denied: '/mnt/data/a'")
LATE = CommandError(["env"], None, "")
WARM = {"page_cache": "warm"}


@dataclass
class ReadingNode(ScriptedNode):
    """Says of its page cache what it was given."""

    says: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[list[str], float]] = field(default_factory=list)
    fails: CommandError | None = None

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0, check: bool = True) -> Completed:
        if argv == ["cat", "/proc/self/mountinfo"]:
            return Completed(0, MOUNTS, "")
        if "--page-cache" not in argv:
            return super().run(argv, stdin=stdin, timeout_s=timeout_s, check=check)
        if self.fails:
            raise self.fails
        self.asked.append((list(argv), timeout_s))
        seen = {"sha256": LISTING, "files": 20, "size_bytes": 4000, "page_cache_share": 0.0}
        return Completed(0, json.dumps({**seen, **self.says}), "")


@pytest.fixture
def planned(trial: Trial) -> Trial:
    digests: dict[str, Any] = {"sha256": SHA256, "digest": "contents", "listing_sha256": LISTING}
    dataset = Dataset(kind="imagefolder", directory="/data/pets", **digests, images=20, size_bytes=4000)
    return trial.with_job(scenario="real", dataset=dataset, page_cache="cold")


@pytest.fixture
def reading() -> Callable[..., ReadingNode]:
    def make(
        *, data: str | None = "/mnt/data", use: object = USE, fails: CommandError | None = None, **says: Any
    ) -> Any:
        done = event("done", 109.75, **({"data_use": use} if use else {}))
        return ReadingNode(process=ScriptedProcess([*STORY[:-1], done]), data=data, says=says, fails=fails)

    return make


@pytest.fixture
def used(planned: Trial, observer: Any) -> Callable[..., DataUse]:
    """``used(node, page_cache="warm")``: how a job on the node has read its data, by its record."""

    def measured(node: HereNode, **job: Any) -> DataUse:
        use = Real().measure(planned.with_job(**job), [Instance(node)], observer, nullcontext()).data_use
        assert use is not None
        return use

    return measured


@pytest.fixture
def failure(planned: Trial, observer: Any) -> Callable[..., MeasurementError]:
    def failed(node: ScriptedNode, trial: Trial = planned, **job: Any) -> MeasurementError:
        with pytest.raises(MeasurementError) as raised:
            Real().measure(trial.with_job(**job), [Instance(node)], observer, nullcontext())
        assert node.started == [] or raised.value.kind == "protocol", "nothing is launched that cannot count"
        return raised.value

    return failed


def test_the_record_says_what_was_read_and_in_which_state(planned: Trial, used: Any, reading: Any) -> None:
    node = reading(page_cache_share=0.002)
    by_target = {"listing_sha256": LISTING, "page_cache_share": 0.002, "filesystem": "ext4", "device": "/dev/vdb"}
    known = {"kind": "imagefolder", "sha256": SHA256, "images": 20, "size_bytes": 4000}
    assert asdict(used(node, loading=Loading(loader_workers=2))) == {**USE, **known, **by_target}
    argv, timeout_s = node.asked[0]
    assert argv[-5:] == ["-m", "worker", "--page-cache", "cold", "/mnt/data"]
    assert timeout_s == planned.trial_timeout_s


@pytest.mark.parametrize("behind", [False, True])
def test_what_stays_in_memory_is_not_taken_for_cold(behind: bool, failure: Any, reading: Any) -> None:
    """On tmpfs nothing can be evicted; of ZFS the page cache holds nothing, and its own cache all."""
    node = reading(page_cache_share=0.0, data="/mnt/data" if behind else "/mnt/database")
    node.backing = reading(data="/mnt/database") if behind else None
    error = failure(node)
    assert (error.kind, error.message.split(",")[0]) == ("page-cache", "the data set of here lies on tmpfs")
    assert "--cache warm" in (error.remedy or "")


@pytest.mark.parametrize(("state", "share"), [("cold", 0.0), ("warm", 1.0)])
def test_a_page_cache_behind_that_of_the_target_is_emptied_too(
    state: str, share: float, used: Any, reading: Any
) -> None:
    node = reading(page_cache_share=share)
    node.backing = reading(data="/data/pets")
    used(node, page_cache=state)
    assert [argv[-3:] for argv, _ in node.backing.asked] == [["--page-cache", "cold", "/data/pets"]] * (state == "cold")
    assert [argv[-3:] for argv, _ in node.asked] == [["--page-cache", state, "/mnt/data"]]


@pytest.mark.parametrize(("seen", "seccomp"), [(None, "filter"), (1.0, "sentry")])
@pytest.mark.parametrize(("state", "share"), [("cold", 0.0), ("warm", 1.0)])
def test_a_place_that_may_not_see_its_page_cache_is_told_by_the_one_below(
    state: str, share: float, seen: float | None, seccomp: str, used: Any, reading: Any
) -> None:
    node = reading(page_cache_share=seen)
    node.facts = {"seccomp": seccomp}
    node.backing = reading(data="/data/pets", page_cache_share=share)
    assert used(node, page_cache=state).page_cache_share == share
    assert len(node.backing.asked) == 1
    assert [argv[-2] for argv, _ in node.asked] == [state], "the place itself reads all of it, or it could not later"


def test_a_page_cache_of_the_host_is_not_taken_for_that_of_a_guest(
    used: Any, reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.scenarios.test_real.MOUNTS", "1 1 0:5 / /mnt/data ro - virtiofs data ro\n")
    node = reading(page_cache_share=None)
    node.backing = reading(data="/data/pets")
    use = used(node)
    assert (use.filesystem, use.page_cache_share) == ("virtiofs", None)


def test_the_page_cache_is_arranged_before_the_host_counts(planned: Trial, observer: Any, reading: Any) -> None:
    node = reading()
    account = Account(lambda: (len(node.asked), len(node.started)))
    run_job(planned, node, observer, account)
    assert account.seen == [(1, 0), (1, 1)]
    assert observer.phases[:3] == [("attesting", ""), ("page cache", "cold"), ("launching", "")]


def test_the_job_is_told_where_the_data_are_in_the_target(used: Any, reading: Any) -> None:
    node = reading()
    used(node, loading=Loading(loader_workers=3, decoder="pillow"))
    place: dict[str, Any] = {"kind": "worker.data.kinds.imagefolder:IMAGEFOLDER", "directory": "/mnt/data"}
    assert parse_spec(node.started[0][1].decode()).data == Data(**place, loader_workers=3, decoder="pillow")


@pytest.mark.parametrize(("asked", "wanted"), [(None, 2), (0, 0), (5, 5)])
def test_there_is_a_loader_for_each_cpu_unless_told_otherwise(
    asked: int | None, wanted: int, planned: Trial, reading: Any
) -> None:
    trial = planned.with_job(envelope=Envelope(cpus=(0, 3), memory_bytes=GIB, threads=1))
    data: Any = data_of(trial.with_job(loading=Loading(loader_workers=asked)), reading())
    assert data.loader_workers == wanted


@pytest.mark.parametrize(
    ("node", "job", "kind", "words"),
    [
        (
            {"sha256": SHA256, "files": 19, "size_bytes": 3000},
            {},
            "dataset",
            ["another data set: 19 files of 3000 bytes"],
        ),
        *(({"page_cache_share": share}, {}, "page-cache", [f"{share:.1%}"]) for share in (0.0101, 1.0, True)),
        *(({"page_cache_share": share}, WARM, "page-cache", [f"{share:.1%}"]) for share in (0.949, 0.0)),
        *(({"page_cache_share": share}, {}, "protocol", []) for share in (1.5, -0.1, "all")),
        ({"data": None}, {}, "dataset", []),
        ({"fails": DENIED}, {}, "dataset", ["Permission denied"]),
        ({"fails": LATE}, {}, "timeout", ["120 s"]),
        *(
            ({"use": use}, {}, "protocol", [])
            for use in (None, {}, {**USE, "images_read": -1}, {**USE, "colour": 1}, [1])
        ),
        ({}, {"dataset": None}, "dataset", []),
    ],
)
def test_a_data_set_that_is_not_as_planned_fails_the_trial(
    node: dict[str, Any], job: dict[str, Any], kind: str, words: list[str], failure: Any, reading: Any
) -> None:
    error = failure(reading(**node), **job)
    assert error.kind == kind
    assert [word for word in words if word not in error.message] == []
    assert error.remedy or kind == "protocol"


@pytest.mark.parametrize(("state", "share"), [("cold", 0.01), ("warm", 0.95), ("warm", 1), ("cold", None)])
def test_the_state_need_not_be_perfect_and_is_absent_where_the_target_hides_it(
    state: str, share: float | None, used: Any, reading: Any
) -> None:
    assert used(reading(page_cache_share=share), page_cache=state).page_cache_share == share


def test_the_huge_pages_of_an_ablation_are_the_only_change_of_the_allocator(trial: Trial, scripted: Any) -> None:
    plain = worker_argv(scripted(), trial)
    switched = worker_argv(scripted(), trial.model_copy(update={"ablation": "huge-pages"}))
    assert set(switched) - set(plain) == {"GLIBC_TUNABLES=glibc.malloc.hugetlb=1"}
    assert set(plain) <= set(switched)


def test_training_on_files_gives_a_measurement(trial: Trial, here: HereNode, observer: Any, tmp_path: Path) -> None:
    damage(folder(tmp_path, 24), 5)
    seen, here.data = listing(tmp_path), str(tmp_path)
    held: dict[str, Any] = {
        "sha256": SHA256,
        "listing_sha256": seen.sha256,
        "images": 24,
        "size_bytes": seen.size_bytes,
    }
    sizes = Sizes(batch=2, image_px=28, channels=3, warmup_steps=2, steps=3)
    job = {"dataset": Dataset(kind="imagefolder", directory=here.data, **held), "loading": Loading(loader_workers=1)}
    real = trial.with_job(model="gan", sizes=sizes, page_cache="warm", **job)
    measured: Any = Real().measure(real, [Instance(here)], observer, nullcontext())
    assert measured.throughput_per_s is not None
    assert min(measured.steps.data_s or [0]) > 0, "waiting for data and making floats of them takes time"
    use = measured.data_use
    assert (use.decoder, use.loader_workers, use.page_cache_share) == ("simplejpeg", 1, 1.0)
    assert use.images_read >= 2 * 5
    assert use.bytes_read > 0
    assert use.damaged <= 3


def measured(trial: Trial, observer: Any, **said: object) -> Any:
    """What comes of a worker that takes 4 s, in three steps, for what it says it measured."""
    told = event("steps", 109.6, steps=STEPS, losses={"loss": [3.0, 2.0, 1.0]}, **said)
    done = event("done", 109.75, data_use=USE)
    node = ReadingNode(process=ScriptedProcess([*STORY[:-2], told, done]), data="/mnt/data", says={})
    return Real().measure(trial, [Instance(node)], observer, nullcontext())


def of_epochs(planned: Trial, epochs: int) -> Trial:
    sizes = planned.job.sizes
    assert sizes
    return planned.with_job(sizes=sizes.model_copy(update={"epochs": epochs}))


def test_a_share_of_an_epoch_is_scaled_and_called_so(planned: Trial, observer: Any) -> None:
    found = measured(planned, observer)
    # 20 images make 10 steps of 2 images, of which 3 took 4 s.
    assert (found.epochs.steps, found.epochs.scaled_share, found.epochs.seconds) == (10, 0.3, [])
    assert {name: metric.value for name, metric in found.metrics.items()} == pytest.approx({"epoch-scaled": 4 / 0.3})


def test_the_first_epoch_the_others_and_the_checkpoints_are_apart(planned: Trial, observer: Any) -> None:
    found = measured(of_epochs(planned, 3), observer, epochs_s=[2.0, 1.0, 0.5], checkpoints=CHECKPOINTS)
    assert found.epochs.scaled_share is None
    assert found.epochs.checkpoints.filesystem == "ext4", "that of /tmp, where the target has no other"
    assert found.environment.filesystem == found.data_use.filesystem == "ext4"
    values = {name: metric.value for name, metric in found.metrics.items()}
    assert values == {"first-epoch": 2.0, "epoch": 0.75, "checkpoint": 0.1875}
    assert found.metrics["epoch"].samples == [1.0, 0.5]
    assert set(values) < set(OF_EVERY_TRAINING) > set(EPOCH_METRICS), "no workload can have a metric of these names"
    assert set(measured(of_epochs(planned, 1), observer, epochs_s=[4.0]).metrics) == {"first-epoch"}
    assert found.throughput_per_s == pytest.approx(2 * 3 / 3.5), "what lies between epochs is no part of it"
    assert (found.timeline.measured_s, found.timeline.between_epochs_s) == (3.5, 0.5)


def test_checkpoints_of_drawn_data_are_written_to_the_disk_and_in_no_throughput(trial: Trial, observer: Any) -> None:
    drawn = of_epochs(trial, 3).with_job(checkpoint="fsync").model_copy(update={"scratch_bytes": 4 << 30})
    told = event(
        "steps", 109.6, steps=STEPS, losses={"loss": [3.0, 2.0, 1.0]}, epochs_s=[2, 1, 0.5], checkpoints=CHECKPOINTS
    )
    node = ReadingNode(process=ScriptedProcess([*STORY[:-2], told, STORY[-1]]), data="/mnt/data")
    found: Any = Synthetic().measure(drawn, [Instance(node)], observer, nullcontext())
    spec = json.loads(node.started[0][1])
    assert (spec["epochs"], spec["checkpoint"]) == (3, {"mode": "fsync", "directory": "/mnt/data"})
    assert {name: metric.value for name, metric in found.metrics.items()} == {"checkpoint": 0.1875}
    assert (found.epochs.steps, found.epochs.checkpoints.filesystem) == (1, "ext4")
    assert found.throughput_per_s == pytest.approx(2 * 3 / 3.5)
    assert (found.timeline.measured_s, found.timeline.between_epochs_s) == (3.5, 0.5)


@pytest.mark.parametrize("said", [[4.0], None, [2.0, -1.0], "two"])
def test_a_worker_that_says_no_such_epochs_has_failed(said: object, planned: Trial, observer: Any) -> None:
    with fails(MeasurementError, "protocol"):
        measured(of_epochs(planned, 2), observer, epochs_s=said)
