"""Real servers in real processes: what they answer, what they refuse, and what survives a kill."""

import asyncio
import base64
import contextlib
import json
import random
import re
import shutil
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import httpx
import numpy as np
import pytest

from graphformers.embedding.job import embed
from graphformers.embedding.update import update
from graphformers.embedding.vectors import VectorStore
from graphformers.graph.interop import build_graph
from graphformers.model.encoder import GraphFormers
from graphformers.retrieval.searcher import Searcher
from tests import forked
from tests.embedding.conftest import EXACT, flip, make_model, some_graph
from tests.serve.conftest import TOKEN, Running, make_vectors, running

STRANGE = [
    "a/b",
    "../../etc/passwd",
    "..%2f",
    "%",
    "ü/ñ 漢字",
    "x?k=1#y",
    "a/similar",
    "new\nline",
    "\x00",
    "a b",
    "+",
    "🦉" * 10,
]


def path(id: str, rest: str = "") -> str:
    return f"/nodes/{quote(id, safe='')}{rest}"


def test_answers_are_those_of_the_searcher(shared: Running) -> None:
    place, model = Path(shared.place), make_model()
    searcher = Searcher(VectorStore.load(place), model)
    with shared.client() as client:
        id = searcher.store.ids[3].as_py()
        similar = client.get(path(id, "/similar"), params={"k": 7}).json()["matches"]
        assert [(m["id"], m["text"]) for m in similar] == [
            (m.id, m.text) for m in searcher.similar(id, 7)
        ]
        assert client.post("/search", json={"id": id, "k": 7}).json()["matches"] == similar
        links = client.get(
            path(id, "/links"), params={"k": 7, "where": ["year>=1993", "year<1998"]}
        ).json()["matches"]
        expected = searcher.links(id, 7, where=["year>=1993", "year<1998"])
        assert [m["id"] for m in links] == [m.id for m in expected]
        found = client.post(
            "/search", json={"text": "graph layer", "neighbors": [id], "k": 4, "show_neighbors": 2}
        ).json()["matches"]
        assert [m["id"] for m in found] == [
            m.id for m in searcher.text("graph layer", 4, neighbors=[id])
        ]
        assert found[0]["num_neighbors"] == len(
            searcher.store.graph.neighbors_of(
                int(searcher.store.graph.find_nodes([found[0]["id"]])[0])
            )
        )
        assert len(found[0]["neighbors"]) == min(2, found[0]["num_neighbors"])
        vector = searcher.store[id].tolist()
        assert (
            client.post("/search", json={"vector": vector, "k": 1}).json()["matches"][0]["score"]
            >= similar[0]["score"]
        )


def test_answers_say_what_scores_are_and_which_texts_are_cut(shared: Running) -> None:
    with shared.client() as client:
        id = some_graph().ids[3].as_py()
        answer = client.get(path(id, "/similar")).json()
        assert answer["measure"] == "inner product"
        assert "truncated" not in answer
        answer = client.post("/search", json={"text": "graph text node " * 5, "k": 2}).json()
        assert answer["truncated"] == {"tokens": 17, "max_tokens": 12}
        assert "truncated" not in client.post("/search", json={"text": "graph"}).json()


def test_embeddings_have_openais_shape(shared: Running) -> None:
    model = make_model()
    id = some_graph().ids[3].as_py()
    with shared.client() as client:
        body = {
            "input": ["graph", "text node"],
            "model": "any",
            "neighbor_texts": [["layer"], []],
            "neighbors": [[], [id]],
        }
        answer = client.post("/v1/embeddings", json=body).json()
        assert [answer["object"], [entry["index"] for entry in answer["data"]]] == ["list", [0, 1]]
        assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] == 3
        expected = model.encode(["graph", "text node"], [["layer"], [some_graph().text(id)]])
        np.testing.assert_allclose(
            [entry["embedding"] for entry in answer["data"]], expected, atol=1e-5
        )
        packed = client.post(
            "/v1/embeddings", json={"input": "graph", "encoding_format": "base64"}
        ).json()["data"][0]["embedding"]
        np.testing.assert_allclose(
            np.frombuffer(base64.b64decode(packed), "<f4"), model.encode(["graph"])[0], atol=1e-5
        )


