"""Specifications that cannot be run: each is refused with the key, its value, and what would do."""

import json
from typing import Any

import pytest

from suite.registries import WORKLOADS
from worker.protocol import SpecError
from worker.spec import parse_spec

DATA = {
    "kind": "worker.data.kinds.imagefolder:IMAGEFOLDER",
    "directory": "/mnt/data",
    "loader_workers": 1,
    "decoder": "auto",
}
PLACE = {"strategy": "all-reduce", "rank": 0, "workers": 2, "servers": 0, "master": "", "port": 1, "interface": "lo"}
SEVERAL = {"devices": 2, "threads": 2, "distributed": PLACE}
DDP = {"parallel": "ddp", "devices": 2, "threads": 2}
IN_TURNS = {"steps": 6, "turns": {"rounds": 3, "burst_steps": 2}}
GAN = {"workload": WORKLOADS.place("gan"), "batch": 4, "image_px": 28, "channels": 1, "generate": 8}
REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "spec": [
        ({"batch": 0}, "batch is 0: expected `int` >= 1"),
        ({"steps": True}, "steps is True: expected `int`, got `bool`"),
        ({"threads": "2"}, "threads is '2': expected `int`, got `str`"),
        ({"workload": "vgg"}, "workload is 'vgg'; it must be module:attribute, of the worker or of the plugin"),
        ({"workload": "os.path:join"}, "workload is 'os.path:join'; it must be module:attribute"),
        ({"workload": "worker.workloads.vae:FLOPPY"}, "has no attribute 'FLOPPY'"),
        ({"workload": "worker.workloads.vgg:VGG"}, "workload worker.workloads.vgg:VGG cannot be imported"),
        ({"workload": "worker.probes.computing:CPU"}, "computing:CPU, a Probe; it must be a Workload"),
        (
            {"plugin": {"module": "vgg", "source": "", "sha256": "ab", "file": "vgg.py"}},
            "the source of the plugin vgg has the SHA-256 e3b0",
        ),
        (
            {"plugin": {"module": "vgg"}},
            "plugin: object missing required field `source`; known are module, source, sha256",
        ),
        ({"recipe": []}, "recipe is []; it can be reference, tuned"),
        ({"devices": 2}, "several need 'parameter-cpu' or 'ddp'"),
        ({"devices": 2, "parallel": "ddp"}, "one for each of its 2 processes"),
        ({**SEVERAL, "parallel": "ddp"}, "parallel is 'ddp' in a distributed job; there it is 'parameter-cpu'"),
        ({**SEVERAL, "parallel": "parameter-cpu"}, "there it is 'parameter-cpu', with parameter servers"),
        ({"colour": "red"}, "unknown field `colour`; known are workload, batch, warmup_steps"),
        ({"data": "/mnt/data"}, "data is '/mnt/data': expected `object | null`"),
        (
            {"data": {}},
            "data: object missing required field `kind`; known are kind, directory, loader_workers, decoder",
        ),
        ({"data": {**DATA, "kind": "coco"}}, "kind is 'coco'; it must be module:attribute"),
        ({"data": {**DATA, "decoder": "opencv"}}, "data.decoder is 'opencv'; it can be auto, pillow, simplejpeg"),
        ({"data": {**DATA, "loader_workers": -1}}, "data.loader_workers is -1: expected `int` >= 0"),
        ({"data": {**DATA, "directory": "data"}}, "directory is 'data'; it must be an absolute path"),
        ({"data": {**DATA, "shuffle": True}}, "data: object contains unknown field `shuffle`"),
        ({**IN_TURNS, "steps": 5}, "steps is 5; 3 rounds of 2 steps are 6"),
        ({"turns": {"rounds": 0, "burst_steps": 2}}, "turns.rounds is 0: expected `int` >= 1"),
        ({**IN_TURNS, **DDP}, "the processes of ddp take none"),
        ({**IN_TURNS, "sync": "span", "device": "cuda"}, "only one GPU that takes its steps in one piece"),
        ({**IN_TURNS, "settle_s": 5}, "settle_s is 5.0"),
        ({"parallel": "ddp", "settle_s": 5}, "settle_s is 5.0"),
        ({"injury": {"kind": "broken-leg"}}, "late-step"),
        ({"injury": ["late-step"]}, "expected `object | null`"),
        ({"injury": {"kind": "late-step", "share": 0.1}, "warmup_steps": 2}, "3 or more"),
        ({"injury": {"kind": "held-memory"}, "parallel": "ddp"}, "one device"),
        ({"workload": WORKLOADS.place("alexnet"), "generate": 8}, "ALEXNET makes no images"),
        ({"workload": WORKLOADS.place("transformer"), "generate": 8}, "TRANSFORMER makes no images"),
        ({"devices": 2, "parallel": "parameter-cpu", "generate": 8}, "only a job of one device"),
        ({**GAN, "turns": {"rounds": 1, "burst_steps": 2}}, "takes turns"),
        ({**GAN, "generate": 0}, "generate is 0: expected `int` >= 1"),
    ],
    "last": [
        ({"keep_model": "each"}, "keep_model is 'each'; only a job of whole epochs"),
        ({"workload": WORKLOADS.place("alexnet"), "image_px": 64, "channels": None}, "keep_model last"),
    ],
    "epochs": [
        ({"steps": 31}, "they must be 3 epochs"),
        ({"data": None}, "only a job that reads a data set or writes checkpoints"),
        ({"epochs": None, "checkpoint": {"mode": "on"}}, "only a job of whole epochs"),
        ({"checkpoint": {"mode": "off"}}, "mode is 'off'; it can be fsync, on"),
        ({"steps": 0}, "steps is 0; only a job that writes a model"),
        ({"steps": 0, "model_file": "/m", "data": None, "epochs": None}, "steps is 0; only a job that writes a model"),
        ({"steps": 0, "model_file": "/m", "epochs": None}, "steps is 0; only a job that writes a model"),
    ],
}
"""Changes of a specification that can be run, by the fixture that makes it, and what their refusal says."""


@pytest.mark.parametrize(
    ("fixture", "change", "says"), [(name, *case) for name, cases in REFUSED.items() for case in cases]
)
def test_a_wrong_specification_names_the_key_and_what_would_do(
    fixture: str, change: dict[str, Any], says: str, request: pytest.FixtureRequest
) -> None:
    right = request.getfixturevalue(fixture)
    parse_spec(json.dumps(right))
    with pytest.raises(SpecError) as refused:
        parse_spec(json.dumps({**right, **change}))
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [("", "not JSON"), ("[1]", "expected `object`, got `array`"), ("{}", "missing required field `workload`")],
)
def test_what_is_no_specification_is_refused(given: str, says: str) -> None:
    with pytest.raises(SpecError, match=says.replace("[", r"\[")):
        parse_spec(given)
