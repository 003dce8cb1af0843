"""Compaction: writes a folder of vectors and its log as a new base, which replaces the old one.

It happens automatically when the log has grown to a share of the base. So the bytes written for a
change stay, on average, a small multiple of the change, and loading never reads a log as large as
the base. It also happens when so many vectors changed that searching them exactly takes as long as
searching the base.
"""

import os

from graphformers.arrays import save_array
from graphformers.artifact import Draft, write_artifact
from graphformers.embedding.settings import CompactionSettings
from graphformers.embedding.shards import bounds, shard_name
from graphformers.embedding.vectors import KIND, VERSION, FolderLock, VectorStore


def is_due(store: VectorStore, settings: CompactionSettings) -> bool:
    """Whether the log has grown too large, in bytes or in vectors."""
    most_changed = max(settings.least_changed, settings.changed_share * store.num_base)
    return len(store.changed_nodes()) > most_changed or store.log.end > most_bytes(store, settings)


def most_bytes(store: VectorStore, settings: CompactionSettings) -> int:
    """Size of the log above which it is compacted."""
    base = sum(
        int(entry["bytes"])
        for name, entry in store.artifact.files.items()
        if not name.startswith("graph/")
    )
    return min(max(settings.least_bytes, int(settings.share * base)), settings.most_bytes)


def compact(store: VectorStore, lock: FolderLock) -> VectorStore:
    """Writes base and log as a new base. A kill leaves the old folder or the new one.

    Args:
        store: The store to compact.
        lock: The lock of its folder. The new folder is locked before it has its name, so that no
            other process writes to it before it is loaded.

    Returns:
        The new store.
    """
    handle = -1
    try:
        with write_artifact(store.path, KIND, VERSION, force=True) as draft:
            handle = os.dup(draft.lock)
            _write(store, draft)
        found = VectorStore.load(store.path)
        lock.hand_over(handle)
        handle = -1
    finally:
        if handle >= 0:
            os.close(handle)
    return found


def _write(store: VectorStore, draft: Draft) -> None:
    graph, nodes, size = store.graph.freeze(), store.graph.nodes, int(store.settings["shard_size"])
    # not beside: the draft itself is locked, and saving locks the folder around
    graph.save(draft.path("inner") / "graph")
    draft.path("inner").joinpath("graph").rename(draft.path("graph"))
    draft.path("inner").rmdir()
    hashes: list[str] = []
    for shard, (start, stop) in enumerate(bounds(len(nodes), size)):
        part = nodes[start:stop]
        arrays = store.raw(part).arrays() | (
            {} if store.states is None else {"states": store.states_of(part)}
        )
        hashes += [] if store.states is None else [graph.text_hash(start, stop)]
        for kind, array in arrays.items():
            draft.path(kind).mkdir(exist_ok=True)
            save_array(draft.path(shard_name(kind, shard)), array)
    kept = store.settings["states"]
    draft.settings = store.settings | {"states": kept and kept | {"text_hashes": hashes}}
    draft.summary = {"nodes": len(nodes)}
    draft.parents = store.artifact.parents
