"""What the suite writes for other programs. ``python -m tests.rendered`` writes the transcript of it.

``samples/rendered.txt`` holds each argument list, container bundle, pod and script once as usual, and for every change
of what it is made from the lines that go and come. A change of its own property and of nothing else is seen there.
"""

import difflib
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import chdir
from dataclasses import replace
from ipaddress import IPv4Network
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch
from xml.etree import ElementTree

from click.testing import CliRunner

import cli
from commands.sweep.backends import kubernetes as jobs
from commands.sweep.backends import slurm
from provisioning.batch.options import KubernetesOptions, SlurmOptions
from provisioning.cgroup import limits as cgroups
from provisioning.cgroup.limits import BlockDevice, Opened, of_group
from provisioning.engines.apptainer import APPTAINER
from provisioning.engines.base import ContainerSpec, get_engine
from provisioning.engines.charliecloud import CHARLIECLOUD
from provisioning.engines.docker import DOCKER
from provisioning.engines.podman import PODMAN
from provisioning.engines.runc import bundle_config
from provisioning.gpus import DeviceNode, Edits
from provisioning.kubernetes.opening import CLUSTER_IP, NODE_PORT, service_manifest
from provisioning.kubernetes.pod import Placement, manifest
from provisioning.lab import connectivity, nat, overlay, tap
from provisioning.lab.containers import ContainerBridge, Member, attach_argvs, bridge_argvs
from provisioning.lab.lab import LabNode, limit_argvs, neighbours_batch, node_argvs, switch_argvs
from provisioning.lab.shaping import LIMITERS, LinkShape, shape_argvs
from provisioning.layers.userland import chroot_argv, taskset
from provisioning.machines import virtiofs
from provisioning.machines.libvirt import domain_xml
from provisioning.machines.qemu_command import Disk, QemuSpec, qemu_argv
from provisioning.machines.ssh import SshAccess
from provisioning.remote.connection import Access
from provisioning.timers import kubernetes as cronjobs
from suite.interfaces import Completed, Shares
from suite.inventory import InventoryNode
from suite.job.envelope import GIB, Envelope
from suite.job.lab import parse_lab
from suite.job.properties import Properties
from tests.provisioning.conftest import FakeNode
from tests.provisioning.test_timers import CLAIM, ENGINE, planned

