"""Endpoints: a function for each route (routes.py). Each takes the server's state and a parsed
request, asks the engine, and returns a response.

The first line of a docstring is the route's description in the OpenAPI document.
"""

import asyncio
import base64
import gzip
from collections.abc import Mapping

import numpy as np

from graphformers.arrays import Array
from graphformers.retrieval import queries
from graphformers.serve import nodes
from graphformers.serve.engine import EncodedText, Engine, Question, Reading
from graphformers.serve.errors import RequestError, no_address
from graphformers.serve.http import Request, Response, json_response
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
from graphformers.serve.state import State
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

# Limits that /info tells.
TOLD_LIMITS = ("body_bytes", "text_letters", "texts", "neighbors", "edges", "k")


# ---- search and embeddings


async def similar(state: State, request: Request[NearestQuery, None]) -> Response:
    """The nodes nearest to a node"""
    return await _nearest(state, request, links=False)


async def links(state: State, request: Request[NearestQuery, None]) -> Response:
    """The likeliest links a node does not have yet, by the model and by common neighbours"""
    return await _nearest(state, request, links=True)


async def _nearest(state: State, request: Request[NearestQuery, None], *, links: bool) -> Response:
    k, where = request.query.k, tuple(request.query.where)
    query = queries.Query(k, id=request.segment, links=links, where=where)
    return Response(await state.engine.searches.do(Question(query), state.limits.seconds))


async def search(state: State, request: Request[Query, SearchBody]) -> Response:
    """The nodes nearest to a text, a node or a vector"""
    engine, body = state.engine, request.body
    given = [name for name in ("text", "id", "vector") if getattr(body, name) is not None]
    if len(given) != 1:
        raise RefusedError(
            f"{' and '.join(given) or 'nothing'} given, expected one of text, id and vector"
        )
    if body.text is None and (body.neighbors or body.neighbor_texts):
        raise RefusedError("neighbors given without a text to encode with them")
    if body.links and body.id is None:
        raise RefusedError("links given without an id")
    vector = truncated = None
    if body.vector is not None:
        vector, size = np.array(body.vector, dtype=np.float32), engine.view.store.size
        if vector.shape != (size,):
            raise RefusedError(f"a vector of {len(vector)} numbers given, expected {size}")
    if body.text is not None:
        near = _neighbor_texts(engine, body.neighbors, body.neighbor_texts)
        (encoded,) = await _encode(state, [Reading(body.text, near)])
        vector, truncated = encoded.vector, encoded.truncated
    query = queries.Query(
        body.k, id=body.id, vector=vector, links=body.links, where=tuple(body.where)
    )
    question = Question(query, body.show_neighbors, tuple(body.columns), truncated)
    return Response(await engine.searches.do(question, state.limits.seconds))


