"""Podman: no daemon, rootless where the user is not root. Its containers are the unpacked tree under an overlay."""

import re
from collections.abc import Sequence
from copy import copy

from provisioning.cgroup import limits
from provisioning.cgroup import removal as group_removal
from provisioning.engines.base import PATH, ContainerSpec, digest_of
from provisioning.engines.command_line import CommandLineEngine
from provisioning.nodes import is_guest
from provisioning.processes import run_apart
from suite.interfaces import COMMAND_WITHIN_S, Node
from suite.job.envelope import parse_cpu_list


class Podman(CommandLineEngine):
    name = "podman"
    program = ("podman",)
    # Without a service the client does the work itself.
    version_field = "{{with .Server}}{{.Version}}{{else}}{{.Client.Version}}{{end}}"
    layers_field = "{{.Store.GraphRoot}}"
    remedy = "install podman (and, without root, uidmap and slirp4netns), or choose --engine docker or runc"
    denied = "use podman without a service (unset CONTAINER_HOST), or as a user who may use its socket"
    machine_field = "{{.Host.Hostname}} {{.Host.Kernel}} {{.Host.MemTotal}}"
    # Process 1 of the container sleeps and ignores SIGTERM: podman would wait ten seconds for it.
    removal_options = ("--time", "0")
    bind_options = ",nosuid,nodev"

    # A containers.conf may share any namespace with the host, as that of podman's own image does; one that has
    # variables leaves out the path, without which no program is found by its name.
    own_settings: tuple[str, ...] = (
        "--uts=private",
        "--ipc=private",
        "--pid=private",
        "--cgroupns=private",
        "--cgroups=enabled",
        f"--env={PATH}",
    )

    def begin(self, node: Node, spec: ContainerSpec) -> None:
        """Start it without a time zone of the configuration, whose file podman would put over one of the image's."""
        with node.opening.paused():
            described = node.run([*self.program, "run", "--help"], check=False).stdout
        engine = copy(self)
        if re.search(r"--tz string .*\(default ", described):
            engine.own_settings = (*self.own_settings, "--tz=Etc/UTC")
        super(Podman, engine).begin(node, spec)

    def root_options(self, spec: ContainerSpec) -> Sequence[str]:
        # ":O" puts a throw-away overlay on the tree, as an image of podman's own store would have.
        return ["--rootfs", f"{spec.tree}:O"]

    def remove_local(self, name: str) -> None:
        """Also remove the control groups that a runtime had made when it was killed: podman has no record of them."""
        inspect = [*self.program, "inspect", "--type", "container", "--format", "{{.Id}}", "--", name]
        container_id = run_apart(inspect, COMMAND_WITHIN_S).stdout.strip()
        super().remove_local(name)
        number = re.fullmatch(r"[0-9a-f]{64}", container_id)
        if number:
            group_removal.remove(f"libpod_parent/libpod-{number[0]}")

    def update_argv(self, name: str, cpus: str, quota_us: int, memory_bytes: int | None) -> list[str]:
        # It takes no number for no quota, once there was one: all the time of the CPUs holds nothing back.
        whole = limits.quota_us(len(parse_cpu_list(cpus)))
        return super().update_argv(name, cpus, quota_us if quota_us > 0 else whole, memory_bytes)

    def runtime_version(self, node: Node) -> str:
        words = ["--runtime", str(self.runtime), "info", "--format", "{{.Host.OCIRuntime.Version}}"]
        return node.run([*self.program, *words]).stdout

    def seccomp_sha256(self, node: Node, tree: str) -> str | None:  # noqa: ARG002 (podman has a profile of its own)
        """Return the digest of the profile that its configuration names, on a machine that the suite has not made."""
        if is_guest(node):
            return None
        about = "{{.Host.Security.SECCOMPProfilePath}}"
        answer = node.run([*self.program, "info", "--format", about], check=False)
        path = answer.stdout.strip()
        if not path:
            return None
        return digest_of(node, path)

    def pins_by_affinity(self, node: Node) -> bool:
        """Return whether it is rootless without the controller ``cpuset``, which systemd does not delegate."""
        about = "{{.Host.Security.Rootless}} {{.Host.CgroupControllers}}"
        answer = node.run([*self.program, "info", "--format", about])
        rootless, _, controllers = answer.stdout.partition(" ")
        return rootless == "true" and "cpuset" not in controllers

    def host_network(self, namespace: str | None) -> str:
        if namespace:
            return f"ns:{namespace}"
        return "host"


PODMAN = Podman()