TRANSCRIPT = Path(__file__).parent / "samples/rendered.txt"
VM = QemuSpec(
    name="vm-1",
    accelerator="tcg",
    cpus=(2, 3, 5),
    memory_bytes=2 * GIB,
    kernel="/i/vmlinuz",
    initrd="/r/initrd",
    directory="/r/vm-1",
    disks=(Disk("/i/disk.img"),),
    ssh_port=2222,
)
CONTAINER = ContainerSpec(
    name="virtbench-1",
    image="0123456789abcdef",
    tree="/i/tree",
    cpus="0-1",
    memory_bytes=2 * GIB,
    limits=(("nofile", 20000), ("nproc", 1000)),
)
EDITS = Edits(
    (DeviceNode("/dev/nvidia0", 195, 0), DeviceNode("/dev/nvidia-caps/nvidia-cap1", 234, 1)),
    (("/i/driver/580.1", "/run/nvidia"),),
    {"CUDA_VISIBLE_DEVICES": "GPU-1"},
)
LIMITS: dict[str, Any] = {"disk_limit_bytes_per_s": 32 << 20, "disk_limit_iops": 9}
LIMITED = Properties(**LIMITS).disk_limits
TAP = tap.Tap("tap0", "06:00:00:00:00:01", "10.0.0.1", "10.0.0.1/24")
NODE = LabNode("n2", 2, "10.99.0.2", "02:ab:cd:ef:00:02", "/run/netns/vb-abcdef-n2")
PLACE = Placement("n1", "localhost/virtbench:ffffffffffff")
LINKED = {("ip", "-json", "link"): Completed(0, '[{"mtu": 1500}]', ""), ("sysctl", "-n"): Completed(0, "0\n", "")}
OF_CONTAINERS: list[dict[str, Any]] = [
    {"seccomp": False},
    {"network": "ns:/n"},
    {"bound_tree": True},
    {"by_count": True},
    {"cpu_share": 0.9},
    {"memory_limited": False},
    {"limited_disks": (BlockDevice("/dev/sda", "8:0"),), "disk_limits": LIMITED},
    {"data": ("/d,with a comma", "/mnt/data", False)},
    {"data": ("/d", "/mnt/data", True)},
    {"layer": ("/set", "/mnt/data", "/scratch")},
    {"edits": EDITS},
]
TWO_SOCKETS: dict[str, Any] = {"sockets": 2, "threads": 2, "nodes": ((0, (0, 1)), (1, (2, 3)))}
OF_VMS: list[dict[str, Any]] = [
    {"accelerator": "kvm"},
    {"pinned": False},
    {"disks": (Disk("/a,readonly=off"), Disk("/b", readonly=False)), "directory": "/r,x"},
    {"disks": (Disk("/d", direct=False),)},
    {"disks": (Disk("/d", direct=False, discard_writes=True),)},
    {"disks": (Disk("/d", limits=LIMITED),)},
    {"kernel": "/a b/$(touch x)/`y`;z'\""},
    {"tap": TAP},
    {"tap": replace(TAP, vhost=True), "accelerator": "kvm"},
    {"tap": TAP, "microvm": True},
    {"tap": TAP, "microvm": True, "accelerator": "kvm", "tsc_khz": 2596140},
    {"cpus": (0, 8, 1, 9), "threads": 2, "nodes": ((0, (0, 1, 2, 3)),)},
    {"cpus": (0, 8, 1, 9), "accelerator": "kvm", **TWO_SOCKETS},
    {"data_socket": "/d/s", "accelerator": "kvm"},
    {"incoming": True},
    {"kernel_settings": ("transparent_hugepage=madvise", "numa_balancing=disable")},
]
OF_DOMAINS: list[dict[str, Any]] = [
    {"accelerator": "kvm"},
    {"pinned": False},
    {"cpus": (2, 5), "memory_bytes": 3 * GIB},
    {"disks": (Disk("/a,b&c"), Disk("/dev/sdb", readonly=False), Disk("/s", False, True, True))},
    {"disks": (Disk("/d", limits=LIMITED),)},
    {"data_socket": "/d/s", "tap": TAP},
    {"cpus": (0, 8, 1, 9), "threads": 2, "nodes": ((0, (0, 1, 2, 3)),)},
    {"cpus": (0, 8, 1, 9), "accelerator": "kvm", **TWO_SOCKETS},
]
OF_PODS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"seccomp": False}, {}),
    ({"network": "host"}, {}),
    ({"data": ("/data/set", "/mnt/data", False)}, {"storage_class": "fast"}),
    ({"data": ("/scratch", "/mnt/data", True)}, {}),
    ({"data": ("/scratch", "/mnt/data", True)}, {"storage_class": "fast"}),
    ({"data": ("", "/mnt/data", False)}, {"claim": "sets", "claim_path": "pets"}),
    ({"data": ("/scratch", "/mnt/data", True)}, {"claim": "sets", "claim_path": "pets"}),
    ({"gpus": 2}, {}),
    ({}, {"runtime_class": "gvisor"}),
    ({}, {"pulled": True}),
    ({}, {"requests": 0.5}),
]


def lines_of(argv: Iterable[str]) -> list[str]:
    """Return the words with each option on a line with its value."""
    lines: list[str] = []
    for word in argv:
        if word.startswith("-") or not lines:
            lines.append(shlex.quote(word))
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return lines


def flat(value: object, path: str = "") -> list[str]:
    """Return a line for each leaf of a document."""
    if isinstance(value, (Mapping, list)) and value:
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        return [line for key, each in pairs for line in flat(each, f"{path}.{key}")]
    return [f"{path[1:]} = {value!r}"]


