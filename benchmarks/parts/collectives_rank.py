"""One rank that exchanges messages as one would by hand: no suite, one timing of all repetitions.

Run by ``benchmarks/collectives.py``; arguments: rank, address of rank 0, port, interface, megabytes, repetitions.
Prints the seconds of one exchange, by operation, as JSON.
"""

import json
import os
import sys
import time
from collections.abc import Callable

import torch
from torch import distributed


def main() -> None:
    rank, address, port, interface, megabytes, repetitions = sys.argv[1:]
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    distributed.init_process_group("gloo", init_method=f"tcp://{address}:{port}", rank=int(rank), world_size=2)
    message = torch.zeros(int(megabytes) << 18)
    landing = torch.zeros_like(message)

    def point_to_point() -> None:
        receiving = distributed.irecv(landing, 1 - int(rank))
        sending = distributed.isend(message, 1 - int(rank))
        for work in (receiving, sending):
            if work is not None:
                work.wait()

    operations: dict[str, Callable[[], object]] = {
        "all-reduce": lambda: distributed.all_reduce(message),
        "broadcast": lambda: distributed.broadcast(message, src=0),
        "point-to-point": point_to_point,
    }
    seconds = {}
    for name, operation in operations.items():
        operation()
        distributed.barrier()
        begin_s = time.monotonic()
        for _ in range(int(repetitions)):
            operation()
        distributed.barrier()
        seconds[name] = (time.monotonic() - begin_s) / int(repetitions)
    print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main()
