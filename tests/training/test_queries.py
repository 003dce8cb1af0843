from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphformers.arrays import hash_strings
from graphformers.batching.tokens import TokenCache, Tokenizer, tokenize
from graphformers.training.queries import draw_queries
from tests.batching.test_tokens import make_tokenizer

TOKENIZER = Tokenizer(make_tokenizer())


def make_tokens(texts: list[str]) -> TokenCache:
    hashes = hash_strings([f"n{i}" for i in range(len(texts))])
    return replace(tokenize(texts, TOKENIZER), id_hashes=hashes)


def of(tokens: TokenCache, i: int) -> list[int]:
    return [int(token) for token in tokens.tokens[tokens.offsets[i] : tokens.offsets[i + 1]]]


WORDS = st.sampled_from(["graph", "node", "link", "7", "vector", "unknownword"])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(WORDS, max_size=12), min_size=1, max_size=8), st.integers(0, 99), st.data()
)
def test_a_query_is_some_words_of_its_text_in_their_order(
    lists: list[list[str]], seed: int, data: st.DataObject
) -> None:
    tokens = make_tokens([" ".join(words) for words in lists])
    nodes = np.array(data.draw(st.lists(st.integers(0, len(lists) - 1), min_size=1, max_size=6)))
    found = draw_queries(tokens, nodes, 9, TOKENIZER.continues_word, seed, 3)
    assert found.num_texts == len(nodes)
    for b, node in enumerate(nodes):
        # without the two special tokens
        rest = iter(of(tokens, node)[:7])
        own = of(found, b)
        assert all(token in rest for token in own)
        assert bool(own) == bool(lists[node])
        alone = draw_queries(tokens, nodes[b : b + 1], 9, TOKENIZER.continues_word, seed, 3)
        assert of(alone, 0) == own


def test_words_are_kept_whole() -> None:
    """The last two of five tokens continue the word of the token before them."""
    tokens = replace(make_tokens(["a"] * 400), tokens=np.tile(np.arange(5), 400))
    tokens = replace(tokens, offsets=np.arange(401) * 5)
    continues = np.array([False, False, False, True, True])
    found = draw_queries(tokens, np.arange(400), 9, continues, 1, 0)
    drawn = {tuple(of(found, i)) for i in range(400)}
    assert drawn == {(0,), (1,), (2, 3, 4), (0, 1), (0, 2, 3, 4), (1, 2, 3, 4), (0, 1, 2, 3, 4)}


def test_shares_of_words_are_uniform_and_change_with_the_epoch() -> None:
    text = " ".join(["graph"] * 40)
    tokens = make_tokens([text] * 2000)
    nodes = np.arange(2000)
    shares = [
        np.diff(draw_queries(tokens, nodes, 42, TOKENIZER.continues_word, 1, epoch).offsets) / 40
        for epoch in (0, 1)
    ]
    assert shares[0].mean() == pytest.approx(0.5, abs=0.02)
    assert np.percentile(shares[0], 10) == pytest.approx(0.26, abs=0.04)
    assert np.percentile(shares[0], 90) == pytest.approx(0.74, abs=0.04)
    assert abs(np.corrcoef(*shares)[0, 1]) < 0.1
