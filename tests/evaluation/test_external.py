from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from graphformers.embedding.job import embed
from graphformers.errors import GraphFormersError
from graphformers.evaluation.external import external_scores, read_vectors
from graphformers.graph.interop import build_graph
from graphformers.splits.split import split_links
from tests.conftest import make_graph
from tests.model.conftest import make_model

IDS = ["a", "two words", "ü"]
VECTORS = np.arange(6, dtype=np.float32).reshape(3, 2) / 4


def write(folder: Path, suffix: str) -> Path:
    file = folder / f"vectors{suffix}"
    if suffix == ".npz":
        np.savez(file, ids=np.array(IDS), vectors=VECTORS)
    elif suffix == ".npy":
        np.save(file, VECTORS)
        (folder / "vectors.ids.txt").write_text("".join(f"{id}\n" for id in IDS), encoding="utf-8")
    elif suffix == ".parquet":
        parquet.write_table(pa.table({"id": IDS, "vector": VECTORS.tolist()}), file)
    else:
        lines = [
            f"{id} {' '.join(str(x) for x in row)}"
            for id, row in zip(IDS, VECTORS.tolist(), strict=True)
        ]
        file.write_text("3 2\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return file


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".parquet", ".txt"])
def test_every_format_gives_the_same(suffix: str, tmp_path: Path) -> None:
    ids, vectors = read_vectors(write(tmp_path, suffix))
    assert ids == IDS
    assert vectors.tolist() == VECTORS.tolist()


def test_rows_are_found_by_id(tmp_path: Path) -> None:
    graph = make_graph()
    order = np.random.default_rng(0).permutation(graph.num_nodes)
    everyone = np.random.default_rng(1).normal(size=(graph.num_nodes, 4)).astype(np.float32)
    np.savez(tmp_path / "v.npz", ids=np.array(graph.ids_of(order)), vectors=everyone[order])
    nodes = np.array([3, 50, 120])
    found = external_scores(tmp_path / "v.npz", graph, nodes)
    assert found.listed(nodes[:1], nodes[None, 1:]) == pytest.approx(
        (everyone[3] @ everyone[[50, 120]].T)[None], rel=1e-5
    )
    assert external_scores(tmp_path / "v.npz", graph, np.arange(graph.num_nodes)).nodes is None
    everyone[50, 2] = np.nan
    np.savez(tmp_path / "v.npz", ids=np.array(graph.ids_of(order)), vectors=everyone[order])
    with pytest.raises(
        GraphFormersError,
        match=rf"v.npz: the vector of '{graph.ids_of([50])[0]}' contains .* not finite",
    ):
        external_scores(tmp_path / "v.npz", graph, nodes)


def test_broken_files_say_what_is_wrong(tmp_path: Path) -> None:
    graph = make_graph()
    with pytest.raises(GraphFormersError, match=r"no vector for 2 of the 2 nodes .* such as"):
        external_scores(write(tmp_path, ".npz"), graph, np.array([1, 2]))
    for name, content in {
        "a.npz": b"nonsense",
        "b.parquet": b"nonsense",
        "c.txt": b"2 3\na 1 2 3\nb 1 2\n",
        "d.csv": b"",
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(
            GraphFormersError,
            match=f"{name}: .*expected a folder of vectors, .npz with arrays ids and vectors",
        ):
            read_vectors(tmp_path / name)
    with pytest.raises(GraphFormersError, match="No such file"):
        read_vectors(tmp_path / "missing.npz")
    np.savez(tmp_path / "e.npz", ids=np.array(["a"]), vectors=VECTORS)
    with pytest.raises(GraphFormersError, match=r"1 ids and vectors of shape \(3, 2\)"):
        read_vectors(tmp_path / "e.npz")
    # a pickle, which is not read
    np.savez(tmp_path / "f.npz", ids=np.array([{"a": 1}], dtype=object), vectors=VECTORS[:1])
    with pytest.raises(
        GraphFormersError,
        match=r"f\.npz: ids that are pickled Python objects, .* save them as text",
    ):
        read_vectors(tmp_path / "f.npz")
    np.savez(tmp_path / "g.npz", id=np.array(["a"]), vectors=VECTORS[:1])
    with pytest.raises(
        GraphFormersError, match=r"g\.npz: arrays id, vectors found, ids is missing"
    ):
        read_vectors(tmp_path / "g.npz")
    np.savez(tmp_path / "i.npz", ids=np.array(IDS), vectors=VECTORS * 1j)
    with pytest.raises(GraphFormersError, match=r"i\.npz: vectors of complex numbers"):
        read_vectors(tmp_path / "i.npz")
    parquet.write_table(
        pa.table({"id": IDS, "embedding": VECTORS.tolist()}), tmp_path / "h.parquet"
    )
    with pytest.raises(
        GraphFormersError,
        match=r"h\.parquet: columns id, embedding found, vector is missing; expected",
    ):
        read_vectors(tmp_path / "h.parquet")


def test_vectors_computed_from_held_out_links_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of the whole graph, not those of the links for training."""
    graph = make_graph().save(tmp_path / "whole.graph")
    split = split_links(graph, valid=0.1, test=0.1, candidates=20)
    model, nodes = make_model(similarity="cosine"), np.arange(graph.num_nodes)
    embed(model, graph, tmp_path / "whole.vectors")
    sources, targets = (graph.ids_of(side) for side in split.train.T)
    left = build_graph(graph.table, {"source": sources, "target": targets})
    embed(model, left, tmp_path / "left.vectors")
    caplog.clear()
    scores = external_scores(tmp_path / "whole.vectors", graph, nodes, split.test.pairs)
    count = len(split.test)
    assert (
        f"whole.vectors: these vectors were computed from a graph with {count} of the {count} "
        "held-out links" in caplog.text
    )
    caplog.clear()
    external_scores(tmp_path / "left.vectors", graph, nodes, split.test.pairs)
    assert not caplog.records
    ids, vectors = read_vectors(tmp_path / "whole.vectors")
    assert ids == graph.ids.to_pylist()
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    found = scores.listed(nodes[:1], nodes[None, 1:4])
    # as the model compares them
    assert found == pytest.approx((units[0] @ units[1:4].T)[None], abs=1e-5)
    embed(make_model(), left, tmp_path / "dot.vectors")
    for cosine in (False, True):  # as asked for, where the model compares otherwise
        scores = external_scores(tmp_path / "dot.vectors", graph, nodes, cosine=cosine)
        _, own = read_vectors(tmp_path / "dot.vectors")
        own = own / np.linalg.norm(own, axis=1, keepdims=True) if cosine else own
        assert scores.listed(nodes[:1], nodes[None, 1:4]) == pytest.approx(
            (own[0] @ own[1:4].T)[None], rel=1e-4
        )
