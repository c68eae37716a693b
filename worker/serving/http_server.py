"""The HTTP server of services and pages: connections, times and sizes are bounded, and nobody shuts out others."""

import logging
import resource
import socket
import time
from collections.abc import Callable

from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer

MOST_CONNECTIONS = 1100
"""Open connections, above the most clients of a load. A further one closes the oldest that has no request in work."""
REQUEST_WITHIN_S = 10
_ACCEPTED_AT_ONCE = 256
_OTHER_FILES = 100
"""Descriptors that connections leave free."""


class BoundedServer(TcpWSGIServer):  # type: ignore[misc]
    """Serves a WSGI application on a listening socket until it is interrupted."""

    def __init__(
        self,
        application: Callable[..., object],
        listener: socket.socket,
        *,
        threads: int,
        most_bytes: int,
        idle_s: int,
    ) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most_files = min(hard, max(soft, MOST_CONNECTIONS + _OTHER_FILES))
        resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, hard))
        self.most_connections = min(MOST_CONNECTIONS, most_files - _OTHER_FILES)
        self.channel_class = _Channel
        # It would tell of every request that finds others before it, which at saturation is each of them.
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)
        bounds = {"max_request_body_size": most_bytes, "max_request_header_size": most_bytes}
        waits = {"channel_timeout": idle_s, "cleanup_interval": 1, "connection_limit": 2 * MOST_CONNECTIONS}
        files = {
            "sockets": [listener],
            "backlog": 4096,
            "asyncore_use_poll": True,
            "log_socket_errors": False,
        }
        adjustments = Adjustments(threads=threads, ident=None, **files, **bounds, **waits)
        socket_info = (listener.family, listener.type, listener.proto, listener.getsockname())
        super().__init__(
            application,
            _sock=listener,
            adj=adjustments,
            sockinfo=socket_info,
            bind_socket=False,
        )

    def handle_accept(self) -> None:
        """Accept what waits, and close the oldest connections above the limit that have no request in work."""
        for _ in range(_ACCEPTED_AT_ONCE):
            before = len(self.active_channels)
            super().handle_accept()
            if len(self.active_channels) == before:
                return
            if before >= self.most_connections:
                idle = (channel for channel in self.active_channels.values() if not channel.requests)
                oldest = next(idle, None)
                if oldest:
                    oldest.handle_close()

    def maintenance(self, now: float) -> None:
        """Close connections on which nothing moves, or whose request is not whole in time."""
        super().maintenance(now)
        for channel in self.active_channels.values():
            if channel.begun_s and channel.begun_s < time.monotonic() - REQUEST_WITHIN_S:
                channel.will_close = True


class _Channel(HTTPChannel):  # type: ignore[misc]
    """A connection on which a request must be whole in time: a byte now and then is no sign of life."""

    begun_s: float | None = None

    def handle_read(self) -> None:
        super().handle_read()
        self.begun_s = (self.begun_s or time.monotonic()) if self.request else None
