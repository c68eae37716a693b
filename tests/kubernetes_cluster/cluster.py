"""Start the cluster with the suite's image in its nodes' containerd, end it, and find its processes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from provisioning.engines.base import image_reference
from provisioning.images.image import Image
from tests.kubernetes_cluster import control, network
from tests.kubernetes_cluster.configuration import configure, issue_credentials
from tests.kubernetes_cluster.layout import CACHE, KUBECONFIG, LOGS, MARK, NODES, OVERMOUNTED, RUN, XTABLES_LOCK, Node

CONTROL_GROUPS = Path("/sys/fs/cgroup")
NODE_PROCESS = "tests.kubernetes_cluster.holder"
STORES = CACHE / "stores"
"""The images of the nodes' containerd, which survive the cluster, by the digest of the suite's image."""
CREATED = RUN / "created"
"""The mount points that ``up`` made on this host, one a line."""


class ClusterError(Exception):
    """The cluster did not start, or something of it is left."""


@dataclass(frozen=True)
class Cluster:
    kubeconfig: Path
    nodes: tuple[str, ...]
    containerd: dict[str, str] = field(default_factory=dict)
    """The address of each node's containerd, where the nodes are this machine."""
    cpus: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The CPUs that each kubelet hands out to pods of whole CPUs; empty without the static CPU manager."""

    def process(self, program: str, node: str | None = None) -> psutil.Process:
        """Return a process of the cluster, ``kubelet`` or ``containerd`` of a node, to suspend or to kill."""
        return next(
            each
            for each in processes()
            if Path(_argv(each)[0]).name == program and (node is None or any(node in word for word in _argv(each)[1:]))
        )

    def restart_kubelet(self, node: str) -> None:
        os.kill(_holder(next(each for each in NODES if each.name == node)), signal.SIGUSR1)


def up(image: Image, *, pin: bool = True) -> Cluster:
    """Start the cluster anew, with the suite's image on both nodes; some 15 s, and 30 to 60 s a node the first time.

    ``pin``: let the kubelets run the static CPU manager, so that a pod of whole CPUs has these to itself. As they all
    are kubelets of one machine, each hands out its own part of its CPUs. Raises ClusterError.
    """
    down()
    cpus = _cpus() if pin else {}
    LOGS.mkdir(parents=True)
    issue_credentials()
    network.connect()
    for node in NODES:
        others = sorted(set(os.sched_getaffinity(0)) - set(cpus[node.name])) if pin else []
        configure(node, fresh_store(image, node), others)
        _start(node)
    control.start(cpus[NODES[-1].name] if pin else sorted(os.sched_getaffinity(0)), wait_for)
    for node in NODES:
        wait_for(f"node {node.name}", lambda node=node: _ready(node))  # type: ignore[misc]
        import_image(image, node)
    wait_for("service account", lambda: control.kubectl("get", "serviceaccount", "default").returncode == 0)
    return Cluster(KUBECONFIG, tuple(node.name for node in NODES), {n.name: str(n.containerd) for n in NODES}, cpus)


def import_everywhere(archive: Path, reference: str) -> None:
    """Import another image into the nodes of the cluster that runs, under the names that pods ask for."""
    for node in NODES:
        import_archive(node, archive, reference)


def forget_everywhere(*names: str) -> None:
    """Remove names of images that the nodes have pulled: their stores are kept, and would not pull them again."""
    for node in NODES:
        _ctr(node, "rm", *names)


def down() -> None:
    """End the cluster, or what a killed one left. Raises ClusterError if something stays."""
    for process in processes():  # with the first process of a node, all in its namespaces is killed
        with suppress(psutil.NoSuchProcess):
            process.kill()
    _until_gone(lambda: [str(process) for process in processes()])
    network.disconnect()
    _until_gone(_remove_control_groups)
    _until_gone(network.left)
    if CREATED.exists():
        for path in map(Path, reversed(CREATED.read_text().splitlines())):
            with suppress(FileNotFoundError):
                path.rmdir() if path.is_dir() else path.unlink()
    shutil.rmtree(RUN, ignore_errors=True)


def processes() -> Iterator[psutil.Process]:
    """Yield the processes of the cluster, but for those of pods."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == str(RUN):
                yield process


