"""The paper's Product graph: a log of views with user, time and item, and a table of items.

Two items are linked if at least `min_count` users viewed both within the window (30 minutes by
default). Each user counts once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphformers.arrays import Array, one_chunk, pair_keys
from graphformers.errors import InputError
from graphformers.graph.batches import TableBatch
from graphformers.graph.builder import RESOLVE_ROWS, GraphBuilder
from graphformers.graph.importers.sources import Source
from graphformers.graph.importers.table_files import read_table, table_columns
from graphformers.graph.importers.tables import read_nodes
from graphformers.graph.problems import Locate
from graphformers.graph.settings import ImportSettings, guess_column, require_column
from graphformers.graph.times import TimeColumn
from graphformers.progress import progress

# co-views held in memory before equal ones are merged
MAX_CO_VIEWS = 50_000_000


def read(files: Sequence[Source], builder: GraphBuilder, settings: ImportSettings) -> None:
    logs: list[Path] = []
    items: list[Path] = []
    for path in (source.path for source in files):
        names = table_columns(path, settings)
        is_log = all(guess_column(role, names, settings) for role in ("user", "time", "item"))
        (logs if is_log else items).append(path)
    if not logs or not items:
        missing = "an item table with the columns id, text"
        if not logs:
            missing = "a log with the columns user, time, item"
        given = ", ".join(str(source.path) for source in files)
        raise InputError(
            f"{missing} is missing among: {given}; name columns with "
            f"{ImportSettings.usage(columns={'user': 'NAME'})} and so on"
        )
    read_nodes(items, builder, settings)
    views = _without_robots(_read_logs(logs, builder, settings), builder, settings)
    builder.add_resolved_edges(*_co_views(views, settings))


@dataclass(frozen=True)
class Views:
    """Views of items: (V,) codes of users, times in seconds, and nodes of items."""

    users: Array
    times: Array
    items: Array

    def take(self, rows: Array) -> "Views":
        """The views at some indices or of a mask."""
        return Views(self.users[rows], self.times[rows], self.items[rows])


def _read_logs(paths: list[Path], builder: GraphBuilder, settings: ImportSettings) -> Views:
    """All views of known items."""
    users: list[pa.Array] = []
    times: list[Array] = []
    items: list[Array] = []
    waiting: list[tuple[pa.Array, Locate]] = []
    moments = TimeColumn(seconds=True)
    for path in paths:
        names = table_columns(path, settings)
        user, time, item = only = [
            require_column(role, names, settings, path) for role in ("user", "time", "item")
        ]
        for batch in read_table(
            path, builder.problems, settings, only=only, texts=[user, item], required=only
        ):
            users.append(_encode_users(batch, user, builder))
            column = batch.columns[time]
            times.append(moments.read(column, time, path, batch.locate, builder.problems)[0])
            waiting.append((batch.columns[item], batch.locate))
            if sum(len(ids) for ids, _ in waiting) >= RESOLVE_ROWS:
                items.append(builder.lookup(waiting))
                waiting = []
    if waiting:
        items.append(builder.lookup(waiting))
    if not items:
        return Views(np.zeros(0, np.int32), np.zeros(0), np.zeros(0, np.int32))
    joined = one_chunk(pa.chunked_array(users).unify_dictionaries())
    codes = np.asarray(pc.fill_null(joined.indices, -1))
    views = Views(codes, np.concatenate(times), np.concatenate(items))
    return views.take((codes >= 0) & np.isfinite(views.times) & (views.items >= 0))


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
