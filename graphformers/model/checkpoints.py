"""Conversion of weights and settings of BERT-like language models to our names.

A family's table maps each of our tensors to tensors of the family; several are concatenated (keys
and values are one matrix here). A tensor that is in no table must belong to a known head; any other
is an error.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields

import torch
from torch import Tensor

from graphformers.errors import GraphFormersError
from graphformers.model.config import ModelConfig
from graphformers.model.registry import PART_KINDS
from graphformers.settings import SettingValue

BERT_LAYER = {
    "attention.query": ("attention.self.query",),
    "attention.key_value": ("attention.self.key", "attention.self.value"),
    "attention.output": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "mlp.up": ("intermediate.dense",),
    "mlp.down": ("output.dense",),
    "mlp_norm": ("output.LayerNorm",),
}
MPNET_LAYER = BERT_LAYER | {
    "attention.query": ("attention.attn.q",),
    "attention.key_value": ("attention.attn.k", "attention.attn.v"),
    "attention.output": ("attention.attn.o",),
    "attention_norm": ("attention.LayerNorm",),
}
DISTILBERT_LAYER = {
    "attention.query": ("attention.q_lin",),
    "attention.key_value": ("attention.k_lin", "attention.v_lin"),
    "attention.output": ("attention.out_lin",),
    "attention_norm": ("sa_layer_norm",),
    "mlp.up": ("ffn.lin1",),
    "mlp.down": ("ffn.lin2",),
    "mlp_norm": ("output_layer_norm",),
}
BERT_CONFIG = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "activation": "hidden_act",
    "layer_norm_eps": "layer_norm_eps",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}


@dataclass(frozen=True)
class Family:
    """Names of weights and settings in one family of language models."""

    # in front of every name, in some of its files
    prefix: str
    layers: str = "encoder.layer"
    layer: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: BERT_LAYER)
    config: Mapping[str, str] = field(default_factory=lambda: BERT_CONFIG)
    # the name of its relative position bias
    relative: str | None = None
    # the first position of a text: pad + 1 in families that number padding, too
    first_position: int = 0
    defaults: Mapping[str, SettingValue] = field(default_factory=dict)


FAMILIES = {
    "bert": Family("bert."),
    "roberta": Family("roberta.", first_position=2, defaults={"layer_norm_eps": 1e-5}),
    "xlm-roberta": Family("roberta.", first_position=2, defaults={"layer_norm_eps": 1e-5}),
    "mpnet": Family(
        "mpnet.",
        layer=MPNET_LAYER,
        relative="encoder.relative_attention_bias.weight",
        first_position=2,
        defaults={"layer_norm_eps": 1e-5},
    ),
    "distilbert": Family(
        "distilbert.",
        layers="transformer.layer",
        layer=DISTILBERT_LAYER,
        config={
            "vocab_size": "vocab_size",
            "hidden_size": "dim",
            "num_layers": "n_layers",
            "num_heads": "n_heads",
            "intermediate_size": "hidden_dim",
            "max_positions": "max_position_embeddings",
            "activation": "activation",
            "dropout": "dropout",
            "attention_dropout": "attention_dropout",
        },
    ),
    "unilm": Family("bert.", relative="rel_pos_bias.weight"),
}

# parts of a checkpoint that the encoder does not have: poolers, heads, and constant tables
HEADS = (
    "pooler",
    "cls",
    "lm_head",
    "classifier",
    "qa_outputs",
    "pre_classifier",
    "vocab_transform",
    "vocab_layer_norm",
    "vocab_projector",
    "crit_mask_lm",
)
CONSTANTS = ("embeddings.position_ids", "embeddings.token_type_ids")


def family_name(settings: Mapping[str, SettingValue]) -> str:
    """The family that a config.json belongs to."""
    if settings.get("rel_pos_bins"):
        return "unilm"
    name = str(settings.get("model_type", "bert"))
    name = {"camembert": "roberta", "tnlrv3": "unilm", "unilm2": "unilm"}.get(name, name)
    if name not in FAMILIES:
        raise GraphFormersError(
            f"model_type {name!r} in config.json, expected one of: {', '.join(FAMILIES)}"
        )
    return name


def read_settings(settings: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    """Our settings of a backbone from its config.json."""
    name = family_name(settings)
    family = FAMILIES[name]
    needed = [entry.name for entry in fields(ModelConfig) if entry.default is MISSING]
    missing = [family.config[ours] for ours in needed if family.config[ours] not in settings]
    if missing:
        raise GraphFormersError(
            f"config.json of the family {name} has no {missing[0]!r}; is it the right file?"
        )
    found = dict(family.defaults)
    found |= {
        ours: settings[theirs] for ours, theirs in family.config.items() if theirs in settings
    }
    found["pad_token"] = settings.get("pad_token_id") or 0
    positions = found["max_positions"]
    if not isinstance(positions, int):
        raise GraphFormersError(
            f"{family.config['max_positions']} {positions!r} in config.json, expected a number"
        )
    found["max_positions"] = positions - family.first_position
    if settings.get("position_embedding_type", "absolute") != "absolute":
        raise GraphFormersError(
            f"position_embedding_type {settings['position_embedding_type']!r} in config.json, "
            f"expected 'absolute'"
        )
    if name == "mpnet":
        found["relative_buckets"] = settings.get("relative_attention_num_buckets", 32)
    if name == "unilm":
        found |= {
            "relative_buckets": settings.get("rel_pos_bins", 32),
            "relative_distance": settings.get("max_rel_pos", 128),
        }
    return found


def read_weights(name: str, theirs: Mapping[str, Tensor], num_layers: int) -> dict[str, Tensor]:
    """Our tensors of the text encoder, float32, from those of a family.

    Raises:
        GraphFormersError: Tensors are missing, or unknown tensors are neither heads nor constants.
    """
    family = FAMILIES[name]
    reader = _Reader(family, theirs)
    ours: dict[str, Tensor] = {
        "embedding.words.weight": reader.take("embeddings.word_embeddings.weight")
    }
    positions = reader.take("embeddings.position_embeddings.weight")[family.first_position :]
    if reader.has("embeddings.token_type_embeddings.weight"):
        positions = positions + reader.take("embeddings.token_type_embeddings.weight")[0]
    ours["embedding.positions.weight"] = positions
    for part in ("weight", "bias"):
        ours[f"embedding.norm.{part}"] = reader.take(f"embeddings.LayerNorm.{part}")
    for i in range(num_layers):
        for target, names in family.layer.items():
            for part in ("weight", "bias"):
                # Several tensors of the family are concatenated to one of ours.
                found = [reader.projection(f"{family.layers}.{i}.", each, part) for each in names]
                ours[f"layers.{i}.{target}.{part}"] = torch.cat(found)
    if family.relative is not None:
        relative = reader.take(family.relative)
        ours["relative_bias.tokens.weight"] = (
            relative.T.contiguous() if name == "unilm" else relative
        )
    if reader.missing:
        raise GraphFormersError(
            f"tensors missing from this {name} checkpoint: {listed(reader.missing)}"
        )
    left = [name for name in theirs if name not in reader.used and not _is_head(name)]
    if left:
        raise GraphFormersError(
            f"tensors in this checkpoint that the network does not have: {listed(left)}"
        )
    return ours


def write_settings(config: ModelConfig) -> dict[str, SettingValue]:
    """The config.json of a language model that is the text encoder of a network."""
    name = exported_family(config)
    family = FAMILIES[name]
    found = {theirs: getattr(config, ours) for ours, theirs in family.config.items()}
    found["max_position_embeddings"] = config.max_positions + family.first_position
    found |= {"model_type": name, "pad_token_id": config.pad_token}
    found["architectures"] = [{"bert": "BertModel", "mpnet": "MPNetModel"}[name]]
    if family.relative is not None:
        found["relative_attention_num_buckets"] = config.relative_buckets
    return found


def write_weights(config: ModelConfig, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a language model, from ours of the text encoder; reverses `read_weights`.

    Token types, which our networks add to the positions, are zero, and so is the pooler: nothing
    uses it, but transformers reports its absence at every start.
    """
    family = FAMILIES[exported_family(config)]
    positions = ours["embedding.positions.weight"]
    size = config.hidden_size
    found = {
        "pooler.dense.weight": positions.new_zeros(size, size),
        "pooler.dense.bias": positions.new_zeros(size),
        "embeddings.word_embeddings.weight": ours["embedding.words.weight"],
        "embeddings.position_embeddings.weight": torch.cat(
            [positions.new_zeros(family.first_position, size), positions]
        ),
    }
    if family.relative is None:
        found["embeddings.token_type_embeddings.weight"] = positions.new_zeros(2, size)
    else:
        found[family.relative] = ours["relative_bias.tokens.weight"]
    for part in ("weight", "bias"):
        found[f"embeddings.LayerNorm.{part}"] = ours[f"embedding.norm.{part}"]
        for i in range(config.num_layers):
            for target, names in family.layer.items():
                parts = ours[f"layers.{i}.{target}.{part}"].chunk(len(names))
                for each, tensor in zip(names, parts, strict=True):
                    found[f"{family.layers}.{i}.{each}.{part}"] = tensor
    return found