def wait_for(what: str, true: Callable[[], bool], within_s: float = 120.0) -> None:
    """Wait until it is true. Raises ClusterError with the ends of all logs."""
    deadline = time.monotonic() + within_s
    while not true():
        if time.monotonic() > deadline:
            said = "\n".join(f"== {path.name}\n{path.read_text()[-1500:]}" for path in sorted(LOGS.glob("*.log")))
            raise ClusterError(f"{what} did not come within {within_s:.0f} s\n{said}")
        time.sleep(0.1)


def _cpus() -> dict[str, tuple[int, ...]]:
    """Give the first node the later half of the CPUs, and the second node and the control plane the first half."""
    cpus = sorted(os.sched_getaffinity(0))
    half = len(cpus) // 2
    if not half:
        raise ClusterError("a CPU for each of two nodes is needed, and there is one: start it without pinning")
    return {NODES[0].name: tuple(cpus[half:]), NODES[1].name: tuple(cpus[:half])}


def _start(node: Node) -> None:
    for path in (*map(Path, OVERMOUNTED), XTABLES_LOCK):
        if not path.exists():
            with CREATED.open("a") as file:
                file.write(f"{path}\n")
            path.touch() if path == XTABLES_LOCK else path.mkdir(parents=True)
    for group in _hierarchies():
        (group / node.namespace).mkdir()
        for name in ("cpuset.cpus", "cpuset.mems"):
            if group.name == "cpuset":
                (group / node.namespace / name).write_text((group / name).read_text())
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    first = ["nsenter", f"--net=/run/netns/{node.namespace}", *namespaces]
    control.spawn(f"{node.name}-holder", [*first, sys.executable, "-m", NODE_PROCESS, node.name])


def _hierarchies() -> list[Path]:
    return [path.parent for path in CONTROL_GROUPS.glob("*/cgroup.procs") if not path.parent.is_symlink()]


def _holder(node: Node) -> int:
    return next(process.pid for process in processes() if _argv(process)[1:] == ["-m", NODE_PROCESS, node.name])


def _argv(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return process.cmdline() or [""]
    return [""]


def _ready(node: Node) -> bool:
    said = control.kubectl("get", "node", node.name, "-o", "json")
    conditions = json.loads(said.stdout)["status"].get("conditions", []) if said.returncode == 0 else []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _remove_control_groups() -> list[str]:
    groups = [group / node.namespace for group in _hierarchies() for node in NODES]
    for group in filter(Path.exists, groups):
        for place, _, _ in os.walk(group, topdown=False):
            with suppress(OSError):  # a process of it has not been reaped yet
                Path(place).rmdir()
    return [str(group) for group in groups if group.exists()]


def _until_gone(left: Callable[[], list[str]]) -> None:
    deadline = time.monotonic() + 20
    while still := left():
        if time.monotonic() > deadline:
            raise ClusterError(f"still there 20 s after the end: {', '.join(still)}")
        time.sleep(0.1)


def fresh_store(image: Image, node: Node) -> Path:
    """Return the directory for the node's images, with the image or empty; those of other images are removed."""
    store = STORES / image.digest[:12] / node.name
    for other in STORES.glob("*"):
        if other != store.parent:
            shutil.rmtree(other)
    if not _mark(store).exists():
        shutil.rmtree(store, ignore_errors=True)
    store.mkdir(parents=True, exist_ok=True)
    return store


def import_image(image: Image, node: Node) -> None:
    mark = _mark(STORES / image.digest[:12] / node.name)
    if mark.exists():
        return
    print(f"kubernetes: importing the image into {node.name}, once: 30 to 60 s", file=sys.stderr, flush=True)
    import_archive(node, image.file("oci.tar"), image_reference(image.digest))
    mark.touch()


def import_archive(node: Node, archive: Path, reference: str) -> None:
    """Import an archive, and name it as pods may: its own reference names no registry.

    The first name is how containerd completes it, and without that a container can be made under none.
    """
    _ctr(node, "import", str(archive))
    for registry in ("docker.io/library", "localhost"):
        _ctr(node, "tag", "--force", reference, f"{registry}/{reference}")


def _mark(store: Path) -> Path:
    """Return the file that is there when a store is complete."""
    return store.with_suffix(".complete")


def _ctr(node: Node, *words: str) -> None:
    ctr = ["ctr", "--address", str(node.containerd), "--namespace", "k8s.io", "images", *words]
    argv = ["nsenter", "--target", str(_holder(node)), "--mount", *ctr]
    ended = subprocess.run(argv, check=False, capture_output=True, text=True)
    if ended.returncode:
        raise ClusterError(f"{' '.join(argv)}: {ended.stderr.strip()}")
