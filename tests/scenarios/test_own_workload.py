"""A workload of an own file or another package: what is sent of it, and what is refused before the first trial."""

import hashlib
import json
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from scenarios.job import specification
from scenarios.members import plugin_of, source_sha256
from scenarios.own_workload import LARGEST_BYTES, adopt
from suite.errors import MeasurementError, RequestError
from suite.job.profiles import PROFILES, check_sizes
from suite.plan import Trial
from suite.registries import WORKLOADS
from suite.registry import Registry
from tests.scenarios.conftest import fails
from worker.spec import parse_spec

DECLARED = """
from dataclasses import dataclass
from worker.workloads.workload import Workload

@dataclass(frozen=True, kw_only=True)
class Toy(Workload):
    def build(self, shape):
        import torch
        return torch.nn.Flatten()
"""
TOY = f'{DECLARED}\nTOY = Toy(name="toy", sizes={{"smoke": (4, 8)}})\n'


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a file."""

    def written(source: str, name: str = "my_model.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
        return path

    return written


def test_the_target_is_sent_the_file_and_builds_the_workload_of_it(
    write: Any, trial: Trial, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(f"# as I have written it\nprint('loading my model')\n{TOY}")
    name = adopt(str(path))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert (name, source_sha256(WORKLOADS, name)) == ("my_model.py", digest)
    given = json.loads(specification(trial.with_job(model=name, workload_sha256=digest)).encoded())
    assert given["plugin"]["source"] == path.read_text()
    assert parse_spec(json.dumps(given)).load_workload().sizes == {"smoke": (4, 8)}
    assert name in WORKLOADS
    assert name not in [*WORKLOADS, *WORKLOADS.names(), *WORKLOADS.added()], "it is in no list of names"
    assert capsys.readouterr() == ("", "loading my model\n"), "what it prints is kept out of standard output"


def test_a_file_beside_it_that_it_reads_is_missed_before_anything_starts(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("words", "vocabulary.txt")
    monkeypatch.chdir(tmp_path)
    path = write(f'from pathlib import Path\nWORDS = Path("vocabulary.txt").read_text()\n{TOY}', "reads.py")
    with pytest.raises(RequestError, match=r"reads\.py, line 2: FileNotFoundError") as refused:
        adopt(str(path))
    assert "vocabulary.txt is not sent into the targets; move its content into reads.py" in str(refused.value.remedy)
    assert Path.cwd() == tmp_path


def test_a_class_that_needs_no_arguments_stands_for_its_instance(write: Any, trial: Trial) -> None:
    own = '    name: str = "toy"\n    sizes: dict = field(default_factory=lambda: {"smoke": (2, 16)})\n'
    source = DECLARED.replace("dataclass\n", "dataclass, field\n", 1).replace("    def", f"{own}\n    def")
    name = adopt(str(write(source)))
    assert WORKLOADS.get(name).sizes == {"smoke": (2, 16)}
    digest = source_sha256(WORKLOADS, name)
    given = specification(trial.with_job(model=name, workload_sha256=digest)).encoded().decode()
    assert parse_spec(given).load_workload().name == "toy"


def test_a_workload_without_images_has_a_batch_alone_or_sequences_and_no_size_of_images(
    write: Any, trial: Trial
) -> None:
    own = "    def draw(self, batch, shape, generator):\n        raise NotImplementedError\n\n    def"
    name = adopt(str(write(TOY.replace("(4, 8)", "512").replace("    def", own, 1))))
    sizes = PROFILES["smoke"].sizes_of(name)
    assert (sizes.batch, sizes.image_px) == (512, None)
    check_sizes(name, sizes, name)
    with pytest.raises(RequestError, match=r"my_model\.py has no images, and no --image-px"):
        check_sizes(name, sizes.model_copy(update={"image_px": 64}), name)
    source = TOY.replace("(4, 8)", "(64, 16)").replace("    def", own, 1)
    extent = 'name="toy", extent="tokens", depth={"smoke": 3}'
    name = adopt(str(write(source.replace('name="toy"', extent), "sequences.py")))
    sizes = PROFILES["smoke"].sizes_of(name)
    assert (sizes.batch, sizes.tokens, sizes.depth, sizes.image_px) == (64, 16, 3, None)
    job = {"model": name, "sizes": sizes, "workload_sha256": source_sha256(WORKLOADS, name)}
    shape = parse_spec(specification(trial.with_job(**job)).encoded().decode()).shape
    assert (shape.px, shape.tokens, shape.depth) == (0, 16, 3)


def test_of_several_one_is_named(write: Any) -> None:
    path = write(f"{TOY}\nOTHER = Toy(name='other', sizes={{'smoke': (2, 16)}})\n")
    with pytest.raises(RequestError, match="declares TOY, OTHER") as told:
        adopt(str(path))
    assert told.value.remedy == f"name one: {path}:OTHER"
    assert adopt(f"{path}:OTHER") == "my_model.py+OTHER"
    assert WORKLOADS.get("my_model.py+OTHER").name == "other"


FORMS = {
    "3dcnn.py": TOY,
    "resnet-50.py": TOY,
    "torch.py": TOY,
    "byte_order_mark.py": f"\ufeff{TOY}",
    "line_ends_of_windows.py": TOY.replace("\n", "\r\n"),
}


@pytest.mark.parametrize("name", FORMS)
def test_usual_names_and_forms_of_files_are_taken(name: str, write: Any, trial: Trial) -> None:
    path = write(FORMS[name], name)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    job = trial.with_job(model=adopt(str(path)), workload_sha256=digest)
    assert parse_spec(specification(job).encoded().decode()).load_workload().sizes == {"smoke": (4, 8)}


def test_a_file_that_reads_arguments_is_refused(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "run", "--model", "./my_model.py"])
    with pytest.raises(RequestError, match="line 13: SystemExit: 2") as refused:
        adopt(str(write(f"{TOY}import argparse\nargparse.ArgumentParser().parse_args()\n")))
    assert "under if __name__ == '__main__'" in str(refused.value.remedy)


def test_two_files_of_one_name_are_refused(write: Any) -> None:
    adopt(str(write(TOY)))
    adopt(str(write(TOY, "again/my_model.py")))  # the same workload
    with pytest.raises(RequestError, match=r"two different workloads are called my_model\.py"):
        adopt(str(write(TOY + "\n", "again/my_model.py")))


def test_a_plain_script_is_not_executed_before_it_is_refused(write: Any, tmp_path: Path) -> None:
    script = f"import torch.nn as nn\nclass Net(nn.Module): pass\nopen({str(tmp_path / 'ran')!r}, 'w')\n"
    with pytest.raises(RequestError, match="declares no workload") as told:
        adopt(str(write(script, "train.py")))
    assert not (tmp_path / "ran").exists()
    assert "--scenario command --command 'python train.py'" in str(told.value.remedy)


def test_a_module_beside_the_file_does_not_travel(write: Any) -> None:
    write("thing = 1", "helper.py")
    with pytest.raises(RequestError, match="No module named 'helper'") as refused:
        adopt(str(write(f"from helper import thing\n{TOY}")))
    assert "helper is not sent into the targets; move its code into my_model.py, or" in str(refused.value.remedy)
    assert "--scenario command with --command-files" in str(refused.value.remedy)


def test_a_file_that_is_not_there_or_no_text_is_refused(write: Any, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"my_model\.py is larger than 1 MiB"):
        adopt(str(write("#" * (LARGEST_BYTES + 1))))
    with pytest.raises(RequestError, match=r"cannot read the workload .*none\.py: No such file"):
        adopt(str(tmp_path / "none.py"))
    path = write("")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(RequestError, match="it is not UTF-8"):
        adopt(str(path))
    with pytest.raises(RequestError, match=r"'my model\.py' cannot be the name of a trial"):
        adopt(str(write(TOY, "my model.py")))
    with pytest.raises(RequestError, match="NOTHING"):
        adopt(f"{write(TOY)}:NOTHING")
    with pytest.raises(RequestError, match="dataclass is no workload"):
        adopt(f"{write(TOY)}:dataclass")


def test_a_source_that_has_changed_since_the_plan_is_not_sent(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("TOY = 'toy'\n", "changing_toy.py")
    monkeypatch.syspath_prepend(str(path.parent))
    registry = Registry("virtbench.workloads", "workload", {})
    registry._places["toy"] = EntryPoint("toy", "changing_toy:TOY", registry.group)
    planned = source_sha256(registry, "toy")
    path.write_text("TOY = 'another'\n")
    with fails(MeasurementError, "plan", "the workload 'toy' in changing_toy is not the one that was planned"):
        plugin_of(registry, "toy", planned)
