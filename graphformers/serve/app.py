"""The app: what can be asked over HTTP. Each endpoint takes apart, asks the engine, and puts
together.

Paths are taken apart before they are decoded (gate.py), so an id is one part of a path with
everything special written as %XX, and may hold anything, slashes included.
"""

import asyncio
import base64
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import unquote

import msgspec
import numpy as np
from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi import Path as Part
from fastapi.routing import APIRoute
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.types import Scope

from graphformers.arrays import Array
from graphformers.retrieval import queries
from graphformers.serve import nodes
from graphformers.serve.bodies import (
    LIMITS,
    EdgesBody,
    EmbeddingsBody,
    Id,
    NodeBody,
    PlacesBody,
    SearchBody,
)
from graphformers.serve.engine import EncodedText, Engine, Question, Reading
from graphformers.serve.files import File, page_files
from graphformers.serve.gate import Gate, RefusalError, Shortcut
from graphformers.serve.metrics import Metrics
from graphformers.serve.projection import Map
from graphformers.serve.refusals import TOO_LONG, NotReadyError, add_errors
from graphformers.serve.settings import ServeSettings
from graphformers.serve.writing import (
    AddEdges,
    Answer,
    DeleteNode,
    NotFoundError,
    PutNode,
    RefusedError,
    RemoveEdge,
    Write,
)
from graphformers.version import __version__

NodeId = Annotated[
    str,
    Part(
        description=(
            "The id of a node; characters that are special in addresses as %XX, also slashes."
        )
    ),
]
API = ("/nodes", "/search", "/edges", "/map", "/info")
# Searches by id.
SEARCHES = {
    "similar": "The nodes nearest to a node",
    "links": "The likeliest links it does not have yet",
}
NEAR = {  # what `asked` reads
    "parameters": [
        {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}},
        {
            "name": "k",
            "in": "query",
            "schema": {"type": "integer", "minimum": 1, "maximum": LIMITS.k, "default": 10},
        },
        {
            "name": "where",
            "in": "query",
            "description": (
                "As in year>=1995, venue~neur (contains) or 'year in 1995,1996'; all must hold."
            ),
            "schema": {
                "type": "array",
                "maxItems": LIMITS.filters,
                "items": {"type": "string", "maxLength": 500},
            },
        },
    ]
}
PUT: dict[int | str, dict[str, Any]] = {
    status: {
        "description": f"{text}: id, is_new, new_links and new_columns.",
        "content": {"application/json": {}},
    }
    for status, text in {200: "The node was there", 201: "The node is new"}.items()
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": {"application/json": {}}}
    for status, text in {
        400: "What was sent is not HTTP or not JSON.",
        401: "A token is needed, or another one.",
        403: "This server lets nobody write, or not from there.",
        404: "There is no such node or link.",
        413: "Too large a body.",
        415: "Not declared as JSON.",
        422: "Something in the request is not as it should be.",
        429: "Too many requests.",
        503: "Busy, or not ready yet: try again.",
        504: "It took too long.",
    }.items()
}


class State:
    """What the endpoints share; the engine comes when it is loaded."""

    def __init__(self, settings: ServeSettings) -> None:
        self.settings, self.limits, self.metrics = settings, settings.limits, Metrics()
        self.files = page_files()
        self._engine: Engine | None = None
        self.map: Map | None = None
        self.looking = asyncio.Lock()  # of those who look at attention one at a time uses the model

    def open(self, engine: Engine) -> None:
        self.metrics.watch(engine)
        self.map = Map(engine, self.limits.map_points)
        self._engine = engine

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise NotReadyError
        return self._engine


def make_app(settings: ServeSettings) -> tuple[Gate, State]:
    """The app behind its gate, and where its engine is put once it is loaded."""
    state = State(settings)
    app = FastAPI(
        title="graphformers",
        version=__version__,
        description=(
            "Vectors of a graph of texts: search, embeddings, changes that are searchable at once."
        ),
        docs_url=None,  # those pages load their scripts from elsewhere
        redoc_url=None,
        responses=ERRORS,
        default_response_class=Response,
        dependencies=[Depends(known_parameters)],
    )
    app.state.shared = state
    _add_reading(app, state)
    _add_nodes(app, state)
    _add_writing(app, state)
    _add_page(app, state)
    add_errors(app)
    return Gate(app, settings, state.metrics, make_shortcut(app, state)), state


