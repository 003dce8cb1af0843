"""The optimizer: Adam as in the paper's appendix B."""

import torch
from torch import nn

from graphformers.model.encoder import GraphFormers
from graphformers.training.settings import TrainConfig


def make_optimizer(model: GraphFormers, config: TrainConfig) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay (none by default), one fused kernel for all parameters.

    The network declares which parameters have `graph_factor` times the learning rate, and by how
    much its learning rate exceeds that of other networks. Weight decay does not apply to biases,
    norms and other vectors.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    network = model.network
    for name, parameter in network.named_parameters():
        factor = config.graph_factor if network.learns_faster(name) else 1.0
        factor *= network.learning_rate_factor
        decay = 0.0 if parameter.ndim <= 1 or "bias" in name else config.weight_decay
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


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Sets the learning rate of a step; every group has its own multiple of it."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group["factor"]
