"""Text encoders written for sentence-transformers: loaded by transformers, and by ourselves."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from graphformers.cli import app
from graphformers.errors import ArtifactError, GraphFormersError
from graphformers.model.backbones import from_backbone
from graphformers.model.encoder import GraphFormers
from graphformers.model.language_model import save_language_model
from tests.model.conftest import make_model, make_texts
from tests.model.test_backbones import CLOSE, FAMILIES, write_backbone


def encode_with_transformers(folder: Path, texts: list[str]) -> np.ndarray:
    """The vectors that sentence-transformers would compute, with its tokenizer and its pooling."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.AutoModel.from_pretrained(folder).eval()
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
    length = json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
    inputs = tokenizer(texts, padding=True, truncation=True, max_length=length, return_tensors="pt")
    with torch.inference_mode():
        hidden = network(**inputs).last_hidden_state
    mask = inputs["attention_mask"][..., None].float()
    mean = (hidden * mask).sum(1) / mask.sum(1)
    return (mean if pooling["pooling_mode_mean_tokens"] else hidden[:, 0]).numpy()


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_written_as_one_that_transformers_loads(
    tmp_path: Path, family: str, pooling: str
) -> None:
    write_backbone(tmp_path / family, family)
    model = from_backbone(
        tmp_path / family, isolated_graph_token=False, max_tokens=9, pooling=pooling
    )
    save_language_model(model, tmp_path / "out")
    # [UNK] is token 1, the padding of some families
    texts = [text.replace("unknown", "graph") for text in make_texts(20)]
    texts = [text for text in texts if text]
    found = encode_with_transformers(tmp_path / "out", texts)
    assert np.abs(found - model.encode(texts)).max() <= CLOSE
    again = from_backbone(tmp_path / "out", "plm", max_tokens=9, pooling=pooling)
    assert np.abs(again.encode(texts) - model.encode(texts)).max() <= CLOSE


def test_a_model_on_real_weights(minilm: Path, tmp_path: Path) -> None:
    model = GraphFormers.from_backbone(
        "minilm", isolated_graph_token=False, pooling="mean", similarity="cosine", device="cpu"
    )
    model.save_language_model(tmp_path / "out")
    texts = ["Attention is all you need", "läßt 数据 😀 " * 30]
    found = encode_with_transformers(tmp_path / "out", texts)
    assert np.abs(found - model.encode(texts)).max() <= CLOSE
    settings = json.loads((tmp_path / "out" / "config_sentence_transformers.json").read_text())
    assert settings["similarity_fn_name"] == "cosine"


def test_models_without_such_an_encoder_are_refused(tmp_path: Path) -> None:
    for method, name in (("graphformers", "GraphFormers"), ("max", r"PLM\+Max")):
        with pytest.raises(GraphFormersError, match=f"this {name} encodes .* recipe auto"):
            make_model(method=method).save_language_model(tmp_path / "out")
    far = make_model(method="plm", relative_buckets=8, relative_distance=64)
    with pytest.raises(GraphFormersError, match=r"relative_distance=64 .* expected 128"):
        far.save_language_model(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_only_such_folders_are_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, place = make_model(method="plm"), tmp_path / "out"
    model.save_pretrained(tmp_path / "a.model")
    app(["export", str(tmp_path / "a.model"), "-o", str(place)], standalone_mode=False)
    assert "a language model for sentence-transformers" in capsys.readouterr().out
    before = sorted(file.name for file in place.rglob("*"))
    with pytest.raises(ArtifactError, match="--force"):
        model.save_language_model(place)
    model.save_language_model(place, force=True)
    assert sorted(file.name for file in place.rglob("*")) == before
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("kept")
    with pytest.raises(ArtifactError, match="never replaced"):
        model.save_language_model(mine, force=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.model", "mine", "out"]
