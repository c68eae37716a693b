"""A real Slurm on this host: munged, slurmctld and two slurmd, started by the tests and ended by them."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from provisioning.machines.ssh import free_port
from tests.integration.machine import require_root, wait_for

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "salloc", "srun", "squeue", "scontrol", "scancel")
NODES = ("vbnode1", "vbnode2")
# Seconds where others wait for minutes: a node that is silent for 15 s is down, and its jobs are queued again. It is no
# less because on a busy machine a daemon that lives is silent for some.
CONF = """\
ClusterName=virtbench
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={place}/munge.sock
CredType=cred/munge
SlurmctldPort={controller}
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/%n.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
SlurmdTimeout=15
MessageTimeout=6
TCPTimeout=6
KillWait=20
TaskProlog={place}/prolog
InactiveLimit=0
MinJobAge=300
ReturnToService=2
SlurmdParameters=config_overrides
JobRequeue=1
{nodes}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2
"""


@dataclass
class Slurm:
    """A cluster that runs. ``env`` is what its commands need."""

    place: Path
    env: dict[str, str]
    daemons: dict[str, "subprocess.Popen[bytes]"]

    def wait_until_idle(self) -> None:
        wait_for("idle nodes", lambda: _all_idle(self), self.said)

    def run(self, *argv: str) -> str:
        ended = subprocess.run(argv, check=False, capture_output=True, text=True, env={**os.environ, **self.env})
        assert ended.returncode == 0, f"{argv}: {ended.stdout}{ended.stderr}"
        return ended.stdout

    def node_states(self) -> dict[str, str]:
        return dict(line.split() for line in self.run("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines())

    def queue(self) -> str:
        return self.run("squeue", "--array", "--noheader", "--states=all", "--format=%i %j %t %N %r")

    def busy_node(self) -> str:
        return next(node for node, state in self.node_states().items() if state == "allocated")

    def take_all_nodes(self) -> None:
        """Another user's job, of higher priority, which ends at once."""
        whole = ("--exclusive", f"--nodes={len(NODES)}", "--output=/dev/null")
        self.run("sbatch", "--partition=urgent", *whole, "--wrap=true")

    def hasten(self) -> None:
        """What was queued again begins now: Slurm lets it wait for two minutes."""
        for line in self.queue().splitlines():
            if "BeginTime" in line:
                self.run("scontrol", "update", f"JobId={line.split()[0]}", "StartTime=now")

    def start(self, name: str, *argv: str) -> None:
        with (self.place / f"{name}.out").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def start_controller(self) -> None:
        self.start("slurmctld", "slurmctld", "-D", "-f", f"{self.place}/slurm.conf")

    @contextmanager
    def without_controller(self, *, halted: bool) -> Iterator[None]:
        """End the controller and start it again, or halt it: it takes connections then, and answers nobody."""
        daemon = self.daemons["slurmctld"]
        if halted:
            daemon.send_signal(signal.SIGSTOP)
        else:
            daemon.terminate()
            daemon.wait(30)
        try:
            yield
        finally:
            if halted:
                daemon.send_signal(signal.SIGCONT)
            else:
                self.start_controller()

    def start_node(self, name: str) -> None:
        self.start(name, "slurmd", "-D", "-N", name, "-f", f"{self.place}/slurm.conf")

    def fell_node(self, name: str) -> None:
        """As when the power fails: the daemon, what manages its jobs, and the jobs, all at once and without a word."""
        managers = list(_managers(self.of_jobs(name)))
        self.daemons[name].kill()
        _kill(managers)
        while jobs := self.of_jobs(name):  # they may have begun others meanwhile
            _kill(jobs)
        self.daemons[name].wait()

    def restore(self) -> None:
        """No job and idle nodes, whatever a test that failed has left."""
        self.run("scancel", "--user=root")
        for name in NODES:
            if self.daemons[name].poll() is not None:
                self.start_node(name)
        self.wait_until_idle()

    def kill_jobs(self, name: str) -> None:
        """The processes of the jobs of one node; those that manage them see it."""
        _kill(self.of_jobs(name))

    def of_jobs(self, node: str | None = None) -> list[psutil.Process]:
        """Every process of the jobs of this cluster, or of one node of it."""
        wanted = {node} if node else set(NODES)
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                its = process.environ()
                if its.get("SLURM_CONF") == self.env["SLURM_CONF"] and its.get("SLURMD_NODENAME") in wanted:
                    found += [process, *process.children(recursive=True)]
        return list(dict.fromkeys(found))

    def said(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-1500:]}" for path in self.place.glob("*.log"))


def _managers(jobs: Sequence[psutil.Process]) -> Iterator[psutil.Process]:
    for process in jobs:
        with suppress(psutil.Error):
            yield from (parent for parent in process.parents() if parent.name() == "slurmstepd")


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=20)


def _configuration(place: Path) -> str:
    host = socket.gethostname().partition(".")[0]
    controller, *ports = (free_port() for _ in range(1 + len(NODES)))
    nodes = "\n".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={os.cpu_count()} RealMemory=500"
        for name, port in zip(NODES, ports, strict=True)
    )
    return CONF.format(host=host, place=place, controller=controller, nodes=nodes)


@contextmanager
def slurm_cluster(place: Path) -> Iterator[Slurm]:
    """Two nodes that are idle. ``place`` is short (it holds a socket) and is removed at the end."""
    require_root()
    if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
        pytest.skip(f"{', '.join(missing)} not installed (make setup-test)")
    for name in ("state", *NODES):
        (place / name).mkdir()
    place.chmod(0o755)  # munged refuses a socket that others cannot reach
    (place / "slurm.conf").write_text(_configuration(place))
    (place / "prolog").write_text("#!/bin/sh\necho print welcome to $SLURMD_NODENAME\n")
    (place / "prolog").chmod(0o755)
    (place / "munge.key").write_bytes(os.urandom(128))
    (place / "munge.key").chmod(0o600)
    slurm = Slurm(place, {"SLURM_CONF": str(place / "slurm.conf")}, {})
    try:
        files = {"socket": "munge.sock", "key-file": "munge.key", "pid-file": "munge.pid", "log-file": "munge.log"}
        words = [f"--{key}={place}/{name}" for key, name in {**files, "seed-file": "munge.seed"}.items()]
        slurm.start("munged", "munged", "--foreground", *words)
        wait_for("munge", (place / "munge.sock").exists, slurm.said)
        slurm.start_controller()
        for name in NODES:
            slurm.start_node(name)
        slurm.wait_until_idle()
        yield slurm
    finally:
        _end(slurm)
        shutil.rmtree(place, ignore_errors=True)


def _all_idle(slurm: Slurm) -> bool:
    ended = subprocess.run(["sinfo", "--noheader"], check=False, capture_output=True, env={**os.environ, **slurm.env})
    return ended.returncode == 0 and set(slurm.node_states().values()) == {"idle"}


def _end(slurm: Slurm) -> None:
    """The jobs first, then the daemons, the newest first."""
    _kill(slurm.of_jobs())
    for daemon in reversed(slurm.daemons.values()):
        if daemon.poll() is None:
            daemon.send_signal(signal.SIGTERM)
    for daemon in slurm.daemons.values():
        try:
            daemon.wait(60)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
