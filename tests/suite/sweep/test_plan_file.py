import tomllib
from pathlib import Path

import pytest

from suite import schema
from suite.errors import RequestError
from suite.request.scenario import scenario_of
from suite.sweep.cells import cells_of, request_of
from suite.sweep.file import load_sweep, plan_file, read_sweep
from tests.suite.sweep.conftest import REPOSITORY, make_sweep

DOCUMENTED = (REPOSITORY / "docs/guide/sweeps.md").read_text()


def test_the_published_schemas_are_those_of_the_models() -> None:
    assert schema.SCHEMA.read_text() == schema.record_schema(), "run: python -m suite.schema"
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
