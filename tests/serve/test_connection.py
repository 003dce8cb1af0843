"""Connections whose clients send or read nothing, on a real server: they end, and leave room."""

import contextlib
import resource
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest
import uvicorn

from graphformers.serve.connection import OWN_FILES, Connection, Connections, most_connections
from graphformers.serve.settings import Limits

Address = tuple[str, int]
LARGE = b"x" * 20_000_000


class App:
    """Answers after `release`, or at once if the path is no /wait; large at /large."""

    def __init__(self) -> None:
        self.num_waiting = 0
        self.is_released = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        import asyncio

        is_whole = scope["method"] != "POST"
        while not is_whole:
            message = await receive()
            is_whole = message["type"] == "http.disconnect" or not message.get("more_body")
        self.num_waiting += 1
        while scope["path"] == "/wait" and not self.is_released.is_set():
            await asyncio.sleep(0.01)
        self.num_waiting -= 1
        body = LARGE if scope["path"] == "/large" else b"ok"
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@contextmanager
def serving(app: Any = None, **limits: Any) -> Iterator[Address]:
    """The address of a server with short patience."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    protocol: Any = partial(Connection, Connections(Limits(**limits)))
    config = uvicorn.Config(
        app or App(), http=protocol, ws="none", lifespan="off", log_level="critical"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield listener.getsockname()
    finally:
        server.should_exit = True
        thread.join()


def read(client: socket.socket) -> bytes:
    """Until the server ends the connection."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while piece := client.recv(65536):
            found += piece
    return found


def get(address: Address, path: str = "/") -> bytes:
    with socket.create_connection(address, timeout=20) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        return read(client)


def test_who_says_nothing_makes_room() -> None:
    with serving(connections=30, head_seconds=60.0) as address, ExitStack() as held:
        silent = [held.enter_context(socket.create_connection(address, timeout=20))]
        silent[0].sendall(b"GET /hea")
        # Answered after the server has read what was sent before.
        assert get(address).endswith(b"ok")
        silent += [
            held.enter_context(socket.create_connection(address, timeout=20)) for _ in range(59)
        ]
        assert get(address).endswith(b"ok")
        # As many as there is no room for went, long before their time was over, and no more.
        poll = select.poll()
        for client in silent:
            poll.register(client, select.POLLIN)
        while len(poll.poll(20_000)) < 30:
            time.sleep(0.01)
        assert len(poll.poll(0)) <= 32


def test_who_says_nothing_goes_when_the_time_is_over() -> None:
    with serving(connections=30, head_seconds=1.0) as address, ExitStack() as held:
        silent = [
            held.enter_context(socket.create_connection(address, timeout=20)) for _ in range(20)
        ]
        silent[0].sendall(b"GET /hea")
        assert [read(client) for client in silent] == [b""] * 20
        assert get(address).endswith(b"ok")


def test_who_waits_for_an_answer_does_not_go() -> None:
    app = App()
    with serving(app, connections=30, head_seconds=1.0) as address, ExitStack() as held:
        clients = [
            held.enter_context(socket.create_connection(address, timeout=20)) for _ in range(30)
        ]
        for client in clients:
            client.sendall(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        while app.num_waiting < 30:
            time.sleep(0.01)
        for _ in range(5):
            refused = get(address)
            assert refused.startswith(b"HTTP/1.1 503 ")
            assert b"too many connections" in refused
        time.sleep(2.5)
        app.is_released.set()
        assert all(client.recv(65536).startswith(b"HTTP/1.1 200 ") for client in clients)
        assert get(address).endswith(b"ok")


def test_a_client_that_asks_again_is_not_cut_off() -> None:
    """The limit is on heads: between two requests a connection may wait longer."""
    with (
        serving(head_seconds=1.0) as address,
        socket.create_connection(address, timeout=20) as client,
    ):
        for _ in range(2):
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            found = b""
            while not found.endswith(b"ok"):
                found += client.recv(65536) or pytest.fail(f"cut off after {found!r}")
            time.sleep(2.5)
        client.sendall(b"GET / HTTP/1.1\r\n")
        assert read(client) == b""


@pytest.mark.parametrize("sent", [b"", b"\r\n"])
def test_a_client_that_does_not_ask_again_is_cut_off(sent: bytes) -> None:
    """A line break is not the beginning of a request."""
    with (
        serving(idle_seconds=1.0) as address,
        socket.create_connection(address, timeout=20) as client,
    ):
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(65536)
        started = time.monotonic()
        client.sendall(sent)
        assert read(client) == b""
        assert time.monotonic() - started < 5


def test_a_client_that_does_not_read_is_cut_off() -> None:
    with (
        serving(stall_seconds=1.0) as address,
        socket.create_connection(address, timeout=20) as client,
    ):
        client.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
        time.sleep(4)
        assert len(read(client)) < len(LARGE)


def test_a_client_that_reads_slowly_is_not_cut_off() -> None:
    """Also where one answer comes to another, so that there is never less to read."""
    with (
        serving(stall_seconds=2.0) as address,
        socket.create_connection(address, timeout=20) as client,
    ):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        client.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n" * 4)
        taken, started = 0, time.monotonic()
        while taken < 4 * len(LARGE):
            taken += len(client.recv(1 << 20)) or pytest.fail(f"cut off after {taken:,} bytes")
            # 8 MB a second.
            time.sleep(max(0.0, started + taken / 8e6 - time.monotonic()))


SLOW_BODY = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\n" + b"x" * 1_000_000


@pytest.mark.parametrize("sent", [b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n", SLOW_BODY])
def test_what_is_held_for_slow_clients_is_bounded(sent: bytes) -> None:
    """The first of them go when there is too much, the last may stay."""
    with serving(held_bytes=35_000_000 if sent is not SLOW_BODY else 3_500_000) as address:
        ended = 0
        with ExitStack() as held:
            clients = [held.enter_context(socket.socket()) for _ in range(10)]
            for client in clients:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.settimeout(20)
                client.connect(address)
                client.sendall(sent)
            time.sleep(3)
            for client in clients:
                client.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    ended += len(read(client)) < len(LARGE)
        assert 7 <= ended <= 9
        assert get(address).endswith(b"ok")


def test_requests_that_are_sent_ahead_wait_for_their_turn() -> None:
    """However many there are, all are answered, in their order."""
    paths = [f"/{'wait' if i == 0 else 'large' if i == 70 else i}" for i in range(500)]
    app = App()
    with serving(app) as address, socket.create_connection(address, timeout=20) as client:
        requests = [f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode() for path in paths]
        client.sendall(b"".join(requests)[:-1])
        time.sleep(0.5)
        assert app.num_waiting == 1
        app.is_released.set()
        client.sendall(b"\n" + b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        found = read(client)
    assert found.count(b"HTTP/1.1 200 OK") == len(paths) + 1
    assert len(found) > len(LARGE)


def test_there_are_files_for_all_of_them() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(300, limits[0]), limits[1]))
        most = most_connections(4096)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= min(most + OWN_FILES, limits[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
