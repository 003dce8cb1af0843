"""Parsing of requests: the variable segment of the path, the parameters and the body."""

import asyncio
import json
from collections.abc import Mapping
from typing import TypeVar
from urllib.parse import parse_qsl, unquote

from pydantic import ValidationError

from graphformers.serve.errors import RequestError, describe_invalid
from graphformers.serve.http import Receive
from graphformers.serve.schemas import LIMITS, Body, Query

# Digits of a Content-Length at most; int() takes no more than 4,300.
MOST_DIGITS = 20

QueryT = TypeVar("QueryT", bound=Query)
BodyT = TypeVar("BodyT", bound=Body)


def parse_segment(given: str) -> str:
    """Decodes the variable segment of a path, for which special characters are written as %XX.

    Raises:
        RequestError: If it is not UTF-8, blank or too long.
    """
    try:
        found = unquote(given, errors="strict")
    except UnicodeDecodeError:
        raise RequestError(422, "the id in the address is no UTF-8") from None
    if not found.strip():
        raise RequestError(422, "the id in the address is empty, expected something")
    if len(found) > LIMITS.id_letters:
        words = f"an id of {len(found):,} letters given, expected at most {LIMITS.id_letters:,}"
        raise RequestError(422, words)
    return found


def parse_query(schema: type[QueryT], given: bytes) -> QueryT:
    """The parameters of an address.

    Raises:
        RequestError: If they do not fit the schema.
    """
    values: dict[str, str | list[str]] = {}
    for name, value in parse_qsl(given.decode("latin-1"), keep_blank_values=True):
        if name in schema.lists:
            values[name] = [*values.get(name, []), value]
        else:
            values[name] = value
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        names = "&".join(f"{name}=..." for name in schema.model_fields)
        missing = f"missing; it belongs in the address: ?{names}"
        raise RequestError(422, describe_invalid(error, missing)) from None


def parse_body(schema: type[BodyT], given: bytes) -> BodyT:
    """The body of a request.

    Raises:
        RequestError: If it is no JSON, or does not fit the schema.
    """
    try:
        content = json.loads(given) if given else None
    except json.JSONDecodeError as error:
        words = f"the body is no JSON, at letter {error.pos}: {error.msg}"
        raise RequestError(422, words) from None
    # Not UTF-8, numbers of thousands of digits, or nested too deeply.
    except (ValueError, RecursionError) as error:
        raise RequestError(422, f"the body is no JSON: {str(error)[:200]}") from None
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        raise RequestError(422, describe_invalid(error)) from None


def stated_length(headers: Mapping[bytes, bytes]) -> int:
    """The stated length of the body; 0 if there is none.

    Raises:
        RequestError: If it is no number.
    """
    given = headers.get(b"content-length", b"0")
    if not given.isdigit() or len(given) > MOST_DIGITS:
        words = f"a Content-Length of {len(given):,} letters given, expected a whole number"
        raise RequestError(400, f"{words} of at most {MOST_DIGITS} digits", connection="close")
    return int(given)


async def read_body(
    headers: Mapping[bytes, bytes], receive: Receive, most: int, seconds: float
) -> bytes:
    """The whole body, as it was sent.

    Args:
        headers: Headers of the request.
        receive: Returns the next piece.
        most: Largest number of bytes.
        seconds: Time in which it must arrive.

    Raises:
        RequestError: If it is too large, late or not declared as JSON.
    """
    words = f"a body of more than {most:,} bytes given, expected at most that"
    too_large = RequestError(413, words, connection="close")
    if stated_length(headers) > most:
        raise too_large
    body, is_whole = bytearray(), False
    try:
        async with asyncio.timeout(seconds):
            while not is_whole:
                message = await receive()
                if message["type"] == "http.disconnect":
                    words = "the connection ended before the body did"
                    raise RequestError(400, words, connection="close")
                body += message.get("body", b"")
                if len(body) > most:
                    raise too_large
                is_whole = not message.get("more_body")
    except TimeoutError:
        words = f"the body did not arrive within {seconds:g} seconds"
        raise RequestError(408, words, connection="close") from None
    kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    if body and kind != b"application/json":
        # Pages of other origins can send other types without a preflight request.
        words = "a body that is not declared as JSON, expected the header 'Content-Type: "
        raise RequestError(415, words + "application/json'")
    return bytes(body)
