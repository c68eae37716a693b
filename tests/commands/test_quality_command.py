"""``bench quality``: once per distinct model, beside the records, and in every comparison."""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from click.testing import CliRunner

import cli
from analysis.audit.audit import audit
from analysis.compare.comparison import compare
from analysis.load.records import load
from commands import quality as command
from provisioning.layers.userland import FIRST_USER, own_python_argv
from provisioning.nodes import local_node
from scenarios.datasets.resolve import resolve
from suite.job.job import Job, Loading
from suite.job.profiles import Sizes
from suite.plan import Plan
from suite.records.record import KeptModel
from suite.request.request import RunRequest
from suite.results.quality import FILE, QUALITY_METRICS, Judge, ModelsQuality, Numbers, read_quality, write_quality
from suite.results.store import MANIFEST, PLAN, Run, write_atomic
from tests.analysis.conftest import record
from tests.commands.conftest import Bench, ended_well
from tests.commands.test_serve_command import SHAPE
from tests.worker.conftest import EPOCHS, directory, spec
from worker.serving.generator import write_model
from worker.spec import QualitySpec, parse_spec
from worker.training.build import build_network
from worker.weights import weights_sha256
from worker.workloads.adversarial import GAN
from worker.workloads.workload import OF_EVERY_TRAINING

__all__ = ["directory", "spec"]
DIGESTS = ["ab" * 32, "cd" * 32]
Train = Callable[..., Path]


