"""Training scripts in the shapes in which people publish them, run unchanged as commands on real targets.

Each sleeps through most of a step, so that its rate is known: at most ``FASTEST`` per second.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.machine import require, require_root_and_image
from tests.integration.test_run import BENCH

pytestmark = pytest.mark.integration

FASTEST = 10.0
EPOCHS = """
import argparse, json, pathlib, time
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--output-dir", type=pathlib.Path, default="out")
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()
args.output_dir.mkdir()  # fails if something of an earlier trial is there
model = torch.nn.Linear(8, 8)
for epoch in range(args.epochs):
    begin = time.monotonic()
    for _ in range(3):
        model(torch.randn(4, 8)).sum().backward()
        time.sleep(0.1)
    torch.save(model.state_dict(), args.output_dir / f"checkpoint-{epoch}.pt")
    print(json.dumps({"step": epoch, "throughput": 3 / (time.monotonic() - begin)}), flush=True)
"""
PROGRESS_BAR = r"""
import sys, time

begin = time.monotonic()
for step in range(1, 11):
    time.sleep(0.1)
    rate = step / (time.monotonic() - begin)
    sys.stderr.write(f"\r{step * 10:3}%|{'#' * step:10}| {step}/10 [00:00<00:00, {rate:5.2f}it/s]")
"""
LOADER = """
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Images(Dataset):
    def __len__(self):
        return 64 * 6

    def __getitem__(self, index):
        return torch.zeros(3, 224, 224), index % 10

if __name__ == "__main__":
    begin = time.monotonic()
    for number, (images, labels) in enumerate(DataLoader(Images(), batch_size=64, num_workers=2), 1):
        time.sleep(0.1)
    print(f"{number / (time.monotonic() - begin):.3f} batches/s")
"""
RANKS = """
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
assert dist.get_world_size() == 2
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
begin = time.monotonic()
for _ in range(5):
    model(torch.randn(4, 8)).sum().backward()
    time.sleep(0.1)
if dist.get_rank() == 0:
    print(f"{5 / (time.monotonic() - begin):.3f} steps/s", flush=True)
dist.destroy_process_group()
"""
VISION = """
import getpass, time
from torchvision import datasets, models, transforms

files = [open("/proc/self/status") for _ in range(1500)]
begin = time.monotonic()
time.sleep(0.1)
print(f"{getpass.getuser()}: {1 / (time.monotonic() - begin):.3f} images/s")
"""
SHELL = """#!/bin/bash
set -e
mkdir results
python epochs.py --output-dir results/epochs
ls results/epochs/checkpoint-1.pt
"""
JSON, UNIT = "json", r"(?P<throughput>[\d.]+) ?(?:batches|steps|images|it)/s"
SCRIPTS = {
    "epochs.py": (EPOCHS, "python epochs.py --epochs 2", JSON),
    "bar.py": (PROGRESS_BAR, "python bar.py", UNIT),
    "loader.py": (LOADER, "python loader.py", UNIT),
    "ranks.py": (RANKS, "torchrun --standalone --nproc_per_node 2 ranks.py", UNIT),
    "vision.py": (VISION, "python vision.py", UNIT),
    "run.sh": (SHELL, "./run.sh", JSON),
}
"""The text of each script, the command that starts it, and where its rate is."""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    directory = tmp_path / "mine"
    directory.mkdir()
    for name, (text, _, _) in SCRIPTS.items():
        (directory / name).write_text(text.lstrip("\n"))
        (directory / name).chmod(0o755)
    (directory / "latest").symlink_to("epochs.py")
    everything = "\n".join(command for _, command, pattern in SCRIPTS.values() if pattern == UNIT)
    (directory / "all.sh").write_text(f"set -e\nmkdir out\npython -c 'import torchvision'\n{everything}\n")
    return directory


def records_of(mine: Path, command: str, pattern: str, *words: str, timeout_s: float) -> list[dict[str, Any]]:
    """Return the records of one block of the command; its files are unchanged by it."""
    before = sorted(mine.rglob("*"))
    argv = ["run", "--scenario", "command", "--command", command, "--command-files", str(mine), "--wait"]
    argv += ["--throughput-pattern", pattern, "--profile", "smoke", "--out", str(mine.parent / "out"), *words]
    done = subprocess.run([BENCH, *argv], check=False, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(mine.rglob("*")) == before
    return [json.loads(path.read_text()) for path in (mine.parent / "out/trials").iterdir()]


def check(record: dict[str, Any]) -> None:
    assert record["outcome"]["status"] == "ok"
    assert 0.5 < record["throughput_per_s"] <= FASTEST
    assert record["details"]["working_directory"]["directory"].startswith("/tmp/")
    assert record["details"]["working_directory"]["linked"] == 0
    assert set(record["substitutes"]) <= {"accelerator:tcg", "disk:host-page-cache"}, "all else is levelled"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_public_script_runs_as_it_is(name: str, mine: Path) -> None:
    require_root_and_image()
    for engine in ("podman", "runc"):
        require("engine", engine)
    _, command, pattern = SCRIPTS[name]
    words = ["--target", "bare-metal", "--target", "container", "--engine", "podman", "--engine", "runc"]
    records = records_of(mine, command, pattern, *words, timeout_s=580)
    assert {(record["target"], record["ablation"]) for record in records} == {
        ("bare-metal", None),
        ("container", None),
        ("container", "runc"),
    }
    for record in records:
        check(record)


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_the_scripts_run_as_they_are_in_a_virtual_machine(mine: Path) -> None:
    require_root_and_image()
    require("target", "vm")
    words = ["--target", "vm", "--trial-timeout", "1500"]
    (record,) = records_of(mine, "sh all.sh", UNIT, *words, timeout_s=1700)
    check(record)
    assert len(record["details"]["throughputs"]) >= 4