def domain_lines(machine: QemuSpec) -> list[str]:
    """Return the domain that libvirt is given, an element on a line."""
    domain = ElementTree.fromstring(domain_xml(machine, "virtbench-vm-0123456789ab", "f" * 32))  # noqa: S314 (just made)
    ElementTree.indent(domain)
    return ElementTree.tostring(domain, encoding="unicode").splitlines()


def difference(usual: list[str], changed: list[str]) -> list[str]:
    """Return the lines that go and come."""
    return [line for line in [*difflib.unified_diff(usual, changed, n=0, lineterm="")][2:] if not line.startswith("@@")]


def title(name: str, changes: Mapping[str, object]) -> str:
    return f"{name}, {', '.join(f'{key}={value!s:.40}' for key, value in changes.items()) or 'as usual'}"


def containers() -> Iterator[tuple[str, list[str]]]:
    """Yield what engines are told of a container, and what a change of it changes."""
    ways: dict[str, Callable[[ContainerSpec], list[str]]] = {
        "docker": lambda spec: lines_of(DOCKER.run_argv(spec)),
        "podman": lambda spec: lines_of(PODMAN.run_argv(spec)),
        "runc": lambda spec: flat(bundle_config(spec, {"defaultAction": "SCMP_ACT_ERRNO"})),
    }
    for name, way in ways.items():
        usual = way(CONTAINER)
        yield name, usual
        engine = get_engine(name)
        yield f"{name} exec", lines_of(engine.exec_argv(CONTAINER))
        for quota_us in (-1, 50_000):
            yield f"{name} resized, {quota_us=}", lines_of(engine.update_argv("c", "0-1", quota_us, 512))
        for change in OF_CONTAINERS:
            yield title(name, change), difference(usual, way(replace(CONTAINER, **change)))


def unprivileged() -> Iterator[tuple[str, list[str]]]:
    """Yield the first command in a container of the engines that need no daemon, as a user and as root."""
    answers = {"find": "/i/tree/etc/covered\n", "pwd": "/r"}
    found: dict[tuple[str, ...], Completed] = {(name,): Completed(0, text, "") for name, text in answers.items()}
    changes: list[dict[str, Any]] = [
        {"data": ("/d,a", "/mnt/data", False)},
        {"data": ("/d", "/mnt/data", True), "network": "host"},
    ]
    for engine, change, uid in product((CHARLIECLOUD, APPTAINER), changes, (1000, 0)):
        node = FakeNode({("id",): Completed(0, f"{uid}\n", ""), **found}, local=True)
        spec = replace(CONTAINER, **change)
        engine.begin(node, spec)
        engine.entered(node, spec)
        lines = [line for argv in node.ran for line in lines_of(argv)]
        # A user is drawn for each container.
        yield title(f"{engine.name} by {uid}", change), [re.sub(r"\b18[789]\d{7}\b", "UID", line) for line in lines]


def control_groups() -> Iterator[tuple[str, list[str]]]:
    """Yield what a control group of bare metal is told, on both versions."""
    system = {"cpu/online": "0-3", "node/online": "0-1", "node/has_memory": "0"}  # node 1 has CPUs alone
    files: dict[tuple[str, ...], Completed]
    files = {("cat", f"/sys/devices/system/{name}"): Completed(0, f"{text}\n", "") for name, text in system.items()}
    changes: list[dict[str, Any]] = [{"memory_limited": False}, {"cpu_share": 0.9}, LIMITS]
    for kind in ("tmpfs", "cgroup2fs"):

        def told(kind: str = kind, **properties: Any) -> list[str]:
            node = FakeNode({("stat",): Completed(0, f"{kind}\n", ""), **files})
            envelope = Envelope(cpus=(0, 1), memory_bytes=GIB, threads=2)
            disks = (BlockDevice("/dev/sda", "8:0"),) if properties == LIMITS else ()
            group = cgroups.create(node, "job", envelope, properties=Properties(**properties), limited_disks=disks)
            return [shlex.join(argv) for argv in (*node.ran, group) if argv[0] in ("cgcreate", "cgset", *group[:1])]

        usual = told()
        yield f"control group on {kind}", usual
        for change in changes:
            yield title(f"control group on {kind}", change), difference(usual, told(**change))
        shares = {"whole": Shares((2, 3, 4, 5)), "half": Shares((2, 3, 4), 0.5, 0.5)}
        for opened, (name, share), cpuset in product((Opened(4, 512), Opened(4, None)), shares.items(), (True, False)):
            if opened.memory_bytes or name == "whole":
                node = FakeNode({("stat",): Completed(0, f"{kind}\n", "")})
                of_group(node, "job", opened, cpuset=cpuset)(share)
                yield f"control group on {kind}, {name}, {opened.memory_bytes=}, {cpuset=}", lines_of(node.ran[-1])