async def embeddings(state: State, request: Request[AnyQuery, EmbeddingsBody]) -> Response:
    """Vectors of texts, in the format of OpenAI's API"""
    engine, body = state.engine, request.body
    texts = [body.input] if isinstance(body.input, str) else body.input
    for name in ("neighbors", "neighbor_texts"):
        lists = getattr(body, name)
        if lists is not None and len(lists) != len(texts):
            words = f"{name}: {len(lists)} lists given, expected one for each of the {len(texts)}"
            raise RefusedError(f"{words} inputs")
    size = engine.view.store.size
    if body.dimensions is not None and body.dimensions != size:
        raise RefusedError(f"dimensions={body.dimensions} given, this model's vectors have {size}")
    none: list[list[str]] = [[]] * len(texts)
    pairs = zip(body.neighbors or none, body.neighbor_texts or none, strict=True)
    near = [_neighbor_texts(engine, ids, given) for ids, given in pairs]
    encoded = await _encode(state, list(map(Reading, texts, near)))
    shown = [
        _base64(one.vector) if body.encoding_format == "base64" else one.vector.tolist()
        for one in encoded
    ]
    data = [
        {"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(shown)
    ]
    count = sum(one.num_read for one in encoded)
    usage = {"prompt_tokens": count, "total_tokens": count}
    content = {"object": "list", "data": data, "model": engine.name, "usage": usage}
    return json_response(content)


async def _encode(state: State, readings: list[Reading]) -> list[EncodedText]:
    texts, seconds = state.engine.texts, state.limits.seconds
    return await asyncio.gather(*(texts.do(reading, seconds) for reading in readings))


def _base64(vector: Array) -> str:
    """Little-endian float32, as OpenAI's clients ask for it."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def _neighbor_texts(engine: Engine, ids: list[str], texts: list[str]) -> tuple[str, ...]:
    """The texts of a text's neighbours: those of nodes, and given ones."""
    if not ids:
        return tuple(texts)
    view = engine.view
    try:
        numbers = np.array([view.node(id) for id in ids])
    except NotFoundError as error:
        raise RefusedError(str(error)) from None
    return (*view.store.graph.texts_of(numbers), *texts)


# ---- nodes


async def node(state: State, request: Request[NodeQuery, None]) -> Response:
    """A node: text, columns, neighbours"""
    limit, start = request.query.limit, request.query.start
    return json_response(nodes.describe(state.engine.view, request.segment, limit, start))


async def ego(state: State, request: Request[EgoQuery, None]) -> Response:
    """A node, some neighbours, and the links among them"""
    return json_response(nodes.ego(state.engine.view, request.segment, request.query.limit))


async def attention(state: State, request: Request[Query, None]) -> Response:
    """The attention weights of a node over itself and the neighbours that the model reads"""
    engine, id = state.engine, request.segment
    view = engine.view
    view.node(id)
    async with asyncio.timeout(state.limits.seconds), state.attention:
        return json_response(await asyncio.to_thread(nodes.attention, view, engine.model, id))


# ---- changes


async def put_node(state: State, request: Request[Query, NodeBody]) -> Response:
    """Add or change a node; it is searchable when the answer comes"""
    body, engine = request.body, state.engine
    write = PutNode(request.segment, body.text, dict(body.columns), tuple(body.neighbors))

    def new_columns() -> list[str]:
        given = [name for name, value in write.columns.items() if value is not None]
        return [name for name in given if name not in state.columns]

    if not new_columns():
        answer = await _change(state, write)
        return json_response(answer, 201 if answer["is_new"] else 200)
    # One after the other, so that together they cannot exceed the limit.
    async with asyncio.timeout(state.limits.write_seconds), state.adding_columns:
        new, count, most = new_columns(), len(state.columns), state.limits.max_columns
        if new and count + len(new) > most:
            words = f"a new column {new[0][:100]!r} given, but the nodes have {count} columns"
            raise RefusedError(f"{words}, and this server takes at most {most}")
        answer = await _change(state, write)
        state.add_columns(engine, new)
    return json_response(answer, 201 if answer["is_new"] else 200)


async def post_edges(state: State, request: Request[Query, EdgesBody]) -> Response:
    """Link nodes"""
    edges = request.body.edges
    write = AddEdges(tuple((edge.source, edge.target, edge.type or None) for edge in edges))
    return json_response(await _change(state, write))


async def delete_edge(state: State, request: Request[EdgeQuery, None]) -> Response:
    """Remove all links of two nodes, or those of one type"""
    query = request.query
    return json_response(await _change(state, RemoveEdge(query.source, query.target, query.type)))


async def delete_node(state: State, request: Request[Query, None]) -> Response:
    """Remove a node and its links"""
    return json_response(await _change(state, DeleteNode(request.segment)))


async def _change(state: State, write: Write) -> Answer:
    engine = state.engine
    if not engine.is_writable:
        words = "this server is read-only: its folder cannot be written to"
        raise RequestError(403, words)
    return await engine.writes.do(write, state.limits.write_seconds)


# ---- the server itself


async def health(state: State, request: Request[AnyQuery, None]) -> Response:
    """Whether the server is alive"""
    return json_response({"status": "alive"})


async def ready(state: State, request: Request[AnyQuery, None]) -> Response:
    """Whether the server has loaded its vectors"""
    state.engine  # noqa: B018
    return json_response({"status": "ready"})


async def info(state: State, request: Request[Query, None]) -> Response:
    """The vectors, the model and the limits of the server"""
    reads = state.settings.read_token is not None
    content = {
        "version": __version__,
        **state.engine.info(),
        "columns": state.columns,
        "needs_token": {
            "read": reads,
            "write": reads or state.settings.write_token is not None,
        },
        "limits": {name: getattr(state.limits, name) for name in TOLD_LIMITS},
    }
    return json_response(content)


async def metrics(state: State, request: Request[AnyQuery, None]) -> Response:
    """Metrics for Prometheus"""
    content_type = {"content-type": "text/plain; version=0.0.4; charset=utf-8"}
    return Response(state.metrics.text(), headers=content_type)


async def description(state: State, request: Request[AnyQuery, None]) -> Response:
    """This OpenAPI document"""
    return Response(state.description)


# ---- the page


async def whole_map(state: State, request: Request[Query, None]) -> Response:
    """All nodes, or a sample of them, on a plane"""
    content = state.map.body()
    if content is None:
        return json_response({"status": "being made"}, 202)
    if _takes_gzip(request.headers):
        return Response(content, headers={"content-encoding": "gzip", "cache-control": "no-store"})
    return Response(gzip.decompress(content))


async def places(state: State, request: Request[Query, PlacesBody]) -> Response:
    """Where nodes are on the map"""
    return json_response({"places": state.map.places(request.body.ids)})


async def page(state: State, request: Request[AnyQuery, None]) -> Response:
    """The page"""
    return _file(state, "index.html", request)


async def static(state: State, request: Request[AnyQuery, None]) -> Response:
    """A file of the page"""
    return _file(state, request.segment, request)


def _file(state: State, name: str, request: Request[AnyQuery, None]) -> Response:
    """A file of the page; nothing if the browser has it already."""
    if name not in state.files:
        raise no_address()
    file = state.files[name]
    if request.headers.get(b"if-none-match", b"").decode("latin-1") == file.headers["etag"]:
        return Response(b"", 304, file.headers)
    if _takes_gzip(request.headers):
        headers = file.headers | {"content-encoding": "gzip"}
        return Response(file.compressed, headers=headers)
    return Response(file.content, headers=file.headers)


def _takes_gzip(headers: Mapping[bytes, bytes]) -> bool:
    return b"gzip" in headers.get(b"accept-encoding", b"")
