"""GraphBuilder: makes a TextGraph from batches of nodes and edges.

All formats use the same builder and may add batches in any order. It checks the rules that all
formats share: ids are unique and not empty, texts are not empty, and edges join existing nodes.
"""

import logging
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphformers.arrays import Array, compressed_rows, edge_keys, hash_strings, one_chunk
from graphformers.errors import InputError
from graphformers.graph.batches import EdgeBatch, MemoryTable, TableBatch
from graphformers.graph.columns import (
    OURS,
    as_strings,
    find_no_number,
    join_column,
    table_in_memory,
    text_column,
)
from graphformers.graph.problems import EXAMPLES, Locate, Place, Problems, format_place
from graphformers.graph.settings import ImportSettings
from graphformers.graph.spool import EdgeSpool
from graphformers.graph.textgraph import TextGraph

logger = logging.getLogger(__name__)
# Edges looked up at a time: a hash table over all ids is made for each such block.
RESOLVE_ROWS = 8_000_000
# Edges that come before the nodes are kept in memory up to so many bytes.
SPOOL_BYTES = 1 << 28
HASH_ROWS = 1_000_000
# an example for messages
NODE = "{'id': 'p1', 'text': 'a title'}"
OUTSIDE = "edges to nodes outside the graph"
# Edge types are numbered with 16 bits.
MAX_TYPES = 32_000
UNTYPED = -1
# what often separates ids in lists
SEPARATORS = "|;,/ "


@dataclass(frozen=True)
class _Edges:
    """Edges between row numbers; an edge without a type has the type UNTYPED."""

    sources: Array
    targets: Array
    types: Array
    times: Array | None = None


