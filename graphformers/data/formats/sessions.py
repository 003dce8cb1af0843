"""The paper's Product graph: a log of who viewed which item when, and a table with the items'
texts.

Two items are linked when one user viewed both within the window (30 minutes by default), counted by
users: an item reloaded ten times counts once. `min_count` users must agree.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphformers.data.arrays import Array, one_chunk, pair_keys
from graphformers.data.batches import TableBatch
from graphformers.data.builder import RESOLVE_ROWS, GraphBuilder
from graphformers.data.formats.tables import read_nodes
from graphformers.data.problems import Locate
from graphformers.data.settings import ImportSettings, guess_column, require_column
from graphformers.data.tables import read_table, table_columns
from graphformers.data.times import TimeColumn
from graphformers.errors import InputError
from graphformers.progress import progress

MOST_PAIRS = 50_000_000  # co-views held before equal ones are merged


def read(
    nodes: list[Path], edges: list[Path], builder: GraphBuilder, settings: ImportSettings
) -> None:
    logs: list[Path] = []
    items: list[Path] = []
    for path in nodes + edges:
        names = table_columns(path, settings)
        is_log = all(guess_column(role, names, settings) for role in ("user", "time", "item"))
        (logs if is_log else items).append(path)
    if not logs or not items:
        missing = "an item table with the columns id, text"
        if not logs:
            missing = "a log with the columns user, time, item"
        raise InputError(
            f"{missing} is missing among: {', '.join(map(str, nodes + edges))}; name columns with "
            f"--column user=NAME and so on"
        )
    read_nodes(items, builder, settings)
    users, times, items_viewed = _read_logs(logs, builder, settings)
    order = _without_robots(users, times, builder, settings)
    builder.add_resolved_edges(
        *_co_views(users[order], times[order], items_viewed[order], settings)
    )


def _read_logs(
    paths: list[Path], builder: GraphBuilder, settings: ImportSettings
) -> tuple[Array, Array, Array]:
    """(V,) user codes, times in seconds and item nodes of all views of known items."""
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
        return np.zeros(0, np.int32), np.zeros(0), np.zeros(0, np.int32)
    joined = one_chunk(pa.chunked_array(users).unify_dictionaries())
    codes = np.asarray(pc.fill_null(joined.indices, -1))
    all_times, all_items = np.concatenate(times), np.concatenate(items)
    kept = (codes >= 0) & np.isfinite(all_times) & (all_items >= 0)
    return codes[kept], all_times[kept], all_items[kept]


def _encode_users(batch: TableBatch, name: str, builder: GraphBuilder) -> pa.Array:
    """The users of a batch as a dictionary; those without a name are bad rows and null."""
    users = batch.columns[name]
    users = pc.if_else(pc.equal(pc.utf8_trim_whitespace(users), ""), None, users)
    nobody = np.asarray(users.is_null().to_numpy(zero_copy_only=False))
    builder.problems.report(
        "empty user",
        nobody,
        batch.locate,
        lambda i: f"the {name} is empty, expected who viewed the item",
    )
    return users.dictionary_encode()


def _without_robots(
    users: Array, times: Array, builder: GraphBuilder, settings: ImportSettings
) -> Array:
    """The views in the order of user and time, without those of users who viewed more than a person
    can within a window.
    """
    order = np.lexsort((times, users))
    if not len(order):
        return order
    span = times.max() - times.min() + 2 * settings.window * 60
    # one axis on which users do not overlap
    moments = users[order] * span + (times[order] - times.min())
    last = np.searchsorted(moments, moments + settings.window * 60, "right")
    within = last - np.arange(len(order))
    robots = np.unique(users[order][within > settings.max_views])
    kept = ~np.isin(users[order], robots)
    if len(robots):
        reason = f"views by users with more than {settings.max_views} in one window"
        builder.problems.normal[reason] += int((~kept).sum())
    return order[kept]


def _co_views(
    users: Array, times: Array, items: Array, settings: ImportSettings
) -> tuple[Array, Array]:
    """(sources, targets) of the item pairs that at least `min_count` users viewed within the
    window; views come in order.
    """
    window = settings.window * 60
    found: list[tuple[Array, Array]] = []
    held, limit = 0, MOST_PAIRS
    first = np.arange(len(users))
    with progress("Linking items viewed together", None, "co-views") as task:
        for step in range(1, len(users)):
            # a view too far from its step-th successor is too far from later ones
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
                limit = max(MOST_PAIRS, 2 * held)  # merging pays when the list has doubled
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
