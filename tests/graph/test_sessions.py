"""Sessions: items viewed together, whatever times and logs look like."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from graphformers.errors import InputError
from graphformers.graph.readers import read_graph
from graphformers.graph.textgraph import TextGraph
from tests.graph.test_formats import read, write

ITEMS = "id,title\ni1,Shoes\ni2,Socks\ni3,Hat\ni4,Glove\n"
LOG = """user,time,item
u1,2024-05-01 12:00:00,i1
u1,2024-05-01 12:20:00,i2
u1,2024-05-01 12:45:00,i3
u1,2024-05-01 12:21:00,i2
u2,2024-05-01 12:10:00,i2
u2,2024-05-01 12:00:00,i1
u2,2024-05-02 12:00:00,i4
"""


def naive_sessions(
    views: list[tuple[str, float, str]], window: float, min_count: int
) -> set[frozenset[str]]:
    users: dict[frozenset[str], set[str]] = {}
    for user, time, item in views:
        for other_user, other_time, other in views:
            if user == other_user and item != other and abs(time - other_time) <= window * 60:
                users.setdefault(frozenset((item, other)), set()).add(user)
    return {pair for pair, seen in users.items() if len(seen) >= min_count}


def links(graph: TextGraph) -> set[frozenset[str]]:
    return {frozenset(graph.ids_of(pair)) for pair in graph.pairs()}


def test_sessions(tmp_path: Path) -> None:
    items, log = write(tmp_path / "items.csv", ITEMS), write(tmp_path / "log.csv", LOG)
    assert links(read("sessions", items, log)) == {frozenset(("i1", "i2")), frozenset(("i2", "i3"))}
    assert links(read("sessions", log, items, window=60)) == {
        frozenset(p) for p in (("i1", "i2"), ("i2", "i3"), ("i1", "i3"))
    }
    assert links(read("sessions", items, log, min_count=2)) == {frozenset(("i1", "i2"))}


@pytest.mark.parametrize(
    "header",
    [
        "item,title",
        "item_id,name",
        "product,description",
        "Product_ID,text",
        "sku,title",
        "id,title,item",
    ],
)
def test_sessions_whose_items_are_called_as_in_the_log(tmp_path: Path, header: str) -> None:
    rows = [line + ",x" * (header.count(",") - 1) for line in ITEMS.splitlines()[1:]]
    items = write(tmp_path / "items.csv", "\n".join([header, *rows]))
    log = write(
        tmp_path / "log.csv",
        LOG.replace("user,time,item", f"user,time,{'sku' if 'sku' in header else 'item'}"),
    )
    graph = read("sessions", items, log, columns={"item": "sku"} if "sku" in header else {})
    assert (graph.ids.to_pylist(), graph.texts.to_pylist()) == (
        ["i1", "i2", "i3", "i4"],
        ["Shoes", "Socks", "Hat", "Glove"],
    )
    assert graph.num_pairs == 2


UNITS = {
    "s": lambda t: f"{t:.0f}",
    "ms": lambda t: f"{t * 1000:.0f}",
    "us": lambda t: f"{int(t) * 10**6}",
    "ns": lambda t: f"{int(t) * 10**9}",
    "iso": lambda t: str(np.datetime64(int(t), "s")),
    "utc": lambda t: f"{np.datetime64(int(t), 's')}Z",
    "offset": lambda t: f"{np.datetime64(int(t) + 7200, 's')}.123456789+02:00",
    "mixed": lambda t: (
        f"{np.datetime64(int(t), 's')}Z" if t % 120 else f"{np.datetime64(int(t) - 3600, 's')}-0100"
    ),
}


@pytest.mark.parametrize("unit", UNITS)
def test_sessions_are_those_of_a_naive_count(tmp_path: Path, unit: str) -> None:
    draw = np.random.default_rng(0)
    views = [
        (
            f"u{draw.integers(4)}",
            float(1_700_000_000 + draw.integers(200) * 60),
            f"i{draw.integers(1, 9)}",
        )
        for _ in range(150)
    ]
    items = write(
        tmp_path / "items.csv", "id,title\n" + "".join(f"i{i},Item {i}\n" for i in range(1, 9))
    )
    shown = UNITS[unit]
    log = write(
        tmp_path / "log.csv",
        "user,time,item\n" + "".join(f"{u},{shown(t)},{i}\n" for u, t, i in views),
    )
    for window, min_count in ((5, 1), (30, 2), (30, 3)):
        found = links(read("sessions", items, log, window=window, min_count=min_count))
        assert found == naive_sessions(views, window, min_count)


def test_sessions_bad_rows(tmp_path: Path) -> None:
    items = write(tmp_path / "items.csv", ITEMS)
    log = write(
        tmp_path / "log.csv",
        "user,time,item\nu1,1000,i1\nu1,yesterday,i2\nu1,1100,i9\nu1,1200,i3\n",
    )
    with pytest.raises(
        InputError, match=re.escape(f"{log}:3: the time 'yesterday', expected a number of seconds")
    ):
        read("sessions", items, log)
    graph = read("sessions", items, log, skip_bad=True)
    assert links(graph) == {frozenset(("i1", "i3"))}
    assert graph.summary["skipped"] == {"malformed row": 1, "unknown node": 1}
    with pytest.raises(
        InputError, match="a log with the columns user, time, item is missing among"
    ):
        read("sessions", items)


def write_log(path: Path, times: pa.Array, users: list[str | None] | None = None) -> Path:
    """A Parquet log in which one user, unless there are others, views the items in turn."""
    count = len(times)
    columns = {
        "user": users or ["u"] * count,
        "time": times,
        "item": [f"i{i + 1}" for i in range(count)],
    }
    parquet.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize(
    "kind",
    [
        pa.timestamp("s"),
        pa.timestamp("ns"),
        pa.timestamp("us", "UTC"),
        pa.timestamp("ms", "Europe/Berlin"),
        pa.int64(),
    ],
)
def test_sessions_with_typed_times(tmp_path: Path, kind: pa.DataType) -> None:
    items = write(tmp_path / "items.csv", ITEMS)
    times = pa.array([1_700_000_000, None, 1_700_000_060], pa.int64())
    if pa.types.is_timestamp(kind):
        times = times.cast(pa.timestamp("s")).cast(pa.timestamp(kind.unit)).cast(kind)
    log = write_log(tmp_path / "log.parquet", times)
    with pytest.raises(
        InputError,
        match=re.escape(f"{log}, row 2: the time None, expected a number of seconds or a date"),
    ):
        read("sessions", items, log)
    graph = read("sessions", items, log, skip_bad=True)
    assert links(graph) == {frozenset(("i1", "i3"))}
    assert graph.summary["skipped"] == {"malformed row": 1}


def test_sessions_with_times_of_no_known_type(tmp_path: Path) -> None:
    items = write(tmp_path / "items.csv", ITEMS)
    log = write_log(tmp_path / "log.parquet", pa.array([1, 2], pa.time32("s")))
    with pytest.raises(
        InputError,
        match=r"log.parquet: the column 'time' holds values of type time32.*, expected a number",
    ):
        read("sessions", items, log)


def test_sessions_from_json_lines(tmp_path: Path) -> None:
    views = [
        ("u", "2024-05-01T12:00:00Z", "i1"),
        (7, 1714564860, "i2"),
        ("u", 1714564860, "i3"),
        ("u", [1], "i4"),
    ]
    lines = [json.dumps({"user": user, "time": time, "item": item}) for user, time, item in views]
    items, log = (
        write(tmp_path / "items.csv", ITEMS),
        write(tmp_path / "log.jsonl", "\n".join(lines)),
    )
    graph = read("sessions", items, log, skip_bad=True)
    assert links(graph) == {frozenset(("i1", "i3"))}
    assert graph.summary["skipped"] == {"malformed row": 1}


def test_sessions_without_a_user_are_bad_rows(tmp_path: Path) -> None:
    items = write(tmp_path / "items.csv", ITEMS)
    log = write_log(tmp_path / "log.parquet", pa.array([10, 20, 30, 40]), [None, "", "u", "u"])
    with pytest.raises(
        InputError,
        match=re.escape(f"{log}, row 1: the user is empty, expected the user who viewed the item"),
    ):
        read("sessions", items, log)
    graph = read("sessions", items, log, skip_bad=True)
    assert links(graph) == {frozenset(("i3", "i4"))}
    assert graph.summary["skipped"] == {"empty user": 2}


def test_a_log_without_views_links_nothing(tmp_path: Path) -> None:
    items, log = (
        write(tmp_path / "items.csv", ITEMS),
        write(tmp_path / "log.csv", "user,time,item\n"),
    )
    graph = read("sessions", items, log)
    assert (graph.num_nodes, graph.num_pairs) == (4, 0)


def test_robots_are_left_aside(tmp_path: Path) -> None:
    """A robot that views everything at once would link everything to everything, and take for
    ever.
    """
    items = tmp_path / "items.csv"
    items.write_text("id,title\n" + "".join(f"i{i},Item {i}\n" for i in range(20_000)))
    log = tmp_path / "log.csv"
    views = [f"bot,{i * 0.05:.2f},i{i}" for i in range(20_000)] + ["ann,0,i1", "ann,60,i2"]
    log.write_text("user,time,item\n" + "\n".join(views) + "\n")
    graph = read_graph([items, log], format="sessions")
    assert graph.num_pairs == 1
    assert graph.neighbors("i1") == ["i2"]
    assert graph.summary["left_aside"] == {
        "views by users with more than 500 in one window": 20_000
    }
    assert (
        read_graph([items, log], format="sessions", window=0.01, max_views=20).num_pairs > 100_000
    )


def test_the_item_column_that_was_named_is_the_id(tmp_path: Path) -> None:
    items = write(tmp_path / "items.csv", "product,title,sku\nx,Red shoes,a\ny,Blue shoes,b\n")
    log = write(tmp_path / "log.csv", "user,time,sku\nann,0,a\nann,60,b\n")
    graph = read("sessions", items, log, columns={"item": "sku"})
    assert links(graph) == {frozenset(("a", "b"))}
