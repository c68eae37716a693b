"""The server: a generator behind HTTP, until it is told to end."""

import logging
import threading
from collections.abc import Callable

import waitress

from worker.environment import collect
from worker.protocol import Events
from worker.serving.service import MOST_BODY_BYTES, Service
from worker.spec import ServeSpec
from worker.usage import whole_usage


def run(spec: ServeSpec, events: Events, wait: Callable[[], object]) -> None:
    """Serve until ``wait`` returns, and emit everything from ``imported`` to ``done``.

    As many requests are worked on at once as there are threads, and each computes on one: threads of torch for each of
    them would take the CPUs from each other.
    """
    # Here and not above: it imports torch, which is a part of the cold start with an event of its own.
    from worker.serving.generator import Generator
    from worker.training.device import open_devices, prepare

    events.emit("imported")
    facts = prepare(1, spec.device)
    events.emit("environment", environment={**collect(), **facts, "threads": spec.threads})
    (device,) = open_devices(spec.device, 1)
    generator = Generator.loaded(spec, device)
    # It would tell of every request that finds others before it, which at saturation is each of them.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    server = waitress.create_server(
        Service({(spec.dataset, spec.model): generator}),
        host=spec.address,
        port=spec.port,
        threads=spec.threads,
        max_request_body_size=MOST_BODY_BYTES,
        ident=None,
    )
    threading.Thread(target=server.run, daemon=True).start()
    events.emit("built")
    wait()
    events.emit("done", usage=whole_usage())
