"""Files that are not what usearch writes are refused before they are mapped."""

import struct
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphformers.embedding.job import embed
from graphformers.embedding.vectors import VectorStore
from graphformers.files import checksum
from graphformers.records import sealed
from graphformers.retrieval import index as index_module
from graphformers.retrieval.approximate import DamagedIndexError, IndexFacts
from graphformers.retrieval.index import StoreIndex
from graphformers.retrieval.usearch_file import DamagedFileError, check_file
from graphformers.retrieval.usearch_index import HnswSettings, UsearchIndex
from tests import forked
from tests.embedding.conftest import make_model, some_graph

pytest.importorskip("usearch")

COUNT, SIZE = 600, 8
EXPECTED: dict[str, Any] = {"count": COUNT, "size": SIZE, "connectivity": 4}


def write_graph(path: Path, precision: str = "i8") -> None:
    from usearch.index import Index

    draw = np.random.default_rng(0)
    vectors = draw.integers(-100, 100, (COUNT, SIZE)).astype(
        np.int8 if precision == "i8" else np.float32
    )
    graph = Index(ndim=SIZE, metric="ip", dtype=precision, connectivity=4, expansion_add=20)
    graph.add(np.arange(COUNT), vectors)
    graph.save(str(path))


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("index") / "graph"
    write_graph(path)
    return path.read_bytes()


def search(path: str) -> None:
    """Searches a file as usearch maps it, with no regard to what is in it."""
    from usearch.index import Index

    graph = Index(ndim=SIZE, metric="ip", dtype="i8", connectivity=4)
    graph.view(path)
    queries = np.random.default_rng(1).integers(-100, 100, (300, SIZE)).astype(np.int8)
    found = graph.search(queries, 40)
    assert np.asarray(found.keys).max() < COUNT


@pytest.mark.parametrize("precision", ["i8", "f16"])
def test_what_usearch_writes_is_right(precision: str, tmp_path: Path) -> None:
    write_graph(tmp_path / "graph", precision)
    check_file(tmp_path / "graph", precision=precision, **EXPECTED)
    for wrong in ({"count": COUNT - 1}, {"size": SIZE + 1}, {"connectivity": 5}):
        with pytest.raises(DamagedFileError):
            check_file(tmp_path / "graph", precision=precision, **(EXPECTED | wrong))
    with pytest.raises(DamagedFileError):
        other = "f16" if precision == "i8" else "i8"
        check_file(tmp_path / "graph", precision=other, **EXPECTED)


FACTS = IndexFacts("x", 60, 1.0, "y", {"precision": "i8", "search_width": 64, "node_width": 64})
START = 8 + COUNT * SIZE
SIZES = START + 64
LAYERS = SIZES + 40
NODES = LAYERS + 2 * COUNT
CRAFTED = {
    "rows": (0, struct.pack("<I", 2**31)),
    "bytes of a row": (4, struct.pack("<I", 1)),
    "magic": (START, b"X"),
    "version": (START + 7, b"\x09"),
    "metric": (START + 13, b"c"),
    "nodes": (SIZES, struct.pack("<Q", 2**40)),
    "links of a node": (SIZES + 8, struct.pack("<Q", 2**30)),
    "links in the lowest layer": (SIZES + 16, struct.pack("<Q", 2**30)),
    "highest layer": (SIZES + 24, struct.pack("<Q", 99)),
    "where searches start": (SIZES + 32, struct.pack("<Q", 2**33)),
    "the layers of a node": (LAYERS + 2, struct.pack("<h", 30_000)),
    "a layer below the lowest": (LAYERS + 2, struct.pack("<h", -1)),
    "a key": (NODES, struct.pack("<Q", 2**62)),
    "a key twice": (NODES, struct.pack("<Q", 5)),
    "the layer of a node": (NODES + 8, struct.pack("<h", 3)),
    "number of links": (NODES + 10, struct.pack("<I", 2**31)),
    "a link": (NODES + 14, struct.pack("<I", 2**31)),
}


