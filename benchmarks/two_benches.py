"""Start every step twice, at once, on one empty home: both must end well, and what they share must be made once.

    python benchmarks/two_benches.py --home /var/lib/virtbench-two

Builds the image, draws a data set, then trains on it on bare metal and in a VM, which packs the set as a disk. Prints
what each bench has said of the other, and every finding. The home stays; remove it afterwards. Needs root.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from suite.results.store import Run

WITHIN_S = 3600.0
TRAINING = ("--scenario", "real", "--data", "generated", "--profile", "smoke", "--steps", "1", "--warmup-steps", "0")


def at_once(bench: Sequence[str], each: Sequence[Sequence[str]]) -> list[str]:
    """Run the commands beside each other; return what is wrong with how they end."""
    found = []
    with tempfile.TemporaryDirectory(prefix="two-") as place:
        logs = [Path(place, str(number)) for number in range(len(each))]
        processes = []
        for words, path in zip(each, logs, strict=True):
            with path.open("wb") as log:
                processes.append(subprocess.Popen([*bench, *words], stdout=log, stderr=subprocess.STDOUT))
        for words, path, process in zip(each, logs, processes, strict=True):
            status, said = process.wait(WITHIN_S), path.read_text(errors="replace")
            print("\n".join(line for line in said.splitlines() if "another bench" in line), flush=True)
            if status or "Traceback" in said:
                found.append(f"bench {' '.join(words)} ended with {status}: {said[-2000:]}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--home", type=Path, required=True, help="a directory that does not exist yet")
    parser.add_argument("--target", action="append", help="repeatable (default: bare-metal and vm)")
    parser.add_argument("--bench", default="bench", help="the suite's command, such as '.venv/bin/bench'")
    options = parser.parse_args()
    if options.home.exists():
        parser.error(f"{options.home} is there already")
    os.environ["VIRTBENCH_HOME"] = str(options.home)
    bench = options.bench.split()
    targets = [word for target in options.target or ("bare-metal", "vm") for word in ("--target", target)]
    found = at_once(bench, [["image", "build"]] * 2)
    found += at_once(bench, [["data", "make", "--images", "64", "--size", "small", "--classes", "8"]] * 2)
    with tempfile.TemporaryDirectory(prefix="two-") as place:
        outs = [Path(place, name) for name in ("one", "other")]
        found += at_once(bench, [["run", *TRAINING, *targets, "--concurrent", "--out", str(out)] for out in outs])
        failed = [record for out in outs for record in Run(out).records() if record.outcome.status != "ok"]
        found += [f"{record.trial_id} failed: {record.outcome.message}" for record in failed]
        found += at_once(bench, [["audit", str(out)] for out in outs])
    found += at_once(bench, [["image", "verify"]])
    images, disks = list(options.home.glob("images/*/image.json")), list(options.home.glob("data-disks/*.img"))
    left = [*options.home.glob("ledger/*.json"), *options.home.rglob(".making-*"), *options.home.rglob(".virtbench.*")]
    found += [f"left: {path}" for path in left]
    print("\n".join([*found, f"{len(images)} image, {len(disks)} data disks: {len(found)} findings"]))
    sys.exit(1 if found or len(images) != 1 or len(disks) > 1 else 0)


if __name__ == "__main__":
    main()
