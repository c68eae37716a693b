"""DistributedDataParallel on one instance: a process for each device, gloo between CPUs and NCCL between GPUs.

The worker itself is rank 0 and starts the others, which read the same specification and print nothing.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from json import dumps, loads

import torch
from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, and not in torch's stubs

from worker.data.batches import LoaderUse, watching_loaders
from worker.distributed.rendezvous import listener
from worker.protocol import Events, JobError
from worker.spec import Spec
from worker.training.build import build_trainer, opened_batches
from worker.training.device import numerics_of, open_devices, set_threads
from worker.training.step import Samples
from worker.weights import drawn_sha256

_PATIENCE = timedelta(minutes=30)
"""An emulated CPU can be far behind another one; a rank that died is noticed by its exit and not by this."""
_PR_SET_PDEATHSIG = 1
DATA_FAILED = 3
"""Exit status of a rank that has failed for its data."""


@dataclass(frozen=True)
class DeviceGroup:
    """The process group. ``threads`` is what all its processes use together."""

    threads: int
    store: TCPStore

    def others(self, spec: Spec) -> Iterator[tuple[LoaderUse | None, str]]:
        """Yield what each of the other ranks has read, and the digest of what it has drawn, once it has ended."""
        for rank in range(1, spec.devices):
            use, drawn = loads(self.store.get(f"end/{rank}"))
            yield LoaderUse(**use) if use else None, drawn


def threads_of_rank(spec: Spec, rank: int) -> int:
    share, rest = divmod(spec.threads, spec.devices)
    return share + (rank < rest)


@contextmanager
def opened(spec: Spec, events: Events) -> Iterator[DeviceGroup]:
    """Start the other ranks and form the group; wait for them at the end."""
    # Any port that is free. The others are told it, and they can only come once it is known.
    port, listening = listener("127.0.0.1")
    store = TCPStore(
        "127.0.0.1",
        port,
        spec.devices,
        is_master=True,
        wait_for_workers=False,
        timeout=_PATIENCE,
        master_listen_fd=listening,
    )
    ranks = range(1, spec.devices)
    others = [_start(spec, rank, port, events) for rank in ranks]
    _join(spec, 0, store)
    total = torch.tensor(torch.get_num_threads(), device="cuda:0" if spec.device == "cuda" else "cpu")
    distributed.all_reduce(total)
    yield DeviceGroup(threads=int(total), store=store)
    distributed.barrier()
    distributed.destroy_process_group()
    for watcher in others:
        watcher.join()


def run_rank(spec: Spec, rank: int, port: int) -> int:
    """Run one of the other ranks, in a process of its own: the same steps, unobserved. Returns its exit status."""
    # Its parent may be killed at any moment, and a rank that waits in NCCL would then wait for ever.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    torch.set_num_interop_threads(1)
    numerics_of(spec.recipe, spec.device).apply()
    devices = open_devices(spec.device, spec.devices)
    store = TCPStore("127.0.0.1", port, spec.devices, is_master=False, timeout=_PATIENCE)
    _join(spec, rank, store)
    threads = torch.tensor(torch.get_num_threads(), device=devices[rank].torch)
    distributed.all_reduce(threads)
    try:
        with watching_loaders(), opened_batches(spec, rank) as (batches,):
            trainer = build_trainer(spec, devices, [batches], rank)
            scratch = Samples.allocate(1, trainer.phases, trainer.parts)
            for _ in range(spec.warmup_steps + spec.steps):
                trainer.step(scratch, 0)
            taken = batches.taken_sha256()
            drawn = drawn_sha256([taken], trainer.network, devices[rank].torch)
            use = batches.close()
    except JobError as error:
        print(f"rank {rank}: {error}", file=sys.stderr)
        if error.kind == "data":
            return DATA_FAILED
        return 1
    store.set(f"end/{rank}", dumps((use and asdict(use), drawn)))
    distributed.barrier()
    distributed.destroy_process_group()
    return 0


def _join(spec: Spec, rank: int, store: TCPStore) -> None:
    set_threads(threads_of_rank(spec, rank))
    # All ranks are in one network namespace: whatever its other interfaces are called, this one is there.
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = "lo"
    backend = "gloo"
    device = None
    if spec.device == "cuda":
        backend = "nccl"
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    distributed.init_process_group(
        backend, store=store, rank=rank, world_size=spec.devices, timeout=_PATIENCE, device_id=device
    )


def _start(spec: Spec, rank: int, port: int, events: Events) -> threading.Thread:
    argv = [sys.executable, "-m", "worker", "--rank", str(rank), str(port)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE)
    if process.stdin is not None:
        process.stdin.write(spec.encoded())
        process.stdin.close()
    watcher = threading.Thread(target=watch, args=(process, rank, events), daemon=True)
    watcher.start()
    return watcher


def watch(process: "subprocess.Popen[bytes]", rank: int, events: Events) -> None:
    """Sleep until the rank has ended. If it failed, end the job: the main thread may never notice."""
    status = process.wait()
    if status:
        kind = {-signal.SIGKILL: "killed", DATA_FAILED: "data"}.get(status, "rank")
        events.error(kind, f"rank {rank} of the job ended with status {status}; see the output for why")
        os._exit(1)
