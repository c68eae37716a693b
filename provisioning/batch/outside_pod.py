"""The node's own bench, started from a privileged pod, outside of it. See ``options.KubernetesOptions``."""

import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress

from suite.errors import RequestError

ALL_OF_THE_NODE = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
OF_ROOT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
"""The environment there: the pod's is not the node's."""
NOT_STARTED = (126, 127)


def run_outside(bench: str, words: Sequence[str], lines: Iterable[str]) -> int:
    """Run bench in the namespaces of the node's first process, with lines as its input; return the exit status.

    All that it says goes to standard output, the pod's one log. Its input stays open while it runs: it ends in order
    when this process does, however that ends. Raises RequestError where there is no such command.
    """
    argv = ["nsenter", "--target", "1", *ALL_OF_THE_NODE, "--", bench, *words]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=sys.stdout.fileno(), text=True, env=OF_ROOT)
    with suppress(BrokenPipeError), process:  # what it has died of is in the log
        assert process.stdin is not None  # noqa: S101 (opened as a pipe)
        process.stdin.writelines(f"{line}\n" for line in lines)
        process.stdin.flush()
        try:
            process.wait()
        finally:
            process.stdin.close()  # it ends in order, before the pod and all in it do
            process.wait()
    if process.returncode in NOT_STARTED:
        raise RequestError(
            f"the node cannot start {bench}",
            remedy="set virtbench up there, and give its command as engine.privileged_bench",
        )
    return process.returncode
