"""embed: writes the vectors of a graph as a folder, in two passes over shards of nodes.

The unfinished work lies in papers.vectors.embedding/:

    plan.json   everything that determines the bytes of the result
    notes/      a note for each finished shard
    folder/     becomes papers.vectors: base-0001/ with graph/, states/, vectors/
    dropped/    states that are not kept

The same command continues behind the finished shards; another plan is refused. When all shards are
there, the manifest is written and `folder` is renamed: nothing is copied.
"""

import json
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from graphformers.artifact import (
    EMBEDDING,
    MANIFEST,
    Draft,
    check_name,
    check_writable,
    open_artifact,
    publish_artifact,
)
from graphformers.batching.tokens import TokenCache, graph_tokens, truncation_warning
from graphformers.embedding.phases import Phases
from graphformers.embedding.plan import Plan, check_memory, stay_in_memory
from graphformers.embedding.settings import EmbedSettings
from graphformers.embedding.shards import ShardFolder, locked_handle, shard_name, which_folder
from graphformers.embedding.vectors import FIRST_BASE, KIND, VERSION, VectorStore, locked
from graphformers.errors import ArtifactError, GraphFormersError
from graphformers.files import foreign_entry, full_disk, require_space, write_whole
from graphformers.graph.protocol import Graph
from graphformers.graph.textgraph import TextGraph, loaded_graph
from graphformers.model.encoder import GraphFormers
from graphformers.places import refuse_links_out
from graphformers.progress import progress
from graphformers.records import read_record
from graphformers.settings import usage

logger = logging.getLogger(__name__)

# Marks unfinished folders of graphformers.
MARK = "plan.json"
# Names the folder that is being renamed.
SEALED = "sealed"
# Kinds of shards.
KINDS = (
    *(f"folder/{FIRST_BASE}/{kind}" for kind in ("states", "vectors", "scales")),
    "dropped/states",
)
# Threads that compare checksums.
CHECKERS = 4
# Fields of the plan that a folder of vectors saves.
PLAN_SETTINGS = (
    "method",
    "similarity",
    "link_weight",
    "hidden_size",
    "num_neighbors",
    "seed",
    "precision",
    "shard_size",
    "compute",
)


