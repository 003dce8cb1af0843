"""Artifacts: folders that are written completely or not at all.

Every graph, split, model and vector store is a folder with a `manifest.json` that names its kind,
format version, content fingerprint, the fingerprints of what it was made from, the settings that
made it, and size and SHA-256 of every file.

Writing happens in a hidden draft folder beside the target. When all files are on disk (fsync), one
system call puts the draft in place: a plain rename where nothing was there, an exchange of the two
names where something was. A process killed at any moment leaves the old folder or the new one,
never half of either; abandoned drafts are swept by the next writer.

Reading checks the manifest and all sizes at once. A file's checksum is compared when the file is
first used; once it matched, `.verified.json` remembers the file's identity (size, modification
time, inode), so that only a file that was copied or touched since is read again. `verify()` reads
everything.

Folders are exchanged between people: no name in a manifest and no link in a folder may lead out of
it (places.py).
"""

import ctypes
import fcntl
import glob
import json
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from graphformers.errors import ArtifactError
from graphformers.files import (
    checksum,
    full_disk,
    held,
    remove_abandoned,
    sweep_beside,
    sync,
    write_whole,
)
from graphformers.places import check_inner_name, refuse_links_out
from graphformers.records import (
    ELSEWHERE,
    JsonObject,
    digest_of,
    read_record,
    read_sealed,
    sealed,
    shown,
)
from graphformers.settings import usage

# marks folders of `compare`, which contain many artifacts
COMPARISON = ".comparison"
MANIFEST = "manifest.json"
# suffixes of folders with unfinished work
TRAINING, EMBEDDING = ".training", ".embedding"
VERIFIED = ".verified.json"
NESTED = ("tokens",)  # folders inside an artifact that hold artifacts made from it
NAMES = {"vectors": "a folder of vectors"}  # of kinds, where "a KIND" is not English
# beginnings of names of files that come or grow inside an artifact after it was written, with
# checksums of their own; of their temporary files; and of bases that were replaced
GROWING = ("edits-", ".edits-", "base-", "index.", ".index.", ".manifest.json.")
# the entry of a manifest that holds its own checksum
SEAL = "manifest_sha256"


class ComparisonFiles(TypedDict):
    """What the mark of a comparison says: the SHA-256 of its report's files, by name."""

    files: dict[str, str]


class ParentEntry(TypedDict):
    """What a manifest says of a parent: its fingerprint, and its path from the child."""

    fingerprint: str
    path: str


class FileEntry(TypedDict):
    """What a manifest says of a file."""

    bytes: int
    sha256: str


class Manifest(TypedDict):
    """What `manifest.json` says of the folder."""

    kind: str
    format: int
    fingerprint: str
    written_by: str
    parents: dict[str, ParentEntry]
    settings: JsonObject
    summary: JsonObject
    files: dict[str, FileEntry]


@dataclass
class Draft:
    """An artifact being written: its files go into `folder`.

    Attributes:
        folder: A hidden folder.
        settings: The settings that made the artifact.
        summary: What it contains.
        parents: What it was made from.
        checksums: SHA-256 of files, where it is known from writing them.
        part: The folder inside whose files belong to the artifact; all of `folder` without one.
        lock: A handle of the folder, which is locked until it is in place. A duplicate of the
            handle keeps the lock.
    """

    folder: Path
    settings: JsonObject = field(default_factory=dict)
    summary: JsonObject = field(default_factory=dict)
    parents: dict[str, ParentEntry] = field(default_factory=dict)
    checksums: dict[str, str] = field(default_factory=dict)
    part: str = ""
    lock: int = -1

    def path(self, name: str) -> Path:
        return self.folder / name


