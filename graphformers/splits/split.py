"""LinkSplit: train, valid and test links of a graph, with candidates to rank.

Held-out links are never among the neighbours that models see: `indptr` and `indices` hold the train
links and, in the rows of held-out nodes, their links to known nodes except the held-out one.
"""

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from graphformers.arrays import (
    Array,
    check_range,
    check_rows,
    load_array,
    pair_keys,
    save_array,
)
from graphformers.artifact import (
    Artifact,
    check_parent,
    find_parent,
    open_artifact,
    parent_entry,
    write_artifact,
)
from graphformers.errors import ArtifactError, GraphFormersError
from graphformers.graph.protocol import Graph
from graphformers.graph.sampling import NeighborSampler
from graphformers.graph.textgraph import TextGraph, loaded_graph
from graphformers.graph.times import format_time
from graphformers.records import ELSEWHERE, JsonObject, checked
from graphformers.splits.candidates import default_lists, draw_candidates
from graphformers.splits.holdout import (
    OF_LINKS,
    Rows,
    add_pairs,
    hold_out,
    known_nodes,
    pair_hashes,
    times_of,
    wanted_pairs,
)
from graphformers.splits.settings import SplitSettings
from graphformers.table import Result, Table

KIND = "split"
VERSION = 1
# the arrays of a split folder, with their numbers of dimensions
ARRAYS = {
    "indptr": 1,
    "indices": 1,
    "train": 2,
    "valid_pairs": 2,
    "valid_candidates": 2,
    "test_pairs": 2,
    "test_candidates": 2,
    "held_out_nodes": 1,
}
# With fewer questions scores are imprecise: of 30, one is 3 percent.
MIN_QUESTIONS = 30
# Questions, and negatives of each, in the table of questions.
SHOWN = 5


class SplitSummary(TypedDict):
    """What the manifest of a split says under `summary`, as far as it is used again."""

    notes: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class LinkQuestions(Result):
    """Q held-out links, each with the candidates among which its positive is ranked.

    Attributes:
        pairs: (Q, 2) int32: anchors and positives.
        candidates: (Q, C) int32: the positive first, then the negatives.
    """

    pairs: Array
    candidates: Array

    def __len__(self) -> int:
        return len(self.pairs)

    def __repr__(self) -> str:
        return f"LinkQuestions({len(self):,} pairs, {self.candidates.shape[1]:,} candidates each)"

    def as_table(self) -> Table:
        """The first pairs and candidates, by row numbers."""
        header = ("anchor", "positive", "negatives")
        shown = zip(self.pairs[:SHOWN].tolist(), self.candidates[:SHOWN].tolist(), strict=True)
        rows = []
        for (anchor, positive), (_, *negatives) in shown:
            more = " …" if len(negatives) > SHOWN else ""
            listed = ", ".join(map(str, negatives[:SHOWN]))
            rows.append((str(anchor), str(positive), f"{listed}{more}"))
        return Table(header, rows, title=repr(self))


