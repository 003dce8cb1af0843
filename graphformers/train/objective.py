"""The training objective, eq. 6: among all keys of the batch, find the one that the anchor is linked to.

Shapes: B anchors of this process, K keys of all processes, D the size of a vector. The key of anchor b is keys[labels[b]]; all
others are its negatives, but for those that are left out because they are not negative at all.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from graphformers.data.arrays import Array, are_linked
from graphformers.errors import GraphFormersError


@dataclass(frozen=True)
class ObjectiveSettings:
    """How links are scored and which keys count as negatives. The defaults but one are the paper's."""

    temperature: float = 1.0  # scores are divided by it
    cosine: bool = False  # vectors are scaled to length one; wants a temperature of about 0.05
    symmetric: bool = False  # keys look for their anchors too
    leave_out: bool = (
        True  # keys that are the positive again, the anchor itself, or linked to it in training (the paper keeps them)
    )

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise GraphFormersError(f"temperature={self.temperature} given, expected more than 0")


def link_loss(
    anchor_BD: Tensor, key_KD: Tensor, labels_B: Tensor, left_out_BK: Tensor | None, settings: ObjectiveSettings
) -> Tensor:
    """The mean of -log softmax(scores)[positive], a scalar; scores are inner products in float32.

    `left_out_BK` marks keys that are no negatives of an anchor; the positive itself always counts.
    """
    scores_BK = link_scores(anchor_BD, key_KD, settings)
    if left_out_BK is not None:
        scores_BK = scores_BK.masked_fill(left_out_BK.scatter(1, labels_B[:, None], False), -math.inf)
    loss = F.cross_entropy(scores_BK, labels_B)
    if settings.symmetric:  # each anchor's key among the anchors of this process
        loss = (loss + F.cross_entropy(scores_BK[:, labels_B].T, labels_B - labels_B[0])) / 2
    return loss


def link_scores(anchor_BD: Tensor, key_KD: Tensor, settings: ObjectiveSettings) -> Tensor:
    """(B, K) float32. Half precision would round inner products of hundreds to steps of 0.5 to 4."""
    anchor_BD, key_KD = anchor_BD.float(), key_KD.float()
    if settings.cosine:
        anchor_BD, key_KD = F.normalize(anchor_BD, dim=-1), F.normalize(key_KD, dim=-1)
    return anchor_BD @ key_KD.T / settings.temperature


def no_negatives(anchors_B: Array, keys_K: Array, labels_B: Array, indptr: Array, indices: Array) -> Array:
    """(B, K) which keys are no negatives of an anchor: its positive at another place, itself, and its neighbours in training.

    Nodes are row numbers, the same on every process; (indptr, indices) are the links that models may see.
    """
    keys_BK = np.broadcast_to(keys_K, (len(anchors_B), len(keys_K)))
    left_out: Array = (keys_BK == keys_K[labels_B][:, None]) | (keys_BK == anchors_B[:, None])
    left_out |= are_linked(indptr, indices, anchors_B, keys_BK)
    left_out[np.arange(len(anchors_B)), labels_B] = False
    return left_out