def test_a_node_its_neighbourhood_and_its_attention_weights(shared: Running) -> None:
    graph = some_graph()
    hub = graph.ids[int(np.argmax(graph.degrees()))].as_py()
    with shared.client() as client:
        node = client.get(path(hub), params={"limit": 2}).json()
        assert (node["text"], node["num_neighbors"], len(node["neighbors"])) == (
            graph.text(hub),
            len(graph.neighbors(hub)),
            2,
        )
        assert isinstance(node["columns"]["year"], int)
        ego = client.get(path(hub, "/ego")).json()
        ids = [entry["id"] for entry in ego["nodes"]]
        assert ids[0] == hub
        assert set(ids[1:]) == set(graph.neighbors(hub))
        assert sorted(map(tuple, ego["links"])) == [
            (i, j)
            for i, one in enumerate(ids)
            for j, other in enumerate(ids)
            if i < j and other in graph.neighbors(one)
        ]
        attention = client.get(path(hub, "/attention")).json()
        assert [entry["id"] for entry in attention["nodes"]] == ids[: 1 + ego["num_read"]]
        weights = np.array(attention["weights"])
        assert weights.shape == (3, 3, 6)
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
        np.testing.assert_allclose(attention["average"], weights.mean((0, 1)), atol=1e-6)


def test_a_column_that_the_graph_did_not_have_keeps_its_type(tmp_path: Path) -> None:
    with running(make_vectors(tmp_path)) as server, server.client() as client:
        new = client.put(
            path("a"),
            json={"text": "graph", "columns": {"year": 2001, "pages": 3, "nothing": None}},
        )
        expected = {"id": "a", "is_new": True, "new_links": 0, "new_columns": ["pages"]}
        assert (new.status_code, new.json()) == (201, expected)
        assert client.get("/info").json()["columns"] == {"year": "int64", "pages": "int64"}
        again = client.put(path("a"), json={"text": "graph", "columns": {"year": None, "pages": 4}})
        assert (again.status_code, again.json()) == (
            200,
            {"id": "a", "is_new": False, "new_links": 0, "new_columns": []},
        )
        answer = client.put(path("b"), json={"text": "graph", "columns": {"pages": "few"}})
        assert (answer.status_code, "the column 'pages': 'few' is no int64" in answer.text) == (
            422,
            True,
        )
        body = {"text": "graph", "where": ["pages>=3"], "columns": ["pages", "year"]}
        found = client.post("/search", json=body).json()["matches"]
        assert [(match["id"], match["columns"]) for match in found] == [
            ("a", {"pages": 4, "year": 2001})
        ]


def test_a_new_node_has_the_vector_that_embed_gives(tmp_path: Path) -> None:
    place = make_vectors(tmp_path)
    graph, model = some_graph(), GraphFormers.from_pretrained(tmp_path / "m.model", device="cpu")
    ids = graph.ids.to_pylist()
    with running(place) as server, server.client() as client:
        answer = client.put(
            path("new/1"),
            json={"text": "graph of links", "neighbors": ids[:3], "columns": {"year": 2001}},
        )
        assert (answer.status_code, answer.json()) == (
            201,
            {"id": "new/1", "is_new": True, "new_links": 3, "new_columns": []},
        )
        assert (
            client.put(
                path(ids[9]), json={"text": "another text", "columns": {"year": 1990}}
            ).status_code
            == 200
        )
        edges = [
            {"source": "new/1", "target": ids[5], "type": "cites"},
            {"source": ids[0], "target": "new/1"},
        ]
        loop = {"source": ids[0], "target": ids[0]}
        found = {"added": 1, "already_there": 1, "self_links": 1}
        assert client.post("/edges", json={"edges": [*edges, loop]}).json() == found
        typed = {"source": ids[5], "target": "new/1", "type": "likes"}
        assert (
            client.delete("/edges", params=typed)
            .json()["error"]["message"]
            .endswith("of type 'likes'")
        )
        # those without a type: there are none
        assert client.delete("/edges", params=typed | {"type": ""}).status_code == 404
        assert client.delete("/edges", params=typed | {"type": "cites"}).status_code == 200
        assert client.post("/edges", json={"edges": edges[:1]}).json() == {
            "added": 1,
            "already_there": 0,
            "self_links": 0,
        }
        assert client.delete(path(ids[20])).status_code == 200
        one, other = (
            ids[node] for node in next(p for p in graph.pairs().tolist() if not {9, 20} & set(p))
        )
        gone = client.delete("/edges", params={"source": other, "target": one})
        assert (gone.status_code, gone.json()) == (
            200,
            {"source": other, "target": one, "is_removed": True},
        )
        assert client.delete("/edges", params={"source": one, "target": other}).status_code == 404
        assert (
            client.get(path("new/1", "/similar"), params={"k": 100}).json()["matches"][0]["id"]
            != "new/1"
        )
        assert "new/1" in [
            m["id"]
            for m in client.get(path(ids[1], "/similar"), params={"k": 100}).json()["matches"]
        ]
        assert server.stop() == (0, "")
    rows = [row for row in graph.table.to_pylist() if row["id"] != ids[20]]
    rows = [
        row | {"text": "another text", "year": 1990} if row["id"] == ids[9] else row for row in rows
    ]
    rows.append({"id": "new/1", "text": "graph of links", "year": 2001})
    pairs = [(ids[a], ids[b]) for a, b in graph.pairs().tolist() if ids[20] not in (ids[a], ids[b])]
    pairs.remove((one, other))
    pairs += [("new/1", other) for other in (*ids[:3], ids[5])]
    import pyarrow as pa

    grown = build_graph(pa.Table.from_pylist(rows), pairs)
    expected = embed(model, grown, tmp_path / "grown.vectors", **EXACT)
    everyone = [row["id"] for row in rows]
    np.testing.assert_allclose(
        VectorStore.load(place).vectors(everyone), expected.vectors(everyone), atol=1e-5
    )


