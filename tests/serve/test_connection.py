"""Connections that bring no request, on a real server: they end, and leave room for others."""

import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import uvicorn

from graphformers.serve import connection
from graphformers.serve.connection import Connection, most_connections


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    )
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    """Of a server with short patience and room for few."""
    monkeypatch.setattr(connection, "HEAD_SECONDS", 1.0)
    monkeypatch.setattr(Connection, "most", 30)
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(app, http=Connection, lifespan="off", log_level="critical")
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield listener.getsockname()
    server.should_exit = True
    thread.join()


def read(client: socket.socket) -> bytes:
    """Until the server ends the connection."""
    found = b""
    while piece := client.recv(65536):
        found += piece
    return found


def test_who_says_nothing_makes_room(address: tuple[str, int]) -> None:
    with ExitStack() as held:
        silent = [
            held.enter_context(socket.create_connection(address, timeout=20)) for _ in range(60)
        ]
        silent[0].sendall(b"GET /hea")
        answers = [read(client) for client in silent]
    assert answers[:30] == [b""] * 30
    assert all(
        answer.startswith(b"HTTP/1.1 503 ") and b"too many connections" in answer
        for answer in answers[30:]
    )
    with socket.create_connection(address, timeout=20) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert read(client).endswith(b"ok")


def test_a_client_that_asks_again_is_not_cut_off(address: tuple[str, int]) -> None:
    """The limit is on heads: between two requests a connection may wait longer."""
    with socket.create_connection(address, timeout=20) as client:
        for _ in range(2):
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            found = b""
            while not found.endswith(b"ok"):
                found += client.recv(65536) or pytest.fail(f"cut off after {found!r}")
            time.sleep(1.5)
        client.sendall(b"GET / HTTP/1.1\r\n")
        assert read(client) == b""


def test_there_are_files_for_all_of_them() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(300, limits[0]), limits[1]))
        most = most_connections()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= min(
            most + connection.OWN_FILES, limits[1]
        )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