def exported_family(config: ModelConfig) -> str:
    """The family as which a text encoder is written: MPNet with relative positions, else BERT.

    Raises:
        GraphFormersError: No family has its parts.
    """
    parts = {name: getattr(config, name) for name in PART_KINDS}
    usual = {entry.name: entry.default for entry in fields(ModelConfig) if entry.name in parts}
    if parts != usual:
        name = next(name for name in parts if parts[name] != usual[name])
        raise GraphFormersError(f"{name}={parts[name]!r}: no known language model has such layers")
    if not config.relative_buckets:
        return "bert"
    # transformers fixes both numbers in the code of MPNet.
    if config.relative_distance != 128 or config.pad_token != 1:
        raise GraphFormersError(
            f"relative_distance={config.relative_distance} and pad_token={config.pad_token}, "
            f"expected 128 and 1, as MPNet has; language models of other kinds with relative "
            f"positions cannot be written"
        )
    return "mpnet"


class _Reader:
    """Takes tensors by name; records which were used and which are missing."""

    def __init__(self, family: Family, theirs: Mapping[str, Tensor]) -> None:
        self._theirs = {_modern_name(name): name for name in theirs}
        self._tensors = theirs
        self._prefix = (
            family.prefix if any(name.startswith(family.prefix) for name in self._theirs) else ""
        )
        self.used: set[str] = set()
        self.missing: list[str] = []

    def has(self, name: str) -> bool:
        return self._prefix + name in self._theirs

    def take(self, name: str) -> Tensor:
        if not self.has(name):
            self.missing.append(self._prefix + name)
            return torch.zeros(1, 1)
        original = self._theirs[self._prefix + name]
        self.used.add(original)
        return self._tensors[original].float()

    def projection(self, place: str, name: str, part: str) -> Tensor:
        """The weight or the bias of a projection of a layer."""
        fused = f"{place}attention.self.qkv_linear.weight"
        projection = name.removeprefix("attention.self.")
        if projection == name or not self.has(fused):
            return self.take(f"{place}{name}.{part}")
        # UniLM v2's own files have one matrix for all three, and biases for query and value only.
        if part == "weight":
            return self.take(fused).chunk(3)[("query", "key", "value").index(projection)]
        if projection == "key":
            return torch.zeros(self.take(f"{place}attention.self.v_bias").numel())
        return self.take(f"{place}attention.self.{projection[0]}_bias").flatten()


