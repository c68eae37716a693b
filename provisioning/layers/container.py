"""The container layer: any engine, on any node."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from provisioning import ledger
from provisioning.cgroup.counters import ControlGroup
from provisioning.cgroup.limits import Opened, disks_under
from provisioning.engines.base import ContainerEngine, ContainerSpec
from provisioning.gpus import edits_for
from provisioning.lab.containers import ContainerBridge, attached
from provisioning.layers.userland import own_environment
from provisioning.nodes import HostProcesses, WrappedNode, is_guest, limit_facts, undone_when_lost
from provisioning.volumes import MOUNT, SCRATCH, check_one_filesystem, same_device
from suite.errors import RequestError
from suite.interfaces import Node, Resize, Shares
from suite.job.envelope import format_cpu_list
from suite.job.properties import AS_IT_IS, Properties
from suite.process_identity import BOOT_ID
from suite.records.environment import Engine, OwnKernel

MOST = {"nofile": 32768, "nproc": 32768, "memlock": 8 << 20}
"""The limits of containers that the node's own may lower."""
OVERLAY = "overlay"
GVISOR_BUILD = "#1 SMP Sun Jan 10 15:06:54 PST 2016"
"""The build that gVisor's sentry reports of its kernel (its pkg/sentry/syscalls/linux/linux64.go)."""
_FACTS: Mapping[str | None, Mapping[str, str | None]] = {
    "sentry": {"seccomp": "sentry"},
    "virtual machine": {"accelerator": None},  # the suite has not booted it
}


@dataclass(frozen=True)
class ContainerLayer:
    engine: ContainerEngine
    image: str
    """The image's digest."""
    memory_bytes: int
    gpus: tuple[str, ...] = ()
    properties: Properties = AS_IT_IS
    writable: bool = False
    """Whether the data volume may be written."""
    network: str | None = None
    """The value of ``ContainerSpec.network``."""
    plug: ContainerBridge | None = None
    """The bridge that the running container, whose network namespace is empty, is plugged into."""
    layer: str | None = None
    """A directory on a disk: data is copied into the container's own layer, which some engines keep there."""

    @contextmanager
    def opened(self, node: Node) -> Iterator[Node]:
        if node.userland is None:
            raise RequestError("no image on this node", remedy="run: bench image build")
        engine = self.engine
        version = engine.version(node)
        engine.check(node, self.image)
        spec = self.specification(node, node.userland)
        if spec.data and spec.data[0]:
            check_one_filesystem(node, spec.data[0])
        with ExitStack() as stack:
            self.hold(stack, node, spec)
            with node.opening.running("container"):
                engine.begin(node, spec)
            if self.plug:
                pid = engine.main_pid(node, spec.name)
                if pid:
                    with node.opening.running("network"):
                        stack.enter_context(attached(node, self.plug, pid))
            enter = engine.exec_argv(spec)
            host_processes = self._host_processes(node, spec.name)
            entered = engine.entered(node, spec)
            rootfs = self.rootfs(node, spec, entered, enter)
            kernel = own_kernel(node, entered, enter)
            about = self.about(node, spec, version, kernel, rootfs)
            yield WrappedNode(
                parent=entered,
                wrap=lambda argv: [*enter, *argv],
                name=f"{node.name}/{engine.name}",
                userland="/",
                data=MOUNT if spec.data or spec.layer else None,
                scratch=SCRATCH if spec.scratch else None,
                substitutes=tuple(_substitutes(node, spec, engine, about)),
                facts={
                    "container_engine": asdict(about),
                    **({"host_cpus": None} if spec.by_count else {}),
                    **_FACTS.get(about.kernel, {}),
                    **spec.edits.facts,
                    **limit_facts(host_processes, spec.limited_disks),
                },
                variables=spec.edits.variables,
                host_processes=host_processes,
                backing=_page_cache_behind(node, about),
                resize=_resizing(node, engine, spec),
            )

    def _host_processes(self, node: Node, container: str) -> HostProcesses | None:
        """Return the container's processes on the host; None if it is on another machine, or has ended."""
        pid = None
        if node.local:
            pid = self.engine.main_pid(node, container)
        if not pid:
            return None
        # Its group is where the engine has put its first process.
        return HostProcesses(ControlGroup.of_process(pid), pid, self.engine.commands_are_children)

    def hold(self, stack: ExitStack, node: Node, spec: ContainerSpec) -> None:
        """Have the container removed when the stack is left, or when this process or the node is lost."""
        if node.local:
            stack.enter_context(ledger.holding("container", f"{self.engine.name}:{spec.name}"))
            return
        for argv in reversed(self.engine.removal(spec.name)):
            stack.enter_context(undone_when_lost(node, argv))
        stack.callback(self.engine.remove, node, spec.name)

    def specification(self, node: Node, tree: str) -> ContainerSpec:
        """Return the container to start on a node that has the image's unpacked tree."""
        properties = self.properties
        limits = properties.disk_limits if node.local else ()
        data = None
        layer = None
        if node.data and self.layer:
            layer = (node.data, MOUNT, self.layer)
        elif node.data:
            data = (node.data, MOUNT, self.writable)
        by_count = not properties.pinned and not is_guest(node)
        by_affinity = not by_count and not is_guest(node) and self.engine.pins_by_affinity(node)
        network = self.network
        if properties.host_network:
            network = self.engine.host_network(None)
        return ContainerSpec(
            name=ledger.fresh("virtbench"),
            image=self.image,
            tree=tree,
            cpus=format_cpu_list(node.cpus),
            memory_bytes=self.memory_bytes,
            memory_limited=properties.memory_limited or not node.local,
            limits=_hard_limits(node),
            edits=edits_for(node, self.gpus),
            data=data,
            layer=layer,
            scratch=(node.scratch, SCRATCH, True) if node.scratch else None,
            seccomp=properties.seccomp,
            network=network,
            bound_tree=properties.bound_tree,
            by_count=by_count,
            by_affinity=by_affinity,
            cpu_share=properties.cpu_share,
            pod_requests=properties.pod_requests,
            limited_disks=disks_under((tree, node.data)) if limits else (),
            disk_limits=limits,
        )

    def about(
        self,
        node: Node,
        spec: ContainerSpec,
        version: str,
        kernel: OwnKernel | None,
        rootfs: str,
    ) -> Engine:
        network = self.engine.network
        if self.plug:
            network = self.plug.name
        elif spec.network:
            network = "host"
        return Engine(
            name=self.engine.name,
            version=version,
            network=network,
            rootfs=rootfs,
            runtime=self.engine.runtime,
            kernel=kernel,
            platform=self.engine.platform(node),
            seccomp_sha256=self.engine.seccomp_sha256(node, spec.tree) if spec.seccomp else None,
        )

    def rootfs(self, node: Node, spec: ContainerSpec, entered: Node, enter: Sequence[str]) -> str:
        """Return how the tree is mounted: what an engine's overlay is made by is read inside."""
        if spec.bound_tree:
            return "bind"
        declared = self.engine.rootfs
        if declared != OVERLAY or is_guest(node):
            return declared
        return root_inside(entered, enter) or declared


