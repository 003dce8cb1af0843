"""The recipe `auto`: settings chosen from the graph, the backbone and the kind of device.

The choice is a function of these three, so that the same command chooses the same settings again.
It does not depend on free memory or on the speed of the machine: memory decides how many pairs of a
batch are computed at a time, which does not change a result.

Figures that decided are in docs/decisions.md, "The recipe auto".
"""

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graphformers.artifact import MANIFEST, open_artifact
from graphformers.batching.tokens import graph_tokens
from graphformers.model.backbones import (
    backbone_sizes,
    find_backbone,
    make_config,
    pooling_of,
    read_tokenizer,
)
from graphformers.model.compute import choose_device
from graphformers.places import read_object
from graphformers.settings import SettingValue
from graphformers.splits.split import LinkSplit, loaded_split
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
    """

    on_gpu: bool
    hidden_size: int
    max_positions: int
    pooling: str
    num_pairs: int
    text_tokens: int
    degree: int

    @staticmethod
    def of(split: LinkSplit, source: str | Path, device: str | None = None) -> "Facts":
        """The facts of a split, a device, and a backbone or a trained model."""
        if is_trained(source):
            artifact = open_artifact(source, "model", None)
            config = make_config(read_object(artifact.file("config.json")))
            sizes, pooling = (config.hidden_size, config.max_positions), config.pooling
            tokenizer = read_tokenizer(artifact.path)
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
        )


def is_trained(source: str | Path) -> bool:
    """Whether a source is a trained model, not a backbone."""
    return (Path(source) / MANIFEST).is_file()


def find_recipe(
    given: str | Path,
    split: LinkSplit,
    source: str | Path,
    device: str | None = None,
    *,
    timed: bool = False,
) -> Recipe:
    """A recipe by its name or file; `auto` is made for the split, and its reasons are logged.

    Args:
        given: A .toml file, "auto", or the name of a built-in recipe.
        split: The split to train on.
        source: A backbone, or a trained model.
        device: Where to train; by default the fastest device.
        timed: Whether the run has a limited number of minutes.
    """
    if str(given) != AUTO or Path(given).is_file():
        return Recipe.load(given)
    recipe = auto_recipe(split, source, device, timed=timed)
    for reason in recipe.reasons:
        logger.info(f"{AUTO}: {reason}")
    return recipe


def auto_recipe(
    split: LinkSplit | str | Path,
    source: str | Path = "minilm",
    device: str | None = None,
    *,
    timed: bool = False,
) -> Recipe:
    """Chooses settings for training on a split.

    Args:
        split: The pairs to train on; a split or its folder.
        source: The backbone: a folder, minilm, or a name on the hub. Or a trained model, whose
            own settings the recipe leaves as they are.
        device: Where to train; by default the fastest device.
        timed: Whether the run has a limited number of minutes. It may then make as many steps as
            do not overfit.

    Returns:
        A recipe, with the reasons of its settings.

    Raises:
        GraphFormersError: There is no such split, backbone or device.

    Example:
        >>> recipe = auto_recipe("papers.split")
        >>> recipe.settings["similarity"]
        'cosine'
    """
    recipe = choose_settings(Facts.of(loaded_split(split), source, device), timed=timed)
    if not is_trained(source):
        return recipe
    own = {name: value for name, value in recipe.settings.items() if name not in MODEL_SETTINGS}
    return Recipe(own, recipe.reasons)


def choose_settings(facts: Facts, *, timed: bool = False) -> Recipe:
    """The settings that suit some facts."""
    on_gpu, pairs = facts.on_gpu, facts.num_pairs
    device = "a GPU" if on_gpu else "a CPU"
    batch = max(2, min(512 if on_gpu else 64, pairs // 8))
    neighbors = max(1, min(20 if on_gpu else 3, facts.degree))
    limit = min(GPU_TOKENS if on_gpu else CPU_TOKENS, facts.max_positions)
    tokens = min(max(-(-facts.text_tokens // 8) * 8, 16), limit)
    is_small = pairs < FEW_PAIRS
    # A CPU makes too few steps to overfit.
    two_stage = on_gpu and is_small
    # more epochs overfit
    most_epochs = MANY_EPOCHS if is_small else FEW_EPOCHS
    steps = max(round(most_epochs * pairs / batch), 100)
    if not timed:
        steps = min(steps, 3000 if on_gpu else 400)
    epochs = -(-steps * batch // max(pairs, 1)) + 1
    # Smaller backbones than the measured one are not trained faster.
    size = min(MEASURED_SIZE / facts.hidden_size, 1.0)
    rate = 6e-4 * (batch / MEASURED_BATCH) ** 0.5 * size**1.5
    is_mean = facts.pooling == "mean"
    stages = "two stages, the first on masked text" if two_stage else "one stage, on clean text"
    settings: dict[str, SettingValue] = {
        "batch_size": batch,
        "num_neighbors": neighbors,
        "neighbor_gradients": on_gpu,
        "neighbor_dropout": 0.5 if neighbors > 3 else 0.0,
        "max_tokens": tokens,
        "two_stage": two_stage,
        "max_steps": steps,
        "epochs": epochs,
        "validate_steps": max(steps // 8, 25) if on_gpu else max(steps // 4, 25),
        "patience": 3,
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
        "temperature": 0.05,
        "logq_correction": True,
        "text_query_weight": 0.5,
        "isolated_graph_token": False,
        "pooling": facts.pooling,
        "graph_token_scale": 4.0 if is_mean else 1.0,
    }
    # Methods without nested graph attention were best with a third more.
    settings |= {f"{name}.learning_rate": float(f"{rate * 4 / 3:.2g}") for name in CASCADED}
    gradients = "with" if on_gpu else "without"
    in_time = " in the given minutes" if timed else ""
    reasons = (
        f"{batch} pairs a step, {neighbors} neighbours a node, {gradients} gradients through them: "
        f"{device}; {USUAL:.0%} of the nodes have at most {facts.degree} links",
        f"texts are cut at {tokens} tokens: {USUAL:.0%} have at most {facts.text_tokens}",
        f"{steps:,} steps at most{in_time}, {stages}: {pairs:,} pairs, "
        f"{steps * batch / max(pairs, 1):.1f} epochs",
        f"learning rate {settings['learning_rate']:g}: follows the batch size and the backbone's "
        f"hidden size, {facts.hidden_size}",
        "vectors are compared by cosine, and parts of texts are used as queries, so that search by "
        "words stays as good as link prediction becomes",
    )
    return Recipe(settings, reasons)
