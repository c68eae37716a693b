"""Requests: what each scenario knows, and that a request's command asks for the same."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from hypothesis import given as with_values
from hypothesis import settings
from hypothesis import strategies as st

from commands.run.command import run
from commands.run.request_command import request_of
from suite.errors import RequestError, flag
from suite.job import ablations
from suite.registries import SCENARIOS
from suite.request.option import ALL, Option
from suite.request.request import OPTIONS, RunRequest
from suite.sweep.file import key_of

WRITTEN = {
    "cpus": ("2", "0-1", "0,2"),
    "memory": ("4G", "512M"),
    "context": ("minikube", "arn:aws:eks:eu-west-1:1:cluster/lab"),
    "namespace": ("lab",),
    "node": ("n1",),
    "registry": ("registry.example/team",),
    "containerd": ("/run/k3s/containerd/containerd.sock",),
    "runtime_class": ("gvisor",),
    "storage_class": ("fast",),
    "pod_requests": ("50%", "0.25"),
    "oci_runtime": ("kata", "/usr/local/bin/crun"),
    "image": ("mine", "1f0c5a2b77d1"),
    "until": ("2%", "0.02", "decided"),
    "margin": ("5%", "0.05"),
    "detect": ("2%", "0.01"),
    "budget": ("90s", "1h30m"),
    "gpus": ("0", "0,1", "GPU-8932f937", "0:1", "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f,1"),
    "data": ("generated", "imagenet:/data/ilsvrc", "synthetic"),
    "data_disk": ("/dev/sdb",),
    "command": ("python train.py --epochs 1", "./my 'program of mine'"),
    "versus": ("python train.py --epochs 2",),
    "throughput": (r"(?P<throughput>[0-9.]+) images/s", "json"),
    "unit": ("tokens", "samples"),
    "preempt": ("mean=60s", "mean=1h"),
    "resize_at": ("0=1,10=2", "5=1"),
    "learning_rate": ("2e-4", "0.01"),
    "rates": ("10,50", "0.5"),
    "instances": ("1,5,20", "3"),
    "lab": ("nodes=3,rate=1gbit", "nodes=2,delay=5ms"),
    "hire": ("cloud=lab,image=debian-12,flavor=b8,network=lab,key=me",),
    "path": ("/", "/v1/completions"),
    "ready": ("/health",),
    "limit": ("p99=500ms", "p95=2s"),
}
"""What can be written for options that take a text of some form."""
NEEDED: dict[str, dict[str, object]] = {
    **{name: {"until": "2%"} for name in ("max_blocks", "budget")},
    **{name: {"design": "alternating"} for name in ("rounds", "burst_steps")},
    **{name: {"data": "generated"} for name in ("data_disk", "frame_stride", "epochs")},
    "cache": {"data": "generated", "port": 8000, "command": "python server.py"},
    "checkpoint_every": {"checkpoint": "on"},
    "preempt": {"checkpoint": "on", "checkpoint_every": 10},
    "hire": {"site": "nova"},
    "versus": {"command": "python train.py"},
    "port": {"command": "python server.py"},
    **{name: {"api": "openai"} for name in ("prompt_words", "max_tokens")},
}
"""What an option that needs another is given with."""


def values_of(option: Option, scenario: str) -> st.SearchStrategy[object]:
    """Return the values that an option can be given on a command line."""
    if names := option.choices(scenario):
        files = ["/mine/my_model.py", "./of mine.py:TOY"] if option.about.own_code else []
        some = st.lists(st.sampled_from([*names, *files, ALL]), min_size=1, max_size=4)
        return some if option.several else st.sampled_from(names)
    if option.kind is bool:
        return st.just(True)
    if option.kind is int:
        return st.integers(1, 1000)
    if option.kind is Path:
        return st.sampled_from([Path("/my/file"), Path("file of mine")])
    return st.sampled_from(WRITTEN[option.name])


@st.composite
def requests(draw: st.DrawFn, scenario: str) -> RunRequest:
    """Draw a request with some of the options that the scenario knows."""
    known = [option for option in OPTIONS.values() if option.known_to(scenario) and option.name != "scenario"]
    chosen = draw(st.lists(st.sampled_from(known), unique_by=lambda option: option.name))
    values = {option.name: draw(values_of(option, scenario)) for option in chosen}
    values["scenario"] = scenario
    while contradicting := [name for name in values if contradicts(name, values)]:
        values.pop(contradicting[0])
    return RunRequest.of(values)


def contradicts(name: str, values: dict[str, object]) -> bool:
    """Whether an option is refused beside the others; what is refused has a test of its own."""
    try:
        OPTIONS[name].about.refuse(name, values[name], lambda other: values.get(other, OPTIONS[other].default))
    except RequestError:
        return True
    return False


@pytest.mark.parametrize("scenario", SCENARIOS.own)
@with_values(data=st.data())
@settings(deadline=None, max_examples=50)
def test_a_request_is_stored_as_it_is_and_its_command_asks_for_the_same(scenario: str, data: st.DataObject) -> None:
    request = data.draw(requests(scenario))
    bench, name, *words = request.command()
    assert (bench, name) == ("bench", "run")
    assert request_of(run, words) == request
    assert RunRequest.model_validate_json(request.model_dump_json()) == request
    assert RunRequest.of(request.given()) == request


@pytest.mark.parametrize("scenario", SCENARIOS.own)
def test_an_option_is_refused_by_scenarios_that_do_not_know_it_alone(scenario: str) -> None:
    for name, option in OPTIONS.items():
        # That a data set has checkpoints of its epochs, and none of so many steps, is in the transcript of refusals.
        if name == "scenario" or (name, scenario) in (("checkpoint_every", "real"), ("preempt", "real")):
            continue
        needed = {other: value for other, value in NEEDED.get(name, {}).items() if OPTIONS[other].known_to(scenario)}
        given = {"scenario": scenario, **needed, name: _a_value(option, scenario)}
        if option.known_to(scenario):
            assert RunRequest.of(given).scenario == scenario
            continue
        with pytest.raises(RequestError) as caught:
            RunRequest.of(given)
        assert caught.value.message.startswith(flag(name))
        assert scenario in caught.value.message or option.whose() in caught.value.message
        assert caught.value.spelled(key_of).message.startswith(key_of(name))


def _a_value(option: Option, scenario: str) -> object:
    if names := option.choices(scenario) or option.choices():
        return names[0]
    texts: dict[type, object] = {bool: True, int: 1, Path: Path("file")}
    return texts.get(option.kind) or WRITTEN[option.name][0]


def test_the_scenario_of_another_package_knows_what_is_not_about_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCENARIOS._places, "toy", EntryPoint("toy", "toy:Toy", SCENARIOS.group))
    assert RunRequest.of({"scenario": "toy", "model": "alexnet", "until": "2%"}).models == ("alexnet",)
    with pytest.raises(RequestError, match="--strategy does not apply to --scenario toy"):
        RunRequest.of({"scenario": "toy", "strategy": "all-reduce"})


def test_a_request_says_nothing_of_a_default_that_its_scenario_does_not_know() -> None:
    fewer = RunRequest.model_validate({"scenario:probe": {"probe": ["disk"]}})
    assert fewer.command() == ["bench", "run"]


def test_a_command_names_its_scenario_unless_the_other_options_imply_it() -> None:
    assert RunRequest.of({"scenario": "probe"}).command() == ["bench", "run", "--scenario", "probe"]
    assert RunRequest.of({"scenario": "probe", "probe": ("disk",)}).command() == ["bench", "run", "--probe", "disk"]


def test_paths_are_made_absolute_and_nothing_else_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    request = RunRequest.of({"scenario": "distributed", "inventory": "hosts.toml", "seed": 3})
    assert request.with_absolute_paths() == request.changed(inventory=tmp_path / "hosts.toml")
    own = RunRequest.of({"model": ["./my_model.py:TOY", "alexnet", "/mine/x.py"]}).with_absolute_paths()
    assert own.models == (f"{tmp_path}/my_model.py:TOY", "alexnet", "/mine/x.py")
    for given, stored in (("mnist:digits", f"mnist:{tmp_path}/digits"), ("generated", "generated")):
        trains = RunRequest.of({"scenario": "real", "data": given})
        assert trains.with_absolute_paths() == trains.changed(data=stored)


def test_every_option_has_one_sentence_at_least() -> None:
    for option in OPTIONS.values():
        assert option.help().endswith("."), option.name
        assert "\0" not in option.help()


def test_the_scenario_follows_from_an_option_that_it_alone_has() -> None:
    assert RunRequest.of({"command": "true"}).scenario == "command"
    assert RunRequest.of({"probe": ("syscall",)}).scenario == "probe"
    assert RunRequest.of({"instances": "1,2"}).scenario == "startup"
    assert RunRequest.of({"steps": 3}).scenario == "synthetic"
    with pytest.raises(RequestError, match="does not apply to --scenario synthetic"):
        RunRequest.of({"command": "true", "probe": ("syscall",)})


@pytest.mark.parametrize(
    ("until", "words"),
    [
        ("decide", "did you mean decided?"),
        ("95%", "every interval has a confidence of 95 %"),
        ("0.9", "an interval that reaches 90% to each side shows nothing"),
    ],
)
def test_an_end_that_shows_nothing_is_explained(until: str, words: str) -> None:
    with pytest.raises(RequestError) as refusal:
        RunRequest.of({"until": until})
    assert words in refusal.value.with_remedy


def test_a_further_engine_is_not_blamed_on_an_option_that_was_not_typed() -> None:
    with pytest.raises(RequestError, match=r"^--engine or --ablate gvisor: none of bare-metal has it"):
        ablations.check(("gvisor",), ("bare-metal",))
    with pytest.raises(RequestError, match=r"^--ablate seccomp: none of bare-metal has it"):
        ablations.check(("seccomp",), ("bare-metal",))
