"""The training objective, eq. 6: among all keys of the batch, find the one that the anchor is
linked to.

Shapes: B anchors of this process, K pairs of all processes, D the size of a vector. The anchors of
a process stand in one piece among all: the key of anchor b is keys[first + b]. All other keys are
its negatives, but for those that are left out because they are not negative at all.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from graphformers.data.arrays import Array, ranges
from graphformers.settings import Settings, setting


@dataclass(frozen=True)
class ObjectiveSettings(Settings):
    """How links are scored, and which keys are negatives.

    The defaults are the paper's, except `mask_false_negatives`.
    """

    temperature: float = setting(1.0, "Scores are divided by it; cosines need about 0.05.", above=0)
    symmetric: bool = setting(False, "Keys are asked for their anchors, too.")
    logq_correction: bool = setting(
        False, "Subtract each key's log sampling frequency from its score in training."
    )
    mask_false_negatives: bool = setting(
        True, "Positives that occur again, anchors and linked nodes are not negatives."
    )


def link_loss(
    anchor_BD: Tensor,
    key_KD: Tensor,
    first: int,
    left_out: Tensor | None,
    temperature: float,
    often_K: Tensor | None = None,
) -> Tensor:
    """The sum over the anchors of -log softmax(scores)[positive], a scalar.

    `left_out` (2, number) names (anchor, key) places that are no negatives. `often_K` are the
    logarithms of how often each key comes. Keys come by their links: a softmax over them learns how
    much likelier a link is than by chance, and well-linked nodes get nothing for being so. With
    these taken off, it learns how likely the link is (logQ correction, as in sampled softmax),
    which is what candidates drawn alike from all nodes are to be ranked by.
    """
    scores_BK = link_scores(anchor_BD, key_KD, temperature)
    if often_K is not None:
        scores_BK = scores_BK - often_K
    if left_out is not None and left_out.shape[1]:
        nothing = torch.full(
            (), -math.inf, dtype=scores_BK.dtype, device=scores_BK.device
        )  # made on the GPU: a copy would wait for it
        scores_BK = scores_BK.index_put((left_out[0], left_out[1]), nothing)
    labels_B = torch.arange(first, first + len(anchor_BD), device=anchor_BD.device)
    return F.cross_entropy(scores_BK, labels_B, reduction="sum")


def link_scores(anchor_BD: Tensor, key_KD: Tensor, temperature: float) -> Tensor:
    """(B, K) inner products in float32. Half precision would round scores of hundreds to steps of
    0.5 to 4.
    """
    return anchor_BD.float() @ key_KD.float().T / temperature


def no_negatives(
    anchors_B: Array, keys_K: Array, first: int, indptr: Array, indices: Array
) -> Array:
    """(2, number) int64: which keys are no negatives of an anchor: its positive again, itself, and
    its neighbours in training.

    Nodes are row numbers, the same on every process; (indptr, indices) are the links that models
    may see. The neighbours of the anchors are looked up among the keys: their number, not B times
    K, is what this costs.
    """
    count = len(anchors_B)
    degrees = indptr[anchors_B + 1] - indptr[anchors_B]
    positives = keys_K[first : first + count]
    who = np.concatenate([np.repeat(np.arange(count), degrees), np.arange(count), np.arange(count)])
    what = np.concatenate([indices[ranges(indptr[anchors_B], degrees)], anchors_B, positives])
    order = np.argsort(keys_K, kind="stable")
    starts = np.searchsorted(keys_K[order], what, "left")
    found = np.searchsorted(keys_K[order], what, "right") - starts
    places = np.unique(np.repeat(who, found) * len(keys_K) + order[ranges(starts, found)])
    rows, columns = np.divmod(places, max(len(keys_K), 1))
    return np.stack([rows, columns])[:, rows + first != columns]
