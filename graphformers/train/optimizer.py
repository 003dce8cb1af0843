"""Adam as in the paper's appendix B."""

import torch
from torch import nn

from graphformers.model.encoding import GraphFormers
from graphformers.model.modeling import ModelConfig
from graphformers.train.settings import TrainConfig

# tables of words and nodes want steps this much larger than Transformer layers do
CLASSIC_PACE = 10.0


def make_optimizer(model: GraphFormers, config: TrainConfig) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay (none by default), one fused kernel for all parameters.

    What the backbone does not have learns `graph_factor` times as fast; biases, norms and other
    vectors do not decay. Methods without Transformer layers learn CLASSIC_PACE times as fast, so
    that one recipe serves all.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    pace = CLASSIC_PACE if model.config.is_classic else 1.0
    for name, parameter in model.network.named_parameters():
        factor = pace * (1.0 if _is_known(name, model.config) else config.graph_factor)
        decay = 0.0 if parameter.ndim == 1 or "bias" in name else config.weight_decay
        groups.setdefault((factor, decay), []).append(parameter)
    return torch.optim.AdamW(
        [
            {"params": found, "weight_decay": decay, "factor": factor}
            for (factor, decay), found in groups.items()
        ],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        fused=model.device.type in ("cpu", "cuda"),
    )


def _is_known(name: str, config: ModelConfig) -> bool:
    """Whether a parameter has a start worth keeping: the backbone's own, and a classic method's but
    for the vectors of nodes.

    (Convolution and gates of those start as an average of words; at the rate of the nodes they
    would lose it in a few steps.)
    """
    if config.is_classic:
        return name != "nodes.vectors_TS"
    return name.startswith("text.") and name != "text.relative_bias.graph_token"


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group["factor"]
