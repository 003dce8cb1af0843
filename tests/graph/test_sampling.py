import os
import warnings
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from graphformers.arrays import hash_strings, mix
from graphformers.errors import GraphFormersError
from graphformers.graph.interop import build_graph
from graphformers.graph.sampling import NeighborSampler
from graphformers.graph.textgraph import TextGraph
from tests.conftest import make_graph


def sampler_of(graph: TextGraph, num_neighbors: int = 5, seed: int = 42) -> NeighborSampler:
    return NeighborSampler(graph.indptr, graph.indices, graph.id_hashes, num_neighbors, seed)


def star(num_leaves: int) -> TextGraph:
    ids = ["hub", *(f"leaf{i}" for i in range(num_leaves))]
    return build_graph(
        pa.table({"id": ids, "text": ["words"] * len(ids)}),
        {"source": ["hub"] * num_leaves, "target": ids[1:]},
    )


def drawn(sampler: NeighborSampler, graph: TextGraph, node: int, **options: object) -> list[str]:
    return graph.ids_of(sampler.sample(np.array([node]), **options).of(0))  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 8), st.integers(0, 5), st.booleans())
def test_every_draw_is_a_subset_of_the_right_size(
    seed: int, k: int, epoch: int, mask_false_negatives: bool
) -> None:
    graph = make_graph(40, 150, seed % 7)
    draw = np.random.default_rng(seed)
    centers = draw.integers(0, graph.num_nodes, 30)
    exclude = np.full(30, -1)
    for i, center in enumerate(centers):
        neighbors = graph.neighbors_of(center)
        if mask_false_negatives and len(neighbors):
            exclude[i] = draw.choice(neighbors)
    found = sampler_of(graph, k, seed).sample(centers, epoch=epoch, exclude=exclude)
    for i, center in enumerate(centers):
        allowed = set(graph.neighbors_of(center).tolist()) - {int(exclude[i])}
        assert set(found.of(i).tolist()) <= allowed
        assert len(set(found.of(i).tolist())) == len(found.of(i)) == min(k, len(allowed))


def test_the_draw_is_uniform() -> None:
    """Each of 40 neighbours is drawn 5 in 40 times over many epochs, and so is each pair of
    them.
    """
    graph = star(40)
    sampler = sampler_of(graph)
    singles: Counter[int] = Counter()
    pairs: Counter[tuple[int, int]] = Counter()
    rounds = 8000
    for epoch in range(rounds):
        found = sorted(sampler.sample(np.array([0]), epoch=epoch).of(0).tolist())
        singles.update(found)
        pairs.update((a, b) for a in found for b in found if a < b)
    for counts, possible, each in ((singles, 40, 5 / 40), (pairs, 780, 10 / 780)):
        expected = rounds * each
        statistic = (
            sum((counts[key] - expected) ** 2 / expected for key in counts)
            + (possible - len(counts)) * expected
        )
        assert chi2.sf(statistic, possible - 1) > 0.001


def test_centres_are_drawn_independently() -> None:
    """Two hubs with the same neighbours do not draw the same ones."""
    ids = ["one", "two", *(f"n{i}" for i in range(100))]
    graph = build_graph(
        pa.table({"id": ids, "text": ["w"] * 102}),
        {"source": ["one"] * 100 + ["two"] * 100, "target": ids[2:] * 2},
    )
    sampler = sampler_of(graph)
    shared = 0
    for epoch in range(400):
        found = sampler.sample(np.array([0, 1]), epoch=epoch)
        shared += len(set(found.of(0).tolist()) & set(found.of(1).tolist()))
    assert 60 < shared < 145  # 400 · 5 · 5 / 100 = 100 expected, standard deviation about 10


def test_seed_and_epoch_change_the_draw_and_nothing_else_does(graph: TextGraph) -> None:
    node = int(np.argmax(graph.degrees()))
    first = drawn(sampler_of(graph), graph, node)
    assert first == drawn(sampler_of(graph), graph, node)
    assert {tuple(drawn(sampler_of(graph), graph, node, epoch=e)) for e in range(10)} != {
        tuple(first)
    }
    assert {tuple(drawn(sampler_of(graph, seed=s), graph, node)) for s in range(10)} != {
        tuple(first)
    }


@pytest.mark.parametrize("block", [1, 7, 60_000])
def test_batch_order_and_size_do_not_matter(graph: TextGraph, block: int) -> None:
    sampler = sampler_of(graph)
    whole = sampler.sample(np.arange(graph.num_nodes), epoch=3)
    order = np.random.default_rng(0).permutation(graph.num_nodes)
    mixed = replace(sampler, block_size=block).sample(order, epoch=3)
    for place, node in enumerate(order):
        assert mixed.of(place).tolist() == whole.of(node).tolist()