@pytest.mark.parametrize("case", CRAFTED)
def test_a_crafted_file_is_refused(case: str, content: bytes, tmp_path: Path) -> None:
    place, value = CRAFTED[case]
    damaged = bytearray(content)
    damaged[place : place + len(value)] = value
    (tmp_path / "graph").write_bytes(damaged)
    with pytest.raises(DamagedFileError):
        check_file(tmp_path / "graph", precision="i8", **EXPECTED)


@pytest.mark.parametrize("length", [0, 7, 8, START, LAYERS + 3, NODES + 5, -1])
def test_a_file_that_is_cut_is_refused(length: int, content: bytes, tmp_path: Path) -> None:
    (tmp_path / "graph").write_bytes(content[:length])
    with pytest.raises(DamagedFileError):
        check_file(tmp_path / "graph", precision="i8", **EXPECTED)
    (tmp_path / "graph").write_bytes(content + b"x")
    with pytest.raises(DamagedFileError):
        check_file(tmp_path / "graph", precision="i8", **EXPECTED)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.tuples(st.integers(0), st.integers(1, 255)), min_size=1, max_size=6))
def test_what_is_not_refused_does_not_crash(
    content: bytes, tmp_path: Path, changes: list[tuple[int, int]]
) -> None:
    damaged = bytearray(content)
    for place, bits in changes:
        # Behind the vectors, where any number is as good as another.
        damaged[START + place % (len(content) - START)] ^= bits
    path = tmp_path / "graph"
    path.write_bytes(damaged)
    try:
        check_file(path, precision="i8", **EXPECTED)
    except DamagedFileError:
        return
    done = forked.run(search, str(path))
    assert done.returncode == 0, done.stderr


def test_a_crafted_index_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With a checksum that is right, as anybody can make one."""
    monkeypatch.setattr(index_module, "EXACT_BELOW", 10)
    store = embed(make_model(), some_graph(), tmp_path / "v")
    UsearchIndex.make(store)
    file, about = tmp_path / "v" / "index.usearch", tmp_path / "v" / "index.usearch.json"
    right = IndexFacts.read(about)
    damaged = bytearray(file.read_bytes())
    damaged[8 + 60 * (24 + 32) + 64 + 32] = 200
    file.write_bytes(damaged)
    about.write_bytes(sealed(asdict(replace(right, checksum=checksum(file)))))
    index = StoreIndex.open(VectorStore.load(tmp_path / "v"))
    assert not index.is_exact
    assert "not an index of these vectors (wrong layers); it is made again" in caplog.text
    assert index.search(store.base_vectors(np.arange(3)), 3).nodes_QK.shape == (3, 3)


@pytest.mark.parametrize(
    "change",
    [
        {"count": "60"},
        {"recall": None},
        {"recall": 7.0},
        {"settings": []},
        {"settings": {}},
        {"settings": {"precision": "i8", "search_width": 2**60, "node_width": 64}},
        {"settings": {"precision": "i8", "search_width": 64, "node_width": True}},
        {"settings": {"precision": [], "search_width": 64, "node_width": 64}},
    ],
)
def test_facts_of_another_kind_are_damage(change: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    replace(FACTS, **change).write(file)
    with pytest.raises(DamagedIndexError):
        HnswSettings.of(IndexFacts.read(file).settings)
    for text in ("null", "5", "[" * 100_000, "{", '"\\ud800"', "{}"):
        file.write_text(text)
        with pytest.raises(DamagedIndexError):
            IndexFacts.read(file)


def test_a_flipped_bit_of_the_facts_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    FACTS.write(file)
    content = file.read_bytes()
    for place in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            file.write_bytes(damaged)
            try:
                # White space may differ.
                assert IndexFacts.read(file) == FACTS
            except DamagedIndexError:
                continue
