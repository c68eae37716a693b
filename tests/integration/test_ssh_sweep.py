"""Sweeps over machines that are reached by a real SSH; what these machines measure is real in one test alone."""

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from provisioning.machines.ssh import SSHD_CONFIG, destination
from provisioning.remote.machine import QUICK_BYTES, machine
from suite.inventory import InventoryNode, read_inventory
from tests.integration.bench import bench, inside
from tests.integration.machine import require_image, require_root, wait_for
from tests.integration.remote_sweep import FAST, RemoteSweep, fake_bench, true_bench
from tests.integration.ssh_machines import NAMES, ssh_machines
from tests.own_directories import held_in

pytestmark = pytest.mark.integration

REAL = """
name = "real"
targets = ["bare-metal"]
[matrix]
model = ["alexnet"]
[options]
profile = "smoke"
steps = 1
warmup_steps = 1
"""


@pytest.fixture(scope="module")
def inventory() -> Iterator[Path]:
    require_root()
    with ssh_machines(place()) as made:
        yield made


def place() -> Path:
    # Not below pytest's own directory: that may be readable by this user alone, and sshd looks at what is above a key.
    return Path(tempfile.mkdtemp(prefix="vb-ssh-", dir="/var/tmp"))


def sweep_on(inventory: Path, tmp_path: Path, plan: str, benches: dict[str, str], *only: str) -> RemoteSweep:
    """``benches``: the command on each machine. ``only``: which of them are used."""
    listed = inventory.read_text()
    for name, command in benches.items():
        listed = listed.replace(f'name = "{name}"\n', f'name = "{name}"\nbench = "{command}"\n')
    own = inventory.with_name(f"{tmp_path.name}.toml")
    own.write_text(listed)
    nodes = ", ".join(f'"{name}"' for name in only or benches)
    return RemoteSweep(tmp_path, f'{plan}\n[engine]\nkind = "ssh"\ninventory = "{own}"\nnodes = [{nodes}]\n')


def far_processes(place: Path) -> list[psutil.Process]:
    """Those of the commands that ``fake_bench`` made below ``place``."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("MEASURED", "").startswith(str(place)):
                found.append(process)
    return found


def printed_by_login(planned: InventoryNode) -> str:
    by_hand = ["ssh", *destination(planned.host, planned.port, planned.ssh_config), "true"]
    return subprocess.run(by_hand, capture_output=True, text=True, check=True).stdout


@pytest.mark.beside
def test_what_a_real_login_shell_prints_is_no_output_of_a_command(inventory: Path) -> None:
    large = b"x" * (QUICK_BYTES + 1)
    planned = read_inventory(inventory).nodes[0]
    assert printed_by_login(planned).startswith("Welcome")
    with machine(planned) as reached:
        assert reached.run(["wc", "-c"], stdin=large).stdout == f"{len(large)}\n"
        assert list(reached.start(["echo", "a\nb!"]).lines(60)) == ["a", "b!"]


@pytest.mark.beside
def test_the_login_shell_of_a_guest_prints_nothing() -> None:
    require_root()
    (variables,) = re.findall("(?m)^SetEnv (.*)$", SSHD_CONFIG)
    with ssh_machines(place(), variables) as inventory:
        assert printed_by_login(read_inventory(inventory).nodes[0]) == ""


@pytest.mark.beside
def test_blocks_go_to_machines_as_these_become_free(inventory: Path, tmp_path: Path) -> None:
    benches = {name: fake_bench(tmp_path / name, slow_s=0.05) for name in NAMES}
    sweep = sweep_on(inventory, tmp_path, FAST.format(blocks=4), benches)
    assert len(sweep.end_complete()) == 16
    for name in NAMES:
        assert f"ended on {name}" in sweep.said()
        assert held_in(tmp_path / name / "home/blocks") == []


@pytest.mark.thorough
@pytest.mark.beside
def test_a_machine_that_is_lost_loses_its_block_to_another_and_no_record(inventory: Path, tmp_path: Path) -> None:
    benches = {"one": fake_bench(tmp_path / "one", slow_s=3), "two": fake_bench(tmp_path / "two", slow_s=0.01)}
    sweep = sweep_on(inventory, tmp_path, FAST.format(blocks=6), benches)
    wait_for("a record of one", lambda: "images/s" in _log(sweep, "one"), sweep.said)
    wait_for("its arrival", lambda: bool(sweep.records()), sweep.said)
    kept = sweep.records()
    fake_bench(tmp_path / "one", slow_s=0.01)
    for process in far_processes(tmp_path / "one"):
        process.kill()
    sweep.end_complete(kept)
    assert "lost on one" in sweep.said()


@pytest.mark.thorough
@pytest.mark.beside
def test_an_unequal_machine_is_refused_with_what_differs_before_it_measures(inventory: Path, tmp_path: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two CPUs: the unequal machine has one")
    other = fake_bench(tmp_path / "two", 0.01, "taskset", "--cpu-list", str(min(os.sched_getaffinity(0))))
    benches = {"one": fake_bench(tmp_path / "one", slow_s=0.2), "two": other}
    sweep = sweep_on(inventory, tmp_path, FAST.format(blocks=2), benches, "one")
    assert sweep.end() == 0, sweep.said()
    sweep.file.write_text(sweep.file.read_text().replace("blocks = 2", "blocks = 3").replace('["one"]', '["two"]'))
    sweep.start()
    assert sweep.end() == 1
    assert "is unequal to" in sweep.said()
    assert "CPUs:" in sweep.said()
    assert not (tmp_path / "two/measured").exists()
    assert len(sweep.records()) == 8


def in_mid_run(inventory: Path, tmp_path: Path) -> RemoteSweep:
    """One block on one machine: some trials are still to come, in many seconds, and in few when it is run again."""
    sweep = sweep_on(inventory, tmp_path, FAST.format(blocks=1), {"one": fake_bench(tmp_path / "one", slow_s=3)})
    wait_for("a record", lambda: bool(sweep.records()), sweep.said)
    fake_bench(tmp_path / "one", slow_s=0.01)
    return sweep


@pytest.mark.thorough
@pytest.mark.beside
def test_ctrl_c_ends_the_far_side_in_order(inventory: Path, tmp_path: Path) -> None:
    sweep = in_mid_run(inventory, tmp_path)
    sweep.process.send_signal(signal.SIGINT)
    assert sweep.end() == 130
    assert far_processes(tmp_path / "one") == []
    assert "interrupted" in _log(sweep, "one")
    sweep.start()
    sweep.end_complete()


@pytest.mark.thorough
@pytest.mark.beside
def test_the_far_side_ends_itself_when_this_one_is_killed(inventory: Path, tmp_path: Path) -> None:
    sweep = in_mid_run(inventory, tmp_path)
    sweep.process.kill()
    sweep.process.wait()
    wait_for("the far side's end", lambda: not far_processes(tmp_path / "one"), sweep.said)
    sweep.start()
    sweep.end_complete()
    # What the killed one had written down stays until somebody cleans up; the tests of real targets expect nothing.
    assert str(tmp_path) in bench("clean").stdout


def test_a_real_trial_is_measured_through_ssh(inventory: Path, tmp_path: Path) -> None:
    require_image()
    (record,) = sweep_on(inventory, tmp_path, REAL, {"two": true_bench(tmp_path / "two")}).end_complete().values()
    assert inside(record).userland_sha256 == require_image().digest


def _log(sweep: RemoteSweep, name: str) -> str:
    path = sweep.out / "logs" / f"{name}.log"
    return path.read_text() if path.exists() else ""