def _resizing(node: Node, engine: ContainerEngine, spec: ContainerSpec) -> Resize | None:
    """Return what has the engine resize the container; None where it cannot, or may not set its CPUs."""
    if spec.by_affinity or spec.by_count or not engine.update_argv(spec.name, spec.cpus, 1, None):
        return None
    memory_bytes = spec.memory_bytes if spec.memory_limited else None
    opened = Opened(spec.cpu_count, memory_bytes, spec.cpu_share)

    def resize(shares: Shares) -> None:
        cpus = format_cpu_list(shares.cpus)
        quota_us = opened.quota_us(shares)
        memory_bytes = opened.memory(shares)
        node.run(engine.update_argv(spec.name, cpus, quota_us, memory_bytes))

    return resize


def _page_cache_behind(node: Node, engine: Engine) -> Node | None:
    """Return the machine of a sandbox, whose sentry drops no page of the machine's cache."""
    if engine.kernel == "sentry" and node.local:
        return own_environment(node, node.cpus)
    return None


def _substitutes(node: Node, spec: ContainerSpec, engine: ContainerEngine, about: Engine) -> Iterator[str]:
    """Yield what stands in a started container for what was asked for."""
    if spec.layer and not same_device(Path(engine.layers_at(node)), Path(spec.layer[0])):
        yield "disk:other-device"
    if spec.data and spec.data[2] and about.kernel == "sentry":  # it ignores O_DIRECT
        yield "disk:page-cache"
    if spec.by_affinity:
        yield "cpus:by-affinity"
    if about.platform == "ptrace":
        yield "platform:ptrace"


def own_kernel(node: Node, entered: Node, enter: Sequence[str]) -> OwnKernel | None:
    """Return what answers system calls in a container in place of its node's kernel; None if nothing does."""
    if is_guest(node):
        return None
    pod = entered.facts.get("pod")
    if isinstance(pod, dict):
        boot = pod["boot_id"]
    else:
        boot = node.run(["cat", str(BOOT_ID)]).stdout.strip()
    command = [*enter, "cat", "/proc/version", str(BOOT_ID)]
    answer = entered.run(command, check=False).stdout
    version, _, boot_inside = answer.strip().partition("\n")
    if GVISOR_BUILD in version:
        return "sentry"
    if boot and boot_inside not in ("", boot):
        return "virtual machine"
    return None


def root_inside(entered: Node, enter: Sequence[str]) -> str | None:
    """Return the kind of the root's file system by the mount table inside, which the engine's driver has chosen."""
    table = entered.run([*enter, "cat", "/proc/self/mountinfo"], check=False).stdout
    kind = None
    for line in table.splitlines():
        mount, _, source = line.partition(" - ")
        mounted_at = mount.split()[4:5]
        if mounted_at == ["/"] and source:
            kind = source.split()[0].removeprefix("fuse.")
    return kind


def _hard_limits(node: Node) -> tuple[tuple[str, int], ...]:
    """Return the node's hard limits of open files, processes and locked memory, for containers.

    Podman lowers its own limit of processes to 32768 and, without CAP_SYS_RESOURCE, can give no more than that.
    """
    if is_guest(node):  # whose root may raise its own
        return tuple(MOST.items())
    words = [f"--{name}" for name in MOST]
    answer = node.run(["prlimit", *words, "--output", "RESOURCE,HARD", "--noheadings", "--raw"])
    hard = dict(line.lower().split() for line in answer.stdout.splitlines())
    limits = []
    for name, most in MOST.items():
        limit = most
        if hard[name].isdigit():  # and not unlimited
            limit = min(int(hard[name]), most)
        limits.append((name, limit))
    return tuple(limits)
