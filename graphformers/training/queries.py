"""Text queries: some of the words of a text, by which training has to find its node.

A user who searches types a few words. They are encoded without neighbours, while the vectors of
nodes are computed jointly with their neighbours. Training by links alone lets the two drift apart;
with `text_query_weight`, the objective also ranks the nodes of a batch for such queries.

Which words a query holds is a function of (seed, epoch, node's id): the share of words is uniform
in [MIN_SHARE, MAX_SHARE], every word is kept with this probability, and at least one word is kept.
"""

from dataclasses import replace

import numpy as np

from graphformers.arrays import Array, mix, ranges, uniform
from graphformers.batching.tokens import TokenCache

# the shares of a text's words that a query holds
MIN_SHARE, MAX_SHARE = 0.2, 0.8
# numbers that enter the hashes, so that random draws of different kinds are independent
DRAW_SHARE, DRAW_WORD = 11, 12


def draw_queries(
    tokens: TokenCache,
    nodes: Array,
    max_tokens: int,
    continues_word: Array,
    seed: int,
    epoch: int,
) -> TokenCache:
    """The tokens of one query for each of B nodes. A node without words has an empty query.

    Args:
        tokens: The texts.
        nodes: (B,) the nodes.
        max_tokens: Words behind this length are not drawn, since the node's vector ignores them.
        continues_word: `Tokenizer.continues_word`.
        seed: The seed of all draws.
        epoch: The epoch.
    """
    assert tokens.id_hashes is not None, "queries are drawn from hashes of ids"
    hashes_B = tokens.id_hashes[nodes]
    lengths_B = tokens.lengths(nodes, max_tokens) - len(tokens.prefix) - len(tokens.suffix)
    flat = tokens.tokens[ranges(tokens.offsets[nodes], lengths_B)]
    begins_B = np.cumsum(lengths_B) - lengths_B
    owner = np.repeat(np.arange(len(nodes)), lengths_B)
    starts = ~continues_word[flat]
    starts[begins_B[lengths_B > 0]] = True
    # the number of each token's word in its text
    word = np.cumsum(starts)
    word -= word[begins_B[owner]]
    share_B = MIN_SHARE + (MAX_SHARE - MIN_SHARE) * uniform(mix(seed, epoch, DRAW_SHARE, hashes_B))
    chance = uniform(mix(seed, epoch, DRAW_WORD, hashes_B[owner], word.astype(np.uint64)))
    least_B = np.ones(len(nodes))
    np.minimum.at(least_B, owner, chance)
    kept = (chance < share_B[owner]) | (chance == least_B[owner])
    counts_B = np.bincount(owner[kept], minlength=len(nodes))
    offsets = np.concatenate([[0], np.cumsum(counts_B)])
    return replace(tokens, tokens=flat[kept], offsets=offsets, id_hashes=None)