def machines() -> Iterator[tuple[str, list[str]]]:
    """Yield how virtual machines and bare metal are entered."""
    usual = lines_of(qemu_argv(VM))
    yield "qemu", usual
    for change in OF_VMS:
        yield title("qemu", change), difference(usual, lines_of(qemu_argv(replace(VM, **change))))
    domain = domain_lines(VM)
    yield "domain of libvirt", domain
    for change in OF_DOMAINS:
        yield title("domain of libvirt", change), difference(domain, domain_lines(replace(VM, **change)))
    yield "ssh", lines_of(SshAccess("/r/vm-1", 2222).wrap(["echo", "a b"]))
    access = Access(InventoryNode(name="n1", host="alice@gpu1", port=2222, ssh_config=Path("/etc/other")), "/run/x")
    for shared in (True, False):
        yield title("ssh to a machine", {"shared": shared}), lines_of(access.argv(["true"], shared=shared))
    yield "virtiofsd", lines_of(virtiofs.daemon_argv("/usr/libexec/virtiofsd", "/a,b", "/run/vm/data.socket", (2, 3)))
    yield "virtiofsd of an unpinned machine", lines_of(virtiofs.daemon_argv("v", "/d", "/run/vm/s", None))
    yield "qemu with virtiofs", lines_of(virtiofs.qemu_words("/run/vm/data.socket"))
    yield "taskset", taskset((0, 2))
    bare = lines_of(chroot_argv("/i/tree"))
    yield "bare metal", bare
    written: list[dict[str, Any]] = [{"data": ("/d", writable)} for writable in (False, True)]
    for change in (*written, {"user": 1879048200}, {"tmpfs_bytes": GIB}):
        yield title("bare metal", change), difference(bare, lines_of(chroot_argv("/i/tree", **change)))
    grouped = replace(EDITS, devices=(replace(EDITS.devices[0], group=44),))
    of_group = chroot_argv("/i/tree", grouped, user=1879048200)
    yield "bare metal with a GPU of a group", difference(bare, lines_of(of_group))
    yield "bare metal with GPUs", difference(bare, lines_of(chroot_argv("/i/tree", EDITS, user=1879048200)))


def networks() -> Iterator[tuple[str, list[str]]]:
    """Yield the commands of a lab."""
    me, *peers = (Member(n, FakeNode(LINKED), f"10.99.0.{n}", "enp0s3") for n in (1, 2, 3))
    translated, bridge = nat.bridge_of(me), ContainerBridge("cni0", IPv4Network("10.244.2.0/24"), 1450)
    other = LabNode("n1", 1, "10.99.0.1", "02:ab:cd:ef:00:01", "/run/netns/vb-abcdef-n1")
    spec = parse_lab("nodes=2,rate=1gbit,delay=1ms")
    yield from (
        (name, [shlex.join(argv) for argv in argvs])
        for name, argvs in {
            "a link of 1 Gbit/s": shape_argvs("eth0", LinkShape(10**9), "tbf"),
            "a link of 1 Gbit/s by htb": shape_argvs("eth0", LinkShape(10**9), "htb"),
            "a link of 5 ms": shape_argvs("eth0", LinkShape(10**9, 0.005), "tbf"),
            "a link without limits": [argv for way in LIMITERS for argv in shape_argvs("eth0", LinkShape(None), way)],
            "both ends of a link": limit_argvs("/run/netns/vb-abcdef-sw", NODE, spec, "tbf"),
            "a switch": switch_argvs("/run/netns/vb-abcdef-sw"),
            "a node": node_argvs("/run/netns/vb-abcdef-sw", NODE),
            "a bridge of containers": bridge_argvs(bridge),
            "a container on it": attach_argvs(bridge, 1 << 22),
            "an overlay": [*overlay.vxlan_argvs(me, 1450), *overlay.peer_argvs(peers[0])],
            "translation by nft": [argv for part in nat.nft_argvs(translated, me, peers) for argv in part],
            "translation by iptables": [argv for part in nat.iptables_argvs(translated, me, peers) for argv in part],
            "a container behind translation": attach_argvs(translated, 77),
            "a tap": [argv for part in tap.takeover_argvs(NODE) for argv in part],
            "a tap in the guest": [tap.qemu_words(TAP), *tap.join_argvs("ens4", TAP.cidr)],
            "a server of iperf3": [connectivity.server_argv(connectivity.End("n2", FakeNode(), "10.99.0.2"), 2)],
        }.items()
    )
    yield "the neighbours of a node", neighbours_batch(NODE, [other, NODE]).decode().splitlines()


