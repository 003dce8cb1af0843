"""Connections: uvicorn's, with limits on what a client may hold.

uvicorn with httptools accepts headers and trailers of any size, and waits without end for a client
that sends or reads slowly. Here headers, trailers and connections are bounded, and a connection
ends when its client is waited for too long. When there are too many connections, those that have
waited longest are closed, so that one client with thousands of them does not lock out others.
"""

import asyncio
import resource
from collections import Counter
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from graphformers.serve.errors import error_body
from graphformers.serve.settings import Limits

# Bytes that are parsed between two looks at the limits.
PIECE = 4 << 10
# Bytes of an answer that a client must take within `Limits.stall_seconds`, or else all of them.
STEP = 64 << 10
# Share of the connections that are closed together when there are too many.
CLOSED_TOGETHER = 64
# Files that the server itself may have open.
OWN_FILES = 200


def most_connections(wanted: int) -> int:
    """As many connections as the system's limit of open files allows, at most `wanted`.

    The limit is raised as far as it may be.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted + OWN_FILES:
        files = wanted + OWN_FILES
        soft = files if hard == resource.RLIM_INFINITY else min(files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max(soft - OWN_FILES, soft // 2))


class Connections:
    """All connections of a server. Each second it closes those that have waited too long.

    Args:
        limits: Limits of the server.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits, self.most = limits, most_connections(limits.connections)
        # Ordered sets. In `partial`, headers or trailers have begun and not ended.
        self._all: dict[Connection, None] = {}
        self._partial: dict[Connection, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, connection: "Connection") -> bool:
        """Adds a connection.

        Returns:
            Whether there is room for it.
        """
        if len(self._all) >= self.most:
            self._make_room(connection.loop.time())
        if len(self._all) >= self.most:
            return False
        self._all[connection] = None
        if self._timer is None:
            self._timer = connection.loop.call_later(1.0, self._sweep, connection.loop)
        return True

    def remove(self, connection: "Connection") -> None:
        """Removes a connection that has ended."""
        self._all.pop(connection, None)
        self._partial.pop(connection, None)

    def begin_partial(self, connection: "Connection") -> None:
        """Notes that headers or trailers have begun; with too many, the first of all are ended."""
        self._partial.setdefault(connection)
        if len(self._partial) > self.limits.partial_heads:
            next(iter(self._partial)).drop()

    def end_partial(self, connection: "Connection") -> None:
        """Notes that headers or trailers have ended."""
        self._partial.pop(connection, None)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now, waiting = loop.time(), []
        for connection in [*self._all]:
            since, seconds = connection.waiting(now)
            if now - since > seconds:
                connection.drop()
            elif since < now:
                waiting.append((since, connection))
        excess = sum(connection.held for _, connection in waiting) - self.limits.held_bytes
        for _, connection in sorted(waiting, key=lambda one: one[0]):
            if excess <= 0:
                break
            excess -= connection.held
            if connection.held:
                connection.drop()
        self._timer = loop.call_later(1.0, self._sweep, loop) if self._all else None

    def _make_room(self, now: float) -> None:
        """Closes connections of the address that has most of those which wait for their client."""
        waiting = [
            (since, connection)
            for connection in self._all
            if (since := connection.waiting(now)[0]) < now
        ]
        if not waiting:
            return
        counts = Counter(connection.address for _, connection in waiting)
        address = counts.most_common(1)[0][0]
        mine = [one for one in waiting if one[1].address == address]
        mine.sort(key=lambda one: one[0])
        for _, connection in mine[: max(1, self.most // CLOSED_TOGETHER)]:
            connection.drop()


class Connection(HttpToolsProtocol):
    """One client's connection.

    Args:
        connections: All connections of the server.
        given: What uvicorn passes to its protocols.
    """

    def __init__(self, connections: Connections, **given: Any) -> None:
        super().__init__(**given)
        self._others, self._limits = connections, connections.limits
        # Since when the client is waited for, and for how many seconds at most.
        self._since, self._patience = self.loop.time(), self._limits.head_seconds
        # Bytes of the answer that the client had not taken at that time.
        self._unsent, self._unsent_since = 0, 0.0
        self._is_in_head = True
        # Bytes of the body that came.
        self._body_bytes = 0
        # Number and bytes of the headers, or of the trailers.
        self._num_headers, self._header_bytes = 0, 0
        # Bytes since the last header section or piece of a body began: the parser keeps a header to
        # itself until it has all of it.
        self._unparsed = 0
        # What came behind requests that are not answered yet.
        self._rest = b""

    @property
    def address(self) -> str:
        """The client's address."""
        return self.client[0] if self.client else ""

    @property
    def held(self) -> int:
        """Bytes that the server keeps until the client sends or reads more."""
        is_arriving = self.cycle is not None and self.cycle.more_body
        return self._unsent + (self._body_bytes if is_arriving else 0)

    def waiting(self, now: float) -> tuple[float, float]:
        """Since when the client is waited for, and for how many seconds at most.

        While the client waits for the server it is (now, infinity).
        """
        unsent = self.transport.get_write_buffer_size()
        if unsent:
            if not self._unsent or unsent <= self._unsent - STEP:
                self._unsent, self._unsent_since = unsent, now
            # The next answer may have come to it.
            self._unsent = max(self._unsent, unsent)
            return self._unsent_since, self._limits.stall_seconds
        self._unsent = 0
        if self.cycle is None or self.cycle.response_complete:
            return self._since, self._patience
        # The app has its own limit on the time in which a body must arrive.
        return (self._since if self.cycle.more_body else now), float("inf")

    def drop(self) -> None:
        """Ends the connection, also if it holds what the client does not read."""
        self._others.remove(self)
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self._others.add(self):
            self._refuse(503, "too many connections; try again", "busy")

    def connection_lost(self, exc: Exception | None) -> None:
        self._others.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        data, start = self._rest + data, 0
        # Requests that are sent ahead stay unparsed until those before them are answered.
        while start < len(data) and not self.pipeline and not self.transport.is_closing():
            self._take(data[start : start + PIECE])
            start += PIECE
        self._rest = b"" if self.transport.is_closing() else data[start:]
        if self._rest:
            self.flow.pause_reading()

    def _take(self, data: bytes) -> None:
        """Parses one piece of what came."""
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > self._limits.head_bytes:
            self._refuse_headers()
        elif not self._is_in_head and self._unparsed > PIECE:
            self._others.begin_partial(self)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head, self._num_headers, self._header_bytes = True, 0, 0
        self._since, self._patience = self.loop.time(), self._limits.head_seconds
        self._others.begin_partial(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header, or a trailer, which is not kept: the headers may have been checked."""
        self._num_headers += 1
        self._header_bytes += len(name) + len(value)
        if (
            self._header_bytes > self._limits.head_bytes
            or self._num_headers > self._limits.num_headers
        ):
            self._refuse_headers()
            # Ends the parser's work on what has come.
            raise ValueError("too many headers")
        if self._is_in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_head, self._num_headers, self._header_bytes, self._unparsed = False, 0, 0, 0
        self._body_bytes = 0
        self._others.end_partial(self)
        self._since = self.loop.time()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed = 0
        self._others.end_partial(self)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # The head of the next request may have begun.
        if not self._is_in_head:
            self._since, self._patience = self.loop.time(), self._limits.idle_seconds
        if self._rest:
            self.data_received(b"")

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is no HTTP request that could be read", "invalid_request")

    def _refuse_headers(self) -> None:
        kind, limits = "a head" if self._is_in_head else "trailers", self._limits
        words = f"{kind} of more than {limits.head_bytes:,} bytes or {limits.num_headers:,} lines"
        self._refuse(431, words, "invalid_request")

    def _is_answered(self) -> bool:
        """Whether an answer to what is being read was begun, or others are still due before it."""
        if self._is_in_head or self.cycle is None:
            return False
        return self.cycle.response_started or bool(self.pipeline)

    def _refuse(self, status: int, message: str, kind: str) -> None:
        """Sends an answer, where there is none yet, and ends the connection."""
        if self.transport.is_closing():
            return
        if self._is_answered():
            self.transport.close()
            return
        body = error_body(message, kind)
        head = (
            b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
            % len(body)
        )
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()
