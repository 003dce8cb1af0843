"""Copies of folders of vectors that are in use.

A plain copy would take the database of the edits while somebody writes it.
"""

import logging
import os
import shutil
from pathlib import Path

from graphformers.artifact import (
    Artifact,
    Draft,
    check_writable,
    draft_of,
    publish_artifact,
)
from graphformers.embedding.vectors import KIND, VERSION, VectorStore
from graphformers.errors import ArtifactError
from graphformers.files import checksum, full_disk

logger = logging.getLogger(__name__)


def copy_store(source: str | Path, output: str | Path, *, force: bool = False) -> VectorStore:
    """Copies a folder of vectors as it is now, also while a server or an update changes it.

    Every file and every edit is compared with its checksum.

    Args:
        source: The folder of vectors.
        output: The folder to write.
        force: Whether to replace an existing output.

    Returns:
        The copy.

    Raises:
        ArtifactError: The source is damaged, or the output exists.

    Example:
        >>> len(copy_store("papers.vectors", "backup.vectors"))
        80
    """
    target = Path(output)
    check_writable(target, KIND, force=force)
    # Its base is not removed as long as this store is referred to.
    store = VectorStore.load(source)
    try:
        with draft_of(target) as draft:
            _copy_files(store.artifact, draft)
            store.database.copy_to(draft.folder)
            draft.part, draft.settings = store.base, store.artifact.settings
            draft.summary = store.artifact.summary
            draft.parents = {
                role: parent | {"path": _moved(parent["path"], store.path, target)}
                for role, parent in store.artifact.parents.items()
            }
            publish_artifact(draft, target, KIND, VERSION, force=force)
    except OSError as error:
        raise full_disk(error, target) from error
    return VectorStore.load(target)


def _copy_files(source: Artifact, draft: Draft) -> None:
    for name, entry in source.files.items():
        copy = draft.path(name)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source.path / name, copy)
        if checksum(copy) != entry["sha256"]:
            raise ArtifactError(
                f"{source.path / name}: damaged, its checksum is not the one in the manifest"
            )
        draft.checksums[name] = entry["sha256"]
    # Without them the index of the copy is built again; they have checksums of their own.
    for file in source.path.glob("index.*"):
        shutil.copyfile(file, draft.path(file.name))


def _moved(path: str, source: Path, target: Path) -> str:
    """The path of a parent from another folder; empty for one that was never saved."""
    return path and os.path.relpath((source.resolve() / path).resolve(), target.resolve())