@dataclass(frozen=True, eq=False, repr=False)
class LinkSplit(Result):
    """Train, valid and test links of a graph. Made by `split_links` or `LinkSplit.load`.

    Attributes:
        graph: The graph that was split.
        settings: How links were held out.
        indptr: (N + 1,) int64: where the neighbours of each node start in `indices`.
        indices: int32: the neighbours that models may see.
        train: (T, 2) int32: pairs to train on, each unordered pair once.
        valid: The questions of validation: pairs and their candidates.
        test: The questions of the test.
        held_out_nodes: Nodes that are unknown in training, sorted.
        notes: Where the split deviates from the settings, and why.
        artifact: The folder this split was loaded from or saved to, if any.

    Examples:
        >>> split = LinkSplit.load("papers.split")
        >>> split
        LinkSplit(136 train, 10 valid, 10 test pairs)
    """

    graph: TextGraph
    settings: SplitSettings
    indptr: Array
    indices: Array
    train: Array
    valid: LinkQuestions
    test: LinkQuestions

    held_out_nodes: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int32))

    notes: tuple[str, ...] = ()
    artifact: Artifact | None = None

    def __repr__(self) -> str:
        return (
            f"LinkSplit({len(self.train):,} train, {len(self.valid):,} "
            f"valid, {len(self.test):,} test pairs)"
        )

    def sampler(self, num_neighbors: int = 5, seed: int | None = None) -> NeighborSampler:
        """A sampler of neighbours over the links that models may see.

        Args:
            num_neighbors: Neighbours of a node, at most.
            seed: Seed of the draw; by default that of the split.

        Returns:
            The sampler.

        Raises:
            GraphFormersError: `num_neighbors` is negative.

        Examples:
            >>> split.sampler(num_neighbors=2).sample(split.test.pairs[:, 0])
            Neighborhood(10 centers, 20 neighbors)
        """
        return NeighborSampler(
            self.indptr,
            self.indices,
            self.graph.id_hashes,
            num_neighbors,
            self.settings.seed if seed is None else seed,
        )

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of the split's folder; without one, a hash of its links."""
        if self.artifact is not None:
            return self.artifact.fingerprint
        digest = hashlib.sha256(self.graph.fingerprint.encode())
        candidates = (self.valid.candidates, self.test.candidates)
        for array in (self.indptr, self.indices, self.train, *candidates):
            digest.update(np.ascontiguousarray(array).view(np.uint8).data)
        return digest.hexdigest()

    @cached_property
    def mean_neighbors(self) -> float:
        """Mean number of neighbours that models may see."""
        return len(self.indices) / self.graph.num_nodes

    def sizes(self) -> dict[str, float]:
        """The columns of the paper's Table 1.

        Returns:
            Numbers of nodes and of pairs, and the mean number of neighbours, by column.
        """
        sizes = {"#Train": len(self.train), "#Valid": len(self.valid), "#Test": len(self.test)}
        return {"#Item": self.graph.num_nodes, "#N": round(self.mean_neighbors, 2), **sizes}

    def to_dict(self) -> JsonObject:
        """Sizes, settings and notes, for JSON.

        Returns:
            Values by name.
        """
        return self.sizes() | {
            "held_out": self.settings.held_out,
            "held_out_nodes": len(self.held_out_nodes),
            "candidates": self.test.candidates.shape[1],
            "seed": self.settings.seed,
            "graph": "" if self.graph.artifact is None else str(self.graph.artifact.path),
            "notes": list(self.notes),
        }

    def as_table(self) -> Table:
        """The columns of the paper's Table 1, with settings and notes below.

        Returns:
            A table that prints on a terminal and shows in notebooks.
        """
        found = self.to_dict()
        notes = [
            "#N: neighbours per node that models may see, on average",
            f"held out: {found['held_out']}; {found['candidates']} candidates per question; seed "
            f"{found['seed']}",
            f"graph: {found['graph']}",
        ]
        notes += [f"note: {note}" for note in self.notes]
        sizes = self.sizes()
        return Table(tuple(sizes), [tuple(f"{value:,}" for value in sizes.values())], notes=notes)

    def save(self, path: str | Path, *, force: bool = False) -> "LinkSplit":
        """Writes the split as a folder.

        Args:
            path: The folder to write.
            force: Replace a split folder that exists.

        Returns:
            The split as loaded from the folder.

        Raises:
            ArtifactError: The folder exists.
            GraphFormersError: The graph of the split was not saved before.

        Examples:
            >>> split = split_links("papers.graph", valid=10, test=10).save("new.split")
        """
        if self.graph.artifact is None:
            raise GraphFormersError(
                "save the graph first, and split what graph.save(…) returns: a split on disk must "
                "find its graph again"
            )
        with write_artifact(path, KIND, VERSION, force=force) as draft:
            for name in ("indptr", "indices", "train", "held_out_nodes"):
                save_array(draft.path(f"{name}.npy"), getattr(self, name))
            for name, questions in (("valid", self.valid), ("test", self.test)):
                save_array(draft.path(f"{name}_pairs.npy"), questions.pairs)
                save_array(draft.path(f"{name}_candidates.npy"), questions.candidates)
            draft.parents = {"graph": parent_entry(self.graph.artifact, path)}
            draft.settings = dict(vars(self.settings))
            draft.summary = self.sizes() | {"notes": list(self.notes)}
        return LinkSplit.load(path)

    @staticmethod
    def load(path: str | Path, graph: TextGraph | None = None) -> "LinkSplit":
        """Maps a split folder into memory.

        Args:
            path: The split folder.
            graph: The graph that was split; by default it is loaded from its recorded path.

        Returns:
            The split.

        Raises:
            ArtifactError: The folder is missing or damaged, or the split was made from another
                graph.
        """
        artifact = open_artifact(path, KIND, VERSION)
        graph = graph or TextGraph.load(find_parent(artifact, "graph"))
        if graph.artifact is None:
            raise GraphFormersError(
                f"{path}: a graph that was not saved given, expected the saved graph that the "
                f"split was made from; save it with graph.save(…), or leave it out"
            )
        check_parent(artifact, "graph", graph.artifact)

        files = [f"{name}.npy" for name in ARRAYS]
        artifact.paths(files, lambda _: _check(_read(artifact, graph)))
        return _read(artifact, graph)


