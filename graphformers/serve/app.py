"""The ASGI app: finds the route of a request, checks and parses it, calls the endpoint, and
measures and logs the answer.
"""

import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime

from graphformers.serve.description import describe
from graphformers.serve.errors import RequestError, error_response, no_address
from graphformers.serve.http import (
    Receive,
    Request,
    Response,
    Scope,
    Send,
)
from graphformers.serve.parsing import (
    parse_body,
    parse_query,
    parse_segment,
    read_body,
    stated_length,
)
from graphformers.serve.routes import ROUTES, AnyRoute, Router
from graphformers.serve.security import Access, Security
from graphformers.serve.settings import ServeSettings
from graphformers.serve.state import State

access = logging.getLogger("graphformers.serve.access")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src "
    "'self'; frame-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# Headers of every answer that does not set them itself.
HEADERS = {
    "content-type": "application/json",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": POLICY,
}


class App:
    """The server as an ASGI app.

    Args:
        state: What the endpoints share.
        routes: What can be requested.
    """

    def __init__(self, state: State, routes: list[AnyRoute]) -> None:
        self._state, self._limits = state, state.limits
        self._router, self._security = Router(routes), Security(state.settings)
        # Requests that endpoints are working on. Those whose body has not arrived, or whose answer
        # the client does not read, are not among them: waiting for a client costs nothing.
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        started, status = time.perf_counter(), 500
        path = scope["raw_path"].partition(b"?")[0].decode("ascii", "replace")
        routes, segment = self._router.find(path)
        # The server leaves the body of the answer out.
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        route = routes.get(method)
        try:
            try:
                response = await self._answer(scope, receive, routes, route, segment)
            except Exception as error:
                response = error_response(error)
            status = response.status
            headers = encode_headers(response.headers) if response.headers else PLAIN
            length = b"%d" % len(response.content)
            headers = [(b"content-length", length), *headers]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": response.content})
        finally:
            taken = time.perf_counter() - started
            name = "other" if route is None else route.path
            self._state.metrics.request(scope["method"], name, status, taken)
            if self._state.settings.is_logged:
                access.info(log_line(scope, status, taken))

    async def _answer(
        self,
        scope: Scope,
        receive: Receive,
        routes: Mapping[str, AnyRoute],
        route: AnyRoute | None,
        segment: str,
    ) -> Response:
        """Checks and parses a request, and calls the endpoint of its route.

        Raises:
            Exception: Whatever is wrong; `error_response` makes an answer of it.
        """
        headers = dict(scope["headers"])
        stated_length(headers)
        who = Access.READ if route is None else route.access
        self._security.check(who, headers, scope["client"][0] if scope["client"] else "")
        if route is None:
            if not routes:
                raise no_address()
            allowed = ", ".join(sorted([*routes, "HEAD"] if "GET" in routes else routes))
            words = f"{scope['method']} is not answered here; there are: {allowed}"
            raise RequestError(405, words, allow=allowed)
        body = b""
        if route.method != "GET":
            body = await read_body(headers, receive, self._limits.body_bytes, self._limits.seconds)
        request = Request(
            parse_segment(segment) if "{" in route.path else "",
            parse_query(route.query, scope["query_string"]),
            None if route.body is None else parse_body(route.body, body),
            headers,
        )
        if who is Access.PUBLIC:
            return await route.endpoint(self._state, request)
        if self._open >= self._limits.open_requests:
            words = f"{self._limits.open_requests} requests are being answered already; try again"
            raise RequestError(503, words, retry_after="1")
        self._open += 1
        try:
            return await route.endpoint(self._state, request)
        finally:
            self._open -= 1


def make_app(settings: ServeSettings) -> tuple[App, State]:
    """The app, and the state in which its engine is put once it is loaded."""
    state = State(settings, describe(ROUTES))
    return App(state, ROUTES), state


def encode_headers(given: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """The headers of an answer: given ones, and those of every answer."""
    return [(name.encode(), value.encode()) for name, value in {**HEADERS, **given}.items()]


# Of answers without headers of their own.
PLAIN = encode_headers({})


def log_line(scope: Scope, status: int, seconds: float) -> str:
    """Time, address, method, path, status and milliseconds of a request.

    The path is as it was sent, so it holds no line breaks; the query is left out.
    """
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    path = scope["raw_path"].partition(b"?")[0].decode("ascii", "backslashreplace")
    address = scope["client"][0] if scope["client"] else "-"
    return f"{now} {address} {scope['method']} {path} {status} {1000 * seconds:.1f} ms"
