"""The recipe `auto`: settings chosen from the graph, the backbone and the kind of device.

The choice is a function of these three, so that the same command chooses the same settings again.
It does not depend on free memory or on the speed of the machine: memory decides how many pairs of a
batch are computed at a time, which does not change a result. Settings that are given, and those of
a model that is trained further, are kept, and the others follow them.

Figures that decided are in docs/decisions.md, "The recipe auto".
"""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from graphformers.artifact import MANIFEST, open_artifact
from graphformers.batching.tokens import graph_tokens
from graphformers.model.backbones import (
    backbone_sizes,
    find_backbone,
    pooling_of,
    read_config,
    read_tokenizer,
)
from graphformers.model.compute import choose_device
from graphformers.settings import SettingValue
from graphformers.splits.split import LinkSplit, loaded_split
from graphformers.training.distributed import is_first_process
from graphformers.training.recipes import AUTO, Recipe
from graphformers.training.settings import MODEL_SETTINGS

logger = logging.getLogger(__name__)

# the share of texts that are not cut, and of nodes that have no more links than are sampled
USUAL = 0.95
# the batch and hidden sizes with which the learning rates were measured
MEASURED_BATCH, MEASURED_SIZE = 512, 384
# With fewer pairs, training on clean text alone overfits; masked text delays that.
FEW_PAIRS = 50_000
# epochs after which small and large graphs overfit
MANY_EPOCHS, FEW_EPOCHS = 6, 4
# the most steps of a run without a time limit, and the validations that they are divided by
CPU_STEPS, GPU_STEPS = 400, 3000
CPU_VALIDATIONS, GPU_VALIDATIONS = 4, 8
CASCADED = ("plm", "max", "gat")
# Longer texts take more time on a CPU than the words at their end are worth.
CPU_TOKENS, GPU_TOKENS = 64, 128


@dataclass(frozen=True)
class Facts:
    """The facts that the choice depends on.

    Attributes:
        on_gpu: Whether the device is a GPU.
        hidden_size: The size of the backbone's hidden states.
        max_positions: The longest text that the backbone can encode, in tokens.
        pooling: The pooling that the backbone was trained with.
        num_pairs: The pairs to train on.
        text_tokens: The length that USUAL of the texts do not exceed, special tokens included.
        degree: The number of training links that USUAL of the nodes do not exceed.
        fixed: The settings of a model that is trained further; empty for a new one.
    """

    on_gpu: bool
    hidden_size: int
    max_positions: int
    pooling: str
    num_pairs: int
    text_tokens: int
    degree: int
    fixed: Mapping[str, SettingValue] = field(default_factory=dict)

    @staticmethod
    def of(split: LinkSplit, source: str | Path, device: str | None = None) -> "Facts":
        """The facts of a split, a device, and a backbone or a trained model."""
        fixed: dict[str, SettingValue] = {}
        if (Path(source) / MANIFEST).is_file():
            artifact = open_artifact(source, "model", None)
            config = read_config(artifact)
            fixed = {
                name: value for name, value in asdict(config).items() if name in MODEL_SETTINGS
            }
            sizes, pooling = (config.hidden_size, config.max_positions), config.pooling
            tokenizer = read_tokenizer(artifact.file("tokenizer.json"))
        else:
            folder = find_backbone(source)
            sizes = backbone_sizes(folder)
            pooling = "mean" if pooling_of(folder) == "mean" else "cls"
            tokenizer = read_tokenizer(folder)
        lengths = np.diff(graph_tokens(split.graph, tokenizer).offsets)
        usual = int(np.quantile(lengths, USUAL, method="higher")) if len(lengths) else 0
        return Facts(
            choose_device(device).type != "cpu",
            *sizes,
            pooling,
            num_pairs=len(split.train),
            text_tokens=usual + len(tokenizer.prefix) + len(tokenizer.suffix),
            degree=int(np.quantile(np.diff(split.indptr), USUAL, method="higher")),
            fixed=fixed,
        )


def find_recipe(
    name: str | Path,
    split: LinkSplit,
    source: str | Path,
    device: str | None = None,
    given: Mapping[str, SettingValue] | None = None,
) -> Recipe:
    """A recipe by its name or file; `auto` is made for the split, and its reasons are logged.

    Args:
        name: A .toml file, "auto", or the name of a built-in recipe.
        split: The split to train on.
        source: A backbone, or a trained model.
        device: Where to train; by default the fastest device.
        given: Settings that are given beside the recipe.
    """
    if str(name) != AUTO or Path(name).is_file():
        return Recipe.load(name)
    recipe = auto_recipe(split, source, device, given)
    for reason in recipe.reasons if is_first_process() else ():
        logger.info(f"{AUTO}: {reason}")
    return recipe


