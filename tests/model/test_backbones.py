"""Anybody's weights: parity with transformers, files that are wrong, our own folders, and the
checkpoints of 2021.
"""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from graphformers.batching.tokens import tokenize
from graphformers.cli import app
from graphformers.errors import ArtifactError, GraphFormersError
from graphformers.model.backbones import convert, from_backbone, from_pretrained, read_tokenizer
from graphformers.model.compute import choose_device
from graphformers.model.encoder import GraphFormers
from graphformers.model.registry import methods
from tests.batching.test_tokens import make_tokenizer
from tests.conftest import make_graph
from tests.model import naive
from tests.model.conftest import make_model, make_texts, sequences

CLOSE = 1e-5
SIZES = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 40,
}
FAMILIES: dict[str, Any] = {
    "bert": lambda: transformers.BertModel(
        transformers.BertConfig(**SIZES, max_position_embeddings=40)
    ),
    "roberta": lambda: transformers.RobertaModel(
        transformers.RobertaConfig(
            **SIZES, max_position_embeddings=42, pad_token_id=1, type_vocab_size=1
        )
    ),
    "xlm-roberta": lambda: transformers.XLMRobertaModel(
        transformers.XLMRobertaConfig(
            **SIZES, max_position_embeddings=42, pad_token_id=1, type_vocab_size=1
        )
    ),
    "mpnet": lambda: transformers.MPNetModel(
        transformers.MPNetConfig(**SIZES, max_position_embeddings=42, pad_token_id=1)
    ),
    "distilbert": lambda: transformers.DistilBertModel(
        transformers.DistilBertConfig(
            vocab_size=40, dim=24, n_layers=3, n_heads=3, hidden_dim=40, max_position_embeddings=40
        )
    ),
}