@dataclass(frozen=True)
class Workplace:
    """The folder of an unfinished embedding."""

    path: Path
    plan: Plan

    @property
    def folder(self) -> Path:
        """Becomes the folder of vectors."""
        return self.path / "folder"

    @property
    def base(self) -> Path:
        """Holds the graph, the vectors and the states that are kept."""
        return self.folder / FIRST_BASE

    @property
    def states(self) -> ShardFolder:
        return ShardFolder(
            self.base if self.plan.keep_states else self.path / "dropped", self.path / "notes"
        )

    @property
    def vectors(self) -> ShardFolder:
        return ShardFolder(self.base, self.path / "notes")

    @contextmanager
    def opened(self, *, force: bool) -> Iterator[None]:
        """Makes the folder or continues in it, under a lock that keeps other processes out."""
        # Before anything in the folder is read, removed or written.
        refuse_links_out(self.path)
        handle, is_open = self._lock(), False
        try:
            self._check_plan(force)
            self.sweep()
            is_open = True
            yield
        except BaseException:
            if not self.is_begun and (self.path / MARK).is_file():
                remove_work(self.path)
            elif is_open and self.is_begun:
                logger.info(
                    f"{self.path}: finished shards are kept there; the same command goes on from "
                    f"them"
                )
            raise
        finally:
            os.close(handle)

    def _lock(self) -> int:
        """A handle of the folder, locked.

        The process that had the lock may finish meanwhile and remove the folder; then another one
        is made.
        """
        while True:
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                handle = locked_handle(self.path)
            except FileNotFoundError:
                continue
            if handle is None:
                raise GraphFormersError(
                    f"{self.path}: another process is embedding here; wait for it or stop it"
                )
            return handle

    def check_space(self, *, in_memory: bool) -> None:
        """Raises an error early if the disk is too small for the result.

        With `in_memory`, states need not be on disk between the two passes.
        """
        plan = self.plan
        is_written = plan.keep_states or not in_memory
        kinds = [kind for kind in KINDS if is_written or not kind.endswith("states")]
        done = sum(
            file.stat().st_size for kind in kinds for file in (self.path / kind).glob("*.npy")
        )
        needed = plan.bytes_of_vectors() + plan.bytes_of_states() * is_written - done
        less = EmbedSettings.usage(keep_states=False)
        advice = f"; {less} needs less" if plan.keep_states and in_memory else ""
        require_space(self.path, needed, advice)

    def missing(self, *, in_memory: bool) -> tuple[list[int], list[int]]:
        """The shards whose states are missing, and those whose vectors are.

        States that are kept are checked in any case.
        """
        plan, left = self.plan, self.unfinished("vectors")
        if not plan.num_states or not (left or plan.keep_states):
            return [], left
        return self.unfinished("states") if plan.keep_states or not in_memory else list(
            range(len(plan.shards))
        ), left

    def _check_plan(self, force: bool) -> None:
        place = self.path / MARK
        before: dict[str, object] | None = None
        try:
            before = read_record(place, dict[str, object])
        except FileNotFoundError:
            pass
        except (OSError, ArtifactError) as error:
            if not force:
                raise GraphFormersError(
                    f"{place}: cannot be read ({error}); {usage('force', True)} starts anew"
                ) from error
            before = {}
        strange = foreign_entry(self.path, MARK)
        if strange is not None:
            raise GraphFormersError(
                f"{self.path}: holds {strange!r} and no embedding of ours; move it, or choose "
                f"another output"
            )
        differing = [] if before is None else self.plan.differences(before)
        if differing and not force and self.is_begun:
            raise GraphFormersError(
                f"{self.path}: an unfinished embedding of something else "
                f"({'; '.join(differing[:3])}); finish that one, "
                f"or start anew with {usage('force', True)}"
            )
        if before is None or differing:
            clear_work(self.path)
            write_whole(place, json.dumps(asdict(self.plan), indent=1).encode())

    @property
    def is_begun(self) -> bool:
        """Whether there is a finished shard, so that work could be lost."""
        return any((self.path / "notes").glob("*.json"))

    def sweep(self) -> None:
        """Removes what killed writers left beside the shards."""
        for kind in (*KINDS, "notes"):
            for file in (self.path / kind).glob(".*"):
                file.unlink(missing_ok=True)
        for folder in self.base.glob(".*graph*"):
            shutil.rmtree(folder, ignore_errors=True)

    def unfinished(self, kind: str) -> list[int]:
        """The missing shards of a kind; finished ones are verified, and damaged ones count as
        missing.
        """
        shards = self.states if kind == "states" else self.vectors
        others = ["scales"] if kind == "vectors" and self.plan.precision == "int8" else []

        def is_done(shard: int) -> bool:
            names = [shard_name(each, shard) for each in (kind, *others)]
            if any(shards.note(name) is None for name in names):
                return False
            if all(map(shards.is_intact, names)):
                return True
            logger.warning(
                f"{shards.folder / names[0]}: damaged, its checksum does not match; it is made "
                f"again"
            )
            return False

        numbers = range(len(self.plan.shards))
        with ThreadPoolExecutor(CHECKERS) as threads:
            found = list(threads.map(is_done, numbers))
        return [shard for shard in numbers if not found[shard]]

    def put_graph(self, graph: TextGraph) -> None:
        """Puts the graph into the folder: linked on the same disk, copied elsewhere."""
        place = self.base / "graph"
        self.base.mkdir(parents=True, exist_ok=True)
        # The graph may have other columns than the last time, which change no vector.
        if graph.artifact is None:
            graph.save(place, force=True)
            return
        # From an earlier run.
        if place.exists():
            try:
                found = open_artifact(place, graph.artifact.kind, None)
                found.verify()
                if found.fingerprint == graph.artifact.fingerprint:
                    return
            except ArtifactError as error:
                logger.warning(f"{error}; it is put there again")
            shutil.rmtree(place)
        if not graph.artifact.path.is_dir():
            raise ArtifactError(
                f"{graph.artifact.path}: is no longer there, and the vectors are to hold it; save "
                f"the graph again"
            )
        beside, stood_there = self.base / ".graph", which_folder(graph.artifact.path)
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        for name in ("manifest.json", ".verified.json", *graph.artifact.files):
            source = graph.artifact.path / name
            (beside / name).parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(source.resolve(), beside / name)
            except OSError:
                if source.exists():
                    shutil.copy2(source, beside / name)
        found = open_artifact(beside, graph.artifact.kind, None)
        if (
            found.fingerprint != graph.artifact.fingerprint
            or which_folder(graph.artifact.path) != stood_there
        ):
            raise ArtifactError(
                f"{graph.artifact.path}: another graph was put there since this one was loaded; "
                f"load it again"
            )
        os.rename(beside, place)

    def publish(self, output: Path, sources: dict[str, Path | None], *, force: bool) -> None:
        """Writes the manifest and renames the folder to its final name.

        The graph is verified last: once the manifest is written, damage would pass as intended.
        """
        self.sweep()
        graph = open_artifact(self.base / "graph", None, None)
        graph.verify()
        plan = self.plan
        kept = {"vectors": self.vectors}
        if plan.precision == "int8":
            kept["scales"] = self.vectors
        if plan.keep_states:
            kept["states"] = self.states
        checksums = {
            f"{FIRST_BASE}/graph/{name}": entry["sha256"] for name, entry in graph.files.items()
        }
        text_hashes = []
        for kind, place in kept.items():
            for shard in range(len(plan.shards)):
                note = place.note(shard_name(kind, shard))
                assert note is not None, "all shards are finished"
                checksums[f"{FIRST_BASE}/{shard_name(kind, shard)}"] = note["sha256"]
                if kind == "states":
                    text_hashes.append(note["text_hash"])
        draft = Draft(self.folder, checksums=checksums)
        states = {"key": asdict(plan.key), "text_hashes": text_hashes}
        draft.settings = {name: getattr(plan, name) for name in PLAN_SETTINGS} | {
            "base": FIRST_BASE,
            "key": asdict(plan.key),
            "state_shape": [plan.num_states, plan.hidden_size],
            "states": states if plan.keep_states else None,
        }
        draft.summary = {"nodes": plan.num_nodes}
        fingerprints = {"model": plan.key.model, "graph": plan.graph}
        draft.parents = {
            role: {
                "fingerprint": fingerprints[role],
                # Empty for one that was never saved.
                "path": os.path.relpath(source.resolve(), output.resolve()) if source else "",
            }
            for role, source in sources.items()
        }
        write_whole(self.path / SEALED, str(which_folder(self.folder)).encode())
        with unused(output):
            publish_artifact(draft, output, KIND, VERSION, force=force)
        remove_work(self.path)


