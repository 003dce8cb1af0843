"""Requests and responses: what endpoints take and return, and what ASGI passes."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypedDict, TypeVar

import msgspec

from graphformers.serve.schemas import Body, Query

QueryT = TypeVar("QueryT", bound=Query)
BodyT = TypeVar("BodyT", bound=Body | None)


class Scope(TypedDict):
    """What ASGI tells of a request before its body."""

    method: str
    # The path as it was sent, before percent-decoding.
    raw_path: bytes
    query_string: bytes
    headers: list[tuple[bytes, bytes]]
    client: tuple[str, int] | None


class Message(TypedDict, total=False):
    """A piece of a body, of a request or of a response, or the start of a response."""

    type: str
    body: bytes
    more_body: bool
    status: int
    headers: list[tuple[bytes, bytes]]


Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Request(Generic[QueryT, BodyT]):
    """A request that was accepted and parsed."""

    # The variable segment of the path, decoded: the id of a node or the name of a file.
    segment: str
    query: QueryT
    body: BodyT
    # By name, in lower case.
    headers: Mapping[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Response:
    """An answer; JSON unless its headers say otherwise."""

    content: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


def json_response(content: object, status: int = 200) -> Response:
    """An answer with `content` encoded as JSON."""
    return Response(msgspec.json.encode(content), status)
