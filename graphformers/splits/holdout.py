"""Selection of held-out links.

Four ways to hold out:
- "links" (as in the paper): valid and test pairs are drawn from all pairs whose two ends both keep
  a train link.
- "latest-links" (temporal): the same, but the valid and test pairs are the latest ones, where edges
  have times. No visible link is later than a held-out one; late links that cannot be held out are
  dropped.
- "nodes" (inductive): held-out nodes are unknown in training; each is the anchor of one of its
  links, with its other links to known nodes as neighbours.
- a node column such as year (temporal): the same, but the latest nodes are held out. No known node
  is later than a held-out one; late nodes without a link to a known node are dropped.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphformers.arrays import Array, compressed_rows, edge_keys, mix, ranges
from graphformers.errors import GraphFormersError
from graphformers.graph.columns import is_text
from graphformers.graph.settings import ImportSettings
from graphformers.graph.textgraph import TextGraph
from graphformers.splits.settings import SplitSettings

# ways to hold out links, which leave all nodes known
OF_LINKS = ("links", "latest-links")
# indptr and indices of the links that models may see
Rows = tuple[Array, Array]


def hold_out(graph: TextGraph, settings: SplitSettings) -> tuple[list[Array], Rows, Array]:
    """Selects the held-out links.

    Returns:
        [valid, test] pairs of anchor and positive, the links that models may see, and the held-out
        nodes.
    """
    if settings.held_out not in OF_LINKS:
        return _hold_out_nodes(graph, settings)
    sets, rows = (_hold_out_links if settings.held_out == "links" else _hold_out_latest)(
        graph, settings
    )
    return sets, rows, np.zeros(0, dtype=np.int32)


def _hold_out_links(graph: TextGraph, settings: SplitSettings) -> tuple[list[Array], Rows]:
    """Draws [valid, test] pairs whose ends keep a train link; returns them and the other links."""
    pairs = graph.pairs()
    wanted = wanted_pairs(settings, len(pairs))
    order = np.argsort(pair_hashes(graph, pairs, settings.seed), kind="stable")
    taken = _take_links(pairs, order, graph.degrees(), sum(wanted))
    sizes = _set_sizes(wanted, len(taken), settings, "pairs both ends of which keep a train link")
    sets = np.split(_orient(graph, pairs[taken], settings.seed), [sizes[0]])
    return sets, compressed_rows(graph.num_nodes, *_both_ways(np.delete(pairs, taken, axis=0)))


def _hold_out_latest(graph: TextGraph, settings: SplitSettings) -> tuple[list[Array], Rows]:
    """Takes the latest pairs whose ends have earlier links; returns them and the earlier links.

    Test pairs are later than valid pairs.
    """
    pairs, times = graph.pairs(), graph.pair_times()
    if times is None:
        raise GraphFormersError(
            "the links of this graph have no times; import them with "
            f"{ImportSettings.usage(columns={'time': 'NAME'})}"
        )
    if np.isnan(times).any():
        raise GraphFormersError(
            f"{int(np.isnan(times).sum()):,} linked pairs have no time; a split by time needs it "
            f"for every link"
        )
    if times.min() == times.max():
        raise GraphFormersError("all links have the same time, so none is later than another")
    wanted = wanted_pairs(settings, len(pairs))
    order = np.lexsort((pair_hashes(graph, pairs, settings.seed), -times))
    late, found, degrees = pairs[:0], np.zeros(0, dtype=np.int64), graph.degrees()
    # Models see at least the earlier half.
    limit = len(order) // 2
    tried = min(sum(wanted), limit)
    while True:
        latest = pairs[order[:tried]]
        left = degrees - np.bincount(latest.reshape(-1), minlength=graph.num_nodes)
        usable = np.flatnonzero((left[latest] > 0).all(1))
        # Holding out more pairs can leave fewer questions, as their ends lose other links.
        if len(usable) > len(found):
            late, found = latest, usable
        if len(found) >= sum(wanted) or tried >= limit:
            break
        tried = min(limit, tried + tried // 4 + 1)
    described = "of the later half of the pairs have earlier links at both ends"
    sizes = _set_sizes(wanted, len(found), settings, described)
    found = found[: sum(sizes)]
    test, valid = np.split(_orient(graph, late[found], settings.seed), [sizes[1]])
    earlier = np.delete(pairs, order[: found[-1] + 1], axis=0)
    return [valid, test], compressed_rows(graph.num_nodes, *_both_ways(earlier))


def add_pairs(graph: TextGraph, rows: Rows, pairs: Array) -> Rows:
    """The rows of links with some pairs added."""
    indptr, indices = rows
    sources = np.repeat(np.arange(graph.num_nodes), np.diff(indptr))
    return compressed_rows(graph.num_nodes, edge_keys(sources, indices), *_both_ways(pairs))


def _take_links(pairs: Array, order: Array, degrees: Array, wanted: int) -> Array:
    """The first `wanted` pairs in `order` that can be removed without isolating a node."""
    left = degrees.tolist()
    taken = []
    for start in range(0, len(order), 1 << 20):
        block = order[start : start + (1 << 20)]
        for pair, (one, other) in zip(block.tolist(), pairs[block].tolist(), strict=True):
            if left[one] > 1 and left[other] > 1:
                left[one] -= 1
                left[other] -= 1
                taken.append(pair)
                if len(taken) == wanted:
                    return np.array(taken, dtype=np.int64)
    return np.array(taken, dtype=np.int64)


def _hold_out_nodes(graph: TextGraph, settings: SplitSettings) -> tuple[list[Array], Rows, Array]:
    """Holds out nodes; returns [valid, test] pairs, the visible links and the held-out nodes.

    A pair is a held-out node and a known node. Nodes are held out in order, at random or the latest
    first, until enough of them can be the anchor of a question. Drawn at random, the others stay
    known nodes, which can only add links to the rest; by time they are held out too, so that
    training sees nothing later.
    """
    wanted = wanted_pairs(settings, graph.num_nodes)
    order = _node_order(graph, settings)
    tried = min(sum(wanted), len(order))
    while True:
        chosen = _possible_anchors(graph, order[:tried])
        if len(chosen) >= sum(wanted) or tried >= len(order):
            break
        tried = min(
            len(order), max(tried + 1, int(tried * 1.1 * sum(wanted) / max(len(chosen), 1)))
        )
    sizes = _set_sizes(wanted, len(chosen), settings, "nodes with two links to known nodes")
    chosen = chosen[: sum(sizes)]
    held_out = chosen if settings.held_out == "nodes" else order[:tried]
    position, targets = _links_to_known(graph, chosen, held_out)
    # Of the targets that may be positives, the one with the smallest hash is the positive.
    allowed = np.flatnonzero(_possible_positives(graph, held_out)[targets])
    place, target = position[allowed], targets[allowed]
    hashes = mix(settings.seed, 2, graph.id_hashes[chosen[place]], graph.id_hashes[target])
    order_of_choice = np.lexsort((hashes, place))
    _, first = np.unique(place[order_of_choice], return_index=True)
    positives = target[order_of_choice[first]]
    # Test gets the first ones, which are the latest.
    test, valid = np.split(np.stack([chosen, positives], axis=1).astype(np.int32), [sizes[1]])
    # Models may see the links among known nodes, and the other links of chosen nodes to known ones.
    context = targets != positives[position]
    seen = edge_keys(chosen[position[context]], targets[context])
    pairs = graph.pairs()
    pairs = pairs[known_nodes(graph, held_out)[pairs].all(axis=1)]
    rows = compressed_rows(graph.num_nodes, *_both_ways(pairs), seen)
    return [valid, test], rows, np.sort(held_out).astype(np.int32)


def _node_order(graph: TextGraph, settings: SplitSettings) -> Array:
    """Nodes in the order in which they are held out: by hash, or the latest first."""
    hashes = mix(settings.seed, 1, graph.id_hashes)
    if settings.held_out == "nodes":
        return np.argsort(hashes, kind="stable")
    _, ranks = np.unique(times_of(graph, settings.held_out), return_inverse=True)
    return np.lexsort((hashes, -ranks))


def times_of(graph: TextGraph, name: str) -> Array:
    """A node column as numbers that grow with time: numbers, dates, or text that is an ISO date."""
    column = graph.column(name)
    if is_text(column.type):
        try:
            column = column.cast(pa.timestamp("us"))
        except pa.ArrowInvalid as error:
            raise GraphFormersError(
                f"the column {name!r} holds text other than dates ({error}), expected numbers or "
                f"dates"
            ) from error
    if not (
        pa.types.is_integer(column.type)
        or pa.types.is_floating(column.type)
        or pa.types.is_temporal(column.type)
    ):
        raise GraphFormersError(
            f"the column {name!r} holds {column.type}, expected numbers or dates"
        )
    missing = pc.sum(pc.is_null(column, nan_is_null=True)).as_py()
    if missing:
        raise GraphFormersError(
            f"the column {name!r} is empty for {missing:,} nodes; a temporal split needs it for "
            f"every node"
        )
    values = np.asarray(column)
    if len(np.unique(values)) == 1:
        raise GraphFormersError(
            f"the column {name!r} has the same value for every node, so none is later than another"
        )
    return values


def known_nodes(graph: TextGraph, held_out: Array) -> Array:
    """(N,) bool: whether a node is known in training."""
    known = np.ones(graph.num_nodes, dtype=bool)
    known[held_out] = False
    return known


def _links_to_known(graph: TextGraph, chosen: Array, held_out: Array) -> tuple[Array, Array]:
    """The links from chosen nodes to known ones: the source's place in `chosen`, and the target."""
    degrees = graph.degrees()[chosen]
    targets = graph.indices[ranges(graph.indptr[chosen], degrees)].astype(np.int64)
    position = np.repeat(np.arange(len(chosen)), degrees)
    kept = known_nodes(graph, held_out)[targets]
    return position[kept], targets[kept]


