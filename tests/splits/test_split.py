import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import graphformers.splits.candidates as candidates
from graphformers.errors import ArtifactError, GraphFormersError
from graphformers.graph.interop import build_graph
from graphformers.graph.textgraph import TextGraph
from graphformers.splits.settings import SplitSettings
from graphformers.splits.split import LinkSplit, split_links
from tests.conftest import make_graph


def rows_of(split: LinkSplit) -> list[set[int]]:
    return [
        set(split.indices[split.indptr[v] : split.indptr[v + 1]].tolist())
        for v in range(split.graph.num_nodes)
    ]


def unordered(pairs: np.ndarray[Any, Any]) -> set[tuple[int, int]]:
    return {(min(a, b), max(a, b)) for a, b in pairs.tolist()}


def check_common(split: LinkSplit) -> None:
    """What holds for every way to hold out."""
    graph, seen = split.graph, rows_of(split)
    all_pairs = unordered(graph.pairs())
    train, valid, test = (
        unordered(split.train),
        unordered(split.valid.pairs),
        unordered(split.test.pairs),
    )
    assert len(train) == len(split.train)
    assert train | valid | test <= all_pairs
    assert len(train) + len(valid) + len(test) == len(train | valid | test)
    held_out = set(split.held_out_nodes.tolist())
    for questions in (split.valid, split.test):
        assert len(questions) > 0
        for (anchor, positive), row in zip(
            questions.pairs.tolist(), questions.candidates.tolist(), strict=True
        ):
            assert positive not in seen[anchor]  # the asked link is never visible,
            assert anchor not in seen[positive]  # from either side
            assert seen[anchor]
            assert row[0] == positive
            assert (
                len(set(row))
                == len(row)
                == (split.settings.candidates or questions.candidates.shape[1])
            )
            assert not np.isin(row, split.held_out_nodes).any()
            known = set(graph.neighbors_of(anchor).tolist())
            for candidate in row:
                # no candidate, positive or not, can be told by having no neighbours
                assert seen[candidate]
                assert candidate not in held_out
            for negative in row[1:]:
                assert negative != anchor
                assert negative not in known
                assert graph.texts[negative] != graph.texts[positive]
    for node, neighbors in enumerate(seen):
        assert neighbors <= set(graph.neighbors_of(node).tolist())


def test_no_negative_has_the_text_of_the_positive() -> None:
    """Of a graph in which every text is that of ten nodes."""
    table = pa.table(
        {"id": [f"n{i}" for i in range(150)], "text": [f"text {i % 15}" for i in range(150)]}
    )
    ends = [(f"n{i}", f"n{(i * step + 1) % 150}") for i in range(150) for step in (3, 7, 11)]
    split = split_links(
        build_graph(table, ends),
        valid=20,
        test=40,
        candidates=30,
    )
    for row in split.test.candidates:
        assert not np.isin(row[1:] % 15, row[0] % 15).any()


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 10_000), st.sampled_from(["links", "nodes", "year"]))
def test_properties_of_every_split(seed: int, held_out: str) -> None:
    graph = make_graph(120, 420, seed % 5)
    check_common(
        split_links(graph, valid=0.1, test=0.1, seed=seed, held_out=held_out, candidates=20)
    )


def test_links_leave_a_train_link_at_both_ends(graph: TextGraph) -> None:
    split = split_links(graph, valid=50, test=70, candidates=30)
    seen = rows_of(split)
    assert (len(split.valid), len(split.test)) == (50, 70)
    assert len(split.train) == graph.num_pairs - 120
    for pairs in (split.valid.pairs, split.test.pairs):
        assert all(seen[a] and seen[b] for a, b in pairs.tolist())
    for node, neighbors in enumerate(seen):
        for other in neighbors:
            assert node in seen[other]
    assert unordered(split.train) == {
        (a, b) for a in range(graph.num_nodes) for b in seen[a] if a < b
    }