def _is_head(name: str) -> bool:
    parts = name.split(".")
    return (
        parts[0] in HEADS
        or (len(parts) > 1 and parts[1] in HEADS)
        or any(name.endswith(constant) for constant in CONSTANTS)
    )


def _modern_name(name: str) -> str:
    """Replaces gamma and beta, the names in the first BERT files, by weight and bias."""
    return name.replace(".gamma", ".weight").replace(".beta", ".bias")


def listed(names: list[str]) -> str:
    """The first of some names, and how many more there are."""
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


GRAPH_2021 = "encoder.graph_attention."


def read_2021(theirs: Mapping[str, Tensor]) -> tuple[dict[str, SettingValue], dict[str, Tensor]]:
    """Settings and weights from a checkpoint of the 2021 reference code.

    Its relative position table has two columns more than there are buckets: token to graph token,
    and centre to neighbour; centre to centre is tied to the bucket of distance 0. Its neighbours
    never attend to each other, so that bias is unused.
    """
    bare = {name.removeprefix("bert."): tensor for name, tensor in theirs.items()}
    words, positions = (
        bare["embeddings.word_embeddings.weight"],
        bare["embeddings.position_embeddings.weight"],
    )
    num_layers = 1 + max(
        int(name.split(".")[2]) for name in bare if name.startswith("encoder.layer.")
    )
    table = bare.get("rel_pos_bias.weight")
    settings: dict[str, SettingValue] = {
        "vocab_size": words.shape[0],
        "hidden_size": words.shape[1],
        "num_layers": num_layers,
        "num_heads": words.shape[1] // 64 if table is None else table.shape[0],
        "intermediate_size": bare["encoder.layer.0.intermediate.dense.bias"].shape[0],
        "max_positions": positions.shape[0],
        "relative_buckets": 0 if table is None else table.shape[1] - 2,
        "position_bias": table is not None,
    }
    encoder = {name: tensor for name, tensor in bare.items() if not name.startswith(GRAPH_2021)}
    if table is not None:
        encoder["rel_pos_bias.weight"] = table[:, :-2]
    weights = read_weights("bert" if table is None else "unilm", encoder, num_layers)
    ours = {f"text.{name}": tensor for name, tensor in weights.items()}
    for kind in ("weight", "bias"):
        for part in ("query", "key", "value"):
            ours[f"gnn.0.{part}.{kind}"] = bare[f"{GRAPH_2021}{part}.{kind}"].float()
    if table is not None:
        ours["text.relative_bias.graph_token"] = table[:, -2].float()
        ours["gnn.0.bias"] = torch.stack(
            [table[:, 0], table[:, -1], torch.zeros_like(table[:, 0])]
        ).float()
    return settings, ours


def is_2021(theirs: Mapping[str, Tensor]) -> bool:
    """Whether a state dict is a GraphFormers of the 2021 reference code."""
    return any(GRAPH_2021 in name for name in theirs)
