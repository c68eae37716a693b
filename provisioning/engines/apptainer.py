"""Apptainer, formerly Singularity: ``apptainer exec`` on the image's tree as a sandbox directory.

The arguments follow its manual, of version 1.4; the suite has not been run with it.
"""

from provisioning.engines.base import ContainerSpec
from provisioning.engines.unprivileged import Binds, UnprivilegedEngine
from provisioning.layers.userland import SHARED_MEMORY, TEMPORARY


class Apptainer(UnprivilegedEngine):
    name = "apptainer"
    program = "apptainer"
    replaced = ("etc/passwd", "etc/group")

    def container_argv(self, spec: ContainerSpec, tree: str, binds: Binds, user: int | None) -> list[str]:
        # ``--containall``: process and IPC namespaces, a clean environment, few devices, nothing of the home.
        contained = ["--containall", "--no-home", "--no-eval", "--no-umask", "--no-privs"]
        contained += ["--no-mount", "bind-paths", "--pwd", "/"]
        contained += ["--hostname", spec.name, *([] if spec.network else ["--net", "--network", "none"])]
        if user is not None:
            contained += ["--security", f"uid:{user}", "--security", f"gid:{user}"]
        # Its own file systems in memory have 64 MB.
        in_memory = [(path, path, True) for path in (SHARED_MEMORY, TEMPORARY)]
        mounts = [
            word
            for source, target, writable in (*in_memory, *binds)
            for word in ("--mount", f'type=bind,"source={source}",destination={target}{"" if writable else ",ro"}')
        ]
        return [self.program, "exec", *contained, *mounts, tree]


APPTAINER = Apptainer()
