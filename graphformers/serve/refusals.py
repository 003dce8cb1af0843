"""HTTP errors: every error is JSON that says what was wrong."""

import logging
from collections.abc import Mapping, Sequence

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from graphformers.errors import GraphFormersError
from graphformers.serve.batching import BusyError
from graphformers.serve.gate import error_body
from graphformers.serve.writing import NotFoundError, RefusedError

logger = logging.getLogger(__name__)

TOO_LONG = "it took too long; a change may still be made, and can be asked for again"
WANTED = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "a text",
    "list_type": "a list",
    "dict_type": "an object",
}
BRANCHES = ("bool", "int", "float", "str", "constrained-str")


class NotReadyError(Exception):
    """The vectors are still being loaded."""


def add_errors(app: FastAPI) -> None:
    """Installs handlers that answer every error as JSON."""

    def handle(
        kind: type[Exception],
        status: int,
        name: str,
        message: str = "",
        *,
        retry_after: int = 0,
        is_logged: bool = False,
    ) -> None:
        """Without a message, the error's own is sent."""
        headers = {"Retry-After": str(retry_after)} if retry_after else None

        async def handler(request: Request, error: Exception) -> Response:
            if is_logged:
                logger.error(f"{type(error).__name__}: {error}")
            return refused(status, message or str(error), name, headers)

        app.add_exception_handler(kind, handler)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        words = {
            404: "no such address; slashes in ids are written %2F",
            405: f"{request.method} is not answered here",
        }
        message = words.get(error.status_code, str(error.detail))
        return refused(error.status_code, message, headers=error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        known = [entry.alias for entry in request.scope["route"].dependant.query_params]
        return refused(422, wrong_fields(error, known))

    handle(NotFoundError, 404, "not_found")
    handle(RefusedError, 422, "invalid_request")
    handle(BusyError, 503, "busy", "too much is waiting already; try again", retry_after=1)
    loading = "the vectors are still being loaded; try again"
    handle(NotReadyError, 503, "not_ready", loading, retry_after=1)
    handle(TimeoutError, 504, "timeout", TOO_LONG)
    # Such as a full disk.
    unchanged = "the server could not do it, and nothing was changed; its log says why"
    for kind in (GraphFormersError, OSError):
        handle(kind, 503, "failed", unchanged, retry_after=10, is_logged=True)
    handle(Exception, 500, "failed", "the server could not do it; its log says why")


def refused(
    status: int,
    message: str,
    kind: str = "invalid_request",
    headers: Mapping[str, str] | None = None,
) -> Response:
    """An error response."""
    return Response(error_body(message, kind), status, headers, "application/json")


def wrong_fields(error: RequestValidationError, known: Sequence[str] = ()) -> str:
    """The invalid fields of a request, without the values given, which may be long.

    `known` are the parameters of the address.
    """
    # By field, and by whether the expectation fits into a word.
    told: dict[tuple[str, bool], list[str]] = {}
    for entry in error.errors()[:10]:
        kind = WANTED.get(entry["type"])
        first, *rest = entry["loc"] or ("",)
        parts = [
            str(part) for part in (rest if first in ("body", "query", "path") else entry["loc"])
        ]
        # Pydantic names the branches of a union like this, or by their types.
        parts = [part for part in parts if "[" not in part]
        where = ".".join(parts[:-1] if kind and len(parts) > 1 and parts[-1] in BRANCHES else parts)
        words = kind or str(entry["msg"])
        if entry["type"] == "json_invalid":
            where, words = (
                "",
                f"the body is no JSON, at letter {where}: {entry.get('ctx', {}).get('error', '')}",
            )
        # Perhaps the parameter was sent in a body.
        elif entry["type"] == "missing" and first == "query":
            words = (
                f"missing; it belongs in the address: ?{'&'.join(f'{name}=...' for name in known)}"
            )
        told.setdefault((where, kind is not None), []).append(words)
    found = [
        (f"{where}: " if where else "")
        + (f"expected {' or '.join(words)}" if is_kind else "; ".join(words))
        for (where, is_kind), words in told.items()
    ]
    return "; ".join(found[:5]).encode("utf-8", "replace").decode()