@pytest.fixture
def bench(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(command, "_STEPS", 30)
    return partial(bench, "quality")


@pytest.fixture
def train(tmp_path: Path, directory: Path) -> Train:
    """``train("run", *DIGESTS)``: store a run of a GAN that kept these models, in blocks of two targets."""

    def _train(name: str, *digests: str, models: Sequence[KeptModel] = (), channels: Literal[1, 3] = 1) -> Path:
        directory.chmod(0o755)
        data, dataset = resolve(f"mnist:{directory}", directory)
        sizes = Sizes(batch=4, image_px=28, channels=channels, warmup_steps=0, steps=30, epochs=EPOCHS)
        job = {"scenario": "real", "model": "gan", "data": data, "dataset": dataset, "sizes": sizes}
        loading = Loading(loader_workers=0)  # each process that reads would import torch
        changes = {**job, "loading": loading, "keep_model": "each", "kept": [*models] or kept(*digests)}
        targets = ("bare-metal", "container")
        records = [record(name, target=target, block=block, **changes) for block in range(2) for target in targets]
        records.append(record(name, target="container", warm_up=True, **changes))
        asked = {"scenario": "real", "model": ("gan",), "data": f"mnist:{directory}", "keep_model": "last"}
        plan: dict[str, Any] = {"jobs": (records[0].job,), "targets": targets, "blocks": 2, "trial_timeout_s": 60}
        plan["run_id"] = records[0].run_id
        run = Run(tmp_path / name)
        write_atomic(run.directory / PLAN, Plan(**plan, request=RunRequest.of(asked)).model_dump_json())
        for each in records:
            run.save(each)
        run.seal()
        return run.directory

    return _train


def test_each_distinct_model_is_measured_and_the_comparison_has_it(bench: Bench, train: Train, tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    (run.directory / "models").mkdir(parents=True)
    networks = [build_network(GAN, SHAPE, seed).get_submodule(GAN.image_network) for seed in (1, 2)]
    models = kept(*map(str, map(weights_sha256, networks)))
    for model, network in zip(models, networks, strict=True):
        write_model(run.directory / f"models/{model.weights_sha256}.pt", SHAPE, network, {})
    train("run", models=models)
    done = ended_well(bench("run", "--samples", "40", "--reach", "1000"))
    assert "gan on container, epoch 2" in done.output
    assert "4 of 4 trials reach 1000, on average after" in done.output
    found = read_quality(run.directory).features["own"]
    assert {*found.models} == {model.weights_sha256 for model in models}
    assert {*found.judges} == {"gan"}
    (group,) = compare(load([run.directory])).groups
    estimates = {arm.target: measured for arm, measured in group.of_kind("target").items()}
    last = found.models[models[-1].weights_sha256]
    assert estimates["container"]["own-frechet"].value == pytest.approx(last["own-frechet"])
    assert estimates["container"]["own-frechet"].ratio == pytest.approx(1)
    assert estimates["container"]["time-to-quality"].value == pytest.approx(models[0].training_s)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is confined")
def test_models_are_read_by_nobody_who_sees_nothing_else_and_has_little_memory(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "open").write_text("x")
    program = f"""
import json, os, pathlib, resource, socket, worker.quality
lines = pathlib.Path("/proc/self/status").read_text().splitlines()
state = dict(line.split(":\\t") for line in lines if ":\\t" in line)
print(json.dumps({{
    "uid": os.getuid(), "processes": state["NSpid"],
    "capabilities": int(state["CapBnd"], 16) | int(state["CapEff"], 16),
    "secret": os.path.exists("{tmp_path}/secret"), "open": os.path.exists("{tmp_path}/open"),
    "home": os.path.exists("/etc/passwd"), "links": [name for _, name in socket.if_nameindex()],
    "writable": [path for path in ("/usr", "{tmp_path}", "/") if os.access(path, os.W_OK)],
    "memory": resource.getrlimit(resource.RLIMIT_DATA), "variables": [*os.environ],
}}))
"""
    argv = own_python_argv([str(tmp_path / "open")], 2 << 30)
    with local_node((), None) as node:
        found = json.loads(node.run([*argv, "-c", program], timeout_s=120).stdout)
    assert found.pop("uid") >= FIRST_USER
    assert "TOKEN" not in " ".join(found.pop("variables"))
    assert int(found.pop("processes")) < 10
    expected = {"capabilities": 0, "secret": False, "open": True, "home": False, "links": ["lo"], "writable": []}
    assert found == {**expected, "memory": [2 << 30, 2 << 30]}


def test_measuring_shows_how_far_it_is(
    spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "_SILENT_S", 0.0)
    events = [{"event": "progress", "what": "model 1 of 2", "done": 1, "of": 4}, {"event": "done"}]
    program = ["/bin/sh", "-c", 'cat > /dev/null; echo "$1"; echo "$2"', "sh", *map(json.dumps, events)]
    monkeypatch.setattr(command, "own_python_argv", lambda *_: program)
    done = command._events_of(QualitySpec(spec=parse_spec(json.dumps(spec)), models={}, samples=10), [])
    assert done == events[1:]
    assert "model 1 of 2: 25%" in capsys.readouterr().err


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The models that were measured, by call; the second is better than the first."""
    calls: list[list[str]] = []

    def fake(
        _run: Path, job: Job, digests: list[str], _into: ModelsQuality, file: Path | None
    ) -> tuple[dict[str, Numbers], Judge]:
        calls.append(digests)
        assert job.dataset
        judge = Judge(network_sha256="1" * 64, data_sha256=job.dataset.sha256, image_px=28, channels=1)
        distance = {DIGESTS[0]: 50.0, DIGESTS[1]: 5.0}
        if file:
            kid = {"kid": -0.001, "kid-low": -0.003, "kid-high": 0.001}
            numbers = {"fid": 0.0, **kid, "inception-score": 2, "recall": 0.5}
            return {each: {**numbers, "fid": distance[each]} for each in digests}, judge
        return {each: {"own-frechet": distance[each], "own-score": 2, "accuracy": 0.9} for each in digests}, judge

    monkeypatch.setattr(command, "_measured", fake)
    return calls


def kept(*digests: str) -> list[KeptModel]:
    return [
        KeptModel(weights_sha256=digest, epoch=number, training_s=10.0 * number, size_bytes=1)
        for number, digest in enumerate(digests, start=1)
    ]


def test_a_model_is_measured_once_for_a_number_of_samples(
    bench: Bench, train: Train, measured: list[list[str]]
) -> None:
    train("run", *DIGESTS)
    assert bench("run", "--reach", "6").output.splitlines()[-1] == (
        "4 of 4 trials reach 6.00, on average after 20.0 s of training"
    )
    told = json.loads(bench("run", "--reach", "1", "--json").output)
    assert told["quality"]["features"]["own"]["reach"] == 1
    assert measured == [DIGESTS]
    assert bench("run", "--reach", "1").output.splitlines()[-1] == "0 of 4 trials reach 1.00"
    bench("run", "--samples", "100")
    assert measured == [DIGESTS, DIGESTS], "other samples are another number"


def test_runs_whose_models_were_measured_otherwise_are_not_put_together(
    bench: Bench, train: Train, measured: list[list[str]]
) -> None:
    runs = [train(name, *DIGESTS) for name in ("one", "two", "three")]
    for run, samples in zip(runs, ("40", "40", "100"), strict=True):
        bench(run.name, "--samples", samples)
    (warning,) = (each for each in load(runs).warnings if each.kind == "quality-differs")
    assert "is of 100 images, not as before of 40" in warning.message
    assert (own_frechet(*runs), len(measured)) == ([4, 4, 0], 3)


def own_frechet(*runs: Path) -> list[int]:
    """Return how many trials of each run have a quality, and check that the others are warned of."""
    records = load(runs)
    trials = records.trials.assign(run=records.trials["path"].map(lambda path: str(Path(path).parents[1])))
    name = next((str(column) for column in trials if "own-frechet" in str(column)), None)
    known = [int(trials.loc[trials["run"] == str(run), name].count()) if name else 0 for run in runs]
    assert {one.kind.split("-")[0] for one in records.warnings} == ({"quality"} if 0 in known else set())
    return known


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize(
    ("change", "known"),
    [
        ({}, [4, 4]),
        ({"network_sha256": "2" * 64}, [4, 0]),  # by a classifier of other threads, or another torch
        ({"network_sha256": "2" * 64, "image_px": 64}, [4, 4]),  # of other images, with which nobody compares these
    ],
)
def test_two_classifiers_are_two_ways_of_measuring(
    change: dict[str, object], known: list[int], bench: Bench, train: Train
) -> None:
    runs = [train(name, *DIGESTS) for name in ("one", "two")]
    for run in runs:
        bench(run.name)
    quality = read_quality(runs[1])
    judges = quality.features["own"].judges
    judges["gan"] = judges["gan"].model_copy(update=change)
    write_quality(runs[1], quality)
    assert own_frechet(*runs) == known


def test_a_quality_that_the_command_did_not_write_is_left_out_and_measured_again(
    bench: Bench, train: Train, measured: list[list[str]]
) -> None:
    run = train("run", *DIGESTS)
    bench("run", "--reach", "6")
    with Run(run).sealed():
        pass  # the run goes on
    assert own_frechet(run) == [4]
    text = (run / FILE).read_text()
    (run / FILE).write_text(text.replace("50.0", "5.0"))
    assert own_frechet(run) == [0]
    result = audit(load([run]))
    assert [(one.kind, one.where.name) for one in result.refused if one.where.name == FILE] == [("edited", FILE)]
    bench("run", "--reach", "6")
    assert ((run / FILE).read_text(), own_frechet(run), len(measured)) == (text, [4], 2)


@pytest.mark.usefixtures("measured")
def test_a_quality_is_of_a_run_without_a_manifest_too_and_of_its_real_images_alone(bench: Bench, train: Train) -> None:
    run = train("run", *DIGESTS)
    (run / MANIFEST).unlink()
    bench("run")
    assert own_frechet(run) == [4]
    assert not (run / MANIFEST).exists()
    assert "unlisted" not in {one.kind for one in audit(load([run])).findings}
    run = train("run", *DIGESTS)
    bench("run")
    quality = read_quality(run)
    job = next(Run(run).records()).job
    assert quality.metrics_of(kept(*DIGESTS), job).keys() == {"own-frechet", "own-score"}
    judges = quality.features["own"].judges
    judges["gan"] = judges["gan"].model_copy(update={"data_sha256": "3" * 64})
    assert quality.metrics_of(kept(*DIGESTS), job) == {}
    assert quality.metrics_of(kept(*DIGESTS), job.model_copy(update={"model": "dcgan"})) == {}


def test_numbers_by_a_file_of_weights_join_those_of_the_own_classifier(
    bench: Bench, train: Train, tmp_path: Path, measured: list[list[str]]
) -> None:
    train("run", *DIGESTS, channels=3)
    (tmp_path / "weights.pth").write_bytes(b"random")
    bench("run", "--reach", "60")
    output = " ".join(bench("run", "--features", "weights.pth", "--reach", "6").output.split())
    assert ": 50.0 -0.00100 -0.00300 0.00100 2.00 0.500 10.0 2" in output
    assert "not the weights that torch-fidelity's releases name" in output
    assert output.endswith("4 of 4 trials reach 6.00, on average after 20.0 s of training")
    own, inception = (read_quality(tmp_path / "run").features[name] for name in ("own", "inception"))
    assert (own.weights_sha256, own.reach) == (None, 60)
    assert inception.weights_sha256 == hashlib.sha256(b"random").hexdigest()
    (group,) = compare(load([tmp_path / "run"])).groups
    estimates = group.of_target(group.targets[1].target)
    values = {name: estimates[name].value for name in estimates if name in QUALITY_METRICS}
    expected = {"own-frechet": 5, "own-score": 2, "fid": 5, "kid": -0.001, "inception-score": 2, "recall": 0.5}
    expected |= {"time-to-quality": 10, "time-to-fid": 20}
    assert values == pytest.approx(expected), "a KID below zero is compared by differences"
    (tmp_path / "weights.pth").write_bytes(b"other")
    bench("run", "--features", "weights.pth")
    assert measured == [DIGESTS] * 3, "other weights are other numbers"


def test_what_cannot_be_measured_is_refused(bench: Bench, train: Train, tmp_path: Path) -> None:
    train("none")
    assert "none kept no models" in bench("none").output
    run = train("run", DIGESTS[0])
    assert "none.pth" in bench("run", "--features", "none.pth").output
    (tmp_path / "weights.pth").write_bytes(b"random")
    asked = ("run", "--features", "weights.pth", "--samples")
    assert "9 is not in the range" in bench(*asked, "9").output
    assert "--reach 6.00 needs a FID, which takes 2,048 images" in bench(*asked, "40", "--reach", "6").output
    (run / FILE).write_text('{"models": 1}')
    assert "quality.json is no quality of this suite" in bench("run").output
    (run / FILE).unlink()
    (run / "models").mkdir()
    os.mkfifo(run / "models" / f"{DIGESTS[0]}.pt")
    output = " ".join(bench("run", "--samples", "40").output.split())
    assert "cannot be served: it is not a regular file" in output, "and it is not waited for"
    assert f"run/models/{DIGESTS[0]}" in output.replace(" ", "")
    plan = json.loads((run / PLAN).read_text())
    plan["request"]["data"]["data"] = None
    write_atomic(run / PLAN, json.dumps(plan))
    done = bench("run", "--samples", "40")
    assert (done.exit_code, "bench data make" in done.output) == (2, True), "it is the generated data set"


def test_a_foreign_or_newer_quality_is_a_warning_and_ends_nothing_else(train: Train) -> None:
    run = train("run", DIGESTS[0])
    path = run / FILE
    for content in ('{"models": 1}', '{"schema_version": 2, "features": {}}', "[", "\x00"):
        path.write_text(content)
        assert [one.kind for one in load([run]).warnings if "quality.json is left out" in one.message]
    path.unlink()
    os.mkfifo(path)
    # A history shows no warnings of single files, of records neither.
    for words in ("audit run", "compare run --force --json", "history . --force", "results export run"):
        done = CliRunner().invoke(cli.main, words.split(), prog_name="bench")
        shown = " ".join(done.output.split())
        assert done.exit_code in (0, 1), (words, shown)
        assert isinstance(done.exception, SystemExit | None), words
        named = "quality.json is left out: it is not of this suite, or of a newer" in shown
        assert named == (not words.startswith("history")), words


def test_no_workload_can_have_a_metric_of_these_names() -> None:
    assert {*QUALITY_METRICS} <= {*OF_EVERY_TRAINING}
