"""Compaction: a folder of vectors and its log written as a new base, shard by shard, and exchanged
with the old one.

It happens by itself when the log has grown to a share of the base, so that what is written for each
change stays, on average, a small multiple of the change, and opening a folder never means reading a
log of its own size; and when so many vectors have changed that searching them, which happens one by
one, takes about as long as searching the base.
"""

import os

from graphformers.artifact import Draft, write_artifact
from graphformers.data.arrays import save_array
from graphformers.embedding.shards import bounds, shard_name
from graphformers.embedding.vectors import KIND, VERSION, FolderLock, VectorStore

LEAST_BYTES = 64 << 20  # of a log that is worth compacting
MOST_BYTES = 2 << 30  # of a log, however large the base: it is read when a folder is opened
SHARE = 0.25  # of the base
# changed vectors that are too many: so many, and such a share of the base's
LEAST_CHANGED, CHANGED_SHARE = 16_384, 0.05


def is_due(store: VectorStore) -> bool:
    """Whether the log has grown too large, in bytes or in vectors."""
    if len(store.changed_nodes()) > max(LEAST_CHANGED, CHANGED_SHARE * store.num_base):
        return True
    return store.log.end > most_bytes(store)


def most_bytes(store: VectorStore) -> int:
    """Of a log that is not compacted yet."""
    base = sum(
        int(entry["bytes"])
        for name, entry in store.artifact.files.items()
        if not name.startswith("graph/")
    )
    return min(max(LEAST_BYTES, int(SHARE * base)), MOST_BYTES)


def compact(store: VectorStore, lock: FolderLock) -> VectorStore:
    """Writes base and log as a new base. A kill leaves the old folder or the new one.

    `lock` is the folder's. The new one is locked from before it has its name, so that nobody writes
    to it before it is loaded.
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
    graph, nodes, size = store.graph(), store.live.nodes(), int(store.settings["shard_size"])
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