def clusters() -> Iterator[tuple[str, list[str]]]:
    """Yield pods, Jobs and scripts of Slurm."""
    usual = flat(manifest(CONTAINER, PLACE))
    yield "pod", usual
    for spec, place in OF_PODS:
        changed = manifest(replace(CONTAINER, **spec), replace(PLACE, **place))
        yield title("pod", spec | place), difference(usual, flat(changed))
    for way in (CLUSTER_IP, NODE_PORT):
        yield f"service by {way}", flat(service_manifest("virtbench-ba9876543210", "virtbench-0123456789ab", 5000, way))
    up = ["kubernetes", "pipeline", "up", "--dry-run", "--image", f"registry.example.org/v@sha256:{'a' * 64}"]
    pipeline = CliRunner().invoke(cli.main, [*up, "--name", "faces", "--cpus", "2", "--memory", "1G"])
    for made in json.loads(pipeline.stdout)["items"]:
        yield f"{made['kind']} of a pipeline", flat(made)
    options = KubernetesOptions(image="registry.example.org/virtbench-suite:0123456789ab")
    made = flat(jobs.manifest(options, "bench-smoke-1a2b3c4d", 3, "files"))
    yield "job of a block", made
    queued = {"nodes": ("n1", "n2"), "claim": "records", "queue": "training"}
    for change in (queued, {"privileged_bench": "/opt/bench"}):
        block = jobs.manifest(options.model_copy(update=change), "bench-smoke-1a2b3c4d", 3, "files")
        yield title("job of a block", change), difference(made, flat(block))
    with TemporaryDirectory() as plans, patch.dict(os.environ, TZ=":/usr/share/zoneinfo/Europe/Berlin"):
        firing = flat(cronjobs.manifest(planned(Path(plans), ENGINE + CLAIM), "batch/v1"))
    yield "job that fires a schedule", firing
    chosen: dict[str, Any] = {"partition": "cpu", "account": "p1", "constraint": "icelake&nvme"}
    chosen |= {"at_once": 4, "further": ("--licenses=a b",)}
    for option, limit in ((SlurmOptions(), None), (SlurmOptions.model_validate(chosen), "12")):
        command = ("/opt/vb/bin/bench", "sweep", "run", "/home/a b/plan.toml", "--only-block")
        where = Path("/data/50% $(id)")
        text = slurm.script(option, "bench-smoke-1", blocks=[0, 1, 2], limit=limit, directory=where, command=command)
        yield title("sbatch", option.model_dump(exclude_defaults=True)), text.splitlines()


def rendered() -> str:
    """Return the transcript."""
    with chdir("/"):  # where Slurm's tasks begin, too
        parts = (*containers(), *unprivileged(), *control_groups(), *machines(), *networks(), *clusters())
    return "".join(f"== {name}\n" + "".join(f"{line}\n" for line in lines) for name, lines in parts)


if __name__ == "__main__":
    TRANSCRIPT.write_text(rendered())