def test_nodes_inserted_elsewhere_do_not_matter(graph: TextGraph) -> None:
    """New nodes before, between and after change every row number, and no draw of a node they do
    not touch.
    """
    rows = graph.table.to_pylist()
    new = [{"id": f"new{i}", "text": "new", "year": 2000} for i in range(3)]
    grown_rows = [new[0], *rows[:77], new[1], *rows[77:], new[2]]
    ids = graph.ids.to_pylist()
    sources = [ids[a] for a in graph.edges[0]] + ["new0", "new1"]
    targets = [ids[b] for b in graph.edges[1]] + ["new1", "new2"]
    grown = build_graph(pa.Table.from_pylist(grown_rows), {"source": sources, "target": targets})
    for node in range(graph.num_nodes):
        assert drawn(sampler_of(graph), graph, node) == drawn(
            sampler_of(grown), grown, grown.node(ids[node])
        )


def test_leaving_one_out_takes_the_next(graph: TextGraph) -> None:
    """Without the excluded neighbour the draw is the same but for the one that moves up."""
    node = int(np.argmax(graph.degrees()))
    order = drawn(sampler_of(graph, 1000), graph, node)
    for left_out in (0, 2, 4, 6):
        excluded = np.array([graph.node(order[left_out])])
        assert (
            drawn(sampler_of(graph), graph, node, exclude=excluded)
            == [id for i, id in enumerate(order) if i != left_out][:5]
        )


def test_the_draw_is_the_k_smallest_hashes(graph: TextGraph) -> None:
    """Against the definition, computed one neighbour at a time."""
    node = int(np.argmax(graph.degrees()))
    mask = 2**64 - 1
    center = int(mix(42, 7, graph.id_hashes[[node]])[0])

    def key(id: str) -> int:
        value = (center ^ int(hash_strings([id])[0])) * 0xBF58476D1CE4E5B9 & mask
        return (value ^ value >> 32) * 0x94D049BB133111EB & mask

    expected = sorted(graph.neighbors(graph.ids[node].as_py()), key=key)[:5]
    assert drawn(sampler_of(graph), graph, node, epoch=7) == expected


def test_hubs_take_the_short_way_and_agree() -> None:
    """A hub is not sorted whole; the result is the one of sorting it whole."""
    graph = star(5000)
    short = drawn(sampler_of(graph), graph, 0)
    assert short == drawn(sampler_of(graph, 5000), graph, 0)[:5]
    assert short == drawn(sampler_of(graph, 30), graph, 0)[:5]


def test_rows_with_too_few_small_hashes_are_taken_whole() -> None:
    graph = star(300)
    expected = drawn(sampler_of(graph, 300), graph, 0)[:5]
    # almost every row is short now
    assert drawn(replace(sampler_of(graph), surplus=0.1), graph, 0) == expected


def test_hubs_are_drawn_in_small_blocks(graph: TextGraph) -> None:
    centers = np.random.default_rng(0).integers(0, graph.num_nodes, 500)
    expected = sampler_of(graph).sample(centers)
    sampler = replace(sampler_of(graph), block_neighbors=7)
    parts = list(sampler._parts(centers))
    assert all(
        part.stop - part.start == 1 or graph.degrees()[centers[part]].sum() <= 7 for part in parts
    )
    assert np.array_equal(sampler.sample(centers).neighbors, expected.neighbors)


def test_a_forked_process_samples_too(graph: TextGraph) -> None:
    """Threads do not survive a fork: a child that used its parent's would wait for ever."""
    centers = np.arange(graph.num_nodes).repeat(30)
    expected = sampler_of(graph).sample(centers)
    with warnings.catch_warnings():
        # Python warns of forks with threads: that is what is tested
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        same = np.array_equal(sampler_of(graph).sample(centers).neighbors, expected.neighbors)
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_negative_number_is_refused(graph: TextGraph) -> None:
    with pytest.raises(GraphFormersError, match="num_neighbors=-1 given, expected 0 or more"):
        sampler_of(graph, -1)


def test_no_centres_and_no_neighbours(graph: TextGraph) -> None:
    empty = sampler_of(graph).sample(np.array([], dtype=np.int64))
    assert len(empty) == 0
    assert empty.indptr.tolist() == [0]
    alone = build_graph(pa.table({"id": ["a"], "text": ["x"]}))
    assert sampler_of(alone).sample(np.array([0])).of(0).tolist() == []
    assert drawn(sampler_of(graph, 0), graph, 3) == []


@pytest.mark.parametrize(
    ("centers", "message"),
    [
        (["10", "11"], r"row numbers; graph.nodes_of\(ids\) gives those of ids"),
        ([1.5], "row numbers"),
        (3, "a list of nodes"),
        ([0, 40], "the node 40 given, expected row numbers from 0 to 39"),
        ([-1], "the node -1 given"),
    ],
)
def test_what_is_no_row_number_is_refused(centers: object, message: str) -> None:
    with pytest.raises(GraphFormersError, match=message):
        sampler_of(make_graph(40, 150, 0)).sample(centers)  # type: ignore[arg-type]
    assert len(sampler_of(make_graph(40, 150, 0)).sample([])) == 0  # type: ignore[arg-type]


def test_a_neighborhood_is_shown_in_one_line() -> None:
    found = sampler_of(star(3000)).sample(np.arange(2000))
    assert repr(found) == f"Neighborhood(2,000 centers, {len(found.neighbors):,} neighbors)"
