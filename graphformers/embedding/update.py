"""update: new, changed and removed nodes and links, with the least possible work.

A node's states depend on its text only; its vector depends on its text and on the states of its
sampled neighbours. So an update encodes the new texts, and then, as centres, the nodes whose text
is new, whose sampled neighbours changed, or one of whose sampled neighbours has a new text.
Sampling depends on ids only, so all other vectors are those that a full embedding of the new graph
would give.

The changes, the new states and the new vectors are one record of the log: an update is applied as a
whole or not at all. Applying it again changes nothing and does no work.
"""

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphformers.arrays import Array
from graphformers.artifact import check_place, find_parent, parent_of, sweep_drafts
from graphformers.batching.tokens import TokenCache, tokenize
from graphformers.embedding import compaction
from graphformers.embedding.changes import Changes, Effect, Links, Nodes, gather_changes, work_out
from graphformers.embedding.log import NAME, Record
from graphformers.embedding.settings import CompactionSettings
from graphformers.embedding.states import model_fingerprint, states_dtype
from graphformers.embedding.vectors import (
    FolderLock,
    VectorStore,
    locked,
    table_bytes,
    to_precision,
)
from graphformers.errors import ArtifactError
from graphformers.graph.edited import EditedGraph
from graphformers.graph.problems import advise_skipping
from graphformers.graph.protocol import Link
from graphformers.graph.sampling import Neighborhood
from graphformers.graph.settings import ImportSettings
from graphformers.model.encoder import GraphFormers
from graphformers.table import Result, Table

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class UpdateReport(Result):
    """What an update did, and what it left out.

    Attributes:
        new_nodes: Nodes added.
        changed_nodes: Nodes whose text or columns changed.
        removed_nodes: Nodes removed.
        new_links: Links added.
        removed_links: Links removed.
        already_so: Changes that had been made before.
        plain_forwards: Texts encoded on their own.
        center_forwards: Nodes encoded with their neighbours.
        seconds: Time of encoding.
        nodes: Nodes afterwards.
        is_compacted: Whether the log was compacted.
        linked_otherwise: Links to remove whose ends have links of other types only.
        not_there: Ids to remove, or of ends of links to remove, that no node has.
        new_columns: Node columns that no node had before.
        edge_columns_not_kept: Columns of a file of links.
        columns_not_kept: Columns of a file of nodes that the import did not keep, either.
        self_links: Links from a node to itself, which are ignored.
        skipped: Number of bad rows by what is wrong with them.

    Examples:
        >>> report = update("papers.vectors", nodes={"p90": "a new text"}, edges=[("p90", "p7")])
        >>> report.new_nodes, report.new_links
        (1, 1)
    """

    new_nodes: int = 0
    changed_nodes: int = 0
    removed_nodes: int = 0
    new_links: int = 0
    removed_links: int = 0
    already_so: int = 0
    plain_forwards: int = 0
    center_forwards: int = 0
    seconds: float = 0.0
    nodes: int = 0
    is_compacted: bool = False
    linked_otherwise: tuple[Link, ...] = ()
    not_there: tuple[str, ...] = ()
    new_columns: tuple[str, ...] = ()
    edge_columns_not_kept: tuple[str, ...] = ()
    columns_not_kept: tuple[str, ...] = ()
    self_links: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)

    @property
    def forwards(self) -> int:
        """Forward passes of the model."""
        return self.plain_forwards + self.center_forwards

    def to_dict(self) -> dict[str, object]:
        """All fields, for JSON.

        Returns:
            The fields and the number of forward passes.
        """
        return vars(self) | {"forwards": self.forwards}

    def as_table(self) -> Table:
        """A line for what changed, one for the work, and one for each thing that was left out.

        Returns:
            A table that prints on a terminal and shows in notebooks.
        """
        names = (
            "new_nodes",
            "changed_nodes",
            "removed_nodes",
            "new_links",
            "removed_links",
            "already_so",
        )
        counts = {name: getattr(self, name) for name in names}
        done = ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in counts.items() if n)
        lines = [
            f"{done or 'nothing to change'}; {self.nodes:,} vectors now",
            f"{self.forwards:,} forwards in {self.seconds:.2f} s: {self.plain_forwards:,} texts "
            f"encoded on their own, {self.center_forwards:,} nodes encoded with their neighbours",
        ]
        if self.is_compacted:
            lines.append("the changes were compacted into a new base")
        if self.linked_otherwise:
            one, other, kind = self.linked_otherwise[0]
            lines.append(
                f"to be removed, but linked otherwise: {len(self.linked_otherwise):,} links, such "
                f"as {one!r} – {other!r}, which have no link of type {kind!r}"
            )
        if self.not_there:
            lines.append(
                f"to be removed, but not there: {len(self.not_there):,} ids, such as "
                f"{self.not_there[0]!r}"
            )
        if self.self_links:
            lines.append(f"left out: {self.self_links:,} links from a node to itself")
        lines += [f"skipped: {number:,} × {what}" for what, number in self.skipped.items()]
        lines += [f"a new column: {name!r}, which no node had before" for name in self.new_columns]
        if self.columns_not_kept:
            lines.append(
                f"not kept of the nodes: {', '.join(self.columns_not_kept)}, as when the graph was "
                f"imported; {ImportSettings.usage(keep=self.columns_not_kept)} keeps them"
            )
        if self.edge_columns_not_kept:
            lines.append(
                f"not kept of the edges: {', '.join(self.edge_columns_not_kept)}; links that an "
                f"update adds have a type at most"
            )
        return Table((), [(line,) for line in lines])


