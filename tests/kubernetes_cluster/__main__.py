"""The command line of the tests' cluster: ``python -m tests.kubernetes_cluster build|up|down|status``."""

import subprocess
import sys

import click

from provisioning.images.image import current
from suite.errors import BenchError
from tests.kubernetes_cluster import build, cluster
from tests.kubernetes_cluster.layout import KUBECONFIG, PROGRAMS


@click.group(help=__doc__)
def main() -> None:
    """Take a command."""


main.command("build", help="build the programs, if that was not done")(build.build)
main.command("down", help="end the cluster and remove what is left")(cluster.down)


@main.command(help="start the cluster anew, and print the path of its kubeconfig")
@click.option("--no-pin", is_flag=True, help="without the static CPU manager: pods share all CPUs")
def up(no_pin: bool) -> None:
    image = current()
    build.build()
    started = cluster.up(image, pin=not no_pin)
    for node, address in started.containerd.items():
        cpus = ", ".join(map(str, started.cpus[node])) if started.cpus else "all, shared"
        click.echo(f"{node}: containerd {address}, CPUs of pods: {cpus}", err=True)
    click.echo(started.kubeconfig)


@main.command(help="say what is there")
def status() -> None:
    click.echo(f"programs: {PROGRAMS if build.built() else 'not built'}")
    click.echo(f"cluster: {KUBECONFIG if any(cluster.processes()) else 'not running'}")


if __name__ == "__main__":
    try:
        main(prog_name="python -m tests.kubernetes_cluster")
    except (BenchError, build.BuildError, cluster.ClusterError, subprocess.CalledProcessError) as error:
        sys.exit(f"{error}")