def test_held_out_nodes_are_unknown_in_training(graph: TextGraph) -> None:
    split = split_links(graph, valid=10, test=20, held_out="nodes", candidates=30)
    seen, held_out = rows_of(split), set(split.held_out_nodes.tolist())
    assert len(held_out) == 30
    assert not held_out & set(split.train.flatten().tolist())
    for node in range(graph.num_nodes):
        assert not held_out & seen[node]  # nobody sees a held-out node
    for anchor, positive in [*split.valid.pairs.tolist(), *split.test.pairs.tolist()]:
        assert anchor in held_out
        assert seen[anchor] == set(graph.neighbors_of(anchor).tolist()) - held_out - {positive}


def test_temporal_splits_hold_out_the_latest(graph: TextGraph) -> None:
    split = split_links(graph, valid=15, test=25, held_out="year", candidates=30)
    years = np.asarray(graph.column("year"))
    test, valid = split.test.pairs[:, 0], split.valid.pairs[:, 0]
    assert years[test].min() >= years[valid].max()
    known = np.setdiff1d(np.arange(graph.num_nodes), split.held_out_nodes)
    assert years[known].max() <= years[valid].min()  # training never sees the future,
    assert years[split.train].max() <= years[valid].min()
    # and no candidate gives itself away by its age
    assert years[split.test.candidates].max() <= years[valid].min()
    with pytest.raises(
        GraphFormersError, match="no node column 'month' in this graph; it has: year"
    ):
        split_links(graph, held_out="month")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0, None], "is empty for 100 nodes"),
        ([1.0, float("nan")], "is empty for 100 nodes"),
        (["2001", "unknown"], "holds text other than dates"),
        ([5, 5], "has the same value for every node"),
        ([True, False], "holds bool, expected numbers or dates"),
    ],
)
def test_columns_that_are_no_time_are_refused(
    graph: TextGraph, values: list[Any], message: str
) -> None:
    table = graph.table.append_column("when", pa.array(values * 100))
    ids = graph.ids.to_pylist()
    other = build_graph(
        table,
        {"source": [ids[a] for a in graph.edges[0]], "target": [ids[b] for b in graph.edges[1]]},
    )
    with pytest.raises(GraphFormersError, match=message):
        split_links(other, held_out="when", candidates=20)


def test_known_nodes_as_late_as_those_that_ask_are_told(graph: TextGraph) -> None:
    years = [1990 + i % 3 for i in range(graph.num_nodes)]
    sources, targets = map(graph.ids_of, graph.edges)
    tied = build_graph(
        graph.table.drop(["year"]).append_column("year", pa.array(years)),
        {"source": sources, "target": targets},
    )
    split = split_links(tied, valid=5, test=5, held_out="year", candidates=10)
    asked = np.concatenate([split.valid.pairs[:, 0], split.test.pairs[:, 0]])
    earliest = min(years[node] for node in asked)
    known = sum(
        year == earliest for node, year in enumerate(years) if node not in split.held_out_nodes
    )
    assert known
    assert split.notes[0] == (
        f"{known} known nodes have the same year as the earliest anchor ({earliest})"
    )


def test_dates_as_text_are_a_time(graph: TextGraph) -> None:
    dates = [f"20{i % 20:02d}-03-01" for i in range(graph.num_nodes)]
    ids = graph.ids.to_pylist()
    table = graph.table.append_column("when", pa.array(dates))
    other = build_graph(
        table,
        {"source": [ids[a] for a in graph.edges[0]], "target": [ids[b] for b in graph.edges[1]]},
    )
    split = split_links(other, valid=5, test=5, held_out="when", candidates=20)
    assert all(dates[anchor] >= "2018" for anchor in split.test.pairs[:, 0])


