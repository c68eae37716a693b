import tomllib
from pathlib import Path

import pytest

from suite import schema
from suite.errors import RequestError
from suite.request.scenario import scenario_of
from suite.sweep.cells import cells_of, request_of
from suite.sweep.file import load_sweep, plan_file, read_sweep
from tests.suite.sweep.conftest import make_sweep

REPOSITORY = Path(__file__).parents[3]
DOCUMENTED = (REPOSITORY / "docs/guide/sweeps.md").read_text()


def test_the_published_schema_is_that_of_the_model() -> None:
    assert schema.SWEEP_SCHEMA.read_text() == schema.sweep_schema(), "run: python -m suite.schema"


def test_the_example_of_the_documentation_is_a_plan() -> None:
    example = DOCUMENTED.split("```toml\n")[1].split("```")[0]
    assert len(cells_of(read_sweep(tomllib.loads(example), "docs/guide/sweeps.md"))) == 5


def test_a_file_that_is_not_there_or_no_toml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="No such file"):
        load_sweep(tmp_path / "none.toml")
    for content in (b"name = ", b"\xff\xfe", b"blocks = " + b"9" * 5000):
        (tmp_path / "bad.toml").write_bytes(content)
        with pytest.raises(RequestError, match=r"bad\.toml is not TOML"):
            load_sweep(tmp_path / "bad.toml")
    (tmp_path / "large.toml").write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(RequestError, match="larger than 1 MiB"):
        load_sweep(tmp_path / "large.toml")


# ---- cells


def test_the_cells_are_the_product_of_the_lists() -> None:
    found = cells_of(make_sweep(matrix={"model": ["resnet50", "alexnet"], "recipe": ["reference", "tuned"]}))
    product = [(model, recipe) for model in ("resnet50", "alexnet") for recipe in ("reference", "tuned")]
    assert [(cell.settings["model"], cell.settings["recipe"]) for cell in found] == product
    assert len({cell.cell_id for cell in found}) == 4


def test_a_key_that_a_scenario_does_not_know_multiplies_nothing() -> None:
    matrix = {"scenario": ["synthetic", "probe"], "model": ["resnet50", "alexnet"], "probe": ["disk", "cpu", "memory"]}
    found = cells_of(make_sweep(matrix=matrix))
    assert [(cell.settings.get("model"), cell.settings.get("probe")) for cell in found] == [
        *(("resnet50", None), ("alexnet", None)),
        *((None, "disk"), (None, "cpu"), (None, "memory")),
    ]


def test_cells_are_excluded_and_included() -> None:
    made = make_sweep(
        matrix={"model": ["resnet50", "alexnet"], "recipe": ["reference", "tuned"]},
        exclude=[{"model": "alexnet", "recipe": "tuned"}],
        include=[{"model": "inception_v3"}, {"model": "resnet50", "recipe": "tuned"}],
        options={"recipe": "reference", "steps": 4},
    )
    found = [(cell.settings["model"], cell.settings["recipe"]) for cell in cells_of(made)]
    assert found == [
        *(("resnet50", "reference"), ("resnet50", "tuned"), ("alexnet", "reference")),
        ("inception_v3", "reference"),
    ]
    assert {cell.settings["steps"] for cell in cells_of(made)} == {4}
    (alone,) = cells_of(make_sweep(matrix={}, include=[{"model": "alexnet"}]))
    assert alone.settings["model"] == "alexnet"
    assert len(cells_of(make_sweep(matrix={}))) == 1, "one cell of nothing but defaults"


def test_a_cell_may_have_an_envelope_of_its_own() -> None:
    made = make_sweep(
        matrix={}, include=[{"cpus": "2", "memory": "6G"}, {}], envelope={"cpus": 1, "memory": "4G", "threads": 1}
    )
    envelopes = [request_of(made, cell).envelope for cell in cells_of(made)]
    assert [(one.cpus, one.memory, one.threads) for one in envelopes] == [("2", "6G", 1), ("1", "4G", 1)]


def test_the_plan_of_scaling_has_strong_and_weak_cells_with_equal_instances() -> None:
    sweep = load_sweep(plan_file(Path("scaling")))
    requests = [request_of(sweep, cell) for cell in cells_of(sweep)]
    asked = [(one.value("workers"), one.measurement.batch, one.envelope) for one in requests]
    assert [(workers, batch) for workers, batch, _ in asked] == [(1, 16), (2, 8), (2, 16), (1, 8), (2, 4), (2, 8)]
    assert {(str(workers), f"{2 * workers}G") == (own.cpus, own.memory) for workers, _, own in asked} == {True}
    for one in requests:
        scenario_of(one).check_model(one, one.measurement.model[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"exclude": [{"model": "inception_v3"}]}, "exclude model = inception_v3 fits no cell"),
        ({"exclude": [{}]}, "all are excluded"),
        ({"options": {"cache": "cold"}}, "no cell has cache"),
        ({"matrix": {"probe": ["disk"]}}, "no cell has probe"),
        ({"options": {"model": "alexnet"}}, "options.model has no effect: matrix.model sets it for every cell"),
    ],
)
def test_words_that_change_nothing_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        cells_of(make_sweep(**change))


def test_a_cell_keeps_its_name_until_its_records_would_be_others() -> None:
    def name(**changes: object) -> str:
        return cells_of(make_sweep(**{"matrix": {"model": ["resnet50"], "profile": ["smoke"]}, **changes}))[0].cell_id

    same = name()
    assert same.startswith("synthetic-resnet50-smoke-")
    assert name(blocks=9) == same
    assert name(until="2%") == same
    assert name(budget={"retries": 7}, output={"directory": "x"}, engine={"kind": "slurm"}) == same
    assert name(matrix={"model": ["resnet50", "alexnet"], "profile": ["smoke"]}) == same
    assert name(matrix={"model": ["resnet50"]}, options={"profile": "smoke"}) == same
    changes: list[dict[str, object]] = [{"seed": 1}, {"aa": True}, {"envelope": {"cpus": 1}}, {"ablate": ["seccomp"]}]
    assert len({same, *(name(**change) for change in changes), name(targets=["bare-metal"])}) == 6
    odd = name(matrix={"scenario": ["real"], "data": ["imagenet:/../../etc/" + "x" * 300]})
    assert set(odd) <= set("abcdefghijklmnopqrstuvwxyz0123456789-"), "it is a plain directory"
    assert len(odd) < 80
