"""Adam as in the paper's appendix B."""

import torch
from torch import nn

from graphformers.model.encoding import GraphFormers
from graphformers.train.settings import TrainConfig


def make_optimizer(model: GraphFormers, config: TrainConfig) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay (none by default), one fused kernel for all parameters.

    What the backbone does not have learns `graph_factor` times as fast; biases, norms and other vectors do not decay.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.network.named_parameters():
        factor = 1.0 if name.startswith("text.") and name != "text.relative_bias.graph_token" else config.graph_factor
        decay = config.weight_decay if parameter.ndim > 1 else 0.0
        groups.setdefault((factor, decay), []).append(parameter)
    return torch.optim.AdamW(
        [{"params": found, "weight_decay": decay, "factor": factor} for (factor, decay), found in groups.items()],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        fused=model.device.type in ("cpu", "cuda"),
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group["factor"]