def test_degree_does_not_tell_the_positive_in_a_sparse_graph() -> None:
    """Many nodes hang on one link: none of them is ever a candidate, so isolation tells nothing."""
    chain = make_graph(300, 330, seed=9)
    split = split_links(chain, valid=0.05, test=0.1, candidates=50)
    seen = rows_of(split)
    isolated = {node for node, neighbors in enumerate(seen) if not neighbors}
    assert isolated, "the graph of this test has isolated nodes"
    for row in split.test.candidates.tolist():
        assert not isolated & set(row)


def test_the_same_seed_gives_the_same_bytes(graph: TextGraph, tmp_path: Path) -> None:
    saved = graph.save(tmp_path / "a.graph")
    for held_out in ("links", "nodes", "year"):
        chosen = {"valid": 0.05, "test": 0.1, "candidates": 40, "held_out": held_out}
        for name, seed in (("one", 7), ("two", 7), ("three", 8)):
            split_links(saved, seed=seed, **chosen).save(tmp_path / f"{held_out}.{name}")
        one, two, three = (
            {p.name: p.read_bytes() for p in (tmp_path / f"{held_out}.{n}").glob("*.npy")}
            for n in ("one", "two", "three")
        )
        assert one == two
        assert one.keys() == three.keys()
        assert one["test_pairs.npy"] != three["test_pairs.npy"]
        manifests = [
            (tmp_path / f"{held_out}.{n}" / "manifest.json").read_bytes() for n in ("one", "two")
        ]
        assert manifests[0] == manifests[1]


def test_the_split_does_not_depend_on_the_order_of_the_rows(graph: TextGraph) -> None:
    """The pairs asked are the same when the files list the nodes in another order."""
    ids = graph.ids.to_pylist()
    order = np.random.default_rng(0).permutation(graph.num_nodes)
    shuffled = build_graph(
        graph.table.take(pa.array(order)),
        {"source": [ids[a] for a in graph.edges[0]], "target": [ids[b] for b in graph.edges[1]]},
    )

    def asked(graph: TextGraph) -> set[tuple[str, ...]]:
        return {
            tuple(graph.ids_of(pair))
            for pair in split_links(graph, test=0.2, candidates=20).test.pairs
        }

    assert asked(graph) == asked(shuffled)


def test_a_saved_split_is_the_same_and_knows_its_graph(graph: TextGraph, tmp_path: Path) -> None:
    saved = graph.save(tmp_path / "a.graph")
    split = split_links(tmp_path / "a.graph", candidates=50, max_train=100)
    assert split.graph.num_nodes == saved.num_nodes
    loaded = split.save(tmp_path / "a.split")
    assert loaded.settings == split.settings
    assert len(loaded.train) == 100
    for name in ("indptr", "indices", "train", "held_out_nodes"):
        assert np.array_equal(getattr(loaded, name), getattr(split, name))
    assert np.array_equal(loaded.test.candidates, split.test.candidates)
    assert loaded.sizes() == split.sizes()
    assert loaded.to_dict() == split.to_dict() | {"graph": str(tmp_path / "a.graph")}
    assert "<th>#Train</th>" in loaded._repr_html_()
    (tmp_path / "moved").mkdir()
    for name in ("a.graph", "a.split"):
        (tmp_path / name).rename(tmp_path / "moved" / name)
    assert LinkSplit.load(tmp_path / "moved" / "a.split").graph.num_nodes == graph.num_nodes
    other = make_graph(seed=3).save(tmp_path / "b.graph")
    with pytest.raises(ArtifactError, match=r"a.split was made from another graph than .*b.graph"):
        LinkSplit.load(tmp_path / "moved" / "a.split", other)
    (tmp_path / "moved" / "a.graph").rename(tmp_path / "elsewhere")
    with pytest.raises(ArtifactError, match=r"the graph it was made from is not there"):
        LinkSplit.load(tmp_path / "moved" / "a.split")
    with pytest.raises(GraphFormersError, match="save the graph first"):
        split_links(graph, candidates=50).save(tmp_path / "c.split")