def randomise(model: torch.nn.Module) -> None:
    """Weights large enough that every part of the network matters."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * 0.3
            parameter.copy_(
                1 + noise if "norm" in name.lower() and name.endswith("weight") else noise
            )


def write_backbone(folder: Path, family: str) -> Any:
    """A folder as the hub has them, and the model in it."""
    model = FAMILIES[family]()
    randomise(model)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(make_tokenizer().to_str())
    return model.eval()


def cls_states(model: GraphFormers, texts: list[str]) -> list[np.ndarray[Any, Any]]:
    tokens = tokenize(texts, model.tokenizer)
    with torch.inference_mode():
        batch = model.packer().pack(tokens, np.arange(len(texts)))
        return [
            state.numpy() for state in model.network.text.states(batch, model.config.num_layers)
        ]


@pytest.mark.parametrize("family", FAMILIES)
def test_parity_with_transformers(tmp_path: Path, family: str) -> None:
    """The [CLS] state after every layer, packed by us, padded by them."""
    theirs = write_backbone(tmp_path / family, family)
    model = from_backbone(tmp_path / family, method="plm", max_tokens=14)
    # [UNK] is token 1, their padding in some families
    texts = [text.replace("unknown", "graph") for text in make_texts(20)]
    ids = sequences(model, texts)
    longest, pad = max(map(len, ids)), theirs.config.pad_token_id
    padded = torch.tensor([row + [pad] * (longest - len(row)) for row in ids])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids])
    with torch.inference_mode():
        hidden = theirs(padded, attention_mask=mask, output_hidden_states=True).hidden_states
    for layer, state in enumerate(cls_states(model, texts)):
        assert np.abs(state - hidden[layer + 1][:, 0].numpy()).max() <= CLOSE
    assert np.abs(model.encode(texts) - hidden[-1][:, 0].numpy()).max() <= CLOSE


def test_parity_with_real_weights(minilm: Path, graph: Any) -> None:
    theirs = transformers.AutoModel.from_pretrained(minilm).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    model = GraphFormers.from_backbone("minilm", method="plm", max_tokens=32, device="cpu")
    texts = [
        "Attention is all you need",
        "",
        "Graph neural networks: a review of methods and applications",
        "läßt 数据 😀 " * 30,
    ]
    inputs = tokenizer(texts, padding=True, truncation=True, max_length=32, return_tensors="pt")
    with torch.inference_mode():
        hidden = theirs(**inputs, output_hidden_states=True).hidden_states
    for layer, state in enumerate(cls_states(model, texts)):
        assert np.abs(state - hidden[layer + 1][:, 0].numpy()).max() <= CLOSE
    assert np.abs(model.encode(texts) - hidden[-1][:, 0].numpy()).max() <= CLOSE


@pytest.mark.parametrize("method", methods())
def test_every_method_stands_on_real_weights(minilm: Path, method: str) -> None:
    model = from_backbone("minilm", method=method)
    vectors = model.encode(
        ["notes on transformers", "a cat"], [["tutorials on machine translation"], []]
    )
    assert vectors.shape == (2, 384)
    assert np.isfinite(vectors).all()


def unilm_weights(num_layers: int, fused: bool, prefix: str = "bert.") -> dict[str, torch.Tensor]:
    """The names of UniLM v2, with its fused projections or without."""
    generator = torch.Generator().manual_seed(5)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * 0.3

    size, inner = 24, 40
    weights = {
        "embeddings.word_embeddings.weight": draw(40, size),
        "embeddings.position_embeddings.weight": draw(40, size),
    }
    weights |= {
        "embeddings.LayerNorm.weight": 1 + draw(size),
        "embeddings.LayerNorm.bias": draw(size),
        "rel_pos_bias.weight": draw(3, 8),
    }
    for i in range(num_layers):
        place = f"encoder.layer.{i}."
        names = {
            "attention.output.dense": (size, size),
            "intermediate.dense": (inner, size),
            "output.dense": (size, inner),
        }
        if fused:
            weights |= {place + "attention.self.qkv_linear.weight": draw(3 * size, size)}
            weights |= {
                place + "attention.self.q_bias": draw(1, 1, size),
                place + "attention.self.v_bias": draw(1, 1, size),
            }
        else:
            names |= {f"attention.self.{part}": (size, size) for part in ("query", "key", "value")}
        for name, shape in names.items():
            weights |= {
                f"{place}{name}.weight": draw(*shape),
                f"{place}{name}.bias": draw(shape[0]),
            }
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            weights |= {f"{place}{name}.weight": 1 + draw(size), f"{place}{name}.bias": draw(size)}
    return {prefix + name: tensor for name, tensor in weights.items()}


def naive_weights(theirs: dict[str, torch.Tensor], num_layers: int) -> naive.Weights:
    """The names of the naive implementation, written out by hand."""
    bare = {name.removeprefix("bert."): tensor for name, tensor in theirs.items()}
    ours = {"text.embedding.words.weight": bare["embeddings.word_embeddings.weight"]}
    ours["text.embedding.positions.weight"] = bare["embeddings.position_embeddings.weight"]
    ours["text.relative_bias.tokens.weight"] = bare["rel_pos_bias.weight"].T[:8]
    for part in ("weight", "bias"):
        ours[f"text.embedding.norm.{part}"] = bare[f"embeddings.LayerNorm.{part}"]
    for i in range(num_layers):
        here, there = f"text.layers.{i}", f"encoder.layer.{i}"
        if f"{there}.attention.self.qkv_linear.weight" in bare:
            fused = bare[f"{there}.attention.self.qkv_linear.weight"]
            size = fused.shape[1]
            ours[f"{here}.attention.query.weight"] = fused[:size]
            ours[f"{here}.attention.key_value.weight"] = fused[size:]
            query, value = (
                bare[f"{there}.attention.self.q_bias"].flatten(),
                bare[f"{there}.attention.self.v_bias"].flatten(),
            )
            ours[f"{here}.attention.query.bias"] = query
            ours[f"{here}.attention.key_value.bias"] = torch.cat([torch.zeros(24), value])
        else:
            for part in ("weight", "bias"):
                three = [
                    bare[f"{there}.attention.self.{name}.{part}"]
                    for name in ("query", "key", "value")
                ]
                ours[f"{here}.attention.query.{part}"] = three[0]
                ours[f"{here}.attention.key_value.{part}"] = torch.cat(three[1:])
        pairs = {
            "attention.output": "attention.output.dense",
            "attention_norm": "attention.output.LayerNorm",
            "mlp.up": "intermediate.dense",
            "mlp.down": "output.dense",
            "mlp_norm": "output.LayerNorm",
        }
        for mine, other in pairs.items():
            for part in ("weight", "bias"):
                ours[f"{here}.{mine}.{part}"] = bare[f"{there}.{other}.{part}"]
    return ours


UNILM_CONFIG = SIZES | {
    "max_position_embeddings": 40,
    "rel_pos_bins": 8,
    "max_rel_pos": 16,
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu",
}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("prefix", ["bert.", ""])
def test_unilm_v2_against_a_naive_implementation(tmp_path: Path, fused: bool, prefix: str) -> None:
    theirs = unilm_weights(3, fused, prefix)
    save_file(theirs, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(UNILM_CONFIG))
    (tmp_path / "tokenizer.json").write_text(make_tokenizer().to_str())
    model = from_backbone(tmp_path, method="plm", max_tokens=30)
    weights = naive_weights(
        {f"bert.{name.removeprefix('bert.')}": tensor for name, tensor in theirs.items()}, 3
    )
    texts = make_texts(6, longest=20)
    found = cls_states(model, texts)
    for i, sequence in enumerate(sequences(model, texts)):
        expected = naive.plain(model.config, weights, sequence).numpy()
        assert max(np.abs(found[layer][i] - expected[layer]).max() for layer in range(3)) <= CLOSE


def checkpoint_2021(num_layers: int = 3) -> dict[str, torch.Tensor]:
    """A state dict with the names and the bias layout of the 2021 code: 8 buckets and two columns
    more.
    """
    theirs = unilm_weights(num_layers, fused=False)
    generator = torch.Generator().manual_seed(7)
    theirs["bert.rel_pos_bias.weight"] = torch.randn(3, 10, generator=generator)
    for part in ("query", "key", "value"):
        theirs[f"bert.encoder.graph_attention.{part}.weight"] = (
            torch.randn(24, 24, generator=generator) * 0.3
        )
        theirs[f"bert.encoder.graph_attention.{part}.bias"] = (
            torch.randn(24, generator=generator) * 0.3
        )
    return theirs


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_checkpoint_of_2021_gives_what_its_formula_gives(tmp_path: Path, wrapped: bool) -> None:
    theirs = checkpoint_2021()
    torch.save({"model_state_dict": theirs} if wrapped else theirs, tmp_path / "checkpoint.pt")
    (tmp_path / "config.json").write_text(json.dumps(UNILM_CONFIG | {"num_hidden_layers": 3}))
    (tmp_path / "tokenizer.json").write_text(make_tokenizer().to_str())
    model = convert(tmp_path / "checkpoint.pt", max_tokens=20)
    weights, table = naive_weights(theirs, 3), theirs["bert.rel_pos_bias.weight"]
    # column `bins`: any token to the graph token
    weights["text.relative_bias.graph_token"] = table[:, 8]
    # column 0: itself; bins + 1: a neighbour
    weights["gnn.0.bias"] = torch.stack([table[:, 0], table[:, 9], torch.zeros(3)])
    for kind in ("weight", "bias"):
        for part in ("query", "key", "value"):
            name = f"bert.encoder.graph_attention.{part}.{kind}"
            weights[f"gnn.0.{part}.{kind}"] = theirs[name]
    texts = make_texts(5)
    neighbors = [texts[1:4], [], texts[:1], texts[:2], texts]
    for text, around, vector in zip(texts, neighbors, model.encode(texts, neighbors), strict=True):
        expected = naive.graphformers(model.config, weights, sequences(model, [text, *around]))
        assert np.abs(expected.numpy() - vector).max() <= CLOSE
    model.save_pretrained(tmp_path / "converted.model")
    assert np.array_equal(
        from_pretrained(tmp_path / "converted.model").encode(texts, neighbors),
        model.encode(texts, neighbors),
    )


def test_the_convert_command(tmp_path: Path) -> None:
    torch.save(checkpoint_2021(), tmp_path / "checkpoint.bin")
    (tmp_path / "tokenizer.json").write_text(make_tokenizer().to_str())
    command = [
        sys.executable,
        "-m",
        "graphformers",
        "convert",
        "checkpoint.bin",
        "-o",
        "old.model",
        "--max-tokens",
        "20",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("old.model: graphformers, ")
    assert from_pretrained(tmp_path / "old.model").config.relative_buckets == 8
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert again.stderr == "error: old.model: exists already; --force replaces it\n"
    shown = subprocess.run(
        [*command[:3], "info", "old.model"], cwd=tmp_path, capture_output=True, text=True
    )
    assert [line.split() for line in shown.stdout.splitlines()][2] == ["method", "graphformers"]
    assert shown.stdout.split()[-2:] == ["trained", "no"]


def test_a_backbone_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_backbone(tmp_path / "bert", "bert")
    texts, place = make_texts(4), str(tmp_path / "plain.model")
    words = ["--method", "plm", "--pooling", "mean", "--similarity", "cosine", "--max-tokens", "14"]
    app(["convert", str(tmp_path / "bert"), *words, "-o", place], standalone_mode=False)
    assert capsys.readouterr().out.startswith(f"{place}: plm, ")
    model = from_pretrained(place)
    assert (model.config.pooling, model.is_cosine) == ("mean", True)
    expected = from_backbone(tmp_path / "bert", "plm", pooling="mean", max_tokens=14).encode(texts)
    assert np.array_equal(model.encode(texts), expected)
    (tmp_path / "bert" / "tokenizer.json").rename(tmp_path / "words.json")
    with pytest.raises(GraphFormersError, match=r"neither tokenizer.json nor vocab.txt"):
        convert(tmp_path / "bert", method="plm")
    (tmp_path / "bert" / "1_Pooling").mkdir()
    (tmp_path / "bert" / "1_Pooling" / "config.json").write_text(
        '{"pooling_mode_mean_tokens": true}'
    )
    assert np.array_equal(
        convert(tmp_path / "bert", tmp_path / "words.json", "plm", max_tokens=14).encode(texts),
        expected,
    )
    with pytest.raises(GraphFormersError, match=r"plain\.model: a model folder already"):
        convert(place)
    with pytest.raises(GraphFormersError, match=r"typo\.bin: no such file or folder"):
        convert(tmp_path / "typo.bin")
    (tmp_path / "empty").mkdir()
    with pytest.raises(GraphFormersError, match="0 files of weights"):
        convert(tmp_path / "empty")
    with pytest.raises(GraphFormersError, match=r"g\.graph: .*graph.*model"):
        make_graph().save(tmp_path / "g.graph")
        convert(tmp_path / "g.graph")
    with pytest.raises(GraphFormersError, match="pooling='men' given, expected cls or mean"):
        convert(tmp_path / "bert", tmp_path / "words.json", pooling="men")


def test_convert_reads_a_bin_and_never_runs_one(tmp_path: Path) -> None:
    theirs = write_backbone(tmp_path / "bert", "bert")
    texts = make_texts(4)
    expected = from_backbone(tmp_path / "bert", method="plm", max_tokens=14).encode(texts)
    torch.save(
        load_file(tmp_path / "bert" / "model.safetensors"), tmp_path / "bert" / "pytorch_model.bin"
    )
    (tmp_path / "bert" / "model.safetensors").unlink()
    with pytest.raises(
        GraphFormersError,
        match=r"no .safetensors weights in this folder; convert them first: graphformers convert",
    ):
        from_backbone(tmp_path / "bert")
    assert np.array_equal(
        convert(tmp_path / "bert", method="plm", max_tokens=14).encode(texts), expected
    )
    assert theirs is not None

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "owned",))

    with (tmp_path / "bert" / "pytorch_model.bin").open("wb") as file:
        pickle.dump(Evil(), file)
    with pytest.raises(GraphFormersError, match="not a file of plain tensors, so it is not read"):
        convert(tmp_path / "bert")
    assert not (tmp_path / "owned").exists()


def test_missing_and_left_over_tensors_are_listed(tmp_path: Path) -> None:
    write_backbone(tmp_path, "bert")
    file = tmp_path / "model.safetensors"
    # the file is overwritten, which may be mapped
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    save_file({name: t for name, t in tensors.items() if "layer.1.output.dense" not in name}, file)
    with pytest.raises(
        GraphFormersError,
        match=r"missing from this bert checkpoint: encoder.layer.1.output.dense.weight, .*bias",
    ):
        from_backbone(tmp_path)
    save_file(
        tensors
        | {
            "encoder.layer.7.output.dense.weight": torch.zeros(1),
            "cls.predictions.bias": torch.zeros(1),
        },
        file,
    )
    with pytest.raises(
        GraphFormersError, match=r"the network does not have: encoder.layer.7.output.dense.weight$"
    ):
        from_backbone(tmp_path)
    save_file(
        {f"bert.{name}": t for name, t in tensors.items()}
        | {"cls.predictions.bias": torch.zeros(1)},
        file,
    )
    from_backbone(tmp_path)
    save_file(
        {name.replace("LayerNorm.weight", "LayerNorm.gamma"): t for name, t in tensors.items()},
        file,
    )
    from_backbone(tmp_path)


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    write_backbone(tmp_path, "bert")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "llama"}))
    with pytest.raises(
        GraphFormersError, match=r"model_type 'llama' in config.json, expected one of: bert"
    ):
        from_backbone(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 41}))
    with pytest.raises(
        GraphFormersError,
        match=(
            r"do not fit the configuration: text.layers.0.mlp.up.weight has "
            r"shape \(40, 24\), expected shape \(41"
        ),
    ):
        from_backbone(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        GraphFormersError, match=r"no model setting 'max_token'; did you mean 'max_tokens'"
    ):
        from_backbone(tmp_path, max_token=5)
    with pytest.raises(
        GraphFormersError, match=r"num_heads=6 given, this language model was trained with 3"
    ):
        from_backbone(tmp_path, num_heads=6)
    big = make_tokenizer()
    big.add_tokens([f"extra{i}" for i in range(30)])
    (tmp_path / "tokenizer.json").write_text(big.to_str())
    with pytest.raises(
        GraphFormersError, match=r"the tokenizer has 61 tokens, the weights 40: they do not fit"
    ):
        from_backbone(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(GraphFormersError, match="not a safetensors file or damaged"):
        from_backbone(tmp_path)
    with pytest.raises(GraphFormersError, match="no such backbone; expected a folder, minilm"):
        from_backbone("no/where/at/all")


def test_the_hub_out_of_reach_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        GraphFormersError, match=r"nobody/nothing: no such folder, and the model hub cannot give it"
    ):
        from_backbone("nobody/nothing")


def test_vocab_txt_serves_where_there_is_no_tokenizer_json(tmp_path: Path, minilm: Path) -> None:
    texts = ["Ünïcode Text, with punctuation!", "graph-neural networks 123", "数据"]
    expected = read_tokenizer(minilm)
    (tmp_path / "vocab.txt").write_bytes((minilm / "vocab.txt").read_bytes())
    found = read_tokenizer(tmp_path)
    assert (found.prefix, found.suffix) == (expected.prefix, expected.suffix)
    for one, other in zip(found.encode(texts), expected.encode(texts), strict=True):
        assert one.tolist() == other.tolist()
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    assert read_tokenizer(tmp_path).encode(texts)[0].tolist() != found.encode(texts)[0].tolist()
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertJapaneseTokenizer"})
    )
    with pytest.raises(
        GraphFormersError, match=r"a BertJapaneseTokenizer, which a vocab.txt alone does not define"
    ):
        read_tokenizer(tmp_path)


def test_files_that_are_broken_say_so(tmp_path: Path) -> None:
    write_backbone(tmp_path, "bert")
    config = json.loads((tmp_path / "config.json").read_text())
    for name in ("num_attention_heads", "max_position_embeddings"):
        (tmp_path / "config.json").write_text(
            json.dumps({key: value for key, value in config.items() if key != name})
        )
        with pytest.raises(GraphFormersError, match=f"has no '{name}'"):
            from_backbone(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(GraphFormersError, match=r"config.json: not a JSON object"):
        from_backbone(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(GraphFormersError, match=r"tokenizer.json: not a tokenizer.json"):
        from_backbone(tmp_path)
    (tmp_path / "empty.pt").write_bytes(b"")
    with pytest.raises(GraphFormersError, match="not a file of plain tensors"):
        convert(tmp_path / "empty.pt")


def test_a_checkpoint_of_2021_is_taken_whole_or_not_at_all(tmp_path: Path) -> None:
    torch.save(checkpoint_2021(), tmp_path / "checkpoint.pt")
    (tmp_path / "tokenizer.json").write_text(make_tokenizer().to_str())
    with pytest.raises(GraphFormersError, match="method='plm' given, but this is a GraphFormers"):
        convert(tmp_path / "checkpoint.pt", method="plm", max_tokens=20)
    with pytest.raises(GraphFormersError, match=r"tensors missing from the weights: gnn.1"):
        convert(tmp_path / "checkpoint.pt", share_gnn=False, max_tokens=20)


def test_loading_does_not_disturb_random_numbers(tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path / "a.model")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    from_pretrained(tmp_path / "a.model")
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("method", methods())
def test_a_saved_model_is_the_same(tmp_path: Path, method: str) -> None:
    model = make_model(method=method)
    model.save_pretrained(tmp_path / "a.model")
    loaded = GraphFormers.from_pretrained(tmp_path / "a.model", device="cpu")
    texts = make_texts(5)
    assert loaded.config == model.config
    assert np.array_equal(loaded.encode(texts, [texts] * 5), model.encode(texts, [texts] * 5))
    with pytest.raises(ArtifactError, match="exists already"):
        model.save_pretrained(tmp_path / "a.model")
    model.save_pretrained(tmp_path / "a.model", force=True)


@pytest.mark.parametrize("name", ["foo", "cuda:99"])
def test_a_device_that_is_not_there_is_said(name: str) -> None:
    with pytest.raises(GraphFormersError, match=rf"device='{name}' given, this machine has: cpu"):
        choose_device(name)


def test_who_may_read_weights_is_for_the_umask_to_say(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        make_model().save_pretrained(tmp_path / "some.model")
    finally:
        os.umask(before)
    modes = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "some.model").iterdir()}
    assert set(modes.values()) == {0o640}, modes


def test_an_unknown_setting_in_a_saved_model_is_refused(tmp_path: Path) -> None:
    from graphformers.artifact import write_artifact

    model = make_model()
    model.save_pretrained(tmp_path / "a.model")
    config = json.loads((tmp_path / "a.model" / "config.json").read_text())
    with write_artifact(tmp_path / "b.model", "model", 2) as draft:
        for name in ("model.safetensors", "tokenizer.json"):
            draft.path(name).write_bytes((tmp_path / "a.model" / name).read_bytes())
        draft.path("config.json").write_text(json.dumps(config | {"share_gmm": True}))
    with pytest.raises(
        GraphFormersError, match="no model setting 'share_gmm'; did you mean 'share_gnn'"
    ):
        from_pretrained(tmp_path / "b.model")


def test_new_weights_are_drawn_by_the_seed(minilm: Path) -> None:
    one, same, other = (
        from_backbone("minilm", seed=seed).network.state_dict() for seed in (1, 1, 2)
    )
    assert all(torch.equal(one[name], same[name]) for name in one)
    differing = {name for name in one if not torch.equal(one[name], other[name])}
    assert differing == {"gnn.0.query.weight", "gnn.0.key.weight"}
