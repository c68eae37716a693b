"""Measure what the suite itself costs: the same training by a bare script and by ``bench run --target bare-metal``.

Both run in the image's userland and the same control group limits, on the same CPUs, with the same threads and
variables, in pairs whose order is drawn.
Prints both medians, and the trimmed geometric mean of the pairs' ratios (suite over bare) with its 95 % interval.

    python benchmarks/intrusion.py --model resnet50 --pairs 10
"""

import argparse
import json
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parts.pairs import paired, parsed, parser_of, ratios_of, report, verdict_of

from provisioning import ledger
from provisioning.cgroup import limits as cgroups
from provisioning.nodes import local_node
from scenarios.job import clean_environment
from suite.job.envelope import Envelope, format_cpu_list

MARGIN = 0.01
BARE_LOOP = Path(__file__).with_name("parts") / "bare_loop.py"


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--profile", default="quick")
    parser.add_argument("--bench", default="bench", help="the suite's command, such as '.venv/bin/bench'")
    parser.add_argument("--tree", type=Path, help="the image's tree (default: that of the newest image)")
    options = parsed(parser)
    tree = options.tree or newest_tree(options.bench.split())
    what = ("--scenario", "synthetic", "--model", options.model)
    # Not counted: it says which workload and envelope the profile means on this machine, and warms the page cache.
    record = suite_trial(options, *what)

    def rate(side: str) -> float:
        if side == "bare":
            return bare_throughput(tree, record)
        return float(suite_trial(options, *what)["throughput_per_s"])

    found = paired("suite", "bare", rate, options, "images")
    print(f"{options.model}, profile {options.profile}, {options.pairs} pairs:")
    report(found, "images")
    print(verdict_of(ratios_of(found), "pairs", MARGIN))


def newest_tree(bench: Sequence[str]) -> Path:
    """Return the tree of the image that ``bench run`` takes."""
    images = json.loads(output([*bench, "image", "list", "--json"]))["images"]
    if not images:
        sys.exit("no image has been built; run: bench image build")
    return Path(images[0]["tree"])


def suite_trial(options: argparse.Namespace, *what: str) -> dict[str, Any]:
    """Run one trial of the suite on bare metal and return its record."""
    with tempfile.TemporaryDirectory() as directory:
        argv = [*options.bench.split(), "run", "--target", "bare-metal", *what]
        output([*argv, "--profile", options.profile, "--out", directory, "--json"])
        (path,) = Path(directory).glob("trials/*.json")
        record: dict[str, Any] = json.loads(path.read_text())
    if record["outcome"]["status"] != "ok":
        sys.exit(f"the suite's trial failed: {record['outcome']['message']}")
    return record


def bare_throughput(tree: Path, record: dict[str, Any]) -> float:
    """Return the images per second of the bare loop, with the workload and the envelope of the suite's trial.

    The envelope's control group is part of it: the kernel charges every page that a limited group faults in, and the
    script should differ from the suite in nothing but the suite.
    """
    group = f"virtbench-{secrets.token_hex(6)}"
    envelope = Envelope.model_validate(record["job"]["envelope"])
    with local_node(envelope.cpus, str(tree)) as node, ledger.holding("cgroup", group):
        enter = cgroups.create(node, group, envelope)
        return float(output([*enter, *bare_argv(tree, record)], given=BARE_LOOP.read_bytes()))


def bare_argv(tree: Path, record: dict[str, Any]) -> list[str]:
    """Return the command of the bare script, which is read from standard input, in the image's tree."""
    job = record["job"]
    threads = job["envelope"]["threads"]
    sizes = [job["sizes"][name] for name in ("batch", "image_px", "warmup_steps", "steps")]
    mounts = ["--dev-bind", "/dev", "/dev", "--proc", "/proc", "--ro-bind", "/sys", "/sys"]
    mounts += ["--tmpfs", "/tmp", "--tmpfs", "/run"]  # noqa: S108 - inside
    arguments = [job["model"], *sizes, threads, record["seed"]]
    return [
        *("taskset", "--cpu-list", format_cpu_list(job["envelope"]["cpus"])),
        *("bwrap", "--ro-bind", str(tree), "/", *mounts, "--chdir", "/", "--"),
        *clean_environment(threads, job["recipe"]),
        *("/usr/bin/python3", "/dev/stdin", *map(str, arguments)),
    ]


def output(argv: Sequence[str], given: bytes = b"") -> str:
    """Return the standard output of a command; if it fails, end this script with what it printed."""
    done = subprocess.run(argv, input=given, capture_output=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace")[-2000:]
        sys.exit(f"{argv[0]} ended with {done.returncode}:\n{said}")
    return done.stdout.decode()


if __name__ == "__main__":
    main()