def test_the_cap_on_train_pairs_leaves_neighbours(graph: TextGraph) -> None:
    whole, capped = (split_links(graph, candidates=50, max_train=cap) for cap in (None, 100))
    assert len(capped.train) == 100
    assert unordered(capped.train) <= unordered(whole.train)
    assert np.array_equal(whole.indices, capped.indices)


def test_what_cannot_be_had_is_said(graph: TextGraph) -> None:
    with pytest.raises(
        GraphFormersError,
        match=r"500 valid and 900 test pairs asked for, but only \d+ pairs both ends",
    ):
        split_links(graph, valid=500, test=900)
    with pytest.raises(
        GraphFormersError,
        match=(
            r"leaves only \d+ possible negatives, 499 were asked "
            r"for; ask for at most \d+ candidates"
        ),
    ):
        split_links(graph, candidates=500)
    alone = build_graph(pa.table({"id": ["a"], "text": ["x"]}))
    with pytest.raises(GraphFormersError, match="has no links"):
        split_links(alone)
    for wrong in (
        {"valid": 0},
        {"test": 1.5},
        {"test": float("inf")},
        {"candidates": 1},
        {"max_train": 0},
        {"seed": -1},
        {"valid": 0.96},
    ):
        with pytest.raises(GraphFormersError, match="given, expected"):
            SplitSettings(**wrong)  # type: ignore[arg-type]


def test_shares_shrink_when_too_few_links_can_go() -> None:
    """A tree with a few extra links: 60 % cannot be held out, so less is."""
    graph = make_graph(100, 130, seed=2)
    split = split_links(graph, valid=0.3, test=0.3, candidates=10)
    assert 0 < len(split.valid) < 0.3 * graph.num_pairs
    assert "instead of" in split.notes[0]
    check_common(split)


def test_a_small_graph_gets_as_many_candidates_as_fit(graph: TextGraph, tmp_path: Path) -> None:
    split = split_links(graph.save(tmp_path / "a.graph"))
    count = split.test.candidates.shape[1]
    assert 100 < count < 200
    assert split.notes == (
        f"{count} candidates per question instead of 300: this graph is too small for more",
    )
    assert split.save(tmp_path / "a.split").notes == split.notes
    full = [(a, b) for a in "abcdef" for b in "abcdef" if a < b]
    dense = build_graph(pa.table({"id": list("abcdef"), "text": list("uvwxyz")}), full)
    with pytest.raises(GraphFormersError, match="a question has no possible negative"):
        split_links(dense, valid=0.1, test=0.1)


