"""The paper's Product graph: a log of who viewed which item when, and a table with the items' texts.

Two items are linked when one user viewed both within the window (30 minutes by default), counted by users: an item reloaded ten
times counts once. `min_count` users must agree.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphformers.data.arrays import Array, one_chunk
from graphformers.data.builder import RESOLVE_ROWS, GraphBuilder, Locate
from graphformers.data.formats.tables import read_nodes
from graphformers.data.settings import ImportSettings, guess_column, require_column
from graphformers.data.tables import TableBatch, read_table, table_columns
from graphformers.errors import InputError
from graphformers.progress import progress

MOST_PAIRS = 50_000_000  # co-views held before equal ones are merged


def read(nodes: list[Path], edges: list[Path], builder: GraphBuilder, settings: ImportSettings) -> None:
    logs: list[Path] = []
    items: list[Path] = []
    for path in nodes + edges:
        names = table_columns(path, header=settings.header, quotes=settings.quotes)
        is_log = all(guess_column(role, names, settings) for role in ("user", "time", "item"))
        (logs if is_log else items).append(path)
    if not logs or not items:
        missing = "a log with the columns user, time, item" if not logs else "an item table with the columns id, text"
        raise InputError(
            f"{missing} is missing among: {', '.join(map(str, nodes + edges))}; name columns with --column user=NAME and so on"
        )
    for path in items:
        read_nodes(path, builder, settings)
    builder.seal_nodes()
    users, times, items_viewed = _read_logs(logs, builder, settings)
    builder.add_resolved_edges(*_co_views(users, times, items_viewed, settings))


def _read_logs(paths: list[Path], builder: GraphBuilder, settings: ImportSettings) -> tuple[Array, Array, Array]:
    """(V,) user codes, times in seconds and item nodes of all views of known items."""
    users: list[pa.Array] = []
    times: list[Array] = []
    items: list[Array] = []
    waiting: list[tuple[pa.Array, Locate]] = []
    for path in paths:
        names = table_columns(path, header=settings.header, quotes=settings.quotes)
        user, time, item = (require_column(role, names, settings, path) for role in ("user", "time", "item"))
        for batch in read_table(path, builder.problems, header=settings.header, quotes=settings.quotes, only=[user, time, item]):
            users.append(batch.columns[user].cast(pa.large_string()).dictionary_encode())
            times.append(_seconds(batch, time, builder))
            waiting.append((batch.columns[item], batch.locate))
            if sum(len(ids) for ids, _ in waiting) >= RESOLVE_ROWS:
                items.append(builder.lookup(waiting))
                waiting = []
    if waiting:
        items.append(builder.lookup(waiting))
    codes = np.asarray(one_chunk(pa.chunked_array(users).unify_dictionaries()).indices)
    all_times, all_items = np.concatenate(times), np.concatenate(items)
    kept = np.isfinite(all_times) & (all_items >= 0)
    return codes[kept], all_times[kept], all_items[kept]


def _seconds(batch: TableBatch, name: str, builder: GraphBuilder) -> Array:
    """The times of a batch in seconds: numbers are seconds (milliseconds when they are too large for that), text is ISO 8601."""
    column = batch.columns[name]
    try:
        seconds = _parse_times(column)
    except pa.ArrowInvalid:
        seconds = np.concatenate([_parse_one(column[i : i + 1]) for i in range(len(column))])
    bad = ~np.isfinite(seconds)
    expected = "a number of seconds or a date and time such as 2024-05-01 12:30:00"
    builder.report("malformed row", bad, batch.locate, lambda i: f"the time {column[i].as_py()!r}, expected {expected}")
    return seconds


def _parse_times(column: pa.Array) -> Array:
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        try:
            column = column.cast(pa.float64())
        except pa.ArrowInvalid:
            column = column.cast(pa.timestamp("us"))
    if pa.types.is_temporal(column.type):
        return np.asarray(column.cast(pa.timestamp("us"))).astype("datetime64[us]").astype(np.int64) / 1e6
    numbers = np.asarray(pc.fill_null(column.cast(pa.float64()), float("nan")))
    return np.where(numbers > 1e11, numbers / 1000, numbers)


def _parse_one(value: pa.Array) -> Array:
    try:
        return _parse_times(value)
    except pa.ArrowInvalid:
        return np.array([np.nan])


def _co_views(users: Array, times: Array, items: Array, settings: ImportSettings) -> tuple[Array, Array]:
    """(sources, targets) of the item pairs that at least `min_count` users viewed within the window."""
    order = np.lexsort((times, users))
    users, times, items = users[order], times[order], items[order].astype(np.uint64)
    window = settings.window * 60
    found: list[tuple[Array, Array]] = []
    held = 0
    first = np.arange(len(users))
    with progress("Linking items viewed together", None, "co-views") as task:
        for step in range(1, len(users)):
            first = first[first + step < len(users)]  # a view too far from its step-th successor is too far from later ones
            second = first + step
            near = (users[first] == users[second]) & (times[second] - times[first] <= window)
            first, second = first[near], second[near]
            if not len(first):
                break
            other = items[first] != items[second]
            found.append(_pair_keys(users[first[other]], items[first[other]], items[second[other]]))
            held += len(found[-1][0])
            task.advance(len(first))
            if held > MOST_PAIRS:
                found = [_merge(found)]
                held = len(found[0][0])
    keys = _merge(found)[1] if found else np.zeros(0, np.uint64)
    keys, counts = np.unique(keys, return_counts=True)
    keys = keys[counts >= settings.min_count]
    return (keys >> np.uint64(32)).astype(np.int32), (keys & np.uint64(0xFFFFFFFF)).astype(np.int32)


def _pair_keys(users: Array, ones: Array, others: Array) -> tuple[Array, Array]:
    return users, np.minimum(ones, others) << np.uint64(32) | np.maximum(ones, others)


def _merge(found: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Each (user, pair) once."""
    users, keys = (np.concatenate([part[i] for part in found]) for i in (0, 1))
    order = np.lexsort((keys, users))
    users, keys = users[order], keys[order]
    new = np.ones(len(keys), dtype=bool)
    new[1:] = (keys[1:] != keys[:-1]) | (users[1:] != users[:-1])
    return users[new], keys[new]