def auto_recipe(
    split: LinkSplit | str | Path,
    source: str | Path = "minilm",
    device: str | None = None,
    given: Mapping[str, SettingValue] | None = None,
) -> Recipe:
    """Chooses settings for training on a split.

    Args:
        split: The pairs to train on; a split or its folder.
        source: The backbone: a folder, minilm, or a name on the hub. Or a trained model, whose
            own settings stay as they are.
        device: Where to train; by default the fastest device.
        given: Settings that are given, by name; the others follow them. With `minutes`, a run may
            make as many steps as do not overfit.

    Returns:
        A recipe, with the reasons of its settings.

    Raises:
        GraphFormersError: There is no such split, backbone or device.

    Examples:
        >>> recipe = auto_recipe("papers.split")
        >>> recipe.settings["similarity"]
        'cosine'
    """
    return choose_settings(Facts.of(loaded_split(split), source, device), given or {})


def choose_settings(facts: Facts, given: Mapping[str, SettingValue] | None = None) -> Recipe:
    """The settings that suit some facts, and settings that are given."""
    # The values have been checked against the types of the settings.
    known: dict[str, Any] = {**facts.fixed, **(given or {})}
    on_gpu, pairs = facts.on_gpu, facts.num_pairs
    batch = known.get("batch_size", max(2, min(512 if on_gpu else 64, pairs // 8)))
    neighbors = known.get("num_neighbors", max(1, min(20, facts.degree)))
    # Their states are cached after training, so that more neighbours cost little there.
    trained = known.get("train_neighbors", neighbors if on_gpu else min(3, neighbors))
    trained = neighbors if trained is None else trained
    limit = min(GPU_TOKENS if on_gpu else CPU_TOKENS, facts.max_positions)
    tokens = known.get("max_tokens", min(max(-(-facts.text_tokens // 8) * 8, 16), limit))
    is_cosine = known.get("similarity", "cosine") == "cosine"
    is_joint = known.get("direction") == "bidirectional"
    gradients = known.get("neighbor_gradients", on_gpu or is_joint)
    is_small = pairs < FEW_PAIRS
    # A CPU makes too few steps to overfit.
    two_stage = known.get("two_stage", on_gpu and is_small)
    enough = max(round((MANY_EPOCHS if is_small else FEW_EPOCHS) * pairs / batch), 100)
    usual = min(enough, GPU_STEPS if on_gpu else CPU_STEPS)
    is_timed = known.get("minutes") is not None
    steps = known.get("max_steps", enough if is_timed else usual) or enough
    # Smaller backbones than the measured one are not trained faster.
    size = min(MEASURED_SIZE / facts.hidden_size, 1.0)
    rate = 6e-4 * (batch / MEASURED_BATCH) ** 0.5 * size**1.5
    pooling = known.get("pooling", facts.pooling)
    chosen: dict[str, SettingValue] = {
        "batch_size": batch,
        "num_neighbors": neighbors,
        "train_neighbors": trained,
        "neighbor_gradients": gradients,
        "neighbor_dropout": 0.5 if trained > 3 else 0.0,
        "max_tokens": tokens,
        "two_stage": two_stage,
        "max_steps": steps,
        "epochs": -(-steps * batch // max(pairs, 1)) + 1,
        "validate_steps": max(usual // (GPU_VALIDATIONS if on_gpu else CPU_VALIDATIONS), 25),
        "patience": 4,
        "max_valid": 2000,
        # Encoding the candidates of each question would take longer than training.
        "valid_candidates": "saved" if on_gpu else "shared",
        "learning_rate": float(f"{rate:.2g}"),
        "graph_factor": 5.0 if on_gpu else 10.0,
        "warmup": 0.1,
        "decay": "linear",
        "weight_decay": 0.01,
        "max_norm": 1.0,
        # Drawing random numbers for dropout would take a third of the time on a CPU.
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "similarity": "cosine",
        "temperature": 0.05 if is_cosine else 1.0,
        "logq_correction": True,
        "text_query_weight": 0.5,
        "isolated_graph_token": False,
        "pooling": pooling,
        "graph_token_scale": 4.0 if pooling == "mean" else 1.0,
    }
    # Methods without nested graph attention were best with a third more.
    chosen |= {f"{name}.learning_rate": float(f"{rate * 4 / 3:.2g}") for name in CASCADED}
    chosen = {name: value for name, value in chosen.items() if name not in facts.fixed}
    in_time = " in the given minutes" if is_timed else ""
    reasons = {
        "batch_size": f"{batch} pairs a step, {trained} neighbours a node, "
        f"{'with' if gradients else 'without'} gradients through them: "
        f"{'a GPU' if on_gpu else 'a CPU'}",
        "num_neighbors": f"{neighbors} neighbours a node after training: {USUAL:.0%} of the nodes "
        f"have at most {facts.degree} links",
        "max_tokens": f"texts are cut at {tokens} tokens: {USUAL:.0%} have at most "
        f"{facts.text_tokens}",
        "max_steps": f"{steps:,} steps at most{in_time}, "
        f"{'two stages, the first on masked text' if two_stage else 'one stage, on clean text'}: "
        f"{pairs:,} pairs, {steps * batch / max(pairs, 1):.1f} epochs",
        "learning_rate": f"learning rate {chosen['learning_rate']:g}: follows the batch size and "
        f"the backbone's hidden size, {facts.hidden_size}",
        "text_query_weight": "parts of texts are used as queries, so that search by words stays as "
        "good as link prediction becomes",
    }
    return Recipe(chosen, tuple(why for name, why in reasons.items() if name not in known))