def _possible_positives(graph: TextGraph, held_out: Array) -> Array:
    """(N,) bool: whether a node is known and has a link to another known node."""
    _, targets = _links_to_known(graph, held_out, held_out)
    lost = np.bincount(targets, minlength=graph.num_nodes)
    return known_nodes(graph, held_out) & (graph.degrees() - lost > 0)


def _possible_anchors(graph: TextGraph, held_out: Array) -> Array:
    """The held-out nodes, in order, that can be anchors of questions.

    They have two links to known nodes, one of them to a possible positive.
    """
    position, targets = _links_to_known(graph, held_out, held_out)
    links = np.bincount(position, minlength=len(held_out))
    positives = np.bincount(
        position, weights=_possible_positives(graph, held_out)[targets], minlength=len(held_out)
    )
    return held_out[(links > 1) & (positives > 0)]


def _both_ways(pairs: Array) -> tuple[Array, Array]:
    return edge_keys(pairs[:, 0], pairs[:, 1]), edge_keys(pairs[:, 1], pairs[:, 0])


def pair_hashes(graph: TextGraph, pairs: Array, seed: int) -> Array:
    """(P,) a hash of each pair of ids, independent of their order."""
    one, other = graph.id_hashes[pairs[:, 0]], graph.id_hashes[pairs[:, 1]]
    return mix(seed, np.minimum(one, other), np.maximum(one, other))


