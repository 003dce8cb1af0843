"""Gate: ASGI middleware for access control, request limits and security headers.

Plain ASGI, because every request passes through it.
"""

import asyncio
import hmac
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from graphformers.serve.metrics import Metrics
from graphformers.serve.settings import ServeSettings

access = logging.getLogger("graphformers.serve.access")

Shortcut = Callable[[Scope], Awaitable[bytes | None]]

# These paths reveal nothing about the graph.
PUBLIC = ("/", "/health", "/ready", "/favicon.ico", "/openapi.json")
READING_POSTS = ("/search", "/v1/embeddings", "/map/places")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src "
    "'self'; frame-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", POLICY.encode()),
]
# Headers that proxies add.
PASSED_ON = (
    b"forwarded",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-proto",
    b"x-real-ip",
    b"via",
)
MOST_ADDRESSES = 10_000
# Digits of a valid length at most; int() takes no more than 4,300.
MOST_DIGITS = 20
KINDS = {
    401: "unauthorized",
    403: "forbidden",
    429: "too_many_requests",
    503: "busy",
    504: "timeout",
}


class RefusalError(Exception):
    """An error response of the middleware itself."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers


def error_body(message: str, kind: str) -> bytes:
    """The JSON body of every error, in the shape that clients of OpenAI's API know."""
    return msgspec.json.encode({"error": {"message": message, "type": kind}})


