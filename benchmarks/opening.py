"""Hold the opening of containers, as the suite measures it, against their engines by hand.

In pairs whose order is drawn: the suite opens the container layer and reads its stopwatch, as the loop does for
``open_s``; by hand the same engine runs the same image with the same options, and ``true`` in place of the sleeper.
Like is compared with like. Docker and podman start both containers detached, and both times end when the engine
returns: in the foreground they would also attach to the container and wait for its end, which the sleeper does not
have. Runc has both in the foreground: the suite's time ends when the sleeper says that it runs, and the one by hand
when ``true`` has ended. What a container leaves is removed outside of both times. Prints, as JSON, the medians and the
trimmed geometric mean of the pairs' ratios (suite over hand) with its 95 % interval.

    python benchmarks/opening.py --engine podman --pairs 20
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY))  # as a script, this file is not part of the installed suite

from analysis.statistics.ratios import locate  # noqa: E402
from provisioning import ledger  # noqa: E402
from provisioning.engines.base import SLEEPER, ContainerSpec, get_engine  # noqa: E402
from provisioning.engines.command_line import CommandLineEngine  # noqa: E402
from provisioning.engines.runc import PROFILE, RUNC, bundle_config, bundle_profile  # noqa: E402
from provisioning.images.image import Image, current  # noqa: E402
from provisioning.layers.container import ContainerLayer  # noqa: E402
from provisioning.nodes import LocalNode, local_node  # noqa: E402
from suite.errors import BenchError  # noqa: E402
from suite.interfaces import open_stack  # noqa: E402
from suite.job.envelope import GIB  # noqa: E402
from suite.plan import balanced  # noqa: E402
from suite.registries import ENGINES  # noqa: E402

MARGIN = 0.1
CPUS = (0, 1)
WORD = "true"


def main() -> None:
    options = parse()
    image = current()
    layer = ContainerLayer(get_engine(options.engine), image.digest, 2 * GIB)
    measured: dict[str, list[float]] = {"hand": [], "suite": []}
    for number in range(options.pairs + 1):
        for side in balanced(sorted(measured), number + 1, str(options.seed)):
            with local_node(CPUS, str(image.tree)) as node:
                seconds = by_suite(node, layer) if side == "suite" else by_hand(node, layer, image)
            if number:  # the first pair warms the page cache
                measured[side].append(seconds)
    print(json.dumps(summary(options.engine, measured["hand"], measured["suite"]), indent=2))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--engine", choices=sorted(ENGINES.own), default="podman")
    parser.add_argument("--pairs", type=int, default=20, help="at least 2 (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the order in each pair")
    options = parser.parse_args()
    if options.pairs < 2:
        parser.error("--pairs must be at least 2: one ratio has no interval")
    return options


def by_suite(node: LocalNode, layer: ContainerLayer) -> float:
    with open_stack(node, [layer]) as container:
        return container.opening.seconds


def by_hand(node: LocalNode, layer: ContainerLayer, image: Image) -> float:
    """Return the seconds that the engine takes for ``true`` in such a container."""
    spec = layer.specification(node, str(image.tree))
    argv = command(layer, spec, Path(node.directory))
    with ledger.holding("container", f"{layer.engine.name}:{spec.name}"):
        begin_s = time.monotonic()
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - begin_s
    if done.returncode:
        sys.exit(f"{argv[0]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return seconds


def command(layer: ContainerLayer, spec: ContainerSpec, directory: Path) -> list[str]:
    """Return the engine's command; runc's bundle is written into the directory."""
    if isinstance(layer.engine, CommandLineEngine):
        return [*layer.engine.run_argv(spec)[: -len(SLEEPER)], WORD]
    config = bundle_config(spec, bundle_profile(Path(spec.tree, PROFILE).read_text()))
    config["process"]["args"] = [WORD]
    (directory / "config.json").write_text(json.dumps(config))
    return RUNC.command("run", "--bundle", str(directory), spec.name)


def summary(engine: str, hand: Sequence[float], suite: Sequence[float]) -> dict[str, object]:
    place = locate([math.log(ours / theirs) for ours, theirs in zip(suite, hand, strict=True)])
    if place is None or place.interval is None:
        sys.exit("at least 2 pairs are needed")
    ratio = math.exp(place.centre)
    return {
        "engine": engine,
        "pairs": len(hand),
        "hand_s": round(statistics.median(hand), 4),
        "suite_s": round(statistics.median(suite), 4),
        "ratio": round(ratio, 4),
        "interval": [round(math.exp(end), 4) for end in place.interval],
        "within_10_percent": 1 / (1 + MARGIN) <= ratio <= 1 + MARGIN,
    }


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:  # such as an engine that does not run here, or does not hold the image yet
        sys.exit(f"{error.message}\n{error.remedy or ''}".rstrip())
