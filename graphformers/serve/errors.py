"""HTTP errors: every error is answered as JSON that says what was wrong."""

import logging

import msgspec
from pydantic import ValidationError

from graphformers.errors import GraphFormersError
from graphformers.serve.batching import BusyError
from graphformers.serve.http import Response
from graphformers.serve.writing import NotFoundError, RefusedError

logger = logging.getLogger(__name__)

KINDS = {
    401: "unauthorized",
    403: "forbidden",
    429: "too_many_requests",
    503: "busy",
    504: "timeout",
}
WANTED = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "a text",
    "list_type": "a list",
    "dict_type": "an object",
}
# How pydantic names branches of a union.
BRANCHES = ("bool", "int", "float", "str", "constrained-str")


class RequestError(Exception):
    """A request that is answered with an error.

    Args:
        status: Status of the response.
        message: What was wrong.
        headers: Further headers of the response, `_` for `-` in their names.
    """

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class NotReadyError(Exception):
    """The vectors are still being loaded."""


def no_address() -> RequestError:
    """The error of a path that no route has."""
    return RequestError(404, "no such address; slashes in ids are written %2F")


def error_body(message: str, kind: str) -> bytes:
    """The JSON body of every error, in the format that clients of OpenAI's API know."""
    return msgspec.json.encode({"error": {"message": message, "type": kind}})


def error_response(error: Exception) -> Response:
    """The answer to a request that raised an error."""
    # Without a message here, the error's own is sent.
    message, headers = str(error), {}
    match error:
        case RequestError():
            status, headers = error.status, error.headers
            kind = KINDS.get(status, "invalid_request")
        case NotFoundError():
            status, kind = 404, "not_found"
        case RefusedError():
            status, kind = 422, "invalid_request"
        case BusyError():
            status, kind, headers = 503, "busy", {"retry-after": "1"}
            message = "too much is waiting already; try again"
        case NotReadyError():
            status, kind, headers = 503, "not_ready", {"retry-after": "1"}
            message = "the vectors are still being loaded; try again"
        case TimeoutError():
            status, kind = 504, "timeout"
            message = "it took too long; a change may still be made, and can be asked for again"
        # Such as a full disk.
        case GraphFormersError() | OSError():
            logger.error(f"{type(error).__name__}: {error}")
            status, kind, headers = 503, "failed", {"retry-after": "10"}
            message = "the server could not do it, and nothing was changed; its log says why"
        case _:
            logger.error("a request failed", exc_info=error)
            status, kind = 500, "failed"
            message = "the server could not do it; its log says why"
    return Response(error_body(message, kind), status, headers)


def describe_invalid(error: ValidationError, missing: str = "") -> str:
    """The invalid fields of a request, without the values given, which may be long.

    Args:
        error: The error of a schema.
        missing: What to say of a field that is missing.
    """
    # By field, and by whether the expectation fits into a word.
    found: dict[tuple[str, bool], list[str]] = {}
    for entry in error.errors()[:10]:
        kind = WANTED.get(entry["type"])
        # Pydantic names the branches of a union like this, or by their types.
        parts = [str(part) for part in entry["loc"] if "[" not in str(part)]
        where = ".".join(parts[:-1] if kind and len(parts) > 1 and parts[-1] in BRANCHES else parts)
        words = missing if missing and entry["type"] == "missing" else kind or str(entry["msg"])
        found.setdefault((where, kind is not None), []).append(words)
    told = [
        (f"{where}: " if where else "")
        + (f"expected {' or '.join(words)}" if is_kind else "; ".join(words))
        for (where, is_kind), words in found.items()
    ]
    return "; ".join(told[:5]).encode("utf-8", "replace").decode()
