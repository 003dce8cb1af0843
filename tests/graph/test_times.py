"""Links with times: from files and from memory, kept, exchanged, split by."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphformers.embedding.edit_input import read_edits
from graphformers.errors import GraphFormersError, InputError
from graphformers.graph.edited import EditedGraph
from graphformers.graph.interop import build_graph, from_networkx, from_pyg, to_networkx, to_pyg
from graphformers.graph.readers import read_graph
from graphformers.graph.settings import ImportSettings
from graphformers.graph.textgraph import TextGraph
from graphformers.graph.times import format_time
from graphformers.splits.split import split_links
from tests.conftest import make_graph
from tests.splits.test_split import check_common


def timed(seed: int = 0, num_nodes: int = 120, **changes: Any) -> TextGraph:
    """A random graph whose edges have whole numbers as times, many of them alike."""
    graph = make_graph(num_nodes, 4 * num_nodes, seed)
    sources, targets = (graph.ids_of(side) for side in graph.edges)
    times = np.random.default_rng(seed).integers(0, 40, len(sources))
    edges = {"source": sources, "target": targets, "time": times}
    return build_graph(graph.table, edges, columns={"time": "time"}, **changes)


def times_of_pairs(graph: TextGraph) -> dict[frozenset[int], float]:
    """Naively: the earliest time of each linked pair."""
    assert graph.edge_times is not None
    found: dict[frozenset[int], float] = {}
    for one, other, time in zip(*graph.edges.tolist(), graph.edge_times.tolist(), strict=True):
        if one != other and not np.isnan(time):
            found[frozenset((one, other))] = min(time, found.get(frozenset((one, other)), np.inf))
    return found


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 10_000))
def test_nothing_is_seen_that_is_later_than_what_is_asked(seed: int) -> None:
    graph = timed(seed % 7)
    split = split_links(graph, valid=20, test=30, seed=seed, held_out="latest-links", candidates=20)
    check_common(split)
    times = times_of_pairs(graph)
    train, valid, test = (
        [times[frozenset(pair)] for pair in pairs.tolist()]
        for pairs in (split.train, split.valid.pairs, split.test.pairs)
    )
    assert (len(valid), len(test)) == (20, 30)
    assert max(train) <= min(valid)
    assert max(valid) <= min(test)
    again = split_links(graph, valid=20, test=30, seed=seed, held_out="latest-links", candidates=20)
    assert np.array_equal(split.test.candidates, again.test.candidates)


def test_late_links_between_new_nodes_are_left_out() -> None:
    """They cannot be asked, and nobody may see them."""
    old = [(f"a{i}", f"a{j}", 1) for i in range(12) for j in range(i) if (i + j) % 3]
    new = [("b0", f"a{i}", 9) for i in range(4)]  # a node that comes with its links
    asked = [("a0", "a3", 8), ("a1", "a5", 8), ("a2", "a4", 8), ("a6", "a9", 8)]
    names = [*(f"a{i}" for i in range(12)), "b0"]
    ends = [*old, *new, *asked]
    graph = build_graph(
        pa.table({"id": names, "text": [f"text {name}" for name in names]}),
        {
            "source": [a for a, _, _ in ends],
            "target": [b for _, b, _ in ends],
            "time": [t for *_, t in ends],
        },
        columns={"time": "time"},
    )
    split = split_links(graph, valid=2, test=2, held_out="latest-links", candidates=2)
    found = {
        frozenset(graph.ids_of(pair))
        for questions in (split.valid, split.test)
        for pair in questions.pairs
    }
    assert found == {frozenset(pair[:2]) for pair in asked}
    assert len(split.train) == len(old)
    assert not len(split.indices[split.indptr[-2] : split.indptr[-1]])  # nothing is known of b0
    unused = "4 late links are neither trained on nor held out"
    assert split.notes[0] == f"{unused}: 4 with an end that has no earlier links"


def test_links_as_late_as_those_asked_are_told(graph: TextGraph) -> None:
    """As `--held-out year` tells it of nodes."""
    sources, targets = (graph.ids_of(side) for side in graph.edges)
    order = np.arange(len(sources))
    edges = {"source": sources, "target": targets, "year": 1990 + order % 5, "order": order}
    years = build_graph(graph.table, edges, columns={"time": "year"})
    split = split_links(years, valid=30, test=40, held_out="latest-links", candidates=10)
    times = times_of_pairs(years)
    earliest = min(times[frozenset(pair)] for pair in split.valid.pairs.tolist())
    tied = sum(times[frozenset(pair)] == earliest for pair in split.train.tolist())
    assert tied
    said = (
        f"{tied} links left for training have the same time as the "
        f"earliest held-out link ({earliest:.0f})"
    )
    assert split.notes[0] == said
    distinct = build_graph(graph.table, edges, columns={"time": "order"})
    notes = split_links(distinct, valid=30, test=40, held_out="latest-links", candidates=10).notes
    assert not any("have the same time" in note for note in notes)


def test_a_pair_is_as_old_as_its_first_edge_and_a_save_keeps_it(tmp_path: Path) -> None:
    graph = timed(3).save(tmp_path / "timed.graph")
    times = graph.pair_times()
    assert times is not None
    expected = times_of_pairs(graph)
    assert times.tolist() == [expected[frozenset(pair)] for pair in graph.pairs().tolist()]


def imported(folder: Path, edges: str, **changes: Any) -> TextGraph:
    """Three nodes and these edges, whose column `seen` holds their times."""
    (folder / "nodes.csv").write_text("id,text\na,one\nb,two\nc,three\n")
    (folder / "edges.csv").write_text(edges)
    return read_graph(
        folder / "nodes.csv", folder / "edges.csv", columns={"time": "seen"}, **changes
    )


WRITTEN = {
    "number": (["1990", "1991", "1992.5"], [1990.0, 1991.0, 1992.5]),
    "date": (["2001-01-01", "2001-01-02", "1970-01-01"], [978307200.0, 978393600.0, 0.0]),
    "moment": (
        ["2001-01-01T00:00:10Z", "2001-01-01 00:00:10", "2001-01-01T02:00:10+02:00"],
        [978307210.0] * 3,
    ),
}


@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_times_come_from_files(tmp_path: Path, written: str, suffix: str) -> None:
    values, expected = WRITTEN[written]
    (tmp_path / "nodes.csv").write_text("id,text\na,one\nb,two\nc,three\n")
    edges, pairs = tmp_path / f"edges.{suffix}", [("a", "b"), ("b", "c"), ("c", "a")]
    if suffix == "csv":
        edges.write_text(
            "src,dst,seen\n"
            + "".join(f"{a},{b},{value}\n" for (a, b), value in zip(pairs, values, strict=True))
        )
    else:
        lines = [
            f'{{"src": "{a}", "dst": "{b}", "seen": "{value}"}}\n'
            for (a, b), value in zip(pairs, values, strict=True)
        ]
        edges.write_text("".join(lines))
    graph = read_graph(tmp_path / "nodes.csv", edges, columns={"time": "seen"})
    assert graph.edge_times is not None
    assert graph.edge_times.tolist() == expected
    assert graph.summary["edge_columns_not_kept"] == []
    unasked = read_graph(tmp_path / "nodes.csv", edges)
    assert unasked.edge_times is None
    assert unasked.summary["edge_columns_not_kept"] == ["seen"]


def test_what_is_no_time_is_a_bad_row(tmp_path: Path) -> None:
    edges = "src,dst,type,seen\na,b,x,1990\nb,nobody,x,soon\nb,c,y,later\nc,a,z,1991\n"
    with pytest.raises(
        InputError, match=r"edges\.csv:3: the time 'soon', expected a number of seconds or a date"
    ):
        imported(tmp_path, edges)
    graph = imported(tmp_path, edges, skip_bad=True)
    assert graph.edges.tolist() == [[0, 2], [1, 0]]
    assert graph.edge_times is not None
    assert graph.edge_times.tolist() == [1990.0, 1991.0]
    assert [
        graph.type_names[code] for code in graph.edge_types if graph.edge_types is not None
    ] == ["x", "z"]  # type: ignore[union-attr]
    edges = "src,dst,seen\na,b,1990\nc,nobody,1991\n"
    with pytest.raises(InputError, match=r"edges\.csv:3: an edge to 'nobody'"):
        imported(tmp_path, edges)


def test_years_and_dates_do_not_mix(tmp_path: Path) -> None:
    """A year among dates would be a moment of 1970, and the latest link the earliest."""
    edges = "src,dst,seen\na,b,2019-06-01\nb,c,\nc,a,2020\n"
    with pytest.raises(
        InputError,
        match=r"edges\.csv:4: the time '2020', expected a date .*, as the times before it are",
    ):
        imported(tmp_path, edges)
    edges = "src,dst,seen\na,b,2019\nb,c,2020-06-01\n"
    with pytest.raises(
        InputError,
        match=r"edges\.csv:3: the time '2020-06-01', expected a number, as the times before it are",
    ):
        imported(tmp_path, edges)
    edges = "src,dst,seen\na,b,2024-02-30\n"
    with pytest.raises(InputError, match=r"edges\.csv:2: the time '2024-02-30'"):
        imported(tmp_path, edges)


def test_many_rows_that_are_no_times_are_told_at_once(tmp_path: Path) -> None:
    """Not found one by one: of half a million such rows that took minutes."""
    count = 200_000
    edges = "src,dst,seen\n" + "a,b,05/01/2024\n" * count + "b,a,2024\n"
    graph = imported(tmp_path, edges, skip_bad=True)
    assert graph.summary["skipped"] == {"malformed row": count}
    assert graph.edges.tolist() == [[1], [0]]


def test_a_link_without_a_time_is_kept_without(tmp_path: Path) -> None:
    edges = "src,dst,seen\na,b,2019\nb,c,\n"
    graph = imported(tmp_path, edges)
    assert graph.edge_times is not None
    assert graph.edge_times.tolist() == pytest.approx([2019.0, np.nan], nan_ok=True)
    for back in (from_networkx(to_networkx(graph)), from_pyg(to_pyg(graph, directed=True))):
        assert back.edge_times is not None
        assert back.edge_times.tolist() == pytest.approx([2019.0, np.nan], nan_ok=True)


def test_attributes_that_are_no_times_are_noted() -> None:
    graph = to_networkx(make_graph(10, 20))
    for *_, data in graph.edges(data=True):
        data |= {"time": "5 min", "weight": 2.0}
    found = from_networkx(graph)
    assert found.edge_times is None
    assert found.summary["edge_columns_not_kept"] == ["time", "weight"]


def test_an_update_refuses_times() -> None:
    with pytest.raises(GraphFormersError, match="an update does not keep the times of links"):
        graph = EditedGraph(make_graph(10, 20))
        read_edits(graph, settings=ImportSettings(columns={"time": "when"}))


def test_the_best_try_counts() -> None:
    """With more links held out, fewer of them may be asked: their ends lose their earlier links."""
    hub = [("h", f"a{i}", 1) for i in range(20)]
    ring = [(f"a{i}", f"a{(i + 1) % 20}", 2) for i in range(20)]
    names = ["h", *(f"a{i}" for i in range(20))]
    table = pa.table({"id": names, "text": [f"text {name}" for name in names]})
    ends = [*hub, *ring]
    graph = build_graph(
        table,
        {
            "source": [a for a, *_ in ends],
            "target": [b for _, b, _ in ends],
            "time": [t for *_, t in ends],
        },
        columns={"time": "time"},
    )
    split = split_links(graph, valid=0.3, test=0.3, held_out="latest-links", candidates=2)
    assert len(split.valid) + len(split.test) == 20
    alike = build_graph(
        table,
        {
            "source": [a for a, *_ in ends],
            "target": [b for _, b, _ in ends],
            "time": [1] * len(ends),
        },
        columns={"time": "time"},
    )
    with pytest.raises(GraphFormersError, match="all links have the same time"):
        split_links(alike, held_out="latest-links")


def test_a_split_by_time_needs_all_times(graph: TextGraph) -> None:
    with pytest.raises(
        GraphFormersError,
        match=r"no times; import them with columns=\{'time': 'NAME'\}",
    ):
        split_links(graph, held_out="latest-links")
    whole = timed()
    graph = EditedGraph(whole)
    new = next((a, b) for a in range(9) for b in range(a) if not graph.is_linked(a, b))
    graph.add_link(*new, (*graph.ids_of(np.array(new)), None))
    grown = graph.freeze()
    assert grown.edge_times is not None
    assert np.isnan(grown.edge_times).sum() == 1
    assert grown.edge_times[:-1].tolist() == whole.edge_times.tolist()  # type: ignore[union-attr]
    with pytest.raises(GraphFormersError, match="1 linked pairs have no time"):
        split_links(grown, held_out="latest-links")


def test_too_few_late_links_are_said() -> None:
    chain = build_graph(
        pa.table({"id": list("abcdef"), "text": list("uvwxyz")}),
        {"source": list("abcde"), "target": list("bcdef"), "time": [1, 2, 3, 4, 5]},
        columns={"time": "time"},
    )
    with pytest.raises(
        GraphFormersError, match="of the later half of the pairs have earlier links at both ends"
    ):
        split_links(chain, valid=1, test=1, held_out="latest-links", candidates=2)


def test_times_that_do_not_fit_their_edges() -> None:
    nodes = pa.table({"id": ["a", "b"], "text": ["one", "two"]})
    ends, columns = {"source": ["a"], "target": ["b"]}, {"time": "when"}
    with pytest.raises(
        InputError,
        match=r"edges given that are not a table .*when expected length 1 but got length 2",
    ):
        build_graph(nodes, ends | {"when": [1, 2]}, columns=columns)
    with pytest.raises(InputError, match="edges, row 1: the time 'soon'"):
        build_graph(nodes, ends | {"when": ["soon"]}, columns=columns)
    with pytest.raises(InputError, match="no column for time"):
        build_graph(nodes, ends, columns=columns)
    edges = {"source": ["a", "b"], "target": ["b", "a"], "when": ["soon", "2024-05-01"]}
    graph = build_graph(nodes, edges, columns=columns, skip_bad=True)
    assert graph.edges.tolist() == [[1], [0]]
    assert graph.summary["skipped"] == {"malformed row": 1}


def test_other_libraries_keep_times() -> None:
    graph = timed(1, 20)
    assert graph.edge_times is not None
    for back in (from_networkx(to_networkx(graph)), from_pyg(to_pyg(graph, directed=True))):
        times = times_of_pairs(back)
        found = {
            frozenset(back.ids_of(np.array(sorted(pair)))): time for pair, time in times.items()
        }
        expected = {
            frozenset(graph.ids_of(np.array(sorted(pair)))): time
            for pair, time in times_of_pairs(graph).items()
        }
        assert found == expected


def test_moments_as_people_read_them() -> None:
    assert format_time(1995.0) == "1995"
    assert format_time(978307200.0) == "2001-01-01"
    assert format_time(978307210.0) == "2001-01-01 00:00:10"
    assert format_time(978307210000.0) == "2001-01-01 00:00:10"
    assert format_time(20200101.0) == "20200101"