@pytest.mark.parametrize("id", STRANGE)
def test_ids_may_hold_anything(shared: Running, id: str) -> None:
    with shared.client() as client:
        assert client.put(path(id), json={"text": "graph"}).status_code == 201
        assert client.get(path(id)).json()["id"] == id
        assert len(client.get(path(id, "/similar")).json()["matches"]) == 10
        assert client.delete(path(id)).status_code == 200
        assert client.get(path(id)).status_code == 404


WRONG = [
    ("GET", "/nodes/nobody", None, 404, "no node with the id 'nobody'"),
    ("GET", "/nodes/a/b/similar", None, 404, "slashes in ids are written %2F"),
    ("GET", "/nodes/..%2F..%2Fetc%2Fpasswd", None, 404, "no node with the id '../../etc/passwd'"),
    ("GET", "/static/..%2Fapp.py", None, 404, "no such address"),
    ("GET", "/static/%2Fetc%2Fpasswd", None, 404, "no such address"),
    ("GET", "/nodes/%FF", None, 422, "no UTF-8"),
    ("GET", "/nodes/%20", None, 422, "is empty"),
    ("GET", "/nodes/", None, 422, "is empty"),
    ("GET", "/nodes//similar", None, 422, "is empty"),
    ("GET", "/nodes/" + 1001 * "x", None, 422, "1,001 letters"),
    ("GET", "/nodes/x/similar?k=0", None, 422, "expected a number from 1 to 1,000"),
    (
        "GET",
        "/nodes/x/similar?kk=2",
        None,
        422,
        "no parameter 'kk' in this address; there are: k, where",
    ),
    (
        "GET",
        "/nodes/x/ego?hops=3",
        None,
        422,
        "no parameter 'hops' in this address; there are: limit",
    ),
    (
        "POST",
        "/search?k=2",
        {"text": "graph"},
        422,
        "no parameter 'k' in this address; there are none here",
    ),
    ("GET", "/nodes/x/similar?k=1001", None, 422, "expected a number from 1 to 1,000"),
    ("GET", "/nodes/x/similar?k=many", None, 422, "'many' given"),
    ("GET", "/nodes/{first}/similar?where=yaer%3E1", None, 422, "did you mean 'year'?"),
    ("PUT", "/nodes/x", {"text": " "}, 422, "expected some words"),
    ("PUT", "/nodes/x", {"text": "x" * 10_001}, 422, "text: String should have at most 10000"),
    (
        "PUT",
        "/nodes/x",
        {"text": "y", "colour": "red"},
        422,
        "no field 'colour' in this object; there are: text, columns, neighbors",
    ),
    (
        "PUT",
        "/nodes/x",
        [],
        422,
        "expected an object with the fields text, columns (optional), neighbors (optional)",
    ),
    (
        "PUT",
        "/nodes/x",
        {"text": "y", "columns": {"year": "soon"}},
        422,
        "'year': 'soon' is no int64",
    ),
    ("PUT", "/nodes/x", {"text": "y", "columns": {"n": 2**70}}, 422, "columns"),
    (
        "PUT",
        "/nodes/x",
        {"text": "y", "neighbors": ["nobody"]},
        422,
        "no node with the id 'nobody'",
    ),
    ("DELETE", "/nodes/nobody", None, 404, "no node"),
    ("DELETE", "/edges?source=nobody&target=none", None, 404, "no link of 'nobody' and 'none'"),
    (
        "DELETE",
        "/edges?source=nobody",
        None,
        422,
        "target: missing; it belongs in the address: ?source=...&target=...",
    ),
    (
        "DELETE",
        "/edges",
        {"source": "a", "target": "b"},
        422,
        "source: missing; it belongs in the address: ?source=...&target=...&type=...; target: "
        "missing",
    ),
    (
        "POST",
        "/edges",
        {"edges": [{"source": "{first}", "target": "nobody"}]},
        422,
        "no node with the id 'nobody'",
    ),
    ("POST", "/edges", {"edges": []}, 422, "edges"),
    ("POST", "/search", {}, 422, "expected one of text, id and vector"),
    (
        "POST",
        "/search",
        {"query": "graph"},
        422,
        "no field 'query' in this object; there are: text, id, vector, k,",
    ),
    ("POST", "/search", {"text": "x", "id": "y"}, 422, "text and id given"),
    ("POST", "/search", {"vector": [1.0]}, 422, "a vector of 1 numbers given, expected 24"),
    ("POST", "/search", {"text": "a", "where": "year=1"}, 422, "where: expected a list"),
    (
        "POST",
        "/search",
        {"id": "{first}", "columns": ["yaer"]},
        422,
        "no node column 'yaer'; did you mean 'year'?",
    ),
    (
        "POST",
        "/edges",
        {"edges": [["a", "b"]]},
        422,
        "edges.0: expected an object with the fields source, target, type (optional)",
    ),
    (
        "POST",
        "/edges",
        {"edges": [{"source": "a", "target": "b", "{weight}": 2}]},
        422,
        "edges.0: no field '{weight}' in this object; there are: source, target, type",
    ),
    (
        "POST",
        "/v1/embeddings",
        "graph",
        422,
        "expected an object with the fields input, model (optional), ",
    ),
    (
        "PUT",
        "/nodes/x",
        {"text": "a", "columns": {"int": [1]}},
        422,
        "columns.int: expected true or false or a whole number or a number or a text",
    ),
    ("POST", "/search", {"text": 7}, 422, "text: expected a text"),
    (
        "POST",
        "/v1/embeddings",
        {"input": [1]},
        422,
        "input: expected a text; input.0: expected a text",
    ),
    (
        "POST",
        "/search",
        {"text": "x", "neighbors": ["nobody"]},
        422,
        "no node with the id 'nobody'",
    ),
    ("POST", "/search", {"id": "nobody"}, 404, "no node with the id 'nobody'"),
    ("POST", "/search", b'{"text": "x"', 422, "the body is no JSON"),
    ("POST", "/search", b'{"text": "\\ud800"}', 422, "unicode"),
    ("POST", "/search", b'{"vector": [NaN]}', 422, "finite"),
    ("POST", "/search", b"\xff\xfe", 422, "the body is no JSON"),
    ("POST", "/search", b'"\xff"', 422, "the body is no JSON"),
    ("POST", "/search", b'{"k": ' + b"1" * 5000 + b"}", 422, "the body is no JSON"),
    ("POST", "/search", b"[" * 100_000, 422, "the body is no JSON"),
    ("POST", "/search", b'{"text": ' * 100_000, 422, "the body is no JSON"),
    ("POST", "/search", b"null", 422, "expected an object with the fields text (optional)"),
    ("PUT", "/nodes/x", None, 422, "expected an object with the fields text, columns (optional)"),
    ("GET", "/nodes/x?limit=-1", None, 422, "limit: Input should be greater than or equal to 0"),
    ("GET", "/nodes/x/ego?limit=many", None, 422, "limit: "),
    ("POST", "/search", b" " * 1_100_000, 413, "more than 1,048,576 bytes"),
    ("POST", "/v1/embeddings", {"input": []}, 422, "input"),
    ("POST", "/v1/embeddings", {"input": ["x"] * 257}, 422, "input"),
    (
        "POST",
        "/v1/embeddings",
        {"input": "x", "dimensions": 7},
        422,
        "this model's vectors have 24",
    ),
    ("POST", "/v1/embeddings", {"input": "x", "neighbors": []}, 422, "0 lists given"),
    ("PATCH", "/nodes/x", None, 405, "PATCH is not answered here"),
    ("GET", "/elsewhere", None, 404, "no such address"),
]


