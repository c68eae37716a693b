"""What docker and podman have in common: a command line."""

import subprocess
from collections.abc import Sequence

from provisioning.layers.engines.base import SLEEPER, TMPFS, ContainerSpec
from suite.errors import BenchError, CommandError
from suite.interfaces import Node


def run_argv(
    program: Sequence[str], spec: ContainerSpec, *, gpu_words: Sequence[str], image: Sequence[str]
) -> list[str]:
    """``docker run`` or ``podman run`` with the envelope, and without any privilege that training does not need."""
    tmpfs = [word for place in TMPFS for word in ("--tmpfs", f"{place}:rw,exec")]
    limits = ["--cpuset-cpus", spec.cpus, "--memory", str(spec.memory_bytes), "--memory-swap", str(spec.memory_bytes)]
    limits += [word for name, value in spec.limits for word in ("--ulimit", f"{name}={value}:{value}")]
    least = ["--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--network", "none"]
    return [
        *(*program, "run", "--detach", "--name", spec.name, "--hostname", spec.name, "--pull", "never"),
        *(*limits, *least, *tmpfs, *gpu_words, *image, *SLEEPER),
    ]


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
    answer = node.run([*program, "version", "--format", template], check=False, timeout_s=20.0)
    if answer.returncode:
        last = (answer.stderr.strip().splitlines() or ["no answer"])[-1]
        raise BenchError(f"{program[0]} does not work on {node.name}: {last[:200]}", remedy=remedy)
    return answer.stdout.strip()
