"""What docker and podman have in common: a command line."""

import subprocess
from collections.abc import Sequence

from provisioning.engines.base import BOUND, SLEEPER, TMPFS, ContainerSpec
from suite.errors import BenchError, CommandError
from suite.interfaces import Node
from suite.job.ablations import DISK_LIMIT_BYTES_PER_S

FILLED_WITHIN_S = 6 * 3600.0


def run_argv(
    program: Sequence[str], spec: ContainerSpec, *, gpu_words: Sequence[str], image: Sequence[str]
) -> list[str]:
    """``docker run`` or ``podman run`` with the envelope, and without any privilege that training does not need."""
    tmpfs = [word for place in TMPFS for word in ("--tmpfs", f"{place}:rw,exec")]
    limits = ["--cpus", str(spec.cpu_count)] if spec.by_count else ["--cpuset-cpus", spec.cpus]
    memory = str(spec.memory_bytes)
    limits += [] if spec.memory_bytes is None else ["--memory", memory, "--memory-swap", memory]
    for disk in spec.limited_disks:
        limits += [f"--device-{way}-bps={disk.path}:{DISK_LIMIT_BYTES_PER_S}" for way in ("read", "write")]
    limits += [word for name, value in spec.limits for word in ("--ulimit", f"{name}={value}:{value}")]
    least = [] if spec.layer else ["--read-only"]
    least += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    least += ["--network", spec.network or "none"]
    least += [] if spec.seccomp else ["--security-opt", "seccomp=unconfined"]
    return [
        *(*program, "run", "--detach", "--name", spec.name, "--hostname", spec.name, "--pull", "never"),
        *(*limits, *least, *tmpfs, *_mounts(spec), *gpu_words, *image, *SLEEPER),
    ]


def _mounts(spec: ContainerSpec) -> list[str]:
    """``--mount`` takes its value apart at commas: a field with one is quoted, as in a CSV file."""
    binds = [(f"{spec.tree.rstrip('/')}{place}", place, False) for place in BOUND] if spec.bound_tree else []
    binds += [spec.data] if spec.data else []
    return [
        word
        for source, target, writable in binds
        for word in ("--mount", f'type=bind,"source={source}",target={target}{"" if writable else ",readonly"}')
    ]


def fill(program: Sequence[str], node: Node, spec: ContainerSpec) -> None:
    """Copy what belongs into a layer of the container's own; the copies are root's, as files of an image are."""
    if spec.layer:
        source, target, _ = spec.layer
        node.run([*program, "cp", f"{source}/.", f"{spec.name}:{target}"], timeout_s=FILLED_WITHIN_S)


def main_pid(program: Sequence[str], node: Node, name: str) -> int:
    return int(node.run([*program, "inspect", "--format", "{{.State.Pid}}", name]).stdout)


def remove_argv(program: Sequence[str], name: str, more: Sequence[str] = ()) -> list[str]:
    return [*program, "rm", "--force", "--volumes", *more, name]


def remove(program: Sequence[str], node: Node, name: str, more: Sequence[str] = ()) -> None:
    """Both answer 0 for a container that is gone (podman from 4.0: 1 and a word on it), and else say what hinders."""
    answer = node.run(remove_argv(program, name, more), check=False)
    _raise_unless_gone(program, name, answer.returncode, answer.stderr)


def remove_local(program: Sequence[str], name: str, more: Sequence[str] = ()) -> None:
    argv = remove_argv(program, name, more)
    answer = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=120)
    _raise_unless_gone(program, name, answer.returncode, answer.stderr)


def _raise_unless_gone(program: Sequence[str], name: str, returncode: int, stderr: str) -> None:
    if returncode and "no such container" not in stderr.lower() and "no container with" not in stderr.lower():
        raise CommandError(remove_argv(program, name), returncode, stderr)


def server_version(program: Sequence[str], node: Node, template: str, remedy: str) -> str:
    """The version of the engine behind the command line. Raises BenchError with ``remedy`` when none answers."""
    answer = node.run([*program, "version", "--format", template], check=False, timeout_s=60.0)
    if answer.returncode:
        last = (answer.stderr.strip().splitlines() or ["no answer"])[-1]
        raise BenchError(f"{program[0]} does not work on {node.name}: {last[:200]}", remedy=remedy)
    return answer.stdout.strip()