def with_hub(
    num_nodes: int, mean_degree: int, missing: int, held_out: str, hubs: int = 1
) -> TextGraph:
    """Random links, with years, and the first nodes linked to all nodes but `missing`."""
    draw = np.random.default_rng(3)
    ids = ["hub", *(f"n{i}" for i in range(1, num_nodes))]
    ends = [
        (a, b)
        for a, b in draw.integers(hubs, num_nodes, (num_nodes * mean_degree // 2, 2)).tolist()
        if a != b
    ]
    ends += [(hub, other) for hub in range(hubs) for other in range(hub + 1, num_nodes - missing)]
    years = draw.integers(1990, 2020, num_nodes)
    years[0] = 2020 if held_out == "year" else years[0]
    times = draw.integers(0, 10**6, len(ends)).tolist()
    nodes = pa.table({"id": ids, "text": [f"text {i}" for i in ids], "year": years})
    return build_graph(
        nodes,
        {"source": [ids[a] for a, _ in ends], "target": [ids[b] for _, b in ends], "time": times},
        columns={"time": "time"},
    )


@pytest.mark.parametrize("num_nodes", [900, 3500])
@pytest.mark.parametrize("held_out", ["links", "latest-links", "year"])
def test_the_questions_of_a_hub_are_left_out(num_nodes: int, held_out: str) -> None:
    graph = with_hub(num_nodes, 14, 12, held_out)
    split = split_links(graph, held_out=held_out)
    check_common(split)
    assert split.test.candidates.shape[1] == split.valid.candidates.shape[1] == 300
    asked = np.concatenate([split.valid.pairs, split.test.pairs])
    assert 0 not in asked[:, 0]
    wanted = 2 * round(0.05 * (graph.num_nodes if held_out == "year" else graph.num_pairs))
    lost = wanted - len(asked)
    assert 0 < lost < 0.2 * wanted
    (note,) = (note for note in split.notes if "left out:" in note)
    left = r"300 candidates need 299 negatives, and the node 'hub' leaves only 1?\d"
    assert re.fullmatch(rf"questions left out: {lost:,} of {wanted:,}; {left}", note)
    if held_out == "links":
        assert len(split.train) == graph.num_pairs - len(asked)  # what is not asked is trained on
    elif held_out == "latest-links":
        times = graph.pair_times()
        assert times is not None
        when = dict(zip(map(tuple, graph.pairs().tolist()), times.tolist(), strict=True))
        earliest = min(when[pair] for pair in unordered(asked))
        assert max(when[pair] for pair in unordered(split.train)) <= earliest
        unused = graph.num_pairs - len(asked) - len(split.train)
        assert any(
            note.startswith(f"{unused:,} late links are neither trained on nor held out")
            for note in split.notes
        )
        assert any(f"{lost:,} with too few possible negatives" in note for note in split.notes)
    else:
        assert 0 in split.held_out_nodes


def test_a_split_and_its_questions_are_shown(graph: TextGraph) -> None:
    split = split_links(graph, valid=10, test=20, candidates=30)
    assert repr(split) == f"LinkSplit({len(split.train)} train, 10 valid, 20 test pairs)"
    assert "#Train" in split._repr_html_()
    assert repr(split.test) == "LinkQuestions(20 pairs, 30 candidates each)"
    table = split.test.as_table()
    assert len(table.rows) == 5
    anchor, positive, negatives = table.rows[0]
    assert [int(anchor), int(positive)] == split.test.pairs[0].tolist()
    listed = ", ".join(map(str, split.test.candidates[0, 1:6].tolist()))
    assert negatives == f"{listed} …"
    assert "20 pairs, 30 candidates each" in split.test._repr_html_()


def test_a_small_graph_with_a_hub_is_shortened_to_what_the_others_leave() -> None:
    split = split_links(with_hub(250, 14, 5, "links"))
    check_common(split)
    count = split.test.candidates.shape[1]
    assert 180 < count < 250
    assert "the node 'hub' leaves only" in split.notes[0]
    assert (
        split.notes[1]
        == f"{count} candidates per question instead of 300: this graph is too small for more"
    )


def test_a_text_that_most_nodes_share_is_named() -> None:
    draw = np.random.default_rng(0)
    ids = [f"n{i}" for i in range(500)]
    texts = ["untitled" if i < 350 else f"text {i}" for i in range(500)]
    ends = [(ids[a], ids[b]) for a, b in draw.integers(0, 500, (1500, 2)).tolist() if a != b]
    split = split_links(build_graph(pa.table({"id": ids, "text": texts}), ends))
    count = split.test.candidates.shape[1]
    assert count < 160
    assert re.search(
        rf"3\d\d nodes share the text of '\w+', which leaves only {count - 1} possible negatives "
        rf"of",
        split.notes[0],
    )


def test_lists_that_many_nodes_shorten_name_one_of_them() -> None:
    split = split_links(with_hub(900, 4, 12, "links", hubs=3))
    check_common(split)
    count = split.test.candidates.shape[1]
    assert count < 20
    asked = len(split.valid) + len(split.test)
    node = rf"the node '\w+' leaves only {count - 1} possible negatives of \d+ nodes"
    words = (
        rf"{count} candidates per question instead of 300: {node}; \d+ of "
        rf"{asked:,} questions leave fewer than 299"
    )
    assert re.fullmatch(words, split.notes[0])
    with pytest.raises(
        GraphFormersError,
        match=r"leaves only \d+ possible negatives, 299 were asked for; ask for at most",
    ):
        split_links(with_hub(900, 14, 12, "links"), candidates=300)


def test_possible_negatives_are_those_that_are_listed() -> None:
    graph = make_graph(150, 1500, seed=6)
    eligible = np.flatnonzero(np.arange(graph.num_nodes) % 4 > 0)
    pairs = np.concatenate([graph.pairs(), graph.pairs()[:, ::-1]])
    listed = [len(candidates.allowed_negatives(graph, pair, eligible)) for pair in pairs]
    for most in (1000, 90, 0):
        found = candidates.possible_negatives(graph, pairs, eligible, most)
        assert found.tolist() == [min(count, most) for count in listed]


def test_few_questions_are_told(graph: TextGraph) -> None:
    rough = "their scores are imprecise; valid=30, test=30 asks for more"
    assert split_links(graph, valid=29, test=1, candidates=20).notes == (
        f"few questions, 29 valid and 1 test: {rough}",
    )
    assert split_links(graph, valid=30, test=29, candidates=20).notes == (
        f"few questions, 29 test: {rough}",
    )
    assert split_links(graph, valid=30, test=30, candidates=20).notes == ()


def test_negatives_are_uniform_over_what_is_allowed() -> None:
    graph = make_graph(60, 200, seed=4)
    pairs = np.repeat(graph.pairs()[:1], 4000, axis=0)
    eligible = np.flatnonzero(graph.degrees() > 0)
    found = candidates.draw_candidates(graph, pairs, eligible, 11, 0)[:, 1:]
    anchor, positive = pairs[0].tolist()
    allowed = [
        v
        for v in eligible.tolist()
        if v != anchor
        and v not in graph.neighbors_of(anchor)
        and graph.texts[v] != graph.texts[positive]
    ]
    counts = np.bincount(found.flatten(), minlength=graph.num_nodes)
    assert counts.sum() == counts[allowed].sum()
    expected = 40_000 / len(allowed)
    assert np.abs(counts[allowed] - expected).max() < 6 * np.sqrt(expected)


def test_a_hub_linked_to_almost_everything_gets_its_negatives() -> None:
    ids = [f"n{i}" for i in range(300)]
    graph = build_graph(
        pa.table({"id": ids, "text": ids}),
        {"source": ["n0"] * 280 + ids[280:], "target": ids[1:281] + ids[281:] + ["n280"]},
    )
    eligible = np.flatnonzero(graph.degrees() > 0)
    found = candidates.draw_candidates(graph, np.array([[0, 1]]), eligible, 19, 0, max_rounds=2)[0]
    assert len(set(found.tolist())) == 19
    assert set(found[1:].tolist()) <= set(range(281, 300))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 20), st.sampled_from([6, 21]))
def test_questions_may_share_their_candidates(seed: int, count: int) -> None:
    graph = make_graph(300, 700, seed)
    split = split_links(graph, valid=60, test=30, candidates=count)
    own = split.valid
    pairs, shared = candidates.share_candidates(graph, own.pairs, own.candidates)
    assert unordered(pairs) <= unordered(own.pairs)
    assert len(pairs) >= 0.5 * len(own)
    assert shared.shape == (len(pairs), count)
    assert np.array_equal(shared[:, 0], pairs[:, 1])
    assert len(np.unique(shared[:, 1:])) <= count - 1 + max((count - 1) // 4, 2)
    assert set(shared[:, 1:].flatten().tolist()) <= set(own.candidates[:, 1:].flatten().tolist())
    for (anchor, positive), row in zip(pairs.tolist(), shared.tolist(), strict=True):
        assert len(set(row)) == count
        for node in row[1:]:
            assert node not in (anchor, *graph.neighbors_of(anchor))
            assert graph.texts[node] != graph.texts[positive]