def _read(artifact: Artifact, graph: TextGraph) -> LinkSplit:
    """Maps a split folder into memory; its content is checked once, by `_check`."""
    found = {
        name: load_array(artifact.path / f"{name}.npy", "integer", ndim)
        for name, ndim in ARRAYS.items()
    }
    summary = checked(artifact.manifest, artifact.summary, SplitSummary, "summary")
    return LinkSplit(
        graph=graph,
        settings=checked(artifact.manifest, artifact.settings, SplitSettings, "settings"),
        indptr=found["indptr"],
        indices=found["indices"],
        train=found["train"],
        valid=LinkQuestions(found["valid_pairs"], found["valid_candidates"]),
        test=LinkQuestions(found["test_pairs"], found["test_candidates"]),
        held_out_nodes=found["held_out_nodes"],
        notes=summary["notes"],
        artifact=artifact,
    )


def _check(split: LinkSplit) -> None:
    """Raises an ArtifactError if the arrays of a loaded split do not fit each other."""
    assert split.artifact is not None, "a loaded split has a folder"
    place, num_nodes = split.artifact.path, split.graph.num_nodes
    check_rows(place / "indptr.npy", split.indptr, num_nodes, len(split.indices))
    pairs = {"train": split.train}
    for name, questions in (("valid", split.valid), ("test", split.test)):
        pairs[f"{name}_pairs"] = questions.pairs
        if len(questions.candidates) != len(questions.pairs) or not questions.candidates.shape[1]:
            words = f"not a list of candidates for each of {len(questions):,} pairs"
            raise ArtifactError(f"{place / f'{name}_candidates.npy'}: {words}; {ELSEWHERE}")
    for name, array in pairs.items():
        if array.shape[1] != 2:
            words = f"{array.shape[1]} nodes in a row, expected 2"
            raise ArtifactError(f"{place / f'{name}.npy'}: {words}; {ELSEWHERE}")
    others = {
        "indices": split.indices,
        "valid_candidates": split.valid.candidates,
        "test_candidates": split.test.candidates,
        "held_out_nodes": split.held_out_nodes,
    }
    for name, array in (pairs | others).items():
        check_range(place / f"{name}.npy", array, num_nodes)


def loaded_split(split: LinkSplit | str | Path) -> LinkSplit:
    """A split as it is, or loaded from its folder."""
    if isinstance(split, LinkSplit):
        return split
    if not isinstance(split, str | Path):
        raise GraphFormersError(
            f"a {type(split).__name__} given, expected a split: split_links(graph) makes one"
        )
    return LinkSplit.load(split)


def split_links(
    graph: Graph | str | Path, settings: SplitSettings | None = None, **changes: Any
) -> LinkSplit:
    """Divides the links of a graph into train, valid and test.

    Args:
        graph: A graph or its folder.
        settings: How links are held out.
        changes: Settings of `SplitSettings` by name, instead of `settings`.

    Returns:
        The split, with saved candidates for each question.

    Raises:
        GraphFormersError: The graph has too few links, or a setting is invalid.

    Examples:
        >>> split_links("papers.graph", valid=0.05, test=10, candidates=20)
        LinkSplit(138 train, 8 valid, 10 test pairs)
    """
    settings = settings or SplitSettings.from_keywords("split_links", changes)
    graph = loaded_graph(graph)
    if graph.num_pairs == 0:
        raise GraphFormersError(
            f"this graph of {graph.num_nodes:,} nodes has no links, so there is nothing to split"
        )
    sets, rows, held_out_nodes = hold_out(graph, settings)
    known = known_nodes(graph, held_out_nodes)
    eligible = np.flatnonzero(known & (np.diff(rows[0]) > 0))
    notes, count = _size_notes(graph, settings, sets), settings.candidates
    left_out = sets[0][:0]
    if count is None:
        lists = default_lists(graph, sets, eligible)
        count, notes = lists.count, notes + lists.notes
        sets, left_out = lists.kept, lists.left_out
        # Otherwise they are later than held-out links, or links of unknown nodes.
        if settings.held_out == "links" and len(left_out):
            rows = add_pairs(graph, rows, left_out)
    indptr, indices = rows
    train = _train_pairs(graph, indptr, indices, known, settings)
    valid, test = (
        LinkQuestions(pairs, draw_candidates(graph, pairs, eligible, count, settings.seed + phase))
        for phase, pairs in enumerate(sets)
    )
    if settings.held_out == "latest-links":
        notes += _late_link_notes(graph, np.concatenate(sets), rows, len(left_out))
    elif settings.held_out not in ("links", "nodes"):
        notes += _tie_notes(graph, settings.held_out, np.concatenate(sets)[:, 0], known)
    notes += _precision_notes(len(valid), len(test))
    return LinkSplit(
        graph, settings, indptr, indices, train, valid, test, held_out_nodes, tuple(notes)
    )


