"""Vectors that another system made, to be scored on the same questions: ids and an array, from one
file.
"""

from collections import Counter
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from graphformers.artifact import MANIFEST
from graphformers.data.arrays import Array
from graphformers.data.graph import TextGraph
from graphformers.embedding.vectors import VectorStore
from graphformers.errors import GraphFormersError
from graphformers.evaluation.scores import VectorScores
from graphformers.progress import say

EXPECTED = (
    "expected a folder of vectors, .npz with arrays ids and vectors, .npy with a line for each id "
    "in .ids.txt beside it, "
    ".parquet with columns id and vector, or .txt as word2vec writes it"
)


def read_vectors(path: str | Path) -> tuple[list[str], Array]:
    """ids, and (len(ids), D) float32 vectors."""
    path = Path(path)
    if (path / MANIFEST).is_file():
        return _stored(VectorStore.load(path))
    readers = {
        ".npz": _read_numpy,
        ".npy": _read_array,
        ".parquet": _read_parquet,
        ".txt": _read_word2vec,
        ".vec": _read_word2vec,
    }
    if path.suffix not in readers:
        raise GraphFormersError(f"{path}: {EXPECTED}")
    try:
        ids, vectors = readers[path.suffix](path)
        if np.iscomplexobj(vectors):
            raise ValueError("vectors of complex numbers")
        vectors = vectors.astype(np.float32, copy=False)
    except OSError as error:
        raise GraphFormersError(
            f"{error.filename or path}: {error.strerror or error}; {EXPECTED}"
        ) from error
    except (ValueError, KeyError, TypeError, BadZipFile, pa.ArrowException) as error:
        raise GraphFormersError(f"{path}: {error}; {EXPECTED}") from error
    if vectors.ndim != 2 or len(vectors) != len(ids):
        raise GraphFormersError(
            f"{path}: {len(ids):,} ids and vectors of shape {vectors.shape}; {EXPECTED}"
        )
    if len(set(ids)) < len(ids):
        twice = next(id for id, count in Counter(ids).items() if count > 1)
        raise GraphFormersError(
            f"{path}: the id {twice!r} stands there twice, expected one vector each"
        )
    return ids, vectors


def foreign_scores(
    path: str | Path,
    graph: TextGraph,
    nodes: Array,
    pairs: Array | None = None,
    *,
    cosine: bool = False,
) -> VectorScores:
    """The vectors of `nodes` (sorted row numbers) from a file; other ids in it are passed over.

    `pairs` are the links asked for: vectors that know them are told.
    """
    if (Path(path) / MANIFEST).is_file():
        store = VectorStore.load(path)
        cosine |= store.is_cosine
        if pairs is not None:
            _say_leaks(store, graph, pairs)
        ids, vectors = _stored(store)
    else:
        ids, vectors = read_vectors(path)
    places = {id: place for place, id in enumerate(ids)}
    wanted = graph.ids_of(nodes)
    missing = [id for id in wanted if id not in places]
    if missing:
        raise GraphFormersError(
            f"{path}: no vector for {len(missing):,} of the {len(wanted):,} nodes that are asked "
            f"about, such as {missing[0]!r}"
        )
    own = vectors[[places[id] for id in wanted]]
    strange = ~np.isfinite(own).all(1)
    if strange.any():
        id = wanted[int(strange.argmax())]
        raise GraphFormersError(
            f"{path}: the vector of {id!r} holds numbers that are not finite (NaN or inf)"
        )
    return VectorScores(own, None if len(nodes) == graph.num_nodes else nodes, cosine=cosine)


def _stored(store: VectorStore) -> tuple[list[str], Array]:
    return store.ids.to_pylist(), np.asarray(store)


def _say_leaks(store: VectorStore, graph: TextGraph, pairs: Array) -> None:
    """Vectors of ours were read in the light of the links of their own graph: those that are asked
    for should not be there.
    """
    if not store.settings["num_neighbors"]:
        return
    ends = store.live.find(graph.ids_of(pairs.reshape(-1))).reshape(-1, 2)
    known = sum(
        store.live.is_linked(one, other) for one, other in ends[(ends >= 0).all(1)].tolist()
    )
    if known:
        say(
            f"{store.path}: {known:,} of the {len(pairs):,} links that are asked for are links of "
            f"the graph that these vectors "
            "were made from, so their scores are too good; evaluate MODEL SPLIT reads nodes "
            "without them"
        )


def _read_numpy(path: Path) -> tuple[list[str], Array]:
    loaded = np.load(path, allow_pickle=False)
    if not isinstance(loaded, np.lib.npyio.NpzFile):
        raise ValueError("a single array")
    with loaded as found:
        missing = [name for name in ("ids", "vectors") if name not in found.files]
        if missing:
            raise ValueError(f"arrays {', '.join(found.files)}, none called {missing[0]}")
        try:
            given = found["ids"]
        except ValueError as error:
            raise ValueError(
                "ids that are Python objects, which are never read; save them as text: "
                "ids.astype(str)"
            ) from error
        return [id.decode() if isinstance(id, bytes) else str(id) for id in given.tolist()], found[
            "vectors"
        ]


def _read_array(path: Path) -> tuple[list[str], Array]:
    """As `export` writes it."""
    ids = path.with_suffix(".ids.txt").read_text(encoding="utf-8").split("\n")
    return ids[:-1] if ids[-1] == "" else ids, np.load(path, allow_pickle=False)


def _read_parquet(path: Path) -> tuple[list[str], Array]:
    names = parquet.read_schema(path).names
    missing = [name for name in ("id", "vector") if name not in names]
    if missing:
        raise ValueError(f"columns {', '.join(names)}, none called {missing[0]}")
    table = parquet.read_table(path, columns=["id", "vector"])
    ids = table["id"].cast(pa.string()).to_pylist()
    column = table["vector"].combine_chunks()
    lengths = pa.compute.list_value_length(column)
    if column.null_count or len(pa.compute.unique(lengths)) > 1:
        raise ValueError("vectors that are missing or of different lengths")
    flat = np.asarray(pa.compute.list_flatten(column).cast(pa.float32()))
    return ids, flat.reshape(len(ids), -1) if len(ids) else flat.reshape(0, 0)


def _read_word2vec(path: Path) -> tuple[list[str], Array]:
    """The text format of word2vec: a line with count and size, then an id and its numbers on each
    line.
    """
    with path.open(encoding="utf-8") as file:
        count, size = (int(word) for word in file.readline().split())
        ids, vectors = [], np.empty((count, size), dtype=np.float32)
        for row in range(count):
            line = file.readline().rstrip()
            words = line.rsplit(" ", size)
            if len(words) != size + 1:
                raise ValueError(
                    f"line {row + 2} has {len(line.split()) - 1} numbers, the first line says "
                    f"{size}"
                )
            ids.append(words[0])
            vectors[row] = [float(word) for word in words[1:]]
    return ids, vectors