class Updater:
    """Applies changes to a folder of vectors, one after the other, with a model that stays loaded.

    Args:
        store: The store of vectors.
        model: The model that made the vectors.
        lock: The lock of the folder, which the caller holds: `with locked(path) as lock`.
        compaction: When the log is compacted.
    """

    def __init__(
        self,
        store: VectorStore,
        model: GraphFormers,
        lock: FolderLock,
        compaction: CompactionSettings | None = None,
    ) -> None:
        self.store, self.model, self._lock = store, model, lock
        self._limits = compaction or CompactionSettings()
        check_model(store, model)

    def apply(self, changes: Changes, *, compact: bool = True) -> UpdateReport:
        """Applies changes; returns when they are on disk."""
        store = self.store
        effect = work_out(changes, store.graph)
        if effect.is_nothing:
            report = UpdateReport(
                already_so=_asked(changes), linked_otherwise=tuple(effect.unlinked.otherwise)
            )
        else:
            record, report = self._compute(changes, effect)
            self._lock.check()
            store.log.append(record)
            store.absorb(record, effect.graph)
        is_compacted = compact and compaction.is_due(store, self._limits) and self._compact()
        return replace(report, nodes=len(self.store), is_compacted=is_compacted)

    def _compact(self) -> bool:
        """Compacts the log. Where that fails, the next update tries again."""
        try:
            self.store = compaction.compact(self.store, self._lock)
        # The update itself is on disk, so any error is only logged.
        except Exception as error:
            logger.warning(
                f"{self.store.path}: the update is done, but its log could not be compacted: "
                f"{error}"
            )
            return False
        return True

    def _compute(self, changes: Changes, effect: Effect) -> tuple[Record, UpdateReport]:
        started = time.perf_counter()
        centers = self._affected(effect)
        states, vectors, plain = self._read(effect, centers)
        seconds = time.perf_counter() - started
        graph, store = effect.graph, self.store
        arrays = to_precision(vectors, store.precision).arrays()
        if store.states is not None:
            arrays["states"] = states
        if len(effect.put):
            arrays["nodes"] = table_bytes(effect.put)
        content = {
            "removed": effect.removed,
            "unlinked": [list(pair) for pair in (*effect.unlinked.parted, *effect.unlinked.cut)],
            "linked": [list(link) for link in effect.linked],
            "vectors": graph.ids_of(centers),
            "states": graph.ids_of(effect.reread) if store.states is not None else [],
        }
        known = int((store.graph.find_nodes(effect.put["id"].to_pylist()) >= 0).sum())
        report = UpdateReport(
            new_nodes=len(effect.put) - known,
            changed_nodes=known,
            removed_nodes=len(effect.removed),
            new_links=len(effect.linked),
            removed_links=effect.unlinked.number,
            already_so=_asked(changes) - _done(effect),
            linked_otherwise=tuple(effect.unlinked.otherwise),
            plain_forwards=plain,
            center_forwards=len(centers),
            seconds=seconds,
        )
        return Record(content, arrays), report

    def _affected(self, effect: Effect) -> Array:
        """The nodes whose vectors change, sorted."""
        num_neighbors, seed = self.store.settings["num_neighbors"], self.store.settings["seed"]
        before, after = self.store.graph, effect.graph
        if not num_neighbors:
            return effect.reread
        now = after.sample(effect.touched, num_neighbors, seed)
        is_old = before.find_nodes(after.ids_of(effect.touched)) >= 0
        was = before.sample(effect.touched[is_old], num_neighbors, seed)
        place = np.cumsum(is_old) - 1
        is_new_text = np.isin(effect.touched, effect.reread)
        around_new = np.isin(now.neighbors, effect.reread)
        changed = [
            bool(
                is_new_text[i]
                or not is_old[i]
                or around_new[now.indptr[i] : now.indptr[i + 1]].any()
            )
            or not np.array_equal(now.of(i), was.of(int(place[i])))
            for i in range(len(effect.touched))
        ]
        return np.asarray(effect.touched[np.array(changed, dtype=bool)])

    def _read(self, effect: Effect, centers: Array) -> tuple[Array, Array, int]:
        """States of the new texts, vectors of the centres, and the number of texts encoded on their
        own.
        """
        store, model, graph = self.store, self.model, effect.graph
        two_pass, inputs = model.two_pass(), model.network.inputs(model.config)
        drawn = graph.sample(centers, store.settings["num_neighbors"], store.settings["seed"])
        needed = two_pass.needed(drawn)
        # States that are not kept are computed again where they are needed.
        fresh = effect.reread if store.states is not None else needed
        everyone = np.unique(
            np.concatenate([centers, fresh, drawn.neighbors, needed]).astype(np.int64)
        )

        def local(nodes: Array) -> Array:
            return np.searchsorted(everyone, nodes)

        tokens = self._tokens(
            graph,
            everyone,
            np.concatenate([centers, fresh, drawn.neighbors if inputs.joint else fresh]),
        )
        states_NSD = model.encode_states(tokens, local(fresh)).to(states_dtype(store.key.precision))
        known_NSD = states_NSD.new_empty(len(needed), *states_NSD.shape[1:])
        is_fresh = np.isin(needed, fresh)
        known_NSD[_index(is_fresh, model)] = states_NSD[
            torch.from_numpy(np.searchsorted(fresh, needed[is_fresh])).to(model.device)
        ]
        if not is_fresh.all():
            known_NSD[_index(~is_fresh, model)] = torch.from_numpy(
                store.states_of(needed[~is_fresh])
            ).to(model.device)
        neighborhood = Neighborhood(local(centers), drawn.indptr, local(drawn.neighbors))
        vectors = model.encode_centers(tokens, neighborhood, known_NSD, local(needed))
        return states_NSD.cpu().numpy(), vectors, len(fresh) if inputs.num_states else 0

    def _tokens(self, graph: EditedGraph, everyone: Array, read: Array) -> TokenCache:
        """The tokens of the nodes to encode; the others, whose states are known, have none."""
        is_read = np.isin(everyone, read)
        texts = iter(graph.texts_of(everyone[is_read]))
        tokens = tokenize([next(texts) if flag else "" for flag in is_read], self.model.tokenizer)
        return replace(tokens, id_hashes=graph.hashes_of(everyone))


