"""The command line of the tests' cluster: ``python -m tests.kubernetes_cluster build|up|down|status``."""

import argparse
import subprocess
import sys

from provisioning.images.image import current
from suite.errors import BenchError
from tests.kubernetes_cluster import build, cluster
from tests.kubernetes_cluster.layout import KUBECONFIG, PROGRAMS, ClusterError


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes_cluster", description=__doc__)
    commands = parser.add_subparsers(required=True)
    commands.add_parser("build", help="build the programs, if that was not done").set_defaults(
        run=lambda _: build.build()
    )
    up = commands.add_parser("up", help="start the cluster anew, and print the path of its kubeconfig")
    up.add_argument("--no-pin", action="store_true", help="without the static CPU manager: pods share all CPUs")
    up.set_defaults(run=_up)
    commands.add_parser("down", help="end the cluster and remove what is left").set_defaults(
        run=lambda _: cluster.down()
    )
    commands.add_parser("status", help="say what is there").set_defaults(run=lambda _: _status())
    words = parser.parse_args()
    try:
        words.run(words)
    except (BenchError, build.BuildError, ClusterError, subprocess.CalledProcessError) as error:
        sys.exit(f"{error}")


def _up(words: argparse.Namespace) -> None:
    image = current()
    build.build()
    started = cluster.up(image, pin=not words.no_pin)
    for node, address in started.containerd.items():
        cpus = ", ".join(map(str, started.cpus[node])) if started.cpus else "all, shared"
        print(f"{node}: containerd {address}, CPUs of pods: {cpus}", file=sys.stderr)
    print(started.kubeconfig)


def _status() -> None:
    print(f"programs: {PROGRAMS if build.built() else 'not built'}")
    print(f"cluster: {KUBECONFIG if cluster.running() else 'not running'}")


if __name__ == "__main__":
    main()