@pytest.mark.parametrize(("method", "where", "body", "status", "words"), WRONG)
def test_wrong_requests_are_told_what_is_wrong(
    shared: Running, method: str, where: str, body: object, status: int, words: str
) -> None:
    first = some_graph().ids[0].as_py()
    content = (
        body
        if isinstance(body, bytes)
        else None
        if body is None
        else json.dumps(body).replace("{first}", first).encode()
    )
    with shared.client() as client:
        headers = {"Content-Type": "application/json"} if content is not None else {}
        answer = client.request(
            method, where.replace("{first}", first), content=content, headers=headers
        )
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json")
        assert words in answer.json()["error"]["message"]
        assert len(client.get("/info").json()["columns"]) == 1


def test_other_pages_and_other_names_are_kept_out(shared: Running) -> None:
    """A web page elsewhere must not write here through its visitor's browser, under this name or
    one of its own.
    """
    with shared.client() as client:
        plain = {"Content-Type": "text/plain"}
        assert client.post("/edges", content=b'{"edges": []}', headers=plain).status_code == 415
        assert (
            client.put(
                "/nodes/x", json={"text": "x"}, headers={"Origin": "http://evil.example"}
            ).status_code
            == 403
        )
        assert client.get("/info", headers={"Host": "evil.example"}).status_code == 421
        assert (
            client.put(
                "/nodes/x", json={"text": "x"}, headers={"X-Forwarded-For": "192.0.2.7"}
            ).status_code
            == 403
        )
        own = {"Origin": shared.address}
        assert client.put("/nodes/own", json={"text": "x"}, headers=own).status_code == 201
        assert client.delete("/nodes/own", headers=own).status_code == 200
        headers = client.get("/").headers
        assert "script-src 'self';" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]