class Rate:
    """A token bucket for every address.

    It holds twice the requests of a second and fills steadily.

    Args:
        rate: Requests a second; 0 for any number.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        # Content of the bucket and time of the last request by address.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def takes(self, address: str) -> bool:
        """Whether another request of this address is within the rate."""
        if not self.rate:
            return True
        now = time.monotonic()
        content, before = self._buckets.pop(address, (2 * self.rate, now))
        content = min(content + (now - before) * self.rate, max(2 * self.rate, 1.0))
        is_taken = content >= 1
        self._buckets[address] = (content - is_taken, now)
        if len(self._buckets) > MOST_ADDRESSES:
            self._buckets.popitem(last=False)
        return is_taken


class Gate:
    """Checks host, rate, token, origin and size of every request, measures it, and adds security
    headers.
    """

    def __init__(
        self, app: ASGIApp, settings: ServeSettings, metrics: Metrics, shortcut: Shortcut
    ) -> None:
        self.app, self.settings, self.limits, self.metrics = app, settings, settings.limits, metrics
        self._shortcut = shortcut
        self._rate = Rate(settings.limits.rate)
        self._open, self._is_loopback = 0, settings.is_loopback
        write, read = settings.write_token, settings.read_token
        self._writers = [token.encode() for token in (write,) if token]
        self._readers = [token.encode() for token in (read, write) if token] if read else []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        # There are no websockets.
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        started = time.perf_counter()
        status = 500
        # Handled as GET; the server leaves the body out.
        if scope["method"] == "HEAD":
            scope = dict(scope, method="GET")

        async def told(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = list(message.get("headers", []))
                given = {name for name, _ in headers}
                message["headers"] = headers + [
                    header for header in HEADERS if header[0] not in given
                ]
            await send(message)

        self._open += 1
        try:
            await self._pass(scope, receive, told)
        finally:
            self._open -= 1
            taken = time.perf_counter() - started
            self.metrics.request(
                scope["method"], getattr(scope.get("route"), "path", "other"), status, taken
            )
            if self.settings.is_logged:
                access.info(log_line(scope, status, taken))

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        try:
            length = stated_length(headers)
            self._check(scope, headers)
            if scope["method"] in ("POST", "PUT", "PATCH", "DELETE"):
                receive = replayed(await self._body(length, headers, receive), receive)
            found = None
            raw: bytes = scope.get("raw_path") or b""
            # Ids may hold slashes, written %2F: paths are split before decoding.
            if raw.startswith(b"/nodes/"):
                scope["path"] = raw.split(b"?")[0].decode("ascii", "replace")
                found = await self._shortcut(scope)
        except RefusalError as error:
            await answer(
                send,
                error.status,
                error_body(str(error), KINDS.get(error.status, "invalid_request")),
                error.headers,
            )
            return
        if found is None:
            await self.app(scope, receive, send)
        else:
            await answer(send, 200, found, {})

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        path, method = scope["path"], scope["method"]
        host = headers.get(b"host", b"").decode("latin-1")
        if (
            self._is_loopback
            and not is_this_machine(host)
            and without_port(host) not in self.settings.names
        ):
            # Against DNS rebinding: a page whose name points to 127.0.0.1.
            raise RefusalError(
                421,
                f"the host {host!r} asked for, this server answers to 127.0.0.1 and localhost; see "
                f"--name",
            )
        # A busy server is healthy.
        if path == "/health":
            return
        if self._open > self.limits.open_requests:
            raise RefusalError(
                503,
                f"{self.limits.open_requests} requests are being answered already; try again",
                retry_after="1",
            )
        if path in PUBLIC or path.startswith("/static/"):
            return
        if not self._rate.takes((scope.get("client") or ("",))[0]):
            raise RefusalError(
                429,
                f"more than {self.limits.rate:g} requests a second from one address",
                retry_after="1",
            )
        if method in ("PUT", "DELETE", "PATCH") or (method == "POST" and path not in READING_POSTS):
            self._check_writer(headers, host)
        elif self._readers:
            self._check_token(headers, self._readers)

    def _check_writer(self, headers: dict[bytes, bytes], host: str) -> None:
        if not self.settings.allows_writes:
            raise RefusalError(403, self.settings.why_read_only)
        if self._writers:
            self._check_token(headers, self._writers)
        elif any(name in headers for name in PASSED_ON):
            raise RefusalError(
                403,
                "a change passed on by a proxy; without a token they are taken from this machine "
                "alone",
            )
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and origin.partition("://")[2] != host:
            raise RefusalError(
                403, f"a change asked for by a page of {origin!r}; only this server's own page may"
            )

    def _check_token(self, headers: dict[bytes, bytes], tokens: list[bytes]) -> None:
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        # Compares all tokens, in constant time.
        right = [hmac.compare_digest(given.strip(), token) for token in tokens]
        if scheme.lower() != b"bearer" or not any(right):
            said = "a wrong token" if given else "no token"
            raise RefusalError(
                401,
                f"{said} given, expected the header 'Authorization: Bearer TOKEN'",
                www_authenticate="Bearer",
            )

    async def _body(self, length: int, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """The whole body.

        Raises:
            RefusalError: If it is too large or does not arrive in time.
        """
        most = self.limits.body_bytes
        too_large = RefusalError(
            413,
            f"a body of more than {most:,} bytes given, expected at most that",
            connection="close",
        )
        if length > most:
            raise too_large
        pieces, size = [], 0
        try:
            async with asyncio.timeout(self.limits.seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RefusalError(
                            400, "the connection ended before the body did", connection="close"
                        )
                    pieces.append(message.get("body", b""))
                    size += len(pieces[-1])
                    if size > most:
                        raise too_large
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            late = f"the body did not arrive within {self.limits.seconds:g} seconds"
            raise RefusalError(408, late, connection="close") from None
        body = b"".join(pieces)
        if (
            body
            and headers.get(b"content-type", b"").split(b";")[0].strip().lower()
            != b"application/json"
        ):
            # Pages of other origins can send other types without a preflight request.
            raise RefusalError(
                415,
                "a body that is not declared as JSON, expected the header 'Content-Type: "
                "application/json'",
            )
        return body


def stated_length(headers: dict[bytes, bytes]) -> int:
    """The stated length of the body; 0 if there is none."""
    given = headers.get(b"content-length", b"0")
    if not given.isdigit() or len(given) > MOST_DIGITS:
        words = f"a Content-Length of {len(given):,} letters given, expected a whole number"
        raise RefusalError(400, f"{words} of at most {MOST_DIGITS} digits", connection="close")
    return int(given)


def replayed(body: bytes, receive: Receive) -> Receive:
    """Receives a body that was read before, then whatever follows."""
    is_read = False

    async def again() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def answer(send: Send, status: int, body: bytes, headers: dict[str, str]) -> None:
    own = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    fixed = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *own]})
    await send({"type": "http.response.body", "body": body})


def log_line(scope: Scope, status: int, seconds: float) -> str:
    """Time, address, method, path, status and milliseconds of a request.

    The path is as it was sent, so it holds no line breaks; the query is left out.
    """
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    path = (scope.get("raw_path") or b"").split(b"?")[0].decode("ascii", "backslashreplace")
    return (
        f"{now} {(scope.get('client') or ('-',))[0]} {scope['method']} "
        f"{path} {status} {1000 * seconds:.1f} ms"
    )


def is_this_machine(host: str) -> bool:
    """Whether a Host header names this machine."""
    return without_port(host).lower() in ("127.0.0.1", "localhost", "[::1]", "")


def without_port(host: str) -> str:
    return host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