@dataclass(frozen=True)
class Artifact:
    """An artifact on disk, its manifest read and its sizes checked."""

    path: Path
    kind: str
    format: int
    fingerprint: str
    parents: dict[str, ParentEntry]
    settings: JsonObject
    summary: JsonObject
    files: dict[str, FileEntry]

    @property
    def manifest(self) -> Path:
        """The file that settings and summary were read from, for messages about them."""
        return self.path / MANIFEST

    def file(self, name: str) -> Path:
        """The path of one of its files, whose checksum has been compared with the manifest."""
        return self.paths([name])[0]

    def paths(
        self, names: Sequence[str], check: Callable[[list[Path]], object] | None = None
    ) -> list[Path]:
        """The paths of several files, whose checksums have been compared with the manifest.

        Args:
            names: Their names in the manifest.
            check: Called with the paths before a version of one of the files is used for the first
                time, to raise an error if its content is not valid. A checksum says that a file
                was not damaged, not that its author made it well.
        """
        missing = [name for name in names if name not in self.files]
        if missing:
            names = sorted(self.files)
            raise ArtifactError(
                f"{self.path}: no file {missing[0]} in this {self.kind}; it holds "
                f"{', '.join(names)}"
            )
        stamps = _read_stamps(self.path)
        fresh = [name for name in names if stamps.get(name) != _stamp(self.path / name)]
        found = [self.path / name for name in names]
        for name in fresh:
            self._compare(name)
        if fresh and check is not None:
            check(found)
        if fresh:
            _remember(self.path, fresh)
        return found

    def verify(self) -> None:
        """Compares every file with its checksum, including those that were verified before."""
        for name in self.files:
            self._compare(name)
        for name in NESTED:
            for inner in sorted((self.path / name).glob("*/")):
                open_artifact(inner, None, None).verify()

    def _compare(self, name: str) -> None:
        if checksum(self.path / name) != self.files[name]["sha256"]:
            raise ArtifactError(
                f"{self.path / name}: damaged, its checksum is not the one in {MANIFEST}; restore "
                f"it or make the {self.kind} anew"
            )


def open_artifact(path: str | Path, kind: str | None, version: int | None) -> Artifact:
    """Reads the manifest of the folder `path` and checks it and the size of every file.

    `kind` and `version` are what the caller can read; None takes any.
    """
    path = named(path)
    bring_back(path)
    manifest = _read_manifest(path)
    if kind is not None and manifest["kind"] != kind:
        found, expected = (NAMES.get(name, f"a {name}") for name in (manifest["kind"], kind))
        raise ArtifactError(f"{path}: {found}, expected {expected}")
    if version is not None and manifest["format"] != version:
        raise ArtifactError(
            f"{path}: {manifest['kind']} of format {manifest['format']}, this version reads format "
            f"{version}; make it again or use the version that wrote it ({manifest['written_by']})"
        )
    for name, entry in manifest["files"].items():
        file = path / name
        size = file.stat().st_size if os.path.isfile(file) else None
        if size != entry["bytes"]:
            found = "is missing" if size is None else f"has {size:,} bytes"
            words = f"{found}, expected {entry['bytes']:,} bytes"
            raise ArtifactError(f"{file}: {words}; {manifest['kind']} damaged, to be made again")
    return Artifact(
        path,
        manifest["kind"],
        manifest["format"],
        manifest["fingerprint"],
        manifest["parents"],
        manifest["settings"],
        manifest["summary"],
        manifest["files"],
    )


def comparison_files(folder: Path, *, verify: bool = True) -> dict[str, str]:
    """The files of a comparison's report, with their checksums.

    Raises:
        ArtifactError: One of them is not as the comparison wrote it.
    """
    advice = "the same compare command writes it again"
    try:
        files = read_sealed(folder / COMPARISON, ComparisonFiles)["files"]
    except ArtifactError as error:
        raise ArtifactError(f"{error}; {advice}") from error
    for name, expected in files.items() if verify else ():
        check_inner_name(folder / COMPARISON, name)
        file = folder / name
        if not file.is_file() or checksum(file) != expected:
            words = "damaged or changed, its checksum is not the one that was noted"
            raise ArtifactError(f"{file}: {words}; {advice}")
    return files


