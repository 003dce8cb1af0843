"""HTTP errors: every error is JSON that says what was wrong."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

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
        words: Callable[[Any], str] = str,
        **headers: str,
    ) -> None:
        async def handler(request: Request, error: Exception) -> Response:
            return Response(
                error_body(words(error), name),
                status,
                headers=headers,
                media_type="application/json",
            )

        app.add_exception_handler(kind, handler)

    async def http(request: Request, error: Any) -> Response:
        words = {
            404: "no such address; slashes in ids are written %2F",
            405: f"{request.method} is not answered here",
        }
        body = error_body(words.get(error.status_code, str(error.detail)), "invalid_request")
        return Response(
            body, error.status_code, headers=error.headers, media_type="application/json"
        )

    async def invalid(request: Request, error: Any) -> Response:
        known = [entry.alias for entry in request.scope["route"].dependant.query_params]
        return Response(
            error_body(wrong_fields(error, known), "invalid_request"),
            422,
            media_type="application/json",
        )

    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, invalid)
    handle(NotFoundError, 404, "not_found")
    handle(RefusedError, 422, "invalid_request")
    handle(
        BusyError,
        503,
        "busy",
        lambda error: "too much is waiting already; try again",
        **{"Retry-After": "1"},
    )
    handle(
        NotReadyError,
        503,
        "not_ready",
        lambda error: "the vectors are still being loaded; try again",
        **{"Retry-After": "1"},
    )
    handle(TimeoutError, 504, "timeout", lambda error: TOO_LONG)
    # Such as a full disk.
    for kind in (GraphFormersError, OSError):
        handle(kind, 503, "failed", logged, **{"Retry-After": "10"})
    handle(Exception, 500, "failed", lambda error: "the server could not do it; its log says why")


def logged(error: Exception) -> str:
    """The response to an internal error; the log has the details."""
    logger.error(f"{type(error).__name__}: {error}")
    return "the server could not do it, and nothing was changed; its log says why"


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
