"""Does the load generator of ``--scenario serve`` tell the truth? Its percentiles against those of a known server.

The server answers one request after the other in a known time, and stalls at every so many: what each request of the
schedule has to wait follows by arithmetic (Lindley's recursion). A generator that waits for an answer before it sends
the next request would count each stall once. Prints for each percentile the true value, and the geometric mean of
measured over true with its 95 % interval.

    python benchmarks/serve_error.py --rate 50 --repeat 10
"""

import argparse
import itertools
import random

from parts.known_server import Service, serving
from parts.pairs import interval, parser_of

from worker.serving.load import LoadRun, open_loop
from worker.spec import LoadRequest


def main() -> None:
    options = parse()
    service = Service(options.service_ms / 1e3, options.stall_every, options.stall_ms / 1e3)
    ratios: dict[str, list[float]] = {}
    for seed in range(options.repeat):
        told, true = measured(service, options.rate, options.requests, options.clients, seed)
        for name, value in told.items():
            ratios.setdefault(name, []).append(value / true[name])
            print(f"seed {seed}: {name} {value:.2f} ms, true {true[name]:.2f} ms", flush=True)
    for name, found in ratios.items():
        print("{}: measured over true {:.3f}, 95 % interval {:.3f} to {:.3f}".format(name, *interval(found)))


def measured(
    service: Service, rate: float, requests: int, clients: int, seed: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the percentiles in milliseconds that the generator tells of one run, and the true ones."""
    with serving(service) as port:
        request = LoadRequest("127.0.0.1", port, ("{}",), requests, clients, (rate,), seed, 60, 60, 1)
        told = open_loop(request, rate)
    draw = random.Random(f"{seed}/{rate:g}")  # noqa: S311 - the schedule of the generator
    due_s = list(itertools.accumulate(draw.expovariate(rate) for _ in range(requests)))
    true = LoadRun(service.latencies_s(due_s, 0), due_s[-1])
    first, second = ({name: one.value for name, one in each.readings().items()} for each in (told, true))
    return first, second


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--rate", type=float, default=50.0, help="requests per second (default %(default)s)")
    parser.add_argument("--requests", type=int, default=1000, help="of each run (default %(default)s)")
    parser.add_argument("--clients", type=int, default=8, help="connections (default %(default)s)")
    parser.add_argument("--service-ms", type=float, default=5.0, help="of a request (default %(default)s)")
    parser.add_argument("--stall-every", type=int, default=200, help="one request in so many (default %(default)s)")
    parser.add_argument("--stall-ms", type=float, default=200.0, help="takes this long (default %(default)s)")
    parser.add_argument("--repeat", type=int, default=10, help="runs, at least 2 (default %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