@contextmanager
def write_artifact(
    path: str | Path, kind: str, version: int, *, force: bool = False
) -> Iterator[Draft]:
    """Writes the files of the `with` block as one artifact, or nothing when the block fails.

    `force` replaces an artifact of the same kind; nothing else is ever replaced, also not what
    appeared in the meantime.
    """
    check_writable(path, kind, force=force)
    target = _behind_links(path)
    try:
        with draft_of(target) as draft:
            yield draft
            publish_artifact(draft, target, kind, version, force=force)
    except OSError as error:
        raise full_disk(error, target) from error


@contextmanager
def draft_of(target: Path) -> Iterator[Draft]:
    """An empty hidden folder beside the target, removed after the `with` block unless renamed.

    Folders that killed processes left there are removed first.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    folder, lock = target.parent / f".{target.name}.draft-{secrets.token_hex(8)}", None
    # The block begins before the folder exists, so that an interrupt at any moment leaves nothing.
    try:
        with held(target.parent, create=False):
            _sweep(target)
            folder.mkdir()
            # The lock tells other writers that this one is alive; it ends with the process.
            lock = os.open(folder, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield Draft(folder, lock=lock)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def publish_artifact(
    draft: Draft, path: str | Path, kind: str, version: int, *, force: bool = False
) -> None:
    """Puts a folder in place as one artifact, after it was filled, perhaps over many runs."""
    seal(draft, kind, version)
    target = _behind_links(path)
    with held(target.parent, create=False):
        check_writable(target, kind, force=force)
        put_folder_in_place(draft.folder, target)


def put_folder_in_place(folder: Path, target: Path) -> None:
    """Renames a folder to the target; what was there ends up in the folder, or is removed."""
    if not target.exists() or not any(target.iterdir()):
        os.rename(folder, target)
    else:
        try:
            _exchange(folder, target)
        except (OSError, AttributeError):  # a file system or a C library without the exchange
            # A folder that an earlier process set aside is older than the target.
            shutil.rmtree(_aside(target), ignore_errors=True)
            os.rename(target, _aside(target))
            os.rename(folder, target)
            shutil.rmtree(_aside(target), ignore_errors=True)
    sync(target.parent)


def named(path: str | Path) -> Path:
    """A path that stays valid when the folder is replaced: from within the old folder, `.` and `..`
    do not.
    """
    path = Path(path)
    if path.name and ".." not in path.parts:
        return path
    try:
        return Path(os.path.realpath(path))
    except FileNotFoundError as error:
        raise ArtifactError(
            f"{path}: the current folder is gone, or another was put in its place; cd into it again"
        ) from error


def _behind_links(path: str | Path) -> Path:
    """The path to write: a link is not replaced, but the folder to which it points."""
    return Path(os.path.realpath(path)) if os.path.islink(path) else named(path)


def check_writable(path: str | Path, kind: str, *, force: bool) -> None:
    """Raises the errors of `write_artifact`, before hours of work."""
    check_name(Path(path))
    path = _behind_links(path)
    if path.is_symlink():
        raise ArtifactError(
            f"{path}: a link that leads back to itself, to {os.readlink(path)!r}; remove it"
        )
    bring_back(path)
    if not os.path.lexists(path) or (path.is_dir() and not any(path.iterdir())):
        check_place(path)
        return
    if not (path / MANIFEST).is_file():
        raise ArtifactError(
            f"{path}: exists and is not a {kind} of ours; it is never replaced, choose another name"
        )
    try:
        manifest = _read_manifest(path)
    except ArtifactError as error:
        raise ArtifactError(
            f"{error}; it is not replaced: remove it or choose another name"
        ) from error
    if manifest["kind"] != kind:
        raise ArtifactError(
            f"{path}: exists and is a {manifest['kind']}, not a {kind}; choose another name"
        )
    if not force:
        raise ArtifactError(f"{path}: exists already; {usage('force', True)} replaces it")
    ours = {Path(name).parts[0] for name in manifest["files"]}
    ours |= {MANIFEST, *NESTED}
    names = sorted(entry.name for entry in path.iterdir() if entry.name not in ours)
    foreign = [name for name in names if not name.startswith((VERIFIED, *GROWING))]
    if foreign:
        raise ArtifactError(
            f"{path}: holds things that are not part of the {kind} ({', '.join(foreign[:3])}); "
            f"move them elsewhere first"
        )
    check_place(path)


def check_name(path: Path) -> None:
    """Raises an error for names that no artifact can have."""
    if path.name in ("", ".."):
        raise ArtifactError(
            f"{path}: a folder that is there already, expected the name of one to be made"
        )
    if len(os.fsencode(path.name)) > 200:
        raise ArtifactError(
            f"{path.name[:40]}…: a name of {len(path.name)} characters, expected at most 200 bytes"
        )


def check_place(path: Path) -> None:
    """Raises an error if nothing can be written there."""
    parent = path.parent
    while not os.path.lexists(parent):
        parent = parent.parent
    if not parent.is_dir():
        raise ArtifactError(f"{path}: cannot be written, {parent} is not a folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ArtifactError(
            f"{path}: cannot be written, no permission in {parent}; choose another place"
        )


def parent_entry(parent: Artifact, target: str | Path) -> ParentEntry:
    """The entry of `parent` in the manifest of a child that is written to `target`."""
    return {
        "fingerprint": parent.fingerprint,
        "path": os.path.relpath(parent.path.resolve(), Path(target).resolve()),
    }


def parent_of(child: Artifact, role: str) -> ParentEntry:
    """The entry of a parent in the manifest of `child`."""
    if role not in child.parents:
        words = f"does not say which {role} it was made from; make it again"
        raise ArtifactError(f"{child.path}: {words}")
    return child.parents[role]


def find_parent(child: Artifact, role: str) -> Path:
    """The folder of a parent, also if parent and child were moved together.

    It may be any folder: only `open_artifact` says what it is.
    """
    place = Path(os.path.normpath(child.path.resolve() / parent_of(child, role)["path"]))
    if not place.is_dir():
        words = f"the {role} it was made from is not there, looked for at {place}"
        other = f", or say where it is with {usage('model', 'FOLDER')}" if role == "model" else ""
        raise ArtifactError(f"{child.path}: {words}; put it or a link to it there{other}")
    return place


def check_parent(child: Artifact, role: str, parent: Artifact) -> None:
    """Raises an error if `child` was not made from exactly this `parent`."""
    expected = parent_of(child, role)["fingerprint"]
    if parent.fingerprint != expected:
        raise ArtifactError(
            f"{child.path} was made from another {role} than {parent.path}: fingerprint "
            f"{expected[:12]}, found {parent.fingerprint[:12]}; use the {role} it was made from, "
            f"or make it again"
        )


def seal(draft: Draft, kind: str, version: int) -> None:
    """Writes the manifest of a folder when all its files are on disk.

    A manifest that was there before is replaced in one step.
    """
    from graphformers.version import __version__

    # What a kill left while the manifest was written would become one of the files.
    sweep_beside(draft.path(MANIFEST))
    found = [file for file in draft.path(draft.part).rglob("*") if file.is_file()]
    names = sorted(
        str(file.relative_to(draft.folder))
        for file in found
        if not file.name.startswith(VERIFIED) and file != draft.path(MANIFEST)
    )
    files: dict[str, FileEntry] = {
        name: {
            "bytes": (draft.folder / name).stat().st_size,
            "sha256": draft.checksums.get(name) or checksum(draft.folder / name),
        }
        for name in names
    }
    content = {
        "kind": kind,
        "format": version,
        "files": files,
        "parents": {r: p["fingerprint"] for r, p in draft.parents.items()},
    }
    manifest: Manifest = {
        "kind": kind,
        "format": version,
        "fingerprint": digest_of(content),
        "written_by": f"graphformers {__version__}",
        "parents": draft.parents,
        "settings": draft.settings,
        "summary": draft.summary,
        "files": files,
    }
    _remember(draft.folder, names)
    folders = {str(parent) for name in names for parent in Path(name).parents}
    for place in [*names, *sorted(folders)]:
        sync(draft.folder / place)
    write_whole(draft.path(MANIFEST), sealed(manifest, SEAL))


def _why_missing(path: Path) -> str:
    if path.exists():
        return "a file, expected one of our folders"
    for suffix in (TRAINING, EMBEDDING):
        work = path.with_name(path.name + suffix)
        if work.is_dir():
            return f"not finished, the command that makes it goes on from {work}"
    return "no such folder"


def _read_manifest(path: Path) -> Manifest:
    if not path.is_dir():
        raise ArtifactError(f"{path}: {_why_missing(path)}")
    if not (path / MANIFEST).is_file():
        if path.suffix in (TRAINING, EMBEDDING):
            made = path.with_suffix("")
            words = "use that" if (made / MANIFEST).is_file() else "use that when it is finished"
            raise ArtifactError(f"{path}: kept by what makes {made}, or made it; {words}")
        raise ArtifactError(f"{path}: not one of our folders, it has no {MANIFEST}")
    refuse_links_out(path)
    manifest = read_sealed(path / MANIFEST, Manifest, SEAL)
    _check_names(path / MANIFEST, manifest)
    return manifest


def _check_names(place: Path, manifest: Manifest) -> None:
    """Checks names and sizes: the checksum of a manifest does not say who wrote it."""

    def require(what: str, value: object, holds: bool, expected: str) -> None:
        if not holds:
            words = f"{what} is {shown(value)}, expected {expected}"
            raise ArtifactError(f"{place}: {words}; {ELSEWHERE}")

    for role, parent in manifest["parents"].items():
        what = f"the path of the parent {shown(role)}"
        require(what, parent["path"], "\0" not in parent["path"], "a path")
    for name, file in manifest["files"].items():
        check_inner_name(place, name)
        require("a file", name, name not in (MANIFEST, VERIFIED), "all others but that")
        require(f"the size of {name}", file["bytes"], file["bytes"] >= 0, "0 or more")


def _exchange(one: Path, other: Path) -> None:
    """Swaps two names in one system call, so that at no moment either is missing."""
    libc = ctypes.CDLL(None, use_errno=True)
    a, b = os.fsencode(one), os.fsencode(other)
    if sys.platform == "darwin":
        failed = libc.renamex_np(a, b, 2)  # RENAME_SWAP
    else:
        failed = libc.renameat2(-100, a, -100, b, 2)  # AT_FDCWD, RENAME_EXCHANGE
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.previous")


def bring_back(target: Path) -> None:
    """Restores a folder that was being replaced by two renames, where there is no exchange, when
    the process was killed between them.
    """
    if not target.exists() and _aside(target).is_dir():
        with held(target.parent, create=False):
            if not target.exists() and _aside(target).is_dir():
                os.rename(_aside(target), target)


def _sweep(target: Path) -> None:
    """Removes drafts of this target whose writers are gone."""
    remove_abandoned(target.parent.glob(f".{glob.escape(target.name)}.draft-*"))
    if target.exists():
        shutil.rmtree(_aside(target), ignore_errors=True)


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def _read_stamps(folder: Path) -> dict[str, list[int]]:
    try:
        return read_record(folder / VERIFIED, dict[str, list[int]])
    except (OSError, ArtifactError):
        return {}


def _remember(folder: Path, names: list[str]) -> None:
    """Notes that these files matched their checksums. A folder we may not write to is simply
    compared again next time.
    """
    stamps = _read_stamps(folder) | {name: _stamp(folder / name) for name in names}
    beside = folder / f"{VERIFIED}{secrets.token_hex(4)}"
    try:
        beside.write_text(json.dumps(stamps))
        os.replace(beside, folder / VERIFIED)
    except OSError:
        pass
