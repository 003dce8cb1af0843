"""Small models with random weights, and the texts they read."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from graphformers.batching.tokens import Tokenizer
from graphformers.errors import GraphFormersError
from graphformers.model.backbones import find_backbone
from graphformers.model.config import ModelConfig
from graphformers.model.encoder import GraphFormers
from tests.batching.test_tokens import make_tokenizer

WORDS = ["graph", "text", "node", "link", "vector", "model", "layer", "7", "42", "unknown"]
SMALL = {
    "hidden_size": 24,
    "num_layers": 4,
    "num_heads": 3,
    "intermediate_size": 40,
    "max_positions": 40,
}


def make_model(seed: int = 0, **changes: Any) -> GraphFormers:
    """A small model all of whose parameters are random and large enough to matter."""
    tokenizer = Tokenizer(make_tokenizer())
    config = ModelConfig(
        **{"vocab_size": tokenizer.vocab_size, "max_tokens": 12, **SMALL, **changes}
    )
    model = GraphFormers(config, tokenizer)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.network.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * 0.2
            parameter.copy_(1 + noise if name.endswith("norm.weight") else noise)
    return model.eval()


def make_texts(count: int, seed: int = 0, longest: int = 14) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, longest))) for _ in range(count)]


def sequences(model: GraphFormers, texts: list[str]) -> list[list[int]]:
    """Token lists as the tokenizer itself gives them, cut at max_tokens."""
    reference = make_tokenizer()
    reference.enable_truncation(model.config.max_tokens)
    return [reference.encode(text).ids for text in texts]


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return make_texts(40)


@pytest.fixture(scope="session")
def minilm() -> Path:
    try:
        return find_backbone("minilm")
    except GraphFormersError:
        pytest.skip("the default backbone is not installed")
