"""Routes: every address of the server, who may call it, what it takes, and its endpoint."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic

from graphformers.serve import endpoints
from graphformers.serve.http import BodyT, QueryT, Request, Response
from graphformers.serve.schemas import (
    AnyQuery,
    EdgeQuery,
    EdgesBody,
    EgoQuery,
    EmbeddingsBody,
    NearestQuery,
    NodeBody,
    NodeQuery,
    PlacesBody,
    Query,
    SearchBody,
)
from graphformers.serve.security import Access
from graphformers.serve.state import State

Endpoint = Callable[[State, Request[QueryT, BodyT]], Awaitable[Response]]


@dataclass(frozen=True)
class Route(Generic[QueryT, BodyT]):
    """An address and what belongs to it.

    Public routes are answered at any rate and load. Those that read or write count towards the
    limits on rate and open requests, and bodies have the limits of the server.
    """

    method: str
    # The second segment may be variable: "/nodes/{id}/similar".
    path: str
    access: Access
    # Schemas of the parameters, and of the body if there is one.
    query: type[QueryT]
    body: type[BodyT] | None
    endpoint: Endpoint[QueryT, BodyT]
    # Further successful statuses than 200, and what they mean.
    statuses: Mapping[int, str] = field(default_factory=dict)
    # Whether the OpenAPI document has it.
    is_described: bool = True


# A route with any schemas.
AnyRoute = Route[Any, Any]

PUBLIC, READ, WRITE = Access.PUBLIC, Access.READ, Access.WRITE
IS_NEW = {
    200: "The node existed: id, is_new, new_links and new_columns.",
    201: "The node is new: id, is_new, new_links and new_columns.",
}

ROUTES: list[AnyRoute] = [
    Route("POST", "/search", READ, Query, SearchBody, endpoints.search),
    Route("POST", "/v1/embeddings", READ, AnyQuery, EmbeddingsBody, endpoints.embeddings),
    Route("GET", "/nodes/{id}/similar", READ, NearestQuery, None, endpoints.similar),
    Route("GET", "/nodes/{id}/links", READ, NearestQuery, None, endpoints.links),
    Route("GET", "/nodes/{id}/ego", READ, EgoQuery, None, endpoints.ego),
    Route("GET", "/nodes/{id}/attention", READ, Query, None, endpoints.attention),
    Route("GET", "/nodes/{id}", READ, NodeQuery, None, endpoints.node),
    Route("PUT", "/nodes/{id}", WRITE, Query, NodeBody, endpoints.put_node, IS_NEW),
    Route("DELETE", "/nodes/{id}", WRITE, Query, None, endpoints.delete_node),
    Route("POST", "/edges", WRITE, Query, EdgesBody, endpoints.post_edges),
    Route("DELETE", "/edges", WRITE, EdgeQuery, None, endpoints.delete_edge),
    Route("GET", "/map", READ, Query, None, endpoints.whole_map, {202: "It is being made."}),
    Route("POST", "/map/places", READ, Query, PlacesBody, endpoints.places),
    Route("GET", "/info", READ, Query, None, endpoints.info),
    Route("GET", "/metrics", READ, AnyQuery, None, endpoints.metrics),
    Route("GET", "/health", PUBLIC, AnyQuery, None, endpoints.health),
    Route("GET", "/ready", PUBLIC, AnyQuery, None, endpoints.ready),
    Route(
        "GET", "/openapi.json", PUBLIC, AnyQuery, None, endpoints.description, is_described=False
    ),
    Route("GET", "/", PUBLIC, AnyQuery, None, endpoints.page, is_described=False),
    Route("GET", "/static/{name}", PUBLIC, AnyQuery, None, endpoints.static, is_described=False),
]


class Router:
    """Finds the route of a request.

    Paths are split before they are decoded, so an id may hold slashes, written %2F.
    """

    def __init__(self, routes: list[AnyRoute]) -> None:
        # Routes by method, for each path and for what stands around a variable segment.
        self._fixed: dict[str, dict[str, AnyRoute]] = {}
        self._variable: dict[tuple[str, str], dict[str, AnyRoute]] = {}
        for route in routes:
            before, brace, after = route.path.partition("{")
            if brace:
                key = before, after.partition("}")[2]
                self._variable.setdefault(key, {})[route.method] = route
            else:
                self._fixed.setdefault(route.path, {})[route.method] = route

    def find(self, path: str) -> tuple[Mapping[str, AnyRoute], str]:
        """The routes of a path by method, none if there is no such path; and the variable segment,
        still encoded.
        """
        if path in self._fixed:
            return self._fixed[path], ""
        parts = path.split("/", 3)
        if len(parts) < 3:
            return {}, ""
        after = f"/{parts[3]}" if len(parts) == 4 else ""
        return self._variable.get((f"/{parts[1]}/", after), {}), parts[2]