class GraphBuilder:
    """Collects nodes and edges.

    Edges added before `seal_nodes` are kept as strings, about 40 bytes each, and on disk if they
    are many. Formats with separate node files therefore seal the nodes first.

    Args:
        problems: Collects bad rows.
        outside: Whether edges to unknown nodes are normal in this format (citations of papers that
            are not in the data) and are counted and left out; otherwise they are bad rows.
        keep_empty: Whether to keep nodes without a text, as empty texts.
        spool_bytes: The bytes of edges that may wait for nodes in memory.
    """

    def __init__(
        self,
        problems: Problems,
        *,
        outside: bool = False,
        keep_empty: bool = False,
        spool_bytes: int = SPOOL_BYTES,
    ) -> None:
        self.problems = problems
        self._outside = outside
        self._keep_empty = keep_empty
        self._nodes: list[TableBatch] = []
        # the first row of each batch, and the places of its rows
        self._starts: list[int] = []
        self._locates: list[Locate] = []
        self._num_nodes = 0
        # nodes without a text
        self._num_empty = 0
        # the ids, once nodes are sealed
        self._known: pa.Array | None = None
        # the nodes that are kept, if some ids are repeated
        self._kept: Array | None = None
        # edges before the nodes are sealed, and after it
        self._spool = EdgeSpool(spool_bytes)
        self._waiting: list[EdgeBatch] = []
        self._num_waiting = 0
        nothing = np.zeros(0, dtype=np.int32)
        self._edges = [_Edges(nothing, nothing, nothing.astype(np.int16))]
        self._types: dict[str, int] = {}
        # links that columns of nodes list: all, those to nodes, and an id that no node has
        self._num_listed = self._num_known = 0
        # of the listed ids that no node has: an example, and by separator those that contain it
        self._unknown: str | None = None
        self._separated: dict[str, tuple[int, str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._spool.close()

    def add_nodes(self, batch: TableBatch) -> None:
        """Adds a batch of nodes with the columns id, text and any others.

        Ids and texts become strings, the other columns keep their types. The types of untyped
        columns are guessed from all batches together.
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
            advice=f"{ImportSettings.usage(keep_empty=True)} keeps them",
        )
        batch = replace(batch, columns=batch.columns | {"id": ids, "text": texts})
        bad = no_id | no_text
        if bad.any():
            batch = batch.take(np.flatnonzero(~bad))
        self._nodes.append(batch)
        self._starts.append(self._num_nodes)
        self._locates.append(batch.locate)
        self._num_nodes += len(batch)
        self.problems.num_read += len(batch)

    def add_table(self, table: pa.Table) -> None:
        """Adds nodes from memory, in a table as `node_table` returns it."""
        for batch in MemoryTable(Path("nodes"), table).batches(None):
            self.add_nodes(batch)

    def seal_nodes(self) -> None:
        """Ends the nodes: edges added later are resolved to row numbers in blocks."""
        lengths = [len(batch) for batch in self._nodes]
        columns = {}
        for name in dict.fromkeys(
            [*OURS, *(name for batch in self._nodes for name in batch.columns)]
        ):
            columns[name] = join_column(
                [batch.columns.get(name) for batch in self._nodes],
                lengths,
                [name in batch.untyped and name not in OURS for batch in self._nodes],
            )
            if any(name in batch.untyped for batch in self._nodes) and name not in OURS:
                value = find_no_number(columns[name])
                if value is not None:
                    self.problems.like_numbers[name] = value
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
            self.problems.num_read -= len(repeats)
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
        """The file and line of a row of the `node_table`."""
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
            if not self.problems.wants_details("duplicate id"):
                self.problems.counts["duplicate id"] += len(repeats) - done
                break
            name = ids[node].as_py()
            first_place = format_place(self._where(first_with[name]))
            detail = f"the id {name!r} is used already at {first_place}, expected unique ids"
            self.problems.add("duplicate id", self._where(node), detail)
        return np.array(repeats, dtype=np.int64)

    def _where(self, node: int) -> Place:
        batch = bisect_right(self._starts, node) - 1
        return self._locates[batch](node - self._starts[batch])

    def add_edges(self, batch: EdgeBatch) -> None:
        """Adds a batch of directed edges between ids."""
        if self._known is None:
            self._spool.add(batch)
            return
        self._waiting.append(batch)
        self._num_waiting += len(batch)
        if self._num_waiting >= RESOLVE_ROWS:
            self._resolve()

    def add_resolved_edges(self, sources: Array, targets: Array) -> None:
        """Adds edges between row numbers, as `lookup` returns them."""
        types = np.full(len(sources), UNTYPED, dtype=np.int16)
        self._edges.append(_Edges(sources, targets, types))

    def lookup(self, batches: list[tuple[pa.Array, Locate]]) -> Array:
        """Row numbers (int32) of the ids of several batches, one batch after the other.

        Unknown ids are reported as problems and have the row number -1. Pass many batches at a
        time: every call makes a hash table over all nodes.
        """
        found = self._lookup([ids for ids, _ in batches])
        for (ids, locate), nodes in zip(batches, found, strict=True):

            def detail(i: int, ids: pa.Array = ids) -> str:
                return f"{ids[i].as_py()!r}, expected the id of a node"

            self.problems.report("unknown node", nodes < 0, locate, detail)
            self.problems.num_read += int((nodes >= 0).sum())
        return np.concatenate(found)

    def _lookup(self, arrays: list[pa.Array]) -> list[Array]:
        """The row numbers of the ids of each array, -1 for unknown ones."""
        strings = pa.chunked_array([as_strings(array) for array in arrays], pa.large_string())
        found = one_chunk(pc.fill_null(pc.index_in(strings, value_set=self._known), -1))
        ends = np.cumsum([len(array) for array in arrays])
        return np.split(np.asarray(found, dtype=np.int32), ends[:-1])

    def _resolve(self) -> None:
        """Looks up the row numbers of the waiting edges."""
        waiting, self._waiting, self._num_waiting = self._waiting, [], 0
        block, rows = list[EdgeBatch](), 0
        for batch in chain(self._spool.take(), waiting):
            block.append(batch)
            rows += len(batch)
            if rows >= RESOLVE_ROWS:
                self._resolve_block(block)
                block, rows = [], 0
        if block:
            self._resolve_block(block)

    def _resolve_block(self, block: list[EdgeBatch]) -> None:
        all_sources = self._lookup([batch.sources for batch in block])
        all_targets = self._lookup([batch.targets for batch in block])
        for batch, sources, targets in zip(block, all_sources, all_targets, strict=True):
            kept = (sources >= 0) & (targets >= 0)
            if not kept.all():
                self._report_outside(batch, sources, targets)
            types = self._encode_types(batch)[kept]
            times = None if batch.times is None else batch.times[kept]
            self._edges.append(_Edges(sources[kept], targets[kept], types, times))
            if batch.outside:
                self._note_listed(batch, kept)
            self.problems.num_read += int(kept.sum())

    def _note_listed(self, batch: EdgeBatch, kept: Array) -> None:
        """Counts links that columns of nodes list, and keeps an id that no node has."""
        self._num_listed += len(batch)
        self._num_known += int(kept.sum())
        if kept.all():
            return
        unknown = batch.targets.filter(pa.array(~kept))
        self._unknown = unknown[0].as_py() if self._unknown is None else self._unknown
        for mark in SEPARATORS:
            found = unknown.filter(pc.match_substring(unknown, mark))
            if len(found):
                count, example = self._separated.get(mark, (0, found[0].as_py()))
                self._separated[mark] = count + len(found), example

    def _warn_of_lists(self) -> None:
        """Warns if lists of ids were probably read in the wrong way."""
        assert self._known is not None, "nodes were sealed"
        num_unknown = self._num_listed - self._num_known
        likely = next(
            (
                mark
                for mark, (count, _) in self._separated.items()
                # Ids such as 10.1145/3292500 have it themselves.
                if 2 * count > num_unknown
                and not pc.any(pc.match_substring(self._known, mark)).as_py()
            ),
            None,
        )
        if not num_unknown or (self._num_known and likely is None):
            return
        example = self._unknown if likely is None else self._separated[likely][1]
        if example and example[0] in "[({":
            advice = 'lists are written in JSON, such as ["p1","p2"]'
        elif likely is not None:
            separated = ImportSettings.usage(list_separator=likely)
            advice = f"if these are several ids, {separated} separates them"
        else:
            node = f", such as {self._known[0].as_py()!r}" if len(self._known) else ""
            advice = f"ids must be written as those of the nodes are{node}"
        are = "is not that of a node" if num_unknown == 1 else "are not those of nodes"
        share = f"{num_unknown:,} of the {self._num_listed:,} listed ids {are}"
        if not self._num_known:
            share = f"none of the {self._num_listed:,} listed ids is the id of a node"
        logger.warning(f"WARNING: {share}, such as {example!r}; {advice}")

    def _encode_types(self, batch: EdgeBatch) -> Array:
        if batch.types is None or not len(batch):
            return np.full(len(batch), UNTYPED, dtype=np.int16)
        encoded = pc.fill_null(as_strings(batch.types), "").dictionary_encode()
        codes = [
            self._types.setdefault(name, len(self._types))
            for name in encoded.dictionary.to_pylist()
        ]
        if len(self._types) > MAX_TYPES:
            one = next(reversed(self._types))
            raise InputError(
                f"more than {MAX_TYPES:,} edge types, {one!r} among them; is the right column "
                f"used as the type?"
            )
        of_edge: Array = np.array(codes, dtype=np.int16)[np.asarray(encoded.indices)]
        return of_edge

    def _report_outside(self, batch: EdgeBatch, sources: Array, targets: Array) -> None:
        missing = (sources < 0) | (targets < 0)
        if self._outside or batch.outside:
            self.problems.normal[OUTSIDE] += int(missing.sum())
            self.problems.num_read += int(missing.sum())
            return

        def detail(i: int) -> str:
            assert self._known is not None
            name = (batch.sources if sources[i] < 0 else batch.targets)[i].as_py()
            end = f"{'from' if sources[i] < 0 else 'to'} {name!r}" if name else "with an empty end"
            # Looking for a similar id takes long.
            is_shown = self.problems.strict or len(self.problems.examples()) < EXAMPLES
            near = self._similar(name) if name and is_shown else None
            # An example shows how ids are written: 1, 1.0 and 001 are three ids.
            example = f" such as {self._known[0].as_py()!r}" if len(self._known) else ""
            if near is not None:
                example = f" such as {near!r}; ids must be equal in every character"
            elif name and is_shown and (row := pc.index(self._table["text"], name).as_py()) >= 0:
                example += f"; {name!r} is the text of {self._known[row].as_py()!r}"
            return f"an edge {end}, expected the id of a node{example}"

        self.problems.report("edge to an unknown node", missing, batch.locate, detail)

    def _similar(self, name: str) -> str | None:
        """The id of a node that differs only in case, spaces around it, leading zeros or ".0"."""
        assert self._known is not None, "nodes were sealed"
        (wanted,) = _normalized(pa.array([name], pa.large_string()))
        for start in range(0, len(self._known), HASH_ROWS):
            row = pc.index(_normalized(self._known.slice(start, HASH_ROWS)), wanted).as_py()
            if row >= 0:
                return str(self._known[start + row].as_py())
        return None

    def build(self) -> TextGraph:
        """Makes the graph of all added nodes and edges."""
        if self._known is None:
            self.seal_nodes()
        self._resolve()
        self._warn_of_lists()
        if not len(self._hashes):
            skipped = "; ".join(self.problems.examples()[:3])
            advice = (
                f"every row was skipped: {skipped}"
                if skipped
                else "check the input and the names of its columns"
            )
            raise InputError(f"no nodes were read, expected at least one; {advice}")
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
            table=self._table,
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
    """Joins the times of batches of edges: NaN for batches without, None if no batch has times."""
    if all(times is None for times in batches):
        return None
    found = zip(batches, lengths, strict=True)
    return np.concatenate(
        [np.full(length, np.nan) if times is None else times for times, length in found]
    )


def node_table(nodes: Iterable[object]) -> pa.Table:
    """Converts nodes in any kind of table to an Arrow table with the columns id and text."""
    table = table_in_memory(nodes, "nodes", NODE)
    names = table.column_names
    missing = [name for name in OURS if name not in names]
    if missing and len(table):
        raise InputError(
            f"nodes with the columns {', '.join(names)} given, {missing[0]!r} is missing"
        )
    return (
        table if not missing else pa.table({name: pa.array([], pa.large_string()) for name in OURS})
    )


def text_array(values: Iterable[object]) -> pa.Array:
    """Converts ids or types in memory to an array of strings; missing ones are null."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return as_strings(one_chunk(values))
    # Arrays of numpy and torch have `tolist`.
    values = values.tolist() if hasattr(values, "tolist") else values
    try:
        return pa.array(values, pa.large_string())
    except UnicodeEncodeError as error:
        raise InputError(
            f"{error.object!r} given, which is not Unicode: it holds half of a character "
            f"({error.reason})"
        ) from error
    except (pa.ArrowException, TypeError):
        return text_column(values)


def _normalized(ids: pa.Array) -> pa.Array:
    """Ids without what programs often change in them."""
    lower = pc.utf8_lower(pc.utf8_trim_whitespace(ids))
    whole = pc.replace_substring_regex(lower, r"^([0-9]+)\.0+$", r"\1")
    return pc.replace_substring_regex(whole, r"^0+([0-9])", r"\1")


def _is_empty(strings: pa.Array) -> Array:
    return np.asarray(
        pc.fill_null(pc.equal(pc.binary_length(strings), 0), True).to_numpy(zero_copy_only=False)
    )
