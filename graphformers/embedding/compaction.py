"""Compaction: writes a base and its edits as the next base.

It happens automatically when the edits have grown to a share of the base. So the bytes written for
an edit stay, on average, a small multiple of the edit, and opening never reads edits as large as
the base. It also happens when so many vectors changed that searching them exactly takes as long as
searching the base.

The next base is written beside the current one, and has no edits yet. Then one rename replaces the
manifest, which names the files of the current base. So a kill leaves the old base with its edits,
or the new one. The old one is removed when no store that was loaded refers to it.
"""

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path

from graphformers.arrays import save_array
from graphformers.artifact import Draft, open_artifact, seal
from graphformers.embedding.database import remove_edits
from graphformers.embedding.settings import CompactionSettings
from graphformers.embedding.shards import bounds, shard_name
from graphformers.embedding.vectors import KIND, VERSION, VectorStore
from graphformers.errors import ArtifactError
from graphformers.files import full_disk


def is_due(store: VectorStore, settings: CompactionSettings) -> bool:
    """Whether the edits have grown too large, in bytes or in vectors."""
    most_changed = max(settings.least_changed, settings.changed_share * store.num_base)
    return store.num_changed > most_changed or store.commit.bytes > most_bytes(store, settings)


def most_bytes(store: VectorStore, settings: CompactionSettings) -> int:
    """Size of the edits above which they are compacted."""
    base = sum(
        int(entry["bytes"])
        for name, entry in store.artifact.files.items()
        if not name.startswith(f"{store.base}/graph/")
    )
    return min(max(settings.least_bytes, int(settings.share * base)), settings.most_bytes)


def compact(store: VectorStore) -> VectorStore:
    """Writes base and edits as the next base. A kill leaves the old one or the new one.

    Args:
        store: The store to compact. The caller holds the lock of its folder.

    Returns:
        The store with the new base.
    """
    sweep(store.path)
    name = f"base-{int(store.base.rpartition('-')[2]) + 1:04d}"
    try:
        draft = Draft(store.path, part=name)
        _write(store, draft)
        seal(draft, KIND, VERSION)
    except BaseException as error:
        sweep(store.path)
        if isinstance(error, OSError):
            raise full_disk(error, store.path) from error
        raise
    return VectorStore.load(store.path)


def sweep(path: Path) -> None:
    """Removes bases that are not current and that no store refers to, and their edits.

    The caller holds the lock of the folder.
    """
    with suppress(OSError, ArtifactError, KeyError, TypeError):
        current = open_artifact(path, KIND, VERSION).settings["base"]
        for folder in sorted(path.glob("base-*")):
            if folder.name != current and folder.is_dir() and not folder.is_symlink():
                _remove_unused(folder)


def _remove_unused(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_edits(folder.parent, folder.name)
        shutil.rmtree(folder, ignore_errors=True)
    # A store that was loaded refers to it.
    except BlockingIOError:
        pass
    finally:
        os.close(handle)


def _write(store: VectorStore, draft: Draft) -> None:
    graph, nodes, size = store.graph.freeze(), store.graph.nodes, int(store.settings["shard_size"])
    folder = draft.path(draft.part)
    graph.save(folder / "graph")
    hashes: list[str] = []
    for shard, (start, stop) in enumerate(bounds(len(nodes), size)):
        part = nodes[start:stop]
        arrays = store.raw(part).arrays() | (
            {} if store.states is None else {"states": store.states_of(part)}
        )
        hashes += [] if store.states is None else [graph.text_hash(start, stop)]
        for kind, array in arrays.items():
            (folder / kind).mkdir(exist_ok=True)
            save_array(folder / shard_name(kind, shard), array)
    kept = store.settings["states"]
    draft.settings = store.settings | {
        "base": draft.part,
        "states": kept and kept | {"text_hashes": hashes},
    }
    draft.summary = {"nodes": len(nodes)}
    draft.parents = store.artifact.parents
