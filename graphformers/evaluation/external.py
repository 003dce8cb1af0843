"""Reads vectors of other systems from files, to score them on the same questions.

Shapes: N vectors, D vector size.
"""

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from graphformers.arrays import Array
from graphformers.artifact import MANIFEST
from graphformers.embedding.vectors import VectorStore
from graphformers.errors import GraphFormersError
from graphformers.evaluation.scores import VectorScores
from graphformers.graph.textgraph import TextGraph

logger = logging.getLogger(__name__)

EXPECTED = (
    "expected a folder of vectors, .npz with arrays ids and vectors, .npy with a line for each id "
    "in .ids.txt beside it, .parquet with columns id and vector, or .txt as word2vec writes it"
)


def external_scores(
    path: str | Path,
    graph: TextGraph,
    nodes: Array,
    pairs: Array | None = None,
    *,
    cosine: bool = False,
) -> VectorScores:
    """Makes a scorer of vectors from a file.

    Args:
        path: A folder of vectors, or a file of ids and vectors. Ids that are not needed are
            ignored.
        graph: The graph of the nodes.
        nodes: The sorted row numbers of the nodes to score.
        pairs: (Q, 2) the held-out links. If the vectors were computed with them as neighbours, a
            warning is logged.
        cosine: Whether to compare by cosine instead of inner product. Folders of vectors whose
            model compares by cosine are always compared so.

    Raises:
        GraphFormersError: The file cannot be read, or the vector of a node is missing or not
            finite.
    """
    store = VectorStore.load(path) if (Path(path) / MANIFEST).is_file() else None
    if store is None:
        ids, vectors = read_vectors(path)
    else:
        ids, vectors = store.ids.to_pylist(), np.asarray(store)
        cosine |= store.is_cosine
        if pairs is not None:
            _warn_of_known_links(store, graph, pairs)
    rows = {id: row for row, id in enumerate(ids)}
    wanted = graph.ids_of(nodes)
    missing = [id for id in wanted if id not in rows]
    if missing:
        raise GraphFormersError(
            f"{path}: no vector for {len(missing):,} of the {len(wanted):,} nodes of the "
            f"questions, such as {missing[0]!r}"
        )
    own_ND = vectors[[rows[id] for id in wanted]]
    broken_N = ~np.isfinite(own_ND).all(1)
    if broken_N.any():
        raise GraphFormersError(
            f"{path}: the vector of {wanted[int(broken_N.argmax())]!r} contains numbers that are "
            f"not finite (NaN or inf)"
        )
    return VectorScores(own_ND, None if len(nodes) == graph.num_nodes else nodes, cosine=cosine)


def read_vectors(path: str | Path) -> tuple[list[str], Array]:
    """Reads ids and (N, D) float32 vectors.

    Args:
        path: A folder of vectors, .npz, .npy, .parquet, or word2vec's .txt or .vec.

    Raises:
        GraphFormersError: The file cannot be read, or an id occurs twice.
    """
    path = Path(path)
    if (path / MANIFEST).is_file():
        store = VectorStore.load(path)
        return store.ids.to_pylist(), np.asarray(store)
    if path.suffix not in READERS:
        raise GraphFormersError(f"{path}: {EXPECTED}")
    try:
        ids, vectors = READERS[path.suffix](path)
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
        raise GraphFormersError(f"{path}: the id {twice!r} occurs twice, expected distinct ids")
    return ids, vectors


def _warn_of_known_links(store: VectorStore, graph: TextGraph, pairs: Array) -> None:
    """Logs a warning if vectors were computed from the links that they are to predict."""
    if not store.settings["num_neighbors"]:
        return
    ends = store.graph.find_nodes(graph.ids_of(pairs.reshape(-1))).reshape(-1, 2)
    known = sum(
        store.graph.is_linked(one, other) for one, other in ends[(ends >= 0).all(1)].tolist()
    )
    if known:
        logger.warning(
            f"{store.path}: these vectors were computed from a graph with {known:,} of the "
            f"{len(pairs):,} held-out links, so their scores are too high; graphformers evaluate "
            f"MODEL SPLIT computes vectors without these links"
        )


def _read_npz(path: Path) -> tuple[list[str], Array]:
    loaded = np.load(path, allow_pickle=False)
    if not isinstance(loaded, np.lib.npyio.NpzFile):
        raise ValueError("a single array")
    with loaded as arrays:
        _require_names("arrays", arrays.files, "ids", "vectors")
        try:
            given = arrays["ids"]
        except ValueError as error:
            raise ValueError(
                "ids that are pickled Python objects, which are not read for safety; save them as "
                "text: ids.astype(str)"
            ) from error
        ids = [id.decode() if isinstance(id, bytes) else str(id) for id in given.tolist()]
        return ids, arrays["vectors"]


def _require_names(kind: str, found: list[str], *names: str) -> None:
    for name in names:
        if name not in found:
            raise ValueError(f"{kind} {', '.join(found)} found, {name} is missing")


def _read_npy(path: Path) -> tuple[list[str], Array]:
    """The format that `export` writes."""
    ids = path.with_suffix(".ids.txt").read_text(encoding="utf-8").split("\n")
    return ids[:-1] if ids[-1] == "" else ids, np.load(path, allow_pickle=False)


def _read_parquet(path: Path) -> tuple[list[str], Array]:
    _require_names("columns", parquet.read_schema(path).names, "id", "vector")
    table = parquet.read_table(path, columns=["id", "vector"])
    ids = table["id"].cast(pa.string()).to_pylist()
    column = table["vector"].combine_chunks()
    lengths = pa.compute.list_value_length(column)
    if column.null_count or len(pa.compute.unique(lengths)) > 1:
        raise ValueError("vectors that are missing or of different lengths")
    flat = np.asarray(pa.compute.list_flatten(column).cast(pa.float32()))
    return ids, flat.reshape(len(ids), -1) if len(ids) else flat.reshape(0, 0)


def _read_word2vec(path: Path) -> tuple[list[str], Array]:
    """word2vec's text format: a line with count and size, then a line per id with its numbers."""
    with path.open(encoding="utf-8") as file:
        count, size = (int(word) for word in file.readline().split())
        ids, vectors = [], np.empty((count, size), dtype=np.float32)
        for row in range(count):
            line = file.readline().rstrip()
            # an id may contain blanks
            words = line.rsplit(" ", size)
            if len(words) != size + 1:
                raise ValueError(
                    f"line {row + 2} has {len(line.split()) - 1} numbers, the first line says "
                    f"{size}"
                )
            ids.append(words[0])
            vectors[row] = [float(word) for word in words[1:]]
    return ids, vectors


READERS: dict[str, Callable[[Path], tuple[list[str], Array]]] = {
    ".npz": _read_npz,
    ".npy": _read_npy,
    ".parquet": _read_parquet,
    ".txt": _read_word2vec,
    ".vec": _read_word2vec,
}