def test_tokens(tmp_path: Path) -> None:
    place, file = make_vectors(tmp_path), tmp_path / "token"
    file.write_text(TOKEN + "\n")
    reading = "another-secret-for-readers"
    with running(
        place, "--token-file", str(file), environment={"GRAPHFORMERS_READ_TOKEN": reading}
    ) as server:
        statuses = {}
        for name, token in (
            ("nobody", None),
            ("wrong", "x" * 32),
            ("reader", reading),
            ("writer", TOKEN),
        ):
            with server.client(token) as client:
                statuses[name] = [
                    client.get("/info").status_code,
                    client.post("/search", json={"text": "graph"}).status_code,
                    client.get("/metrics").status_code,
                    client.put(path("t"), json={"text": "x"}).status_code,
                    client.post(
                        "/edges", json={"edges": [{"source": "t", "target": "t"}]}
                    ).status_code,
                    client.delete(path("t")).status_code,
                    client.get("/health").status_code,
                    client.get("/").status_code,
                ]
        open_to_all = [200, 200]
        assert statuses["nobody"] == [401] * 6 + open_to_all == statuses["wrong"]
        assert statuses["reader"] == [200] * 3 + [401] * 3 + open_to_all
        assert statuses["writer"] == [200, 200, 200, 201, 200, 200, *open_to_all]


def test_without_a_token_other_machines_may_only_read(place: Path) -> None:
    with running(place, "--host", "0.0.0.0", "--rate", "20") as server:
        server.address = server.address.replace("0.0.0.0", "127.0.0.1")
        with server.client() as client:
            answer = client.put("/nodes/x", json={"text": "x"})
            assert (answer.status_code, "read-only" in answer.text) == (403, True)
            statuses = [client.get("/nodes/nobody").status_code for _ in range(80)]
            assert statuses[:20] == [404] * 20
            assert 429 in statuses
            assert client.get("/health").status_code == 200
        _, said = server.stop()
        assert "readable by all who reach it" in said


@pytest.mark.parametrize("is_a_file", [True, False])
def test_with_a_token_for_reading_alone_nobody_may_write(is_a_file: bool, tmp_path: Path) -> None:
    """What is protected from readers is protected from writers, on this machine too."""
    place, file = make_vectors(tmp_path), tmp_path / "token"
    file.write_text(TOKEN)
    words = ("--read-token-file", str(file)) if is_a_file else ()
    environment = {} if is_a_file else {"GRAPHFORMERS_READ_TOKEN": TOKEN}
    with running(place, *words, environment=environment) as server:
        for token in (None, "x" * 32, TOKEN):
            with server.client(token) as client:
                edges = {"edges": [{"source": "t", "target": "t"}]}
                answers = [
                    client.put(path("t"), json={"text": "x"}),
                    client.post("/edges", json=edges),
                    client.delete("/edges", params={"source": "a", "target": "b"}),
                    client.delete(path("t")),
                ]
                for answer in answers:
                    message = answer.json()["error"]["message"]
                    assert (answer.status_code, "--token-file" in message) == (403, True)
        with server.client(TOKEN) as client:
            info = client.get("/info").json()
            assert info["needs_token"] == {"read": True, "write": True}
            assert client.get(path("t")).status_code == 404
        # it takes no changes, so others may
        update(place, nodes={"t": "a text"})
        code, said = server.stop()
    assert code == 0
    assert "--token-file" in said


