"""The paper's Product graph: a log of views with user, time and item, and a table of items.

Two items are linked if at least `min_count` users viewed both within the window (30 minutes by
default). Each user counts once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphformers.arrays import Array, one_chunk, pair_keys
from graphformers.errors import InputError
from graphformers.graph.batches import Table, TableBatch
from graphformers.graph.builder import RESOLVE_ROWS, GraphBuilder
from graphformers.graph.columns import ColumnNames
from graphformers.graph.importers.sources import Source
from graphformers.graph.importers.table_files import open_tables
from graphformers.graph.importers.tables import read_nodes
from graphformers.graph.problems import Locate
from graphformers.graph.settings import ImportSettings, guess_column, require_columns
from graphformers.graph.times import TimeColumn
from graphformers.progress import progress

# co-views held in memory before equal ones are merged
MAX_CO_VIEWS = 50_000_000


def read(files: Sequence[Source], builder: GraphBuilder, settings: ImportSettings) -> None:
    names, views = ColumnNames(), ViewReader(builder, settings)
    has_items = has_logs = False
    for group, is_last in open_tables(files, settings, builder.problems):
        is_log = [
            all(guess_column(role, table.fields, settings) for role in ("user", "time", "item"))
            for _, table in group
        ]
        logs = [table for (_, table), flag in zip(group, is_log, strict=True) if flag]
        items = [table for (_, table), flag in zip(group, is_log, strict=True) if not flag]
        has_logs, has_items = has_logs or bool(logs), has_items or bool(items)
        if is_last and not (has_logs and has_items):
            missing = "an item table with the columns id, text"
            if not has_logs:
                missing = "a log with the columns user, time, item"
            given = ", ".join(str(source.path) for source in files)
            raise InputError(
                f"{missing} is missing among: {given}; name columns with "
                f"{ImportSettings.usage(columns={'user': 'NAME'})} and so on"
            )
        read_nodes(items, names, builder, settings, is_last=is_last)
        views.can_resolve = is_last
        for table in logs:
            views.read(table)
    found = _without_robots(views.views(), builder, settings)
    builder.add_resolved_edges(*_co_views(found, settings))


@dataclass(frozen=True)
class Views:
    """Views of items: (V,) codes of users, times in seconds, and nodes of items."""

    users: Array
    times: Array
    items: Array

    def take(self, rows: Array) -> "Views":
        """The views at some indices or of a mask."""
        return Views(self.users[rows], self.times[rows], self.items[rows])


class ViewReader:
    """Reads logs, and looks up their items in blocks.

    Attributes:
        can_resolve: Whether all items are known. Before, their ids are kept.
    """

    def __init__(self, builder: GraphBuilder, settings: ImportSettings) -> None:
        self._builder, self._settings = builder, settings
        self._users: list[pa.Array] = []
        self._times: list[Array] = []
        self._items: list[Array] = []
        self._waiting: list[tuple[pa.Array, Locate]] = []
        self._num_waiting = 0
        self._moments = TimeColumn(seconds=True)
        self.can_resolve = False

    def read(self, table: Table) -> None:
        """Reads one log."""
        only = require_columns(("user", "time", "item"), table.fields, self._settings, table.path)
        user, time, item = only
        problems = self._builder.problems
        for batch in table.batches(only, [user, item], only):
            self._users.append(_encode_users(batch, user, self._builder))
            column = batch.columns[time]
            moments = self._moments.read(column, time, table.path, batch.locate, problems)
            self._times.append(moments[0])
            self._waiting.append((batch.columns[item], batch.locate))
            self._num_waiting += len(batch)
            if self.can_resolve and self._num_waiting >= RESOLVE_ROWS:
                self._resolve()

    def views(self) -> Views:
        """All views of known items."""
        if self._waiting:
            self._resolve()
        if not self._items:
            return Views(np.zeros(0, np.int32), np.zeros(0), np.zeros(0, np.int32))
        joined = one_chunk(pa.chunked_array(self._users).unify_dictionaries())
        codes = np.asarray(pc.fill_null(joined.indices, -1))
        views = Views(codes, np.concatenate(self._times), np.concatenate(self._items))
        return views.take((codes >= 0) & np.isfinite(views.times) & (views.items >= 0))

    def _resolve(self) -> None:
        self._items.append(self._builder.lookup(self._waiting))
        self._waiting, self._num_waiting = [], 0


def _encode_users(batch: TableBatch, name: str, builder: GraphBuilder) -> pa.Array:
    """The users of a batch as a dictionary; rows without a user are bad, and null."""
    users = batch.columns[name]
    users = pc.if_else(pc.equal(pc.utf8_trim_whitespace(users), ""), None, users)
    is_empty = np.asarray(users.is_null().to_numpy(zero_copy_only=False))
    builder.problems.report(
        "empty user",
        is_empty,
        batch.locate,
        lambda i: f"the {name} is empty, expected the user who viewed the item",
    )
    return users.dictionary_encode()


def _without_robots(views: Views, builder: GraphBuilder, settings: ImportSettings) -> Views:
    """The views sorted by user and time, without users with too many views.

    Users with more than `max_views` views in one window are taken for robots.
    """
    views = views.take(np.lexsort((views.times, views.users)))
    if not len(views.users):
        return views
    earliest, window = views.times.min(), settings.window * 60
    span = views.times.max() - earliest + 2 * window
    # Times are shifted by user, so that users do not overlap.
    moments = views.users * span + (views.times - earliest)
    last = np.searchsorted(moments, moments + window, "right")
    within = last - np.arange(len(moments))
    robots = np.unique(views.users[within > settings.max_views])
    kept = ~np.isin(views.users, robots)
    if len(robots):
        reason = f"views by users with more than {settings.max_views} in one window"
        builder.problems.normal[reason] += int((~kept).sum())
    return views.take(kept)


def _co_views(views: Views, settings: ImportSettings) -> tuple[Array, Array]:
    """The item pairs that at least `min_count` users viewed within the window.

    Args:
        views: Views sorted by user and time.
        settings: The window and the counts.

    Returns:
        The sources and the targets of the pairs.
    """
    users, times, items = views.users, views.times, views.items
    window = settings.window * 60
    found: list[tuple[Array, Array]] = []
    held, limit = 0, MAX_CO_VIEWS
    first = np.arange(len(users))
    with progress("Linking items viewed together", None, "co-views") as task:
        for step in range(1, len(users)):
            # A view outside the window of its step-th successor is outside that of later ones.
            first = first[first + step < len(users)]
            second = first + step
            near = (users[first] == users[second]) & (times[second] - times[first] <= window)
            first, second = first[near], second[near]
            if not len(first):
                break
            other = items[first] != items[second]
            pairs = pair_keys(items[first[other]], items[second[other]])
            found.append((users[first[other]], pairs))
            held += len(found[-1][0])
            task.advance(len(first))
            if held > limit:
                found = [_merge(found)]
                held = len(found[0][0])
                # Merging again is worthwhile when the list has doubled.
                limit = max(MAX_CO_VIEWS, 2 * held)
    keys = _merge(found)[1] if found else np.zeros(0, np.uint64)
    keys, counts = np.unique(keys, return_counts=True)
    keys = keys[counts >= settings.min_count]
    return (keys >> np.uint64(32)).astype(np.int32), (keys & np.uint64(0xFFFFFFFF)).astype(np.int32)


def _merge(found: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Each (user, pair) once."""
    users, keys = (np.concatenate([part[i] for part in found]) for i in (0, 1))
    order = np.lexsort((keys, users))
    users, keys = users[order], keys[order]
    new = np.ones(len(keys), dtype=bool)
    new[1:] = (keys[1:] != keys[:-1]) | (users[1:] != users[:-1])
    return users[new], keys[new]
