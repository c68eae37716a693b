"""The command line that docker and podman share."""

from collections.abc import Sequence
from copy import copy
from typing import Self

from provisioning.engines.base import BOUND, SLEEPER, TMPFS, ContainerEngine, ContainerSpec, end_starting
from provisioning.nodes import is_guest
from provisioning.processes import check_answer, run_apart
from suite.errors import BenchError, CommandError, RequestError
from suite.interfaces import Node

STARTED_WITHIN_S = 300.0
COPIED_WITHIN_S = 6 * 3600.0
READ_ONLY = ",readonly,bind-nonrecursive"
"""Without what is mounted below: docker before 25 and podman leave that writable."""

NAMED = ("crun", "runc", "runsc")
"""The OCI runtimes that answer with the name of their program; configurations give others any name."""


LISTED_WITHIN_S = 10.0


class CommandLineEngine(ContainerEngine):
    program: tuple[str, ...]
    version_field: str
    """The template that prints the version of the engine behind the command line."""
    layers_field: str
    """The template that prints the directory of the containers' layers."""
    machine_field: str
    """The template that prints the name, the kernel and the memory of the machine that has the containers."""
    remedy: str
    """The remedy if the engine does not work."""
    denied: str
    """The remedy if it does not serve this user."""
    removal_options: tuple[str, ...] = ()
    own_settings: tuple[str, ...] = ()
    """The options that give a container namespaces, a group and a path, where the engine's configuration may not."""
    bind_options: str = ""
    """More options of every bind mount; docker's command line knows none."""
    # For a container that is gone docker answers 0, and podman from 4.0 on 1 with a message that says so.
    says_gone = ("no such container", "no container with")
    rootfs = "overlay"
    commands_are_children = False

    def root_options(self, spec: ContainerSpec) -> Sequence[str]:
        """Return the words of ``run`` that name the image."""
        raise NotImplementedError

    def run_by(self, runtime: str) -> Self:
        engine = copy(self)
        engine.runtime = runtime
        return engine

    def version(self, node: Node) -> str:
        asking = [*self.program, "version", "--format", self.version_field]
        answer = self.answer(node, asking, self.remedy, self.denied)
        if not is_guest(node):  # whose programs are the image's
            program = self.program[0]
            identity = node.run([program, "--version"], check=False)
            check_answer(program, identity.stdout, node.name)
        version = self.service_version(answer, node)
        if not self.runtime:
            return version
        try:
            runtime = self.runtime_version(node).splitlines()[0]
        except (BenchError, KeyError) as error:
            raise RequestError(
                f"the {self.name} of {node.name} has no OCI runtime {self.runtime} that works",
                remedy="install it, and name it in daemon.json for docker, or in containers.conf for podman",
            ) from error
        if self.runtime in NAMED:
            check_answer(self.runtime, runtime, node.name)
        return f"{version}, {runtime}"

    def service_version(self, answer: str, node: Node) -> str:  # noqa: ARG002 (docker's client has other services)
        """Return the version in the answer of ``version_field``. Raises RequestError for another engine's."""
        return answer

    def runtime_version(self, node: Node) -> str:
        """Return what ``runtime`` reports of itself. Raises BenchError or KeyError if it is missing."""
        raise NotImplementedError

    def check_machine(self, node: Node) -> None:
        """Raise RequestError if the service behind the command line, as a context may name it, is on another machine.

        No engine reports a boot ID. A service whose name differs, as seen from a container with its socket, cannot be
        used either: its process IDs and paths are not those of this node.
        """
        answer = node.run([*self.program, "info", "--format", self.machine_field], check=False, timeout_s=60.0)
        memory = node.run(["cat", "/proc/meminfo"]).stdout
        total = next(line for line in memory.splitlines() if "MemTotal" in line)
        total_kib = int(total.split()[1])
        kernel = node.run(["uname", "--nodename", "--kernel-release"]).stdout.split()
        expected = [*kernel, str(total_kib * 1024)]
        if answer.returncode == 0 and answer.stdout.split() != expected:
            raise RequestError(
                f"the containers of {self.name} run on another machine than {node.name}: {answer.stdout.strip()[:200]}",
                remedy="use the service of the machine itself: docker context use default, or podman system connection "
                "default; and unset DOCKER_HOST, DOCKER_CONTEXT and CONTAINER_HOST",
            )

    def layers_at(self, node: Node) -> str:
        answer = node.run([*self.program, "info", "--format", self.layers_field])
        return answer.stdout.strip()

    def begin(self, node: Node, spec: ContainerSpec) -> None:
        # Not run: at Ctrl-C that kills, and the removal can only wait for a client that ends by itself.
        argv = self.run_argv(spec)
        client = node.start(argv)
        output = list(client.lines(STARTED_WITHIN_S))
        status = client.wait(STARTED_WITHIN_S)
        if status:
            raise CommandError(argv, status, client.output_tail() or "\n".join(output))
        if spec.layer:
            # The copies belong to root, as the files of an image do.
            source, target, _ = spec.layer
            copying = [*self.program, "cp", f"{source}/.", f"{spec.name}:{target}"]
            with node.opening.paused():
                node.run(copying, timeout_s=COPIED_WITHIN_S)

    def run_argv(self, spec: ContainerSpec) -> list[str]:
        """Return the ``run`` command with the envelope, and without any privilege that training does not need."""
        argv = [*self.program, "run", "--detach"]
        argv += ["--name", spec.name, "--hostname", spec.name]
        argv += ["--pull", "never", *self.own_settings, *_limits(spec)]
        if not spec.layer:
            argv.append("--read-only")
        argv += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
        argv += ["--network", spec.network or "none"]
        if self.runtime:
            argv += ["--runtime", self.runtime]
        if not spec.seccomp:
            argv += ["--security-opt", "seccomp=unconfined"]
        for path in TMPFS:
            argv += ["--tmpfs", f"{path}:rw,exec,size={spec.tmpfs_bytes}"]
        argv += ["--shm-size", str(spec.tmpfs_bytes)]
        argv += self._mounts(spec)
        for device in spec.edits.devices:
            argv += ["--device", device.path]
        return [*argv, *self.root_options(spec), *SLEEPER]

    def exec_argv(self, spec: ContainerSpec) -> list[str]:
        pinning = ["taskset", "--cpu-list", spec.cpus] if spec.by_affinity else []
        return [*self.program, "exec", "--interactive", spec.name, *pinning]

    def main_pid(self, node: Node, name: str) -> int:
        answer = node.run([*self.program, "inspect", "--format", "{{.State.Pid}}", "--", name])
        return int(answer.stdout)

    def update_argv(self, name: str, cpus: str, quota_us: int, memory_bytes: int | None) -> list[str]:
        memory = []
        if memory_bytes:
            memory = [f"--memory={memory_bytes}", f"--memory-swap={memory_bytes}"]
        return [*self.program, "update", f"--cpuset-cpus={cpus}", f"--cpu-quota={quota_us}", *memory, name]

    def removal(self, name: str) -> list[list[str]]:
        remove = [*self.program, "rm", "--force", "--volumes", *self.removal_options, "--", name]
        return [end_starting(name, self.program[0], "--name"), remove]

    def names_here(self) -> list[str]:
        listing = [self.program[0], "ps", "--all", "--filter", "name=virtbench-", "--format", "{{.Names}}"]
        try:
            answer = run_apart(listing, LISTED_WITHIN_S)
        except (CommandError, OSError):
            return []
        return answer.stdout.split()

    def _mounts(self, spec: ContainerSpec) -> list[str]:
        """Return the options of the bind mounts: ``--mount`` splits its value at commas, so that paths are quoted."""
        binds = []
        if spec.bound_tree:
            top = spec.tree.rstrip("/")
            binds += [(f"{top}{path}", path, False) for path in BOUND]
        binds += spec.binds
        binds += [(source, target, False) for source, target in spec.edits.mounts]
        words = []
        for source, target, writable in binds:
            read_only = "" if writable else READ_ONLY
            words += ["--mount", f'type=bind,"source={source}",target={target}{read_only}{self.bind_options}']
        return words


def _limits(spec: ContainerSpec) -> list[str]:
    limits = []
    if not spec.by_count and not spec.by_affinity:
        limits += ["--cpuset-cpus", spec.cpus]
    if spec.by_count or spec.cpu_share < 1:
        limits += ["--cpus", f"{spec.cpu_count * spec.cpu_share:g}"]
    limits += ["--pids-limit", str(spec.most_processes)]
    if spec.memory_limited:
        memory = str(spec.memory_bytes)
        limits += ["--memory", memory, "--memory-swap", memory]
    for disk in spec.limited_disks:
        limits += [f"--device-{way}-{unit}={disk.path}:{limit}" for way, unit, limit in spec.disk_limits]
    for name, value in spec.limits:
        limits += ["--ulimit", f"{name}={value}:{value}"]
    return limits
