"""Connection: uvicorn's, with limits on what comes before there is a request: how many there are,
how long a head is and takes.

The gate has limits on the body. What may come behind a chunked body, trailers, never reaches it:
they are counted here as a head is, and passed over.
"""

import asyncio
import resource

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from graphformers.serve.gate import error_body

HEAD_BYTES = 64 << 10
PIECE = 16 << 10  # bytes that are parsed between two looks at the limits
HEAD_SECONDS = 10.0  # from the first byte, or from the connection, to the end of the head
MOST_CONNECTIONS = 4096
OWN_FILES = 200  # that the server itself may have open


def most_connections() -> int:
    """As many as the system lets a process have files open, the server's own aside; the limit is
    raised as far as we may.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + OWN_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return (
        MOST_CONNECTIONS
        if soft == resource.RLIM_INFINITY
        else min(MOST_CONNECTIONS, max(soft - OWN_FILES, soft // 2))
    )


class Connection(HttpToolsProtocol):
    """One client's connection."""

    most = MOST_CONNECTIONS
    _timer: asyncio.TimerHandle | None = None
    _is_in_head = True
    _head = 0  # bytes of it that came so far
    _unknown = 0  # bytes since the head or the last piece of the body: trailers, for the most part
    _trailers = 0  # bytes of names and values in them

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            self._refuse(503, "too many connections; try again", "busy")
            return
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE):
            self._take(data[start : start + PIECE])
            # refused; or another protocol took over
            if self.transport.is_closing() or self.transport.get_protocol() is not self:
                return

    def _take(self, data: bytes) -> None:
        """One piece of what came."""
        if self._is_in_head:
            self._head += len(data)
        self._unknown += len(data)
        super().data_received(data)
        if self._is_in_head and self._head > HEAD_BYTES:
            self._refuse(431, f"a head of more than {HEAD_BYTES:,} bytes", "invalid_request")
        # one trailer may be long: the parser keeps it to itself until it has all of it
        elif not self._is_in_head and self._unknown > HEAD_BYTES:
            self._refuse_trailers()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True
        self._wait()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Of the head, or a trailer, which is not kept: the gate may have read the head by then."""
        if self._is_in_head:
            super().on_header(name, value)
            return
        self._trailers += len(name) + len(value)
        if self._trailers > HEAD_BYTES:
            self._refuse_trailers()
            # ends the parser's work on what has come
            raise ValueError("too long trailers")

    def on_body(self, body: bytes) -> None:
        self._unknown = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unknown = 0
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        self._is_in_head, self._head, self._unknown, self._trailers = False, 0, 0, 0
        self._stop_waiting()
        # it may have come in one piece
        if sum(len(name) + len(value) for name, value in self.headers) > HEAD_BYTES:
            raise ValueError("too long a head")  # answered as no HTTP
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is no HTTP request that could be read", "invalid_request")

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self._end)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._timer = None
        self.transport.close()

    def _refuse_trailers(self) -> None:
        self._refuse(431, f"trailers of more than {HEAD_BYTES:,} bytes", "invalid_request")

    def _is_answered(self) -> bool:
        """Whether an answer to what is being read was begun, or others are still due before it."""
        if self._is_in_head or self.cycle is None:
            return False
        return self.cycle.response_started or bool(self.pipeline)

    def _refuse(self, status: int, message: str, kind: str) -> None:
        """An answer, where there is none yet, and the end of the connection."""
        self._stop_waiting()
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
