"""update: new, changed and removed nodes and links, with the least possible work.

A node's states depend on its text only; its vector depends on its text and on the states of its
sampled neighbours. So an update encodes the new texts, and then, as centres, the nodes whose text
is new, whose sampled neighbours changed, or one of whose sampled neighbours has a new text.
Sampling depends on ids only, so all other vectors are those that a full embedding of the new graph
would give.

The edits, the new states and the new vectors are one transaction: an update is applied as a whole
or not at all. Applying it again changes nothing and does no work.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphformers.arrays import Array
from graphformers.artifact import find_parent, open_artifact, parent_of
from graphformers.batching.tokens import TokenCache, tokenize
from graphformers.embedding import compaction
from graphformers.embedding.compaction import sweep
from graphformers.embedding.database import EditRows, EditWriter
from graphformers.embedding.edit_input import Links, Nodes, read_edits
from graphformers.embedding.edits import EditResult, Edits, Outcome, apply
from graphformers.embedding.settings import CompactionSettings
from graphformers.embedding.states import model_fingerprint, states_dtype
from graphformers.embedding.vectors import (
    KIND,
    VERSION,
    FolderLock,
    VectorStore,
    locked,
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
        is_compacted: Whether base and edits were written as a new base.
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
    """Applies edits to a folder of vectors, one after the other, with a model that stays loaded.

    Args:
        store: The store of vectors.
        model: The model that made the vectors.
        lock: The lock of the folder, which the caller holds: `with locked(path) as lock`.
        compaction: When the edits are compacted.
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
        self._writer: EditWriter | None = None
        check_model(store, model)

    def apply(self, edits: Edits, *, compact: bool = True) -> UpdateReport:
        """Applies edits; returns when they are on disk."""
        transaction = self.transaction()
        result = transaction.apply(edits)
        report = _with_outcomes(transaction.commit(), edits, result)
        is_compacted = compact and self.is_compaction_due() and self._try_to_compact()
        return replace(report, nodes=len(self.store), is_compacted=is_compacted)

    def transaction(self) -> "Transaction":
        """Begins a transaction on the current version of the store."""
        return Transaction(self)

    def is_compaction_due(self) -> bool:
        """Whether the edits have grown too large."""
        return compaction.is_due(self.store, self._limits)

    def compact(self) -> None:
        """Writes base and edits as the next base.

        Raises:
            GraphFormersError: Nothing changed.
        """
        self._lock.check()
        self.close()
        self.store = compaction.compact(self.store)
        sweep(self.store.path)

    def _try_to_compact(self) -> bool:
        """Compacts the edits. Where that fails, the next update tries again."""
        try:
            self.compact()
        # The update itself is on disk, so any error is only logged.
        except Exception as error:
            logger.warning(
                f"{self.store.path}: the update is done, but its edits could not be compacted: "
                f"{error}"
            )
            return False
        return True

    def write(self, rows: EditRows, graph: EditedGraph) -> None:
        """Commits a transaction and makes the store after it."""
        self._lock.check()
        if self._writer is None:
            self._writer = self._opened()
        commit, states = self._writer.commit(rows)
        graph.forget_changes()
        self.store = self.store.followed_by(commit, rows, states, graph)

    def _opened(self) -> EditWriter:
        """The database of the current base."""
        store = self.store
        if open_artifact(store.path, KIND, VERSION).fingerprint != store.artifact.fingerprint:
            raise ArtifactError(
                f"{store.path}: another base was put in its place while it was in use; open it "
                f"again to change it"
            )
        return store.database.writer(store.commit)

    def close(self) -> None:
        """Closes the database. Another edit opens it again."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        sweep(self.store.path)

    def encode(self, graph: EditedGraph, reread: Array, centers: Array) -> tuple[Array, Array, int]:
        """Encodes nodes.

        Args:
            graph: The graph with the edits.
            reread: Nodes whose texts are new, sorted.
            centers: Nodes whose vectors change, sorted.

        Returns:
            States of the new texts, vectors of the centres, and the number of texts encoded on
            their own.
        """
        store, model = self.store, self.model
        two_pass, inputs = model.two_pass(), model.network.inputs(model.config)
        drawn = graph.sample(centers, store.settings["num_neighbors"], store.settings["seed"])
        needed = two_pass.needed(drawn)
        # States that are not kept are computed again where they are needed.
        fresh = reread if store.states is not None else needed
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


class Transaction:
    """Edits that become visible together.

    Args:
        updater: Writes them.

    Attributes:
        graph: The graph with the edits until now.
    """

    def __init__(self, updater: Updater) -> None:
        self._updater, self.graph = updater, updater.store.graph.copy()
        self.graph.forget_changes()
        self._reread, self._touched, self._is_nothing = set[int](), set[int](), True

    def apply(self, edits: Edits) -> EditResult:
        """Applies edits to the graph. Wrong ones raise an error and change nothing.

        Raises:
            InputError: Edits contradict each other, or a link leads to no node.
        """
        result = apply(edits, self.graph)
        if not result.is_nothing:
            self.graph, self._is_nothing = result.graph, False
            self._reread |= result.reread
            self._touched |= result.touched
        return result

    def commit(self) -> UpdateReport:
        """Computes the vectors that the edits change and writes everything as one transaction.

        Returns:
            The forward passes and their time.
        """
        updater = self._updater
        if self._is_nothing:
            return UpdateReport()
        started = time.perf_counter()
        reread, touched = self._present(self._reread), self._present(self._touched)
        centers = self._affected(reread, touched)
        states, vectors, plain = updater.encode(self.graph, reread, centers)
        seconds = time.perf_counter() - started
        raw = to_precision(vectors, updater.store.precision)
        rows = EditRows(
            self.graph.changed_records(),
            self.graph.changed_pairs(),
            dict(zip(centers.tolist(), raw.rows(), strict=True)),
            dict(zip(reread.tolist(), map(bytes, states), strict=True))
            if updater.store.states is not None
            else {},
        )
        updater.write(rows, self.graph)
        return UpdateReport(plain_forwards=plain, center_forwards=len(centers), seconds=seconds)

    def _present(self, nodes: set[int]) -> Array:
        """Those of the nodes that are still there, sorted."""
        found = np.array(sorted(nodes), dtype=np.int64)
        return found[~np.isin(found, self.graph.removed_nodes)]

    def _affected(self, reread: Array, touched: Array) -> Array:
        """The nodes whose vectors change, sorted."""
        store, after = self._updater.store, self.graph
        num_neighbors, seed = store.settings["num_neighbors"], store.settings["seed"]
        if not num_neighbors:
            return reread
        now = after.sample(touched, num_neighbors, seed)
        is_old = touched < store.graph.num_rows
        was = store.graph.sample(touched[is_old], num_neighbors, seed)
        place = np.cumsum(is_old) - 1
        is_new_text = np.isin(touched, reread)
        around_new = np.isin(now.neighbors, reread)
        changed = [
            bool(
                is_new_text[i]
                or not is_old[i]
                or around_new[now.indptr[i] : now.indptr[i + 1]].any()
            )
            or not np.array_equal(now.of(i), was.of(int(place[i])))
            for i in range(len(touched))
        ]
        return np.asarray(touched[np.array(changed, dtype=bool)])


def _index(mask: Array, model: GraphFormers) -> torch.Tensor:
    return torch.from_numpy(np.flatnonzero(mask)).to(model.device)


def _with_outcomes(report: UpdateReport, edits: Edits, result: EditResult) -> UpdateReport:
    """A report with what edits did."""
    of_nodes, of_links = Counter(result.nodes), Counter(result.links)
    same = (Outcome.SAME, Outcome.NOT_THERE, Outcome.OTHERWISE)
    pairs = zip(edits.unlinked, result.unlinked, strict=True)
    return replace(
        report,
        new_nodes=of_nodes[Outcome.NEW],
        changed_nodes=of_nodes[Outcome.CHANGED],
        removed_nodes=result.removed.count(Outcome.REMOVED),
        new_links=of_links[Outcome.NEW],
        removed_links=result.num_unlinked,
        already_so=sum(result.counts[outcome] for outcome in same),
        self_links=of_links[Outcome.SELF_LINK],
        linked_otherwise=tuple(
            dict.fromkeys(link for link, outcome in pairs if outcome is Outcome.OTHERWISE)
        ),
        not_there=result.unknown,
        new_columns=result.new_columns,
        edge_columns_not_kept=edits.unread,
        columns_not_kept=edits.dropped,
        skipped=edits.skipped,
    )


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
        compaction: When the edits are compacted.
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
        sweep(lock.path)
        store = VectorStore.load(lock.path)
        with advise_skipping():
            edits = read_edits(store.graph, nodes, edges, remove, remove_edges, settings, **reading)
            if model is None:
                model = load_model(store, device)
            elif not isinstance(model, GraphFormers):
                model = GraphFormers.from_pretrained(model, device=device)
            with closing(Updater(store, model, lock, compaction)) as updater:
                # A compaction removes the base that nothing refers to any more.
                del store
                return updater.apply(edits)