def test_behind_a_proxy_a_token_is_needed(place: Path) -> None:
    with running(place, "--name", "papers.example") as server, server.client() as client:
        assert client.get("/info", headers={"Host": "papers.example"}).status_code == 200
        assert client.get("/info", headers={"Host": "evil.example"}).status_code == 421
        assert (
            client.put(
                "/nodes/x", json={"text": "x"}, headers={"Host": "papers.example"}
            ).status_code
            == 403
        )


def test_sixty_four_at_once(place: Path) -> None:
    """Readers and writers together: nobody fails, everything written is found at once, and few
    records hold it.
    """
    ids = some_graph().ids.to_pylist()
    with running(place) as server:

        def one(i: int) -> list[int]:
            with server.client() as client:
                id, statuses = f"w{i}", []
                for turn in range(3):
                    if i % 4 == 0:
                        body = {"text": f"graph {turn}", "neighbors": [ids[i % 60]]}
                        statuses.append(client.put(path(id), json=body).status_code)
                        statuses.append(client.get(path(id, "/similar")).status_code)
                        assert client.get(path(id)).json()["text"] == f"graph {turn}"
                    elif i % 4 == 1:
                        statuses.append(
                            client.post("/search", json={"text": f"text {i}"}).status_code
                        )
                    else:
                        statuses.append(client.get(path(ids[i % 60], "/links")).status_code)
                return statuses

        with ThreadPoolExecutor(64) as pool:
            statuses = [status for found in pool.map(one, range(64)) for status in found]
        assert set(statuses) == {200, 201}
        with server.client() as client:
            told = client.get("/metrics").text
            batches = float(
                next(
                    line
                    for line in told.splitlines()
                    if line.startswith('graphformers_batch_size_count{thread="writing"}')
                ).split()[1]
            )
            assert batches < 48, "writes of several clients were one batch"
        assert server.stop()[0] == 0


def test_every_acknowledged_write_survives_a_kill(place: Path) -> None:
    """kill -9 in the middle of writes, three times over; after each restart everything that was
    answered is there.
    """
    draw, acknowledged = random.Random(3), {}
    ids = some_graph().ids.to_pylist()
    for turn in range(3):
        with running(place, is_forked=False) as server:

            def write(worker: int, server: Running = server, turn: int = turn) -> None:
                with server.client() as client:
                    for i in range(1000):
                        id = f"k{turn}/{worker}/{i}"
                        try:
                            answer = client.put(
                                path(id),
                                json={"text": f"graph {id}", "neighbors": [ids[(worker + i) % 60]]},
                            )
                        except httpx.HTTPError:
                            return
                        assert answer.status_code == 201
                        acknowledged[id] = f"graph {id}"

            threads = [threading.Thread(target=write, args=(i,)) for i in range(6)]
            before = len(acknowledged)
            for thread in threads:
                thread.start()
            while len(acknowledged) < before + 20:
                time.sleep(0.005)
            time.sleep(0.1 * draw.random())
            server.kill()
            for thread in threads:
                thread.join()
    with running(place) as server, server.client() as client:
        for id, text in acknowledged.items():
            assert client.get(path(id)).json()["text"] == text
            assert client.get(path(id, "/similar"), params={"k": 1}).status_code == 200


def test_a_stop_finishes_what_was_accepted(place: Path) -> None:
    """SIGTERM while many requests are at work: each that was accepted is answered, and what was
    answered is on disk.
    """
    with running(place, is_forked=False) as server:
        started, answers = threading.Barrier(17), []

        def write(i: int) -> None:
            with server.client() as client:
                client.get("/health")  # the connection is there
                started.wait(20)
                answers.append(
                    (i, client.put(path(f"late{i}"), json={"text": f"graph {i}"}).status_code)
                )

        threads = [threading.Thread(target=write, args=(i,)) for i in range(16)]
        for thread in threads:
            thread.start()
        started.wait(20)
        with server.client() as client:
            while 'route="/nodes/{id}",status="201"' not in client.get("/metrics").text:
                pass
        code, said = server.stop()
        for thread in threads:
            thread.join()
        assert (code, said) == (0, "")
        written = VectorStore.load(place)
        assert answers
        for i, status in answers:
            assert status == 201
            assert f"late{i}" in written