def _orient(graph: TextGraph, pairs: Array, seed: int) -> Array:
    """Chooses the anchor of each pair at random, by the seed."""
    swapped = (pair_hashes(graph, pairs, seed + 2) & np.uint64(1)).astype(bool)
    # The result must not depend on row numbers.
    swapped ^= graph.id_hashes[pairs[:, 0]] > graph.id_hashes[pairs[:, 1]]
    return np.where(swapped[:, None], pairs[:, ::-1], pairs).astype(np.int32)


def wanted_pairs(settings: SplitSettings, total: int) -> list[int]:
    """The numbers of valid and test pairs that the settings ask for, of `total`."""
    return [
        int(share) if share >= 1 else max(1, round(share * total))
        for share in (settings.valid, settings.test)
    ]


def _set_sizes(wanted: list[int], found: int, settings: SplitSettings, described: str) -> list[int]:
    """The sizes [valid, test]: as wanted, or smaller in proportion where there are too few pairs.

    Raises:
        GraphFormersError: There are too few pairs, and the settings give counts, not shares.
    """
    if found >= sum(wanted):
        return wanted
    if settings.valid >= 1 or settings.test >= 1 or found < 2:
        raise GraphFormersError(
            f"{wanted[0]:,} valid and {wanted[1]:,} test pairs asked for, but only {found:,} "
            f"{described}; ask for fewer, or take a graph with more links"
        )
    valid = max(1, found * wanted[0] // sum(wanted))
    return [valid, found - valid]