def _index(mask: Array, model: GraphFormers) -> torch.Tensor:
    return torch.from_numpy(np.flatnonzero(mask)).to(model.device)


def _asked(changes: Changes) -> int:
    return len(changes.nodes) + len(changes.links) + len(changes.removed) + len(changes.unlinked)


def _done(effect: Effect) -> int:
    return len(effect.put) + len(effect.linked) + len(effect.removed) + effect.unlinked.fulfilled


def load_model(store: VectorStore, device: str | None = None) -> GraphFormers:
    """The model that made these vectors, from where it was then."""
    if not parent_of(store.artifact, "model")["path"]:
        raise ArtifactError(
            f"{store.path}: was made with a model that had no folder; pass it as model="
        )
    return GraphFormers.from_pretrained(find_parent(store.artifact, "model"), device=device)


def check_model(store: VectorStore, model: GraphFormers) -> None:
    """Raises an error if another model made these vectors."""
    found, expected = model_fingerprint(model), store.key.model
    if found != expected:
        raise ArtifactError(
            f"{store.path} was made with another model than {model.source or 'the one given'}: "
            f"fingerprint {expected[:12]}, "
            f"found {found[:12]}; use the model it was made with, or embed the graph anew"
        )


def update(
    vectors: str | Path | VectorStore,
    *,
    nodes: Nodes | None = None,
    edges: Links | None = None,
    remove: str | Path | Iterable[str] | None = None,
    remove_edges: Links | None = None,
    model: GraphFormers | str | Path | None = None,
    settings: ImportSettings | None = None,
    compaction: CompactionSettings | None = None,
    device: str | None = None,
    **reading: Any,
) -> UpdateReport:
    """Updates a folder of vectors after changes of its graph.

    A store that was loaded before does not change; load it again.

    Args:
        vectors: The folder of vectors, or its store.
        nodes: New or changed nodes: a file, a table, or a mapping from id to text.
        edges: New links: a file, or tuples of ids and perhaps a type.
        remove: Nodes to remove: a file, or ids.
        remove_edges: Links to remove, like `edges`.
        model: The model that made the vectors; by default it is loaded from where it was then.
        settings: How the files are read; by default like the graph's own.
        compaction: When the log is compacted.
        device: The device of the model.
        reading: Settings of `ImportSettings` by name, instead of `settings`.

    Returns:
        What was done.

    Raises:
        ArtifactError: Another process changes the folder, or another model made the vectors.
        InputError: A file is invalid.

    Examples:
        >>> report = update(
        ...     "papers.vectors",
        ...     nodes={"p91": "a new text"},
        ...     edges=[("p91", "p7"), ("p91", "p8", "cites")],
        ...     remove=["p13"],
        ... )
        >>> VectorStore.load("papers.vectors")["p91"].dtype
        dtype('float32')
    """
    with locked(vectors.path if isinstance(vectors, VectorStore) else vectors) as lock:
        path = lock.path
        check_place(path / NAME)
        # A killed compaction leaves a draft.
        sweep_drafts(path)
        store = VectorStore.load(path)
        with advise_skipping():
            changes = gather_changes(
                store.graph, nodes, edges, remove, remove_edges, settings, **reading
            )
        if model is None:
            model = load_model(store, device)
        elif not isinstance(model, GraphFormers):
            model = GraphFormers.from_pretrained(model, device=device)
        known = store.graph.column_names
        new = tuple(
            name for name in changes.nodes.column_names if name not in ("id", "text", *known)
        )
        not_there = _not_there(changes, store.graph)
        report = Updater(store, model, lock, compaction).apply(changes)
        loops = sum(one == other for one, other, _ in changes.links)
        return replace(
            report,
            already_so=report.already_so - loops,
            self_links=loops,
            not_there=not_there,
            new_columns=new,
            edge_columns_not_kept=changes.unread,
            columns_not_kept=changes.dropped,
            skipped=changes.skipped,
        )


def _not_there(changes: Changes, graph: EditedGraph) -> tuple[str, ...]:
    """The ids to remove, of nodes and links, that neither the graph nor the new nodes have."""
    ids = list(
        dict.fromkeys([*changes.removed, *(end for link in changes.unlinked for end in link[:2])])
    )
    brought = set(changes.nodes["id"].to_pylist())
    return tuple(
        id
        for id, node in zip(ids, graph.find_nodes(ids).tolist(), strict=True)
        if node < 0 and id not in brought
    )
