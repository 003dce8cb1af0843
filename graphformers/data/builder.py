"""GraphBuilder: batches of nodes and edges in, a TextGraph out.

Every format feeds the same builder, in any order. It checks what applies to all formats: missing
and repeated ids, empty texts, and edges to nodes that do not exist.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphformers.data.arrays import Array, compressed_rows, edge_keys, hash_strings, one_chunk
from graphformers.data.batches import EdgeBatch, TableBatch
from graphformers.data.columns import (
    OURS,
    as_strings,
    is_text,
    join_column,
    make_column,
    table_in_memory,
    text_column,
)
from graphformers.data.graph import TextGraph
from graphformers.data.problems import ELSEWHERE, Locate, Place, Problems
from graphformers.data.times import TimeColumn
from graphformers.errors import InputError

# edges looked up at a time: the hash table over all ids is made once for each such block
RESOLVE_ROWS = 8_000_000
HASH_ROWS = 1_000_000
NODE = "{'id': 'p1', 'text': 'a title'}"  # for messages
OUTSIDE = "edges to nodes outside the graph"
MOST_TYPES = 32_000  # of edges, which are numbered with 16 bits
UNTYPED = -1


@dataclass(frozen=True)
class _Edges:
    """Edges between row numbers. An edge without a type has the type UNTYPED."""

    sources: Array
    targets: Array
    types: Array
    times: Array | None = None


class GraphBuilder:
    """Collects nodes and edges.

    Edges that come before `seal_nodes` wait as strings, about 40 bytes each: a format with separate
    node files seals first.

    Args:
        problems: Collects bad rows.
        outside: Whether edges to unknown nodes are normal in this format (citations of papers that
            are not in the data) and are counted and left out; otherwise they are bad rows.
        keep_empty: Whether to keep nodes without a text, as empty texts.
        column_type: Gives the type of a column, if it is known, where its values come as plain
            text.
    """

    def __init__(
        self,
        problems: Problems,
        *,
        outside: bool = False,
        keep_empty: bool = False,
        column_type: Callable[[str], pa.DataType | None] | None = None,
    ) -> None:
        self.problems = problems
        self._outside = outside
        self._keep_empty = keep_empty
        self._column_type = column_type or (lambda name: None)
        self._nodes: list[TableBatch] = []
        # whether the columns of a batch are plain text, whose types are guessed at the end
        self._plain: list[bool] = []
        # of each batch: its first row, and where its rows were read
        self._starts: list[int] = []
        self._locates: list[Locate] = []
        self._num_nodes = 0
        self._num_empty = 0  # nodes without a text
        self._known: pa.Array | None = None  # the ids, once all nodes are in
        self._kept: Array | None = None  # the nodes that stay, where ids are repeated
        self._waiting: list[EdgeBatch] = []
        self._num_waiting = 0
        nothing = np.zeros(0, dtype=np.int32)
        self._edges = [_Edges(nothing, nothing, nothing.astype(np.int16))]
        self._types: dict[str, int] = {}

    def add_nodes(self, batch: TableBatch, *, plain: bool = False) -> None:
        """Takes a batch of nodes with the columns id, text and any others.

        Ids and texts become strings, the other columns keep their types. `plain` columns are text
        that may stand for numbers: their types are guessed from all batches together.
        """
        assert self._known is None, "all nodes come before `seal_nodes`"
        ids = as_strings(batch.columns["id"])
        texts = pc.utf8_trim_whitespace(as_strings(batch.columns["text"]))
        no_id = _is_empty(ids)
        no_text = _is_empty(texts) & ~no_id
        if self._keep_empty:
            self._num_empty += int(no_text.sum())
            texts, no_text = pc.fill_null(texts, ""), np.zeros_like(no_text)
        self.problems.report(
            "empty id", no_id, batch.locate, lambda i: "the id is empty, expected a unique string"
        )
        self.problems.report(
            "empty text",
            no_text,
            batch.locate,
            lambda i: f"the text of node {ids[i].as_py()!r} is empty, expected some words",
            advice="--keep-empty keeps them",
        )
        batch = TableBatch(batch.columns | {"id": ids, "text": texts}, batch.locate)
        bad = no_id | no_text
        if bad.any():
            batch = batch.take(np.flatnonzero(~bad))
        self._nodes.append(batch)
        self._plain.append(plain)
        self._starts.append(self._num_nodes)
        self._locates.append(batch.locate)
        self._num_nodes += len(batch)

    def add_table(self, table: pa.Table) -> None:
        """Takes nodes from memory, as `node_table` gives them."""
        columns = {name: one_chunk(table[name]) for name in table.column_names}
        self.add_nodes(TableBatch(columns, lambda i: (Path("nodes"), f"row {i + 1}")))

    def seal_nodes(self) -> None:
        """Ends the nodes, so that edges can be looked up as they come instead of being kept as
        strings.
        """
        lengths = [len(batch) for batch in self._nodes]
        columns = {}
        for name in dict.fromkeys(
            [*OURS, *(name for batch in self._nodes for name in batch.columns)]
        ):
            known = self._column_type(name)
            columns[name] = join_column(
                [batch.columns.get(name) for batch in self._nodes],
                lengths,
                [plain and name not in OURS for plain in self._plain],
                stays_text=known is not None and is_text(known),
            )
        self._nodes = []
        table, ids = pa.table(columns), columns["id"]
        hashes = np.concatenate(
            [
                hash_strings(ids[i : i + HASH_ROWS].to_pylist())
                for i in range(0, max(len(ids), 1), HASH_ROWS)
            ]
        )
        repeats = self._find_repeats(ids, hashes)
        if len(repeats):
            self._kept = np.setdiff1d(np.arange(len(ids)), repeats)
            table, hashes = table.take(pa.array(self._kept)).combine_chunks(), hashes[self._kept]
        self._table, self._hashes, self._known = table, hashes, one_chunk(table["id"])
        if len(self._known) >= 2**31:
            raise InputError(f"{len(self._known):,} nodes; a graph holds at most 2,147,483,647")

    def node_table(self) -> pa.Table:
        """Id, text and columns of all nodes, after `seal_nodes`."""
        assert self._known is not None, "nodes were sealed"
        return self._table

    def place_of(self, row: int) -> Place:
        """Where a row of the `node_table` was read."""
        return self._where(row if self._kept is None else int(self._kept[row]))

    def _find_repeats(self, ids: pa.Array, hashes: Array) -> Array:
        """Reports repeated ids and returns the nodes to leave out: all but the first of an id."""
        order = np.argsort(hashes, kind="stable")
        suspects = np.flatnonzero(hashes[order][1:] == hashes[order][:-1]) + 1
        first_with: dict[str, int] = {}
        repeats = []
        for node in np.unique(np.concatenate([order[suspects - 1], order[suspects]])):
            first = first_with.setdefault(ids[int(node)].as_py(), int(node))
            if first != node:
                repeats.append(int(node))
        for done, node in enumerate(repeats):
            if not self.problems.wants_examples("duplicate id"):
                self.problems.counts["duplicate id"] += len(repeats) - done
                break
            name = ids[node].as_py()
            detail = f"the id {name!r} stands already at {ELSEWHERE}, expected unique ids"
            first_place = self._where(first_with[name])
            self.problems.add("duplicate id", self._where(node), detail, other=first_place)
        return np.array(repeats, dtype=np.int64)

    def _where(self, node: int) -> Place:
        batch = bisect_right(self._starts, node) - 1
        return self._locates[batch](node - self._starts[batch])

    def add_edges(self, batch: EdgeBatch) -> None:
        """Takes a batch of directed edges between ids."""
        self._waiting.append(batch)
        self._num_waiting += len(batch)
        if self._known is not None and self._num_waiting >= RESOLVE_ROWS:
            self._resolve()

    def add_resolved_edges(self, sources: Array, targets: Array) -> None:
        """Takes edges between row numbers, as `lookup` gives them."""
        types = np.full(len(sources), UNTYPED, dtype=np.int16)
        self._edges.append(_Edges(sources, targets, types))

    def lookup(self, batches: list[tuple[pa.Array, Locate]]) -> Array:
        """Row numbers (int32) of the ids of several batches, one after the other; unknown ids are
        problems and give -1.

        Give many batches at a time: the table over all nodes is made anew for each call.
        """
        found = self._lookup([ids for ids, _ in batches])
        for (ids, locate), nodes in zip(batches, found, strict=True):

            def detail(i: int, ids: pa.Array = ids) -> str:
                return f"{ids[i].as_py()!r}, expected the id of a node"

            self.problems.report("unknown node", nodes < 0, locate, detail)
        return np.concatenate(found)

    def _lookup(self, arrays: list[pa.Array]) -> list[Array]:
        """The row numbers of the ids of each array, -1 for unknown ones."""
        strings = pa.chunked_array([as_strings(array) for array in arrays], pa.large_string())
        found = one_chunk(pc.fill_null(pc.index_in(strings, value_set=self._known), -1))
        ends = np.cumsum([len(array) for array in arrays])
        return np.split(np.asarray(found, dtype=np.int32), ends[:-1])

    def _resolve(self) -> None:
        """Turns the waiting edges into row numbers."""
        batches, self._waiting, self._num_waiting = self._waiting, [], 0
        while batches:
            block, rows = [], 0
            while batches and rows < RESOLVE_ROWS:
                block.append(batches.pop(0))
                rows += len(block[-1])
            all_sources = self._lookup([batch.sources for batch in block])
            all_targets = self._lookup([batch.targets for batch in block])
            for batch, sources, targets in zip(block, all_sources, all_targets, strict=True):
                kept = (sources >= 0) & (targets >= 0)
                if not kept.all():
                    self._report_outside(batch, sources, targets)
                types = self._encode_types(batch)[kept]
                times = None if batch.times is None else batch.times[kept]
                self._edges.append(_Edges(sources[kept], targets[kept], types, times))

    def _encode_types(self, batch: EdgeBatch) -> Array:
        if batch.types is None or not len(batch):
            return np.full(len(batch), UNTYPED, dtype=np.int16)
        encoded = pc.fill_null(as_strings(batch.types), "").dictionary_encode()
        codes = [
            self._types.setdefault(name, len(self._types))
            for name in encoded.dictionary.to_pylist()
        ]
        if len(self._types) > MOST_TYPES:
            one = next(reversed(self._types))
            raise InputError(
                f"more than {MOST_TYPES:,} edge types, {one!r} among them; is the right column "
                f"used as the type?"
            )
        of_edge: Array = np.array(codes, dtype=np.int16)[np.asarray(encoded.indices)]
        return of_edge

    def _report_outside(self, batch: EdgeBatch, sources: Array, targets: Array) -> None:
        missing = (sources < 0) | (targets < 0)
        if self._outside:
            self.problems.normal[OUTSIDE] += int(missing.sum())
            return

        def detail(i: int) -> str:
            assert self._known is not None
            name = (batch.sources if sources[i] < 0 else batch.targets)[i].as_py()
            end = f"{'from' if sources[i] < 0 else 'to'} {name!r}" if name else "with an empty end"
            # 1, 1.0 and 001 are three ids
            such = f" such as {self._known[0].as_py()!r}" if len(self._known) else ""
            return f"an edge {end}, expected the id of a node{such}"

        self.problems.report("edge to an unknown node", missing, batch.locate, detail)

    def build(self) -> TextGraph:
        """The graph of everything added."""
        if self._known is None:
            self.seal_nodes()
        self._resolve()
        if not len(self._hashes):
            skipped = "; ".join(self.problems.examples()[:3])
            advice = (
                f"every row was skipped: {skipped}"
                if skipped
                else "check the files and the column names"
            )
            raise InputError(f"no nodes were read, so there is no graph; {advice}")
        edges, self._edges = self._edges, []
        sources = np.concatenate([each.sources for each in edges])
        targets = np.concatenate([each.targets for each in edges])
        types = np.concatenate([each.types for each in edges]) if self._types else None
        if types is not None and (types == UNTYPED).any():
            types[types == UNTYPED] = self._types.setdefault("", len(self._types))
        times = join_times([each.times for each in edges], [len(each.sources) for each in edges])
        indptr, indices = compressed_rows(
            len(self._hashes), edge_keys(sources, targets), edge_keys(targets, sources)
        )
        summary = self.problems.summary() | {"self_loops": int((sources == targets).sum())}
        summary |= {"empty_texts": self._num_empty} if self._num_empty else {}
        return TextGraph(
            nodes=self._table,
            id_hashes=self._hashes,
            indptr=indptr,
            indices=indices,
            edges=np.stack([sources, targets]),
            edge_types=types,
            type_names=tuple(self._types),
            edge_times=times,
            summary=summary,
        )


def join_times(batches: Sequence[Array | None], lengths: Sequence[int]) -> Array | None:
    """The times of several batches of edges, not a number where a batch has none; None where none
    has any.
    """
    if all(times is None for times in batches):
        return None
    found = zip(batches, lengths, strict=True)
    return np.concatenate(
        [np.full(length, np.nan) if times is None else times for times, length in found]
    )


def build_graph(
    nodes: Iterable[object],
    sources: Sequence[object] = (),
    targets: Sequence[object] = (),
    types: Sequence[object] | None = None,
    times: Sequence[object] | None = None,
    *,
    skip_bad: bool = False,
    keep_empty: bool = False,
) -> TextGraph:
    """Makes a graph from data in memory.

    Args:
        nodes: The columns id and text, and any others: an Arrow table, a DataFrame of pandas or
            polars, a list of dicts, or a dict of lists.
        sources: The id of the node where each edge starts.
        targets: The id of the node where each edge ends.
        types: The type of each edge.
        times: The time of each edge: a number or a date, also as text such as 2024-05-01; None
            where it is unknown.
        skip_bad: Leave out and count bad rows instead of stopping at the first.
        keep_empty: Keep nodes without a text, as empty texts, instead of treating them as bad rows.

    Returns:
        The graph.

    Raises:
        InputError: A row is bad, or the lists of edges differ in length.

    Example:
        >>> papers = [{"id": "p1", "text": "graphs"}, {"id": "p2", "text": "texts", "year": 1999}]
        >>> build_graph(papers, sources=["p1"], targets=["p2"], types=["cites"])
        TextGraph(2 nodes, 1 linked pairs)
    """
    edges = {"sources": sources, "targets": targets, "types": types, "times": times}
    counts = {name: len(each) for name, each in edges.items() if each is not None}
    if len(set(counts.values())) > 1:
        given = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        raise InputError(f"edges with {given} given, expected as many of each")
    builder = GraphBuilder(Problems(strict=not skip_bad), keep_empty=keep_empty)
    builder.add_table(node_table(nodes))
    builder.add_edges(
        EdgeBatch(
            text_array(sources),
            text_array(targets),
            _edge_row,
            None if types is None else text_array(types),
            _times(times, builder.problems),
        )
    )
    return builder.build()


def _edge_row(i: int) -> Place:
    return Path("edges"), f"row {i + 1}"


def _times(given: Sequence[object] | None, problems: Problems) -> Array | None:
    """Times in memory; None where one is not known. What is no time is an error: edges have no rows
    that could be left out.
    """
    if given is None:
        return None
    times, bad = TimeColumn().read(make_column(given), "times", Path("edges"), _edge_row, problems)
    if bad.any():
        raise InputError(
            f"{int(bad.sum()):,} of the times given are none; mend them, or leave them empty"
        )
    return times


def node_table(
    nodes: Iterable[object], known_texts: Callable[[pa.Array], pa.Array] | None = None
) -> pa.Table:
    """Nodes in any of the forms that Python has for tables, as an Arrow table with the columns id
    and text.

    Where they have no texts, `known_texts` gives them by id.
    """
    table = table_in_memory(nodes, "nodes", NODE)
    names = table.column_names
    if known_texts is not None and "id" in names and "text" not in names:
        texts = known_texts(one_chunk(table["id"]))
        if not texts.null_count:
            table, names = table.append_column("text", texts), [*names, "text"]
    missing = [name for name in OURS if name not in names]
    if missing and len(table):
        raise InputError(
            f"nodes with the columns {', '.join(names)} given, {missing[0]!r} is missing"
        )
    return (
        table if not missing else pa.table({name: pa.array([], pa.large_string()) for name in OURS})
    )


def text_array(values: Iterable[object]) -> pa.Array:
    """Ids or types in memory as an array of strings; None where one is missing."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return as_strings(one_chunk(values))
    values = values.tolist() if hasattr(values, "tolist") else values  # numpy's, torch's
    try:
        return pa.array(values, pa.large_string())
    except UnicodeEncodeError as error:
        raise InputError(
            f"{error.object!r} given, which is no text: it holds half of a character "
            f"({error.reason})"
        ) from error
    except (pa.ArrowException, TypeError):
        return text_column(values)


def _is_empty(strings: pa.Array) -> Array:
    return np.asarray(
        pc.fill_null(pc.equal(pc.binary_length(strings), 0), True).to_numpy(zero_copy_only=False)
    )