def _size_notes(graph: TextGraph, settings: SplitSettings, sets: list[Array]) -> list[str]:
    """Notes that fewer pairs could be held out than the settings ask for."""
    total = graph.num_pairs if settings.held_out in OF_LINKS else graph.num_nodes
    wanted = wanted_pairs(settings, total)
    return [
        f"{len(pairs):,} {name} pairs instead of {count:,}: no more can be held out without "
        f"isolating a node"
        for name, count, pairs in zip(("valid", "test"), wanted, sets, strict=True)
        if getattr(settings, name) < 1 and len(pairs) < count
    ]


def _tie_notes(graph: TextGraph, name: str, anchors: Array, known: Array) -> list[str]:
    """Notes that known nodes have the same time as the earliest anchor of a question."""
    times = times_of(graph, name)
    first = times[anchors].min()
    tied = int((times[known] == first).sum())
    if not tied:
        return []
    return [f"{tied:,} known nodes have the same {name} as the earliest anchor ({first})"]


def _late_link_notes(graph: TextGraph, held_out: Array, rows: Rows, left_out: int) -> list[str]:
    """Notes on visible links as late as the earliest held-out one, and on dropped late links.

    `left_out` of the dropped links were left out because their questions allow too few negatives.
    """
    times, pairs = graph.pair_times(), graph.pairs()
    assert times is not None, "a graph split by the times of its links has times"
    # sorted, because pairs are
    keys = pair_keys(*pairs.T)
    first = times[np.searchsorted(keys, pair_keys(*held_out.T))].min()
    sources = np.repeat(np.arange(graph.num_nodes), np.diff(rows[0]))
    once = sources < rows[1]
    seen = times[np.searchsorted(keys, pair_keys(sources[once], rows[1][once]))]
    tied, unused = int((seen == first).sum()), len(pairs) - len(held_out) - len(seen)
    found = []
    if tied:
        found.append(
            f"{tied:,} links left for training have the same time as the earliest held-out link "
            f"({format_time(first)})"
        )
    if unused:
        reasons = {
            "with an end that has no earlier links": unused - left_out,
            "with too few possible negatives": left_out,
        }
        why = ", ".join(f"{number:,} {reason}" for reason, number in reasons.items() if number)
        found.append(f"{unused:,} late links are neither trained on nor held out: {why}")
    return found


def _precision_notes(valid: int, test: int) -> list[str]:
    """Notes that scores are imprecise, where there are few questions."""
    sizes = {"valid": valid, "test": test}
    few = " and ".join(f"{size:,} {name}" for name, size in sizes.items() if size < MIN_QUESTIONS)
    if not few:
        return []
    more = SplitSettings.usage(valid=MIN_QUESTIONS, test=MIN_QUESTIONS)
    return [f"few questions, {few}: their scores are imprecise; {more} asks for more"]


def _train_pairs(
    graph: TextGraph, indptr: Array, indices: Array, known: Array, settings: SplitSettings
) -> Array:
    sources = np.repeat(np.arange(graph.num_nodes, dtype=np.int32), np.diff(indptr))
    once = (sources < indices) & known[sources] & known[indices]
    pairs = np.stack([sources[once], indices[once]], axis=1)
    if settings.max_train is None or settings.max_train >= len(pairs):
        return pairs
    hashes = pair_hashes(graph, pairs, settings.seed + 1)
    return pairs[np.sort(np.argsort(hashes, kind="stable")[: settings.max_train])]
