"""Plans are code: who may write them, what they may name, how large they may be, and what they become elsewhere."""

import os
from pathlib import Path

import pytest

from commands.sweep.backends import slurm
from provisioning.batch.options import SlurmOptions
from provisioning.timers.base import ScheduledJob, parse_schedule
from provisioning.timers.host import Cron, Systemd
from scenarios.datasets.resolve import resolve
from suite.errors import RequestError
from suite.inventory import read_inventory
from suite.plan import MOST_TRIALS
from suite.request.request import RunRequest
from suite.sweep.cells import MOST_CELLS, cells_of
from suite.sweep.file import load_sweep, read_sweep
from tests.jobs import plan_of
from tests.suite.conftest import ENVELOPE, WORKLOAD

HOSTS = '[[node]]\nname = "n1"\nhost = "gpu1"\n'
PLAN = 'name = "night"\n[engine]\nkind = "slurm"\n'


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_an_inventory_its_ssh_config_or_its_directory_that_others_may_write_is_refused(tmp_path: Path) -> None:
    assert read_inventory(write(tmp_path / "hosts.toml", HOSTS)).nodes
    with pytest.raises(RequestError, match="others may write it") as raised:
        read_inventory(write(tmp_path / "hosts.toml", HOSTS, 0o666))
    assert "chmod go-w" in str(raised.value.remedy)
    hosts = write(tmp_path / "hosts.toml", f'{HOSTS}ssh_config = "config"\n')
    config = write(tmp_path / "config", "Match exec true\n")
    assert read_inventory(hosts).nodes[0].ssh_config == config
    config.chmod(0o602)
    with pytest.raises(RequestError, match="the ssh_config of n1"):
        read_inventory(hosts)
    hosts = write(tmp_path / "hosts.toml", HOSTS)
    hosts.parent.chmod(0o777)
    with pytest.raises(RequestError, match="another in its place"):
        read_inventory(hosts)
    hosts.parent.chmod(0o1777)
    assert read_inventory(hosts).nodes


def test_a_plan_that_names_other_machines_is_refused_where_others_may_write_it(tmp_path: Path) -> None:
    assert load_sweep(write(tmp_path / "night.toml", PLAN)).name == "night"
    with pytest.raises(RequestError, match="the plan"):
        load_sweep(write(tmp_path / "night.toml", PLAN, 0o666))
    assert load_sweep(write(tmp_path / "here.toml", 'name = "here"\n', 0o666)).name == "here"


@pytest.mark.parametrize("table", ["options", "[include]"])
def test_a_plan_that_names_a_workload_in_a_file_is_refused_where_others_may_write_it(
    table: str, tmp_path: Path
) -> None:
    text = f'name = "mine"\n[{table}]\nmodel = "./my_model.py"\n'
    path = write(tmp_path / "mine.toml", text)
    (cell,) = cells_of(load_sweep(path))
    assert cell.settings["model"] == str(path.parent / "my_model.py"), "it is relative to the plan file"
    with pytest.raises(RequestError, match="others may write it"):
        load_sweep(write(tmp_path / "mine.toml", text, 0o666))


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_a_file_of_another_user_is_refused_unless_root_was_asked_by_him(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = write(tmp_path / "hosts.toml", HOSTS)
    os.chown(hosts, 4242, 4242)
    monkeypatch.delenv("SUDO_UID", raising=False)
    with pytest.raises(RequestError, match="belongs to user 4242"):
        read_inventory(hosts)
    monkeypatch.setenv("SUDO_UID", "4242")
    assert read_inventory(hosts).nodes


@pytest.mark.parametrize("option", ["--prolog=/tmp/x", "--export=LD_PRELOAD=/tmp/x", "--output=/etc/x", "--wrap=id"])
def test_slurm_is_given_no_option_that_starts_or_writes_something(option: str) -> None:
    with pytest.raises(ValueError, match="is not among the options"):
        SlurmOptions(further=(option,))
    assert SlurmOptions(further=("--licenses=a b",)).further


@pytest.mark.parametrize("name", ["a\n#SBATCH --prolog=x", "a\rb", "a\x1b[2Jb"])
def test_a_line_break_in_a_path_is_no_line_of_a_batch_script(name: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="batch script"):
        slurm.script(SlurmOptions(), "bench-x", tmp_path / name, ["bench"], [0], None)


def job(**changes: str) -> ScheduledJob:
    values = {"directory": "/srv/a b", "log": "/srv/log", **changes}
    return ScheduledJob("x", parse_schedule("hourly"), Path("p.toml"), ("bench",), (), environment={}, **values)


def test_what_cron_would_take_for_the_end_of_the_line_is_refused() -> None:
    assert r"100\% 'sure'" in "".join(Cron().render(job(directory="/srv/100% 'sure'")).values()).replace("'\"'\"'", "'")
    with pytest.raises(RequestError, match="cron cannot hold"):
        "".join(Cron().render(job(log="/srv/a\\%b")).values())


@pytest.mark.parametrize("directory", ["/srv/a\\", "/srv/a "])
def test_what_systemd_would_read_on_in_the_next_line_is_refused(directory: str) -> None:
    assert "WorkingDirectory=/srv/a b\n" in "".join(Systemd().render(job()).values())
    with pytest.raises(RequestError, match="cannot name the directory"):
        Systemd().render(job(directory=directory))


@pytest.mark.parametrize("name", ['a",source=", b', "a\nb", "a\x1bb"])
def test_a_data_directory_whose_name_engines_would_read_otherwise_is_refused(name: str, tmp_path: Path) -> None:
    place = tmp_path / name
    (place / "class").mkdir(parents=True)
    with pytest.raises(RequestError, match="quotation mark or a control character"):
        resolve(f"imagefolder:{place}", tmp_path)


def test_blocks_cells_and_steps_without_end_are_refused_with_their_number() -> None:
    with pytest.raises(RequestError, match="blocks 2,000,000,000") as raised:
        RunRequest.of({"blocks": 2_000_000_000})
    assert "1,000,000" in str(raised.value.remedy)
    with pytest.raises(RequestError, match="300,000 blocks are 300,000 trials"):
        plan_of(blocks=300_000, sizes=WORKLOAD, envelope=ENVELOPE)
    assert plan_of(blocks=MOST_TRIALS, sizes=WORKLOAD, envelope=ENVELOPE).blocks == MOST_TRIALS
    with pytest.raises(RequestError, match=r"2000000000|2,000,000,000"):
        read_sweep({"name": "x", "blocks": 2_000_000_000}, "x.toml")
    sixty = list(range(1, 61))
    names = ("batch", "image_px", "steps", "warmup_steps", "loader_workers", "trial_timeout")
    sweep = read_sweep({"name": "x", "matrix": dict.fromkeys(names, sixty)}, "x.toml")
    with pytest.raises(RequestError, match=f"{60**6:,} cells: {MOST_CELLS:,} are the most"):
        cells_of(sweep)
    many = read_sweep({"name": "x", "blocks": 1000, "matrix": {"batch": sixty, "steps": sixty}}, "x.toml")
    with pytest.raises(RequestError, match=r"3,600 cells of 1,000 blocks are 3,600,000 trials"):
        cells_of(many)
    with pytest.raises(ValueError, match="100000"):
        WORKLOAD.model_validate({**WORKLOAD.model_dump(), "steps": 100_001})