def test_a_body_that_never_ends_and_one_that_lies(shared: Running) -> None:
    """A chunked body is counted as it comes; its sender is cut off."""
    host, port = shared.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 20) as connection:
        connection.sendall(
            b"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: "
            b"application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        piece = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        try:
            for _ in range(40):
                connection.sendall(piece)
        except OSError:
            pass
        assert b" 413 " in connection.recv(100)
    with shared.client() as client:
        assert client.get("/ready").json() == {"status": "ready"}


def test_not_ready_is_said_while_loading(place: Path) -> None:
    """The app answers before its engine is there."""
    from graphformers.serve.app import make_app
    from graphformers.serve.settings import ServeSettings

    app, _ = make_app(ServeSettings(place))

    async def ask(where: str) -> int:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return (await client.get(where)).status_code

    assert [
        asyncio.run(ask(where)) for where in ("/health", "/ready", "/info", "/nodes/x", "/map", "/")
    ] == [
        200,
        503,
        503,
        503,
        503,
        200,
    ]


def test_a_server_that_cannot_start_says_why(place: Path, tmp_path: Path) -> None:
    def failed(*words: str) -> str:
        done = forked.run(forked.command, "serve", *words, "--port", "0", timeout=60)
        assert done.returncode == 1
        return done.stderr

    assert failed(str(tmp_path / "nothing")).startswith("error: ")
    make_model(seed=5).save_pretrained(tmp_path / "other.model")
    assert "made with another model" in failed(str(place), "--model", str(tmp_path / "other.model"))
    (tmp_path / "short").write_text("short")
    assert "a writing token of 5 characters given" in failed(
        str(place), "--token-file", str(tmp_path / "short")
    )


def test_a_server_refuses_a_folder_that_lacks_commits(place: Path) -> None:
    """The server was killed, and a bit of the WAL that it left was flipped."""
    with running(place) as server, server.client() as client:
        for id in "abcdef":
            assert client.put(path(id), json={"text": "graph"}).status_code == 201
        server.kill()
    wal = place / "edits-0001.sqlite-wal"
    flip(wal, wal.stat().st_size // 2)
    done = forked.run(forked.command, "serve", str(place), "--port", "0", timeout=60)
    assert done.returncode == 1
    assert "6 commits were acknowledged, and" in done.stderr
    flip(wal, wal.stat().st_size // 2)
    with running(place) as server, server.client() as client:
        assert [client.get(path(id)).status_code for id in "abcdef"] == [200] * 6
        assert server.stop() == (0, "")
    assert set("abcdef") <= set(VectorStore.load(place))


def test_a_folder_that_somebody_took_away_is_not_written_to(tmp_path: Path) -> None:
    place = make_vectors(tmp_path)
    with running(place) as server, server.client() as client:
        assert client.put(path("a"), json={"text": "graph"}).status_code == 201
        edits = place / "edits-0001.sqlite"
        edits.rename(tmp_path / "away")
        assert client.put(path("b"), json={"text": "graph"}).status_code == 503
        assert not edits.exists()
        (tmp_path / "away").rename(edits)
        assert client.put(path("b"), json={"text": "graph"}).status_code == 201
        place.rename(tmp_path / "moved")
        shutil.copytree(tmp_path / "moved", place)  # the same files in another folder
        assert client.put(path("c"), json={"text": "graph"}).status_code == 503
        assert client.get(path("a")).status_code == 200
    assert {"a", "b"} <= set(VectorStore.load(place)) == set(VectorStore.load(tmp_path / "moved"))


def test_a_body_that_breaks_off_changes_nothing(shared: Running) -> None:
    host, port = shared.address.removeprefix("http://").split(":")
    body = b'{"text": "graph"}'
    head = (
        "PUT /nodes/part HTTP/1.1\r\nHost: LOCALHOST\r\nContent-Type: "
        "application/json\r\nContent-Length: 100\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), 20) as connection:
        connection.sendall(head.encode() + body)
    with shared.client() as client:
        for _ in range(20):
            assert client.get("/nodes/part").status_code == 404
            time.sleep(0.01)


def test_heads_alone(shared: Running) -> None:
    with shared.client() as client:
        for place in ("/", "/health", path(VectorStore.load(Path(shared.place)).ids[3].as_py())):
            found = client.head(place)
            assert (found.status_code, found.content) == (200, b"")
            assert int(found.headers["content-length"]) > 0
        assert client.head("/nodes/nobody").status_code == 404


def test_the_log_has_a_line_for_every_request(place: Path) -> None:
    with running(place, "--log") as server:
        with server.client() as client:
            client.get("/health")
            client.post("/search", json={"text": "a secret question"})
            client.get("/nodes/no%0Asuch%20one?key=hidden")
        _, said = server.stop()
    lines = [line.split(" ", 4) for line in said.splitlines() if " 127.0.0.1 " in line]
    assert [(method, path, rest.split()[0]) for _, _, method, path, rest in lines] == [
        ("GET", "/health", "200"),
        ("POST", "/search", "200"),
        ("GET", "/nodes/no%0Asuch%20one", "422"),
    ]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", when) for when, *_ in lines)
    assert "secret" not in said


def send(server: Running, data: bytes, seconds: float = 20) -> bytes:
    """What a server answers to raw bytes until it closes the connection."""
    host, port = server.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=seconds) as client:
        found = b""
        with contextlib.suppress(ConnectionError):
            client.sendall(data)
            while piece := client.recv(65536):
                found += piece
        return found


def test_heads_are_short(shared: Running) -> None:
    """A head is read before anybody is asked for a token: it must not fill the memory."""
    long = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * 200_000
    assert b"error" in send(shared, long)
    many = (
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
        + b"X-More: 0123456789\r\n" * 20_000
        + b"\r\n"
    )
    assert not send(shared, many).startswith(b"HTTP/1.1 200")
    found = send(shared, b"what is this\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 400 ")
    assert b'{"error":{"message":"this is no HTTP request' in found
    with shared.client() as client:
        assert client.get("/health").status_code == 200
        assert client.post("/search", json={"text": "x " * 4000}).status_code == 200


CHUNKED = b"POST /search HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
JSON = b"Content-Type: application/json\r\n"
BODY = b'e\r\n{"text":"new"}\r\n0\r\n'


def memory_of(server: Running) -> int:
    """The most memory that a server's process has had, in bytes."""
    assert isinstance(server.process, subprocess.Popen)
    told = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", told)
    assert found is not None
    return 1024 * int(found[1])


TRAILERS = {
    "many": b"X-More: 0123456789\r\n",
    "one with a long name": b"x" * 1000,
    "one with a long value": b"X-Long: " + b"x" * 1000,
}


@pytest.mark.parametrize("case", TRAILERS)
def test_trailers_are_short(case: str, shared: Running) -> None:
    """They come behind the body, and are limited as the head is."""
    line = TRAILERS[case]
    rest = line if case == "many" else b"x" * 1000
    start = CHUNKED + JSON + b"\r\n" + BODY + line
    for count in (100_000, 200_000):
        found = send(shared, start + rest * (count // len(rest)))
        assert found.startswith(b"HTTP/1.1 431 "), found
        assert b"trailers of more than 65,536 bytes" in found
    before = memory_of(shared)
    host, port = shared.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as client:
        sent = 0
        with contextlib.suppress(ConnectionError):
            client.sendall(start)
            while sent < 40_000_000:
                client.sendall(rest * 100)
                sent += 100 * len(rest)
    assert sent < 40_000_000, "the connection was ended"
    assert memory_of(shared) - before < 10_000_000


def test_trailers_whose_request_was_answered_are_short(shared: Running) -> None:
    """No second answer is sent behind the first."""
    host, port = shared.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as client:
        client.sendall(CHUNKED.replace(b"localhost", b"elsewhere") + JSON + b"\r\n")
        found = b""
        while not found.endswith(b"}}"):
            found += client.recv(65536) or pytest.fail(f"cut off after {found!r}")
        assert found.startswith(b"HTTP/1.1 421 ")
        with contextlib.suppress(ConnectionError):
            client.sendall(BODY + b"X-Long: " + b"x" * 150_000)
            assert client.recv(65536) == b""


def test_short_trailers_are_passed_over(shared: Running) -> None:
    """The gate reads headers, and nobody may add to them behind it."""
    end = b"X-Checksum: 7\r\nContent-Type: application/json\r\n\r\n"
    close = b"Connection: close\r\n"
    found = send(shared, CHUNKED + close + JSON + b"\r\n" + BODY + end)
    assert found.startswith(b"HTTP/1.1 200 ")
    found = send(shared, CHUNKED + close + b"\r\n" + BODY + end)
    assert found.startswith(b"HTTP/1.1 415 ")


LENGTHS = {
    "5,001 digits": b"0" * 5000 + b"5",
    "10,000 digits": b"1" * 10_000,
    "beyond 64 bits": b"9" * 21,
    "a word": b"many",
    "negative": b"-5",
    "a sign": b"+5",
    "a fraction": b"5.0",
    "hexadecimal": b"0x5",
    "two": b"5, 5",
    "nothing": b"",
    "other digits": "٥".encode(),
}


def test_a_length_that_is_no_number_is_refused(place: Path) -> None:
    with running(place) as server:
        for case, length in LENGTHS.items():
            for first in (b"POST /search", b"GET /info", b"GET /health", b"PUT /nodes/x"):
                head = first + b" HTTP/1.1\r\nHost: localhost\r\n" + JSON
                found = send(server, head + b"Content-Length: " + length + b"\r\n\r\n[1,2]")
                assert found.startswith(b"HTTP/1.1 400 "), (case, first, found)
        with server.client() as client:
            assert client.get("/health").status_code == 200
        code, said = server.stop()
    assert code == 0
    assert "Traceback" not in said
