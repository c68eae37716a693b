"""The disk aggressor: fio at random places of a file."""

from collections.abc import Iterator
from contextlib import contextmanager

from worker.aggressors.aggressor import Aggressor, Load
from worker.aggressors.background import LONGEST_S, running
from worker.probes import disk, tools
from worker.probes.reading import ProbeError
from worker.probes.request import Request


@contextmanager
def opened(request: Request) -> Iterator[Load]:
    """Read and write 4 KiB directly at random places, 32 at a time; its work is in bytes from and to the disk."""
    program = tools.find("fio")
    tools.version_of(program, disk.OLDEST_FIO)
    size_bytes = disk.written_bytes(request.size, None)
    with disk.place_in(request.directory) as place:
        disk.check_space(place, size_bytes)
        argv = [program, "--name=aggressor", f"--filename={place}/data", f"--size={size_bytes}", "--rw=randrw"]
        argv += ["--bs=4k", "--iodepth=32", "--ioengine=libaio", "--direct=1", "--overwrite=1", "--thread"]
        made = tools.run([*argv, "--create_only=1"])
        if made.returncode:
            raise ProbeError(f"fio cannot make its file: {made.stderr.strip()[-300:]}", remedy="free some space")
        with running(
            [*argv, "--time_based", f"--runtime={LONGEST_S}", "--eta=never"], ("read_bytes", "write_bytes")
        ) as load:
            yield load


DISK = Aggressor("disk", opened, disk.written_bytes)