def embed(
    model: GraphFormers | str | Path,
    graph: Graph | str | Path,
    out: str | Path,
    settings: EmbedSettings | None = None,
    *,
    force: bool = False,
    **changes: Any,
) -> VectorStore:
    """Writes the vector of every node of a graph, and the layer states, as a folder.

    The same call continues an embedding that was stopped.

    Args:
        model: A model or its folder.
        graph: A graph or its folder.
        out: The folder of vectors to write.
        settings: How the graph is embedded.
        force: Whether to replace an existing output.
        changes: Settings of `EmbedSettings` by name, in addition to `settings`.

    Returns:
        The store of vectors.

    Raises:
        ArtifactError: The output exists, or unfinished work has another plan.
        GraphFormersError: The disk is too small, or a setting is invalid.

    Examples:
        >>> embed("papers.model", "papers.graph", "half.vectors", precision="float16")
        VectorStore(80 vectors of ... numbers)
    """
    output = Path(out)
    settings = replace(settings or EmbedSettings(), **changes)
    check_output(output, force=force)
    model = model if isinstance(model, GraphFormers) else GraphFormers.from_pretrained(model)
    graph = loaded_graph(graph)
    plan = Plan.of(model, graph, settings)
    in_memory = stay_in_memory(plan, settings, model.device)
    check_memory(plan, model.device, in_memory=in_memory)
    with working(model, graph, output, plan, force=force, in_memory=in_memory) as work:
        _run(model, graph, work, settings, in_memory=in_memory)
    return VectorStore.load(output)


@contextmanager
def working(
    model: GraphFormers,
    graph: TextGraph,
    output: Path,
    plan: Plan,
    *,
    force: bool,
    in_memory: bool,
) -> Iterator[Workplace]:
    """The folder of an embedding, prepared for the first shard. It is published when the `with`
    block has computed all.

    With `in_memory`, states need not be on disk between the two passes.
    """
    if model.network.inputs(model.config).joint:
        logger.info(
            "a bidirectional model: the states of neighbours depend on who asks and cannot be "
            "reused, so every node is read "
            f"together with up to {plan.num_neighbors} neighbours: {plan.num_neighbors + 1} "
            f"forwards instead of 2"
        )
    work = Workplace(work_path(output), plan)
    sources = {"model": model.source, "graph": graph.artifact.path if graph.artifact else None}
    try:
        with work.opened(force=force):
            # The process that had the lock may have made it.
            check_writable(output, KIND, force=force)
            work.check_space(in_memory=in_memory)
            work.put_graph(graph)
            yield work
            work.publish(output, sources, force=force)
    except OSError as error:
        raise full_disk(error, output) from error


