"""The network aggressor: iperf3 with itself over the loopback."""

from collections.abc import Iterator
from contextlib import contextmanager

from worker.aggressors.aggressor import Aggressor, Load
from worker.aggressors.background import LONGEST_S, running
from worker.probes import iperf3, tools
from worker.probes.network import LOOPBACK, free_port
from worker.probes.request import Request


@contextmanager
def opened(_request: Request) -> Iterator[Load]:
    """Send by TCP over the loopback of the place; its work is in bytes that the client has sent."""
    program = tools.find("iperf3")
    tools.version_of(program, iperf3.OLDEST)
    common = ["--port", str(free_port(LOOPBACK, LOOPBACK)), "--interval", "0"]
    server = [program, "--server", "--one-off", "--forceflush", "--bind", LOOPBACK, *common]
    client = [program, "--client", LOOPBACK, "--time", str(LONGEST_S), *common]
    with tools.serving(server, "listening"), running(client, ("wchar",)) as load:
        yield load


NETWORK = Aggressor("network", opened)
