"""The HTTP server of services and pages: connections, times and sizes are bounded, and nobody shuts out others."""

import logging
import resource
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer

MOST_CONNECTIONS = 1100
"""Open connections, above the most clients of a load. A further one closes the oldest that has no request in work."""
REQUEST_WITHIN_S = 10
_ACCEPTED_AT_ONCE = 256
_READ_AT_ONCE_BYTES = 512
"""What is read of a connection before others have their turn: it can hold many requests, which cost time to parse."""
_OTHER_FILES = 100
"""Descriptors that connections leave free."""
_LEAST_CONNECTIONS = 8
"""What is served even where a process may have few files."""
_READS = select.EPOLLIN
"""Without EPOLLPRI: an urgent byte, which nobody reads, would wake the loop without an end."""
_LOOK_S = 1.0


class BoundedServer(TcpWSGIServer):  # type: ignore[misc]
    """Serves a WSGI application on a listening socket until it is interrupted.

    A connection gets one answer, then the others have their turn, however many requests it has sent. The kernel keeps
    what each connection waits for: waitress asks all of them anew after every answer, which took most of the time of a
    server with hundreds of connections.
    """

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
        self.most_connections = max(_LEAST_CONNECTIONS, min(MOST_CONNECTIONS, most_files - _OTHER_FILES))
        self.channel_class = _Channel
        self.poller = select.epoll()
        self.serving = threading.local()
        self._looks_at_s = 0.0
        self._changed: deque[_Channel] = deque()
        # It would tell of every request that finds others before it, which at saturation is each of them.
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)
        bounds = {"max_request_body_size": most_bytes, "max_request_header_size": most_bytes}
        waits = {"channel_timeout": idle_s, "cleanup_interval": 1, "connection_limit": 2 * MOST_CONNECTIONS}
        files = {
            "sockets": [listener],
            "backlog": 4096,
            "recv_bytes": _READ_AT_ONCE_BYTES,
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

    def run(self) -> None:
        """Serve until SystemExit or KeyboardInterrupt."""
        for watched in (self, self.trigger):
            self.poller.register(watched.socket, _READS)
        try:
            while True:
                self._serve_round()
        except (SystemExit, KeyboardInterrupt):
            self.task_dispatcher.shutdown()

    def _serve_round(self) -> None:
        """Do what is possible on each connection now, and wait for up to a second if that is nothing."""
        if time.monotonic() >= self._looks_at_s:
            self._looks_at_s = time.monotonic() + _LOOK_S
            self.next_channel_cleanup = 0  # a time of day, which can be set back
        is_accepting = self.readable()  # it looks after the connections, too
        self.poller.modify(self.socket, _READS if is_accepting else 0)
        while self._changed:
            self._changed.popleft().watch()
        # Before any is handled: a connection that is accepted meanwhile may have the number of one that was closed.
        ready_now = [(self._map[descriptor], events) for descriptor, events in self.poller.poll(_LOOK_S)]
        for ready, events in ready_now:
            if ready.socket is None:  # closed meanwhile
                continue
            wasyncore.readwrite(ready, events)
            if isinstance(ready, _Channel):
                ready.watch()

    def pull_trigger(self) -> None:
        """Wake the loop for the connection whose request this thread works on."""
        self._changed.append(self.serving.channel)
        super().pull_trigger()

    def maintenance(self, now: float) -> None:
        """Close connections on which nothing moves, or whose request is not whole in time."""
        idle_since_s = now - self.adj.channel_timeout
        begun_since_s = time.monotonic() - REQUEST_WITHIN_S
        for channel in list(self.active_channels.values()):
            is_idle = not channel.requests and channel.last_activity < idle_since_s
            is_late = channel.begun_s is not None and channel.begun_s < begun_since_s
            if is_idle or is_late:
                channel.handle_close()


class _Channel(HTTPChannel):  # type: ignore[misc]
    """A connection on which a request must be whole in time: a byte now and then is no sign of life."""

    begun_s: float | None = None
    watched = _READS

    def add_channel(self, *channels: object) -> None:
        super().add_channel(*channels)
        self.server.poller.register(self._fileno, self.watched)

    def del_channel(self, *channels: object) -> None:
        if self._fileno is not None:  # waitress closes some connections twice
            self.server.poller.unregister(self._fileno)
        super().del_channel(*channels)

    def watch(self) -> None:
        """Tell the kernel what the connection waits for now, if that has changed."""
        wanted = _READS if self.readable() else 0
        if self.writable():
            wanted |= select.EPOLLOUT
        if self._fileno is not None and wanted != self.watched:
            self.server.poller.modify(self._fileno, wanted)
            self.watched = wanted

    def service(self) -> None:
        self.server.serving.channel = self
        super().service()

    def handle_read(self) -> None:
        super().handle_read()
        self.begun_s = (self.begun_s or time.monotonic()) if self.request else None
