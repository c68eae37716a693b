"""The first process of a node: it starts what a node runs, and when it is killed all of that is gone.

It begins in namespaces of its own (network, mounts, processes); SIGUSR1 starts a kubelet again that was killed.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.kubernetes_cluster.layout import LOGS, NODES, OVERMOUNTED, PAUSE, PROGRAMS, RUN, XTABLES_LOCK, Node


def main() -> None:
    node = next(node for node in NODES if node.name == sys.argv[1])
    for place in OVERMOUNTED:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "none", place], check=True)
    subprocess.run(["mount", "--bind", str(node.directory / XTABLES_LOCK.name), str(XTABLES_LOCK)], check=True)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    signal.signal(signal.SIGUSR1, lambda *_: _start_kubelet(node))
    _start(node, "containerd", "--config", f"{node.directory}/containerd.toml")
    ctr = ["ctr", "--address", str(node.containerd), "--namespace", "k8s.io"]
    while subprocess.run([*ctr, "version"], check=False, capture_output=True).returncode:
        time.sleep(0.05)
    images = subprocess.run([*ctr, "images", "list", "--quiet"], check=True, capture_output=True, text=True)
    if PAUSE not in images.stdout.split():
        subprocess.run([*ctr, "images", "import", str(PROGRAMS / "pause.tar")], check=True, capture_output=True)
    _start_kubelet(node)
    os.environ["PATH"] += f":{PROGRAMS}"  # conntrack
    os.environ["LD_LIBRARY_PATH"] = str(PROGRAMS)
    _start(node, f"{PROGRAMS}/kube-proxy", f"--config={node.directory}/kube-proxy.json")
    while True:  # the first process of a namespace is the parent of its orphans
        os.wait()


def _start_kubelet(node: Node) -> None:
    config = (f"--config={node.directory}/kubelet.json", f"--kubeconfig={RUN}/{node.name}.kubeconfig")
    places = (f"--root-dir={node.directory}/kubelet", f"--cert-dir={node.directory}/certificates")
    names = (f"--hostname-override={node.name}", f"--node-ip={node.address}")
    runtime = ("--container-runtime=remote", f"--container-runtime-endpoint=unix://{node.containerd}")
    _start(node, f"{PROGRAMS}/kubelet", *config, *places, *names, *runtime)


def _start(node: Node, *argv: str) -> None:
    with (LOGS / f"{node.name}-{Path(argv[0]).name}.log").open("ab") as log:
        subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


if __name__ == "__main__":
    main()