async def known_parameters(request: Request) -> None:
    """Refuses a parameter of an address that nobody reads: ?kk=2 would go unnoticed. The page's own
    addresses may have any.
    """
    route = request.scope["route"]
    if route.path.startswith(API) and route.openapi_extra is not NEAR:
        refuse_others(request.query_params, [entry.alias for entry in route.dependant.query_params])


def refuse_others(given: QueryParams, known: Sequence[str]) -> None:
    strange = next((name for name in given if name not in known), None)
    if strange is not None:
        there = f"there are: {', '.join(known)}" if known else "there are none here"
        raise RefusedError(f"no parameter {strange[:50]!r} in this address; {there}")


def as_json(content: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def decoded(id: str) -> str:
    """The id that a part of a path means."""
    try:
        found = unquote(id, errors="strict")
    except UnicodeDecodeError:
        raise RefusedError("the id in the address is no UTF-8") from None
    if not found.strip():
        raise RefusedError("the id in the address is empty, expected something")
    if len(found) > LIMITS.id_letters:
        raise RefusedError(
            f"an id of {len(found):,} letters given, expected at most {LIMITS.id_letters:,}"
        )
    return found


def make_shortcut(app: FastAPI, state: State) -> Shortcut:
    """Searches by id without the way through the app, which costs as much as the rest of such a
    request.

    It gives None for whatever is not one that can be answered; the app then says what is wrong with
    it.
    """
    routes = {
        route.name: route
        for route in app.routes
        if isinstance(route, APIRoute) and route.name in SEARCHES
    }

    async def shortcut(scope: Scope) -> bytes | None:
        parts = scope["path"].split("/")
        if scope["method"] != "GET" or len(parts) != 4 or parts[3] not in routes:
            return None
        scope["route"] = routes[parts[3]]
        try:
            return await near(state, parts[3], parts[2], QueryParams(scope["query_string"]))
        except TimeoutError:
            raise RefusalError(504, TOO_LONG) from None
        except Exception:
            return None

    return shortcut


async def near(state: State, kind: str, id: str, given_with: QueryParams) -> bytes:
    """The answer to a search by id, one of SEARCHES, as the address has it."""
    k, filters = asked(given_with)
    question = Question(queries.Query(k, id=decoded(id), links=kind == "links", where=filters))
    return await state.engine.searches.do(question, state.limits.seconds)


def asked(given_with: QueryParams) -> tuple[int, tuple[str, ...]]:
    """How many, and under which filters. Read by hand: half of the work of such a request would be
    the reading of these two.
    """
    refuse_others(given_with, ("k", "where"))
    given, filters = given_with.get("k", "10"), tuple(given_with.getlist("where"))
    if not (
        given.isascii() and given.isdigit() and len(given) < 10 and 1 <= int(given) <= LIMITS.k
    ):
        raise RefusedError(f"k: {given[:20]!r} given, expected a number from 1 to {LIMITS.k:,}")
    if len(filters) > LIMITS.filters or any(len(filter) > 500 for filter in filters):
        raise RefusedError(
            f"where: {len(filters)} filters given, expected at most {LIMITS.filters} of at most "
            f"500 letters"
        )
    return int(given), filters


def _add_reading(app: FastAPI, state: State) -> None:
    async def read(readings: list[Reading]) -> list[EncodedText]:
        return list(
            await asyncio.gather(
                *(state.engine.texts.do(reading, state.limits.seconds) for reading in readings)
            )
        )

    @app.post("/search", summary="The nodes nearest to a text, a node or a vector")
    async def search(body: SearchBody) -> Response:
        engine, filters = state.engine, tuple(body.where)
        given = [name for name in ("text", "id", "vector") if getattr(body, name) is not None]
        if len(given) != 1:
            raise RefusedError(
                f"{' and '.join(given) or 'nothing'} given, expected one of text, id and vector"
            )
        if body.text is None and (body.neighbors or body.neighbor_texts):
            raise RefusedError("neighbors given without a text to read among them")
        if body.links and body.id is None:
            raise RefusedError("links given without an id")
        vector = truncated = None
        if body.vector is not None:
            vector = np.array(body.vector, dtype=np.float32)
            if vector.shape != (engine.view.store.size,):
                raise RefusedError(
                    f"a vector of {len(vector)} numbers given, expected {engine.view.store.size}"
                )
        if body.text is not None:
            around = company(engine, body.neighbors, body.neighbor_texts)
            (encoded,) = await read([Reading(body.text, around)])
            vector, truncated = encoded.vector, encoded.truncated
        query = queries.Query(body.k, id=body.id, vector=vector, links=body.links, where=filters)
        question = Question(query, body.show_neighbors, tuple(body.columns), truncated)
        found = await engine.searches.do(question, state.limits.seconds)
        return Response(found, media_type="application/json")

    @app.post("/v1/embeddings", summary="Vectors of texts, in OpenAI's shape")
    async def embeddings(body: EmbeddingsBody) -> Response:
        engine = state.engine
        texts = [body.input] if isinstance(body.input, str) else body.input
        for name in ("neighbors", "neighbor_texts"):
            lists = getattr(body, name)
            if lists is not None and len(lists) != len(texts):
                raise RefusedError(
                    f"{name}: {len(lists)} lists given, expected one for each of the {len(texts)} "
                    f"inputs"
                )
        size = engine.view.store.size
        if body.dimensions is not None and body.dimensions != size:
            raise RefusedError(
                f"dimensions={body.dimensions} given, this model's vectors have {size}"
            )
        none: list[list[str]] = [[]] * len(texts)
        pairs = zip(body.neighbors or none, body.neighbor_texts or none, strict=True)
        around = [company(engine, ids, given) for ids, given in pairs]
        encoded = await read(
            [Reading(text, near) for text, near in zip(texts, around, strict=True)]
        )
        shown = [
            as_base64(one.vector) if body.encoding_format == "base64" else one.vector.tolist()
            for one in encoded
        ]
        data = [
            {"object": "embedding", "index": i, "embedding": vector}
            for i, vector in enumerate(shown)
        ]
        count = sum(one.num_read for one in encoded)
        usage = {"prompt_tokens": count, "total_tokens": count}
        return as_json({"object": "list", "data": data, "model": engine.name, "usage": usage})


def as_base64(vector: Array) -> str:
    """Little-endian float32, as OpenAI's clients ask for it."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def company(engine: Engine, ids: list[str], texts: list[str]) -> tuple[str, ...]:
    """The texts among which a text is read: of nodes, and given ones."""
    if not ids:
        return tuple(texts)
    view = engine.view
    try:
        numbers = np.array([view.node(id) for id in ids])
    except NotFoundError as error:
        raise RefusedError(str(error)) from None
    return (*view.store.graph.texts_of(numbers), *texts)


def _add_nodes(app: FastAPI, state: State) -> None:
    async def found(request: Request) -> Response:
        kind, id = request.scope["route"].name, request.path_params["id"]
        content = await near(state, kind, id, request.query_params)
        return Response(content, media_type="application/json")

    for kind, summary in SEARCHES.items():
        path = f"/nodes/{{id}}/{kind}"
        app.add_api_route(path, found, name=kind, summary=summary, openapi_extra=NEAR)

    @app.get("/nodes/{id}/ego", summary="A node, some neighbours, and the links among them")
    async def ego(id: NodeId, limit: Annotated[int, Query(ge=1, le=200)] = 24) -> Response:
        return as_json(nodes.ego(state.engine.view, decoded(id), limit))

    @app.get("/nodes/{id}/attention", summary="Whom the model listened to when it read a node")
    async def attention(id: NodeId) -> Response:
        engine = state.engine
        view, name = engine.view, decoded(id)
        view.node(name)

        async with asyncio.timeout(state.limits.seconds), state.looking:
            return as_json(await asyncio.to_thread(nodes.attention, view, engine.model, name))

    @app.get("/nodes/{id}", summary="A node: text, columns, neighbours")
    async def node(
        id: NodeId,
        limit: Annotated[int, Query(ge=0, le=1000)] = 50,
        start: Annotated[int, Query(ge=0, le=2**40)] = 0,
    ) -> Response:
        return as_json(nodes.describe(state.engine.view, decoded(id), limit, start))


def _add_writing(app: FastAPI, state: State) -> None:
    async def write(change: Write) -> Answer:
        if not state.engine.is_writable:
            raise HTTPException(403, "this server is read-only: its folder cannot be written to")
        return await state.engine.writes.do(change, state.limits.write_seconds)

    @app.put(
        "/nodes/{id}",
        summary="Add or change a node; it is searchable when the answer comes",
        responses=PUT,
    )
    async def put_node(id: NodeId, body: NodeBody) -> Response:
        answer = await write(
            PutNode(decoded(id), body.text, dict(body.columns), tuple(body.neighbors))
        )
        return as_json(answer, 201 if answer["is_new"] else 200)

    @app.post("/edges", summary="Link nodes")
    async def post_edges(body: EdgesBody) -> Response:
        return as_json(
            await write(
                AddEdges(
                    tuple((edge.source, edge.target, edge.type or None) for edge in body.edges)
                )
            )
        )

    @app.delete(
        "/edges",
        summary=(
            "Remove all links of two nodes, or those of one type; an empty type means those without"
        ),
    )
    async def delete_edge(
        source: Annotated[Id, Query()],
        target: Annotated[Id, Query()],
        type: Annotated[str | None, Query()] = None,
    ) -> Response:
        return as_json(await write(RemoveEdge(source, target, type)))

    @app.delete("/nodes/{id}", summary="Remove a node and its links")
    async def delete_node(id: NodeId) -> Response:
        return as_json(await write(DeleteNode(decoded(id))))


def _add_page(app: FastAPI, state: State) -> None:
    @app.get("/health", summary="Whether the server is alive")
    async def health() -> Response:
        return as_json({"status": "alive"})

    @app.get("/ready", summary="Whether it can answer")
    async def ready() -> Response:
        state.engine  # noqa: B018
        return as_json({"status": "ready"})

    @app.get("/info", summary="What is served")
    async def info() -> Response:
        reads = state.settings.read_token is not None
        needs = {"read": reads, "write": reads or state.settings.write_token is not None}
        return as_json(
            {
                "version": __version__,
                **state.engine.info(),
                "needs_token": needs,
                "limits": limits_told(state),
            }
        )

    @app.get("/metrics", summary="Numbers for Prometheus")
    async def metrics() -> Response:
        return Response(state.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/map", summary="All nodes, or a sample of them, on a plane")
    async def whole_map(request: Request) -> Response:
        state.engine  # noqa: B018
        assert state.map is not None
        body = state.map.body()
        if body is None:
            return as_json({"status": "being made"}, 202)
        headers = {"Content-Encoding": "gzip", "Cache-Control": "no-store"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(body, media_type="application/json", headers=headers)
        import gzip

        return Response(gzip.decompress(body), media_type="application/json")

    @app.post("/map/places", summary="Where nodes are on the map")
    async def places(body: PlacesBody) -> Response:
        state.engine  # noqa: B018
        assert state.map is not None
        return as_json({"places": state.map.places(body.ids)})

    @app.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return sent(state.files["index.html"], request)

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str, request: Request) -> Response:
        if name not in state.files:
            raise HTTPException(404)
        return sent(state.files[name], request)


def limits_told(state: State) -> dict[str, int]:
    return {
        name: getattr(state.limits, name)
        for name in ("body_bytes", "text_letters", "texts", "neighbors", "edges", "k")
    }


def sent(file: File, request: Request) -> Response:
    """A file of the page; nothing where the browser has it already."""
    if request.headers.get("if-none-match") == file.headers["ETag"]:
        return Response(status_code=304, headers=file.headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(file.compressed, headers=file.headers | {"Content-Encoding": "gzip"})
    return Response(file.content, headers=file.headers)
