"""Training scripts in the shapes in which people publish them, run unchanged as commands on real targets.

Each sleeps through most of a step, so that its rate is known: at most ``FASTEST`` per second.
"""

import re
from pathlib import Path

import pytest

from tests.integration.bench import bench, by_arm, measured, records_in
from tests.integration.machine import require, require_root_and_image

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
ALL = """
set -e
mkdir out
python -c 'import torchvision'
python bar.py
python loader.py
torchrun --standalone --nproc_per_node 2 ranks.py
python vision.py
"""
TEXTS = {
    "epochs.py": EPOCHS,
    "bar.py": PROGRESS_BAR,
    "loader.py": LOADER,
    "ranks.py": RANKS,
    "vision.py": VISION,
    "run.sh": SHELL,
    "all.sh": ALL,
}
JSON, UNIT = "json", r"(?P<throughput>[\d.]+) ?(?:batches|steps|images|it)/s"
ENGINE_OF = {"container": "podman", "container+runc": "runc"}
CASES = [
    pytest.param("./run.sh", JSON, 2, ("bare-metal", *ENGINE_OF), id="epochs of a shell script"),
    pytest.param("sh all.sh", UNIT, 13, ("bare-metal", "container"), id="all others"),
    pytest.param(
        *("sh all.sh", UNIT, 13, ("vm",)), id="in a guest", marks=[pytest.mark.thorough, pytest.mark.timeout(1800)]
    ),
]
"""A command, where its rates are, how many it prints, and the arms that run it."""


@pytest.mark.parametrize(("command", "pattern", "rates", "arms"), CASES)
def test_public_scripts_run_as_they_are(
    command: str, pattern: str, rates: int, arms: tuple[str, ...], tmp_path: Path
) -> None:
    require_root_and_image()
    engines = [ENGINE_OF[arm] for arm in arms if arm in ENGINE_OF]
    chosen = [("target", arm) for arm in arms if "+" not in arm] + [("engine", name) for name in engines]
    for kind, name in chosen:
        require(kind, name)
    mine = tmp_path / "mine"
    mine.mkdir()
    for name, text in TEXTS.items():
        (mine / name).write_text(text.lstrip("\n"))
        (mine / name).chmod(0o755)
    (mine / "latest").symlink_to("epochs.py")
    before = sorted(mine.rglob("*"))
    asked = ("--scenario", "command", "--command", command, "--command-files", str(mine))
    words = [word for kind, name in chosen for word in (f"--{kind}", name)]
    words += ["--throughput", pattern, "--profile", "smoke", "--trial-timeout", "1500"]
    found = by_arm(measured(tmp_path / "out", *asked, *words, timeout_s=1700))
    assert sorted(mine.rglob("*")) == before
    assert set(found) == set(arms)
    for record in found.values():
        assert record.outcome.status == "ok"
        assert 0.5 < (record.throughput_per_s or 0) <= FASTEST
        assert len(record.details["throughputs"]) == rates
        assert record.details["working_directory"]["directory"].startswith("/tmp/")
        assert record.details["working_directory"]["linked"] == 0
        assert set(record.substitutes) <= {"accelerator:tcg", "disk:host-page-cache"}, "all else is levelled"


def test_of_two_commands_on_bare_metal_the_slower_is_named(tmp_path: Path) -> None:
    require_root_and_image()
    (tmp_path / "work.py").write_text("import sys, time\ntime.sleep(float(sys.argv[1]))\n")
    commands = ("--", "python3", "work.py", "1", "--versus", "--", "python3", "work.py", "2.2")
    shown = bench("run", "--blocks", "5", "--wait", "--out", "ab", *commands, cwd=tmp_path).stdout
    first = shown.splitlines()[0]
    found = re.match(r"elapsed, b +(\d\.\d+)x a \(.*\) (slower|no verdict)$", first.strip())
    assert found, shown
    assert 1.2 < float(found[1]) < 2.2, "starting the job takes as long for both"
    assert found[2] == "slower" or "busy with other work" in shown or "CPU time away" in shown
    assert "a: python3 work.py 1; b: python3 work.py 2.2; both on bare-metal." in " ".join(shown.split())
    records = records_in(tmp_path / "ab")
    assert {record.target for record in records} == {"bare-metal"}
    assert sorted(record.ablation or "" for record in records) == [""] * 6 + ["versus"] * 6
    assert len({record.job.dataset.sha256 for record in records if record.job.dataset}) == 1