def check_output(output: Path, *, force: bool) -> None:
    """Raises an error early if `output` cannot be written."""
    path = work_path(output)
    if (output / MANIFEST).is_file() and _is_left(path):
        _remove_left(path)
    check_writable(output, KIND, force=force)
    with unused(output):
        pass


def _is_left(path: Path) -> bool:
    """Whether an embedding's folder holds no unfinished work, but the folder that the result
    replaced.
    """
    if not path.is_dir() or foreign_entry(path, MARK) is not None:
        return False
    own = path / "folder"
    return not own.exists() or (
        (path / SEALED).is_file() and (path / SEALED).read_text() != str(which_folder(own))
    )


def _remove_left(path: Path) -> None:
    """Removes what a kill left just after the result was renamed, unless a process uses it."""
    try:
        handle = locked_handle(path)
    except FileNotFoundError:
        return
    if handle is None:
        return
    try:
        if _is_left(path):
            remove_work(path)
    finally:
        os.close(handle)


def unused(output: Path) -> AbstractContextManager[object]:
    """Locks a folder of vectors that is to be replaced.

    A server that accepts changes, or an update, holds the lock while it runs.
    """
    return locked(output) if (output / MANIFEST).is_file() else nullcontext()


def work_path(output: Path) -> Path:
    """The folder of the unfinished work of `output`, on the same disk even behind a link."""
    check_name(output)
    place = Path(os.path.realpath(output)) if output.is_symlink() else output
    return place.with_name(place.name + EMBEDDING)


def clear_work(path: Path) -> None:
    """Empties an embedding's folder except its mark, by which it can be recognised after a kill."""
    # The mark goes last.
    for entry in sorted(path.iterdir(), key=lambda entry: entry.name != "folder"):
        if entry.name != MARK:
            is_folder = entry.is_dir() and not entry.is_symlink()
            shutil.rmtree(entry) if is_folder else entry.unlink()


def remove_work(path: Path) -> None:
    """Removes an embedding's folder, its mark last."""
    clear_work(path)
    shutil.rmtree(path, ignore_errors=True)


def _run(
    model: GraphFormers,
    graph: TextGraph,
    work: Workplace,
    settings: EmbedSettings,
    *,
    in_memory: bool,
) -> None:
    plan, on_gpu = work.plan, model.device.type == "cuda"
    texts, left = work.missing(in_memory=in_memory)
    if not left and not texts:
        return
    if plan.compile:
        model.compile_layers()
    workers = settings.workers
    if workers is None:
        workers = min(4, (os.cpu_count() or 2) - 1) if on_gpu else 0
    # Where only states are missing, nothing reads them afterwards.
    in_memory = in_memory and bool(left)
    phases = Phases(
        model,
        graph,
        tokens_of(graph, model),
        plan,
        (work.states, work.vectors),
        in_memory=in_memory,
        workers=workers,
    )
    if in_memory and plan.keep_states:
        phases.load_states(set(range(len(plan.shards))) - set(texts))
    for title, shards, read in (
        ("Encoding texts", texts, phases.encode_texts),
        ("Embedding", left, phases.encode_centers),
    ):
        if shards:
            with progress(title, plan.num_nodes, "nodes") as task:
                task.skip(plan.num_nodes - num_nodes(plan, shards))
                read(shards, task)


def tokens_of(graph: TextGraph, model: GraphFormers) -> TokenCache:
    """The tokens of a graph. Logs how many texts are cut."""
    tokens = graph_tokens(graph, model.tokenizer)
    if words := truncation_warning(tokens, model.config.max_tokens):
        logger.info(words)
    return tokens


def num_nodes(plan: Plan, shards: Sequence[int]) -> int:
    """Number of nodes of some shards."""
    return sum(plan.shards[shard][1] - plan.shards[shard][0] for shard in shards)
