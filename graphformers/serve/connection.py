"""Connection: uvicorn's, with limits on what comes before there is a request: how many there are, how long a head is and takes.

The gate has limits on everything behind the head.
"""

import asyncio
import resource

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from graphformers.serve.gate import error_body

HEAD_BYTES = 64 << 10
HEAD_SECONDS = 10.0  # from the first byte, or from the connection, to the end of the head
MOST_CONNECTIONS = 4096
OWN_FILES = 200  # that the server itself may have open


def most_connections() -> int:
    """As many as the system lets a process have files open, the server's own aside; the limit is raised as far as we may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + OWN_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, max(soft - OWN_FILES, soft // 2))


class Connection(HttpToolsProtocol):
    """One client's connection."""

    most = MOST_CONNECTIONS
    _timer: asyncio.TimerHandle | None = None
    _is_in_head = True
    _head = 0  # bytes of it that came so far

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
        if self._is_in_head:
            self._head += len(data)
        super().data_received(data)
        if self._is_in_head and self._head > HEAD_BYTES:
            self._refuse(431, f"a head of more than {HEAD_BYTES:,} bytes", "invalid_request")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True
        self._wait()

    def on_headers_complete(self) -> None:
        self._is_in_head, self._head = False, 0
        self._stop_waiting()
        if sum(len(name) + len(value) for name, value in self.headers) > HEAD_BYTES:  # it may have come in one piece
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

    def _refuse(self, status: int, message: str, kind: str) -> None:
        """An answer, and the end of the connection."""
        self._stop_waiting()
        if self.transport.is_closing():
            return
        body = error_body(message, kind)
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()
