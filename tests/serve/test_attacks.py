"""Clients that hold connections, send without end, or pretend: others are served nevertheless."""

import contextlib
import http.client
import re
import resource
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.serve.conftest import Running, make_vectors, running

FILE = b"GET /static/plotly.min.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
SLOW_BODY = (
    b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 1000\r\n\r\n{"
)
CHUNKED = (
    b"POST /search HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
    b"Content-Type: application/json\r\n\r\ne\r\n"
    b'{"text":"new"}\r\n0\r\n'
)


@pytest.fixture(scope="module", autouse=True)
def many_files() -> Iterator[None]:
    """The clients of these tests have thousands of connections."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(20_000, before[1]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def connect(server: Running, held: ExitStack, sent: bytes = b"") -> socket.socket:
    host, port = server.address.removeprefix("http://").split(":")
    client = held.enter_context(socket.socket())
    # The smallest that there is, so that the server soon cannot send more.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.settimeout(20)
    client.connect((host, int(port)))
    client.sendall(sent)
    return client


def assert_others_are_served(server: Running) -> None:
    """Answers on a connection that did not exist before, while the clients hold theirs."""
    other = http.client.HTTPConnection(server.address.removeprefix("http://"), timeout=20)
    with contextlib.closing(other):
        for method, path, body in (
            ("GET", "/health", None),
            ("POST", "/search", b'{"text": "graph layer"}'),
            ("GET", "/info", None),
        ):
            other.request(method, path, body, {"Content-Type": "application/json"})
            answer = other.getresponse()
            answer.read()
            assert answer.status == 200


def test_clients_that_ask_for_a_file_twice_and_never_read(shared: Running) -> None:
    before = memory_of(shared)
    with ExitStack() as held:
        for _ in range(530):
            connect(shared, held, FILE * 2)
        assert_others_are_served(shared)
        assert memory_of(shared) - before < 50_000_000


def test_clients_that_send_a_line_break_after_an_answer(shared: Running) -> None:
    with ExitStack() as held:
        clients = [connect(shared, held, HEALTH) for _ in range(4096)]
        for client in clients:
            with contextlib.suppress(ConnectionError):
                client.recv(4096)
                client.sendall(b"\r\n")
        assert_others_are_served(shared)


def test_all_kinds_of_slow_clients_at_once(shared: Running) -> None:
    with ExitStack() as held:
        for sent, count in ((b"", 4096), (FILE * 2, 530), (SLOW_BODY, 530)):
            for _ in range(count):
                connect(shared, held, sent)
            assert_others_are_served(shared)
        # The other way round: nobody who was there before has to go first.
        for _ in range(4096):
            connect(shared, held)
        assert_others_are_served(shared)


def memory_of(server: Running) -> int:
    """The most memory that a server's process has had, in bytes."""
    assert isinstance(server.process, subprocess.Popen)
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return 1024 * int(found[1])


MEGABYTES = {
    "headers": (b"GET /health HTTP/1.1\r\nHost: localhost\r\n", b"X-More: 0123456789\r\n"),
    "small headers": (b"GET /health HTTP/1.1\r\nHost: localhost\r\n", b"a:b\r\n"),
    "a header": (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: ", b"x" * 1000),
    "trailers": (CHUNKED, b"X-More: 0123456789\r\n"),
    "a trailer": (CHUNKED + b"X-Long: ", b"x" * 1000),
}


@pytest.mark.parametrize("case", MEGABYTES)
def test_200_megabytes_of_headers_and_trailers(case: str, shared: Running) -> None:
    """On one connection as fast as it takes them, and 60 KB on each of thousands."""
    start, line = MEGABYTES[case]
    before, piece = memory_of(shared), line * (60_000 // len(line))
    sent = 0
    with ExitStack() as held:
        client = connect(shared, held, start)
        with contextlib.suppress(ConnectionError):
            while sent < 200_000_000:
                client.sendall(piece)
                sent += len(piece)
    assert sent < 200_000_000, "the connection was ended"
    with ExitStack() as held:
        for _ in range(200_000_000 // len(piece)):
            with contextlib.suppress(ConnectionError):
                connect(shared, held, start + piece)
        assert_others_are_served(shared)
    assert memory_of(shared) - before < 50_000_000


PROXY_HEADERS = (
    "CDN-Loop CF-Connecting-IP CF-IPCountry CF-Ray CF-Visitor Client-IP Fastly-Client-IP "
    "Fly-Client-IP Forwarded Tailscale-User-Login True-Client-IP Via X-Azure-ClientIP X-Client-IP "
    "X-Cluster-Client-IP X-Envoy-External-Address X-Forwarded X-Forwarded-By X-Forwarded-For "
    "X-Forwarded-Host X-Forwarded-Port X-Forwarded-Prefix X-Forwarded-Proto X-Forwarded-Scheme "
    "X-Forwarded-Server X-Forwarded-Ssl X-Original-Forwarded-For X-Original-Host X-Real-IP"
)


@pytest.mark.parametrize("name", PROXY_HEADERS.split())
def test_a_change_that_a_proxy_passed_on_needs_a_token(name: str, shared: Running) -> None:
    with shared.client() as client:
        answer = client.put("/nodes/x", json={"text": "x"}, headers={name: "192.0.2.7"})
        assert answer.status_code == 403
        assert "passed on by a proxy" in answer.json()["error"]["message"]
        assert client.get("/nodes/x").status_code == 404


def test_headers_that_clients_send_themselves_are_no_sign_of_a_proxy(shared: Running) -> None:
    headers = {
        "X-Request-ID": "1",
        "X-Requested-With": "fetch",
        "Traceparent": "00-1",
        "Max-Forwards": "1",
        "X-Client": "app",
        "Cache-Control": "no-cache",
        "Sec-Fetch-Site": "same-origin",
    }
    with shared.client() as client:
        assert client.put("/nodes/own", json={"text": "x"}, headers=headers).status_code == 201
        assert client.delete("/nodes/own", headers=headers).status_code == 200


def test_new_columns_are_bounded(tmp_path: Path) -> None:
    """However many there are and whoever adds them; /info costs the same."""
    place = make_vectors(tmp_path)
    with running(place, "--max-columns", "100") as server, server.client() as client:
        statuses = []
        for i in range(8):
            columns = {f"c{i}-{j}": j for j in range(32)}
            answer = client.put(f"/nodes/new{i}", json={"text": "x", "columns": columns})
            statuses.append(answer.status_code)
        assert statuses == [201] * 3 + [422] * 5
        words = answer.json()["error"]["message"]
        assert "the nodes have 97 columns" in words
        assert "at most 100" in words
        few = {f"d{j}": 1.5 for j in range(3)}
        full = client.put("/nodes/new8", json={"text": "x", "columns": few})
        assert full.json()["new_columns"] == ["d0", "d1", "d2"]
        known = {"text": "x", "columns": {"d0": 2, "d1": None, "d3": None}}
        assert client.put("/nodes/new8", json=known).status_code == 200
        columns = client.get("/info").json()["columns"]
        assert len(columns) == 100
        assert columns["d0"] == "double"


def test_columns_do_not_slow_down_what_is_told(tmp_path: Path) -> None:
    place = make_vectors(tmp_path)
    with running(place, "--max-columns", "10000") as server, server.client() as client:
        for i in range(80):
            columns = {f"c{i}-{j}": j for j in range(32)}
            answer = client.put(f"/nodes/new{i}", json={"text": "x", "columns": columns})
            assert answer.status_code == 201
        assert len(client.get("/info").json()["columns"]) == 2561
        assert_others_are_served(server)


ALLOWED = {
    "/nodes/x": "DELETE, GET, HEAD, PUT",
    "/edges": "DELETE, POST",
    "/info": "GET, HEAD",
    "/search": "POST",
    "/nodes/x/similar": "GET, HEAD",
}


@pytest.mark.parametrize("where", ALLOWED)
def test_the_methods_of_an_address_are_told(where: str, shared: Running) -> None:
    with shared.client() as client:
        for method in ("PATCH", "OPTIONS", "TRACE"):
            answer = client.request(method, where)
            assert (answer.status_code, answer.headers["allow"]) == (405, ALLOWED[where])
