"""Vectors for other programs: NumPy, Parquet, word2vec's text format; written beside their place
and put there when whole.
"""

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa

from graphformers.artifact import check_place
from graphformers.embedding.vectors import VectorStore
from graphformers.errors import GraphFormersError
from graphformers.files import put_in_place, sweep_beside, sync
from graphformers.settings import usage

IDS = 1 << 20  # at a time
SUFFIXES = (".npy", ".parquet", ".txt")


def export_vectors(store: VectorStore, path: Path, *, force: bool = False) -> None:
    """Writes all vectors in the format that the name says."""
    if path.suffix not in SUFFIXES:
        raise GraphFormersError(
            f"{path}: cannot tell the format from the name, expected one of {', '.join(SUFFIXES)}"
        )
    suffix, written = (
        path.suffix,
        [path] if path.suffix != ".npy" else [path.with_suffix(".ids.txt"), path],
    )
    # a link stays one
    written = [Path(os.path.realpath(place)) if place.is_symlink() else place for place in written]
    path = written[-1]
    for place in written:
        if place.is_dir():
            raise GraphFormersError(f"{place}: a folder, expected the name of a file")
        if place.exists() and not force:
            raise GraphFormersError(f"{place}: exists already; {usage('force', True)} replaces it")
    check_place(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    for place in written:
        sweep_beside(place)
    writers: dict[str, Callable[[VectorStore, Path], None]] = {
        ".parquet": _parquet,
        ".txt": _word2vec,
        ".npy": _numpy,
    }
    with (
        put_in_place(path) as beside,
        put_in_place(written[0]) if suffix == ".npy" else nullcontext() as beside_ids,
    ):
        if beside_ids is not None:
            _ids(store, beside_ids)
        writers[suffix](store, beside)
        # a kill between the two leaves no vectors rather than those of other ids
        if beside_ids is not None:
            sync(beside_ids)
            sync(beside)
            path.unlink(missing_ok=True)


def _numpy(store: VectorStore, path: Path) -> None:
    shape = {"descr": "<f4", "fortran_order": False, "shape": (len(store), store.size)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_2_0(file, shape)
        for _, vectors in store.blocks():
            file.write(vectors.reshape(-1).view(np.uint8).data)


def _ids(store: VectorStore, path: Path) -> None:
    everyone = store.ids
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, len(everyone), IDS):
            ids = everyone[start : start + IDS].to_pylist()
            _refuse(ids, str.splitlines, "a line break", "a list of ids")
            file.writelines(f"{id}\n" for id in ids)


def _parquet(store: VectorStore, path: Path) -> None:
    import pyarrow.parquet as parquet

    schema = pa.schema([("id", pa.large_string()), ("vector", pa.list_(pa.float32(), store.size))])
    with parquet.ParquetWriter(str(path), schema) as writer:
        for ids, vectors in store.blocks():
            column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), store.size)
            writer.write_table(pa.table([pa.array(ids, pa.large_string()), column], schema=schema))


def _word2vec(store: VectorStore, path: Path) -> None:
    """Numbers and size in the first line; then a line for each vector: id, numbers."""
    with path.open("w", encoding="utf-8") as file:
        file.write(f"{len(store)} {store.size}\n")
        for ids, vectors in store.blocks():
            _refuse(ids, str.split, "a blank", "word2vec's format")
            for id, vector in zip(ids, vectors, strict=True):
                file.write(f"{id} {' '.join(map(repr, vector.tolist()))}\n")


def _refuse(ids: list[str], tear: Callable[[str], list[str]], what: str, where: str) -> None:
    """An id that the format would tear apart, or take something from."""
    for id in ids:
        if tear(id) != [id]:
            raise GraphFormersError(
                f"the id {id!r} has {what}, which {where} cannot hold; export to .parquet instead"
            )
