"""The training objective, eq. 6: cross entropy of an anchor's positive among all keys of a batch.

Shapes: B anchors of this process, K pairs of all processes, S sides of a pair, X = 2 K ends of all
pairs, D size of a vector. The pairs of a process are consecutive: the positive of anchor b is
keys[first + b]. All other keys are its negatives, except those that are linked to it (false
negatives).
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from graphformers.arrays import Array, ranges
from graphformers.settings import Settings, setting

if TYPE_CHECKING:
    from graphformers.training.batches import TrainBatch


@dataclass(frozen=True)
class ObjectiveSettings(Settings):
    """How links are scored, and which keys are negatives.

    The defaults are the paper's, except `mask_false_negatives`.
    """

    temperature: float = setting(1.0, "Scores are divided by it; cosines need about 0.05.", above=0)
    margin: float = setting(
        0.0,
        "Subtracted from the score of each positive, before the division by the temperature.",
        at_least=0,
    )
    symmetric: bool = setting(
        False, "Also rank the anchors for each positive; the loss is the mean of both."
    )
    logq_correction: bool = setting(
        False, "Subtract each key's log sampling frequency from its score in training."
    )
    mask_false_negatives: bool = setting(
        True, "Repeated positives, the anchor and nodes linked to it are not used as negatives."
    )
    text_query_weight: float = setting(
        0.0,
        "Weight of a second loss: some words of an anchor's text, encoded without neighbours, have "
        "to find the anchor among all nodes of the batch. 0: none.",
        at_least=0,
    )


class Objective:
    """The loss of a batch, from the vectors of all processes.

    Args:
        settings: How links are scored, and which keys are negatives.
        cosine: Whether vectors are compared by cosine instead of inner product.
    """

    def __init__(self, settings: ObjectiveSettings, *, cosine: bool) -> None:
        self.settings = settings
        self.cosine = cosine

    def loss(
        self, all_KSD: Tensor, batch: "TrainBatch", log_temperature: Tensor | None = None
    ) -> Tensor:
        """The sum of the losses of the pairs of this process.

        Args:
            all_KSD: The vectors of the S sides of all pairs: anchors, positives, and the text
                queries of the anchors if there are any.
            batch: The part of the batch that this process computes.
            log_temperature: The log of a factor of the temperature, if that is learned.
        """
        temperature: float | Tensor = self.settings.temperature
        if log_temperature is not None:
            temperature = temperature * log_temperature.exp()
        if self.cosine:
            all_KSD = F.normalize(all_KSD, dim=-1)
        anchor_KD, positive_KD, *query_KD = all_KSD.unbind(1)
        loss = self._link_loss(anchor_KD, positive_KD, batch, temperature, query=0)
        if self.settings.symmetric:
            turned = self._link_loss(positive_KD, anchor_KD, batch, temperature, query=1)
            loss = (loss + turned) / 2
        if query_KD:
            # Among the positives are neighbours of the anchor, from which search has to tell it.
            key_XD = torch.cat([anchor_KD, positive_KD])
            text_loss = link_loss(
                query_KD[0][batch.own],
                key_XD,
                batch.first,
                temperature,
                batch.query_duplicates,
                margin=self.settings.margin,
            )
            loss = loss + self.settings.text_query_weight * text_loss
        return loss

    def _link_loss(
        self,
        query_KD: Tensor,
        key_KD: Tensor,
        batch: "TrainBatch",
        temperature: float | Tensor,
        query: int,
    ) -> Tensor:
        """The loss with anchors as queries (0), or with positives as queries (1)."""
        frequency_K2 = batch.log_frequency_K2
        return link_loss(
            query_KD[batch.own],
            key_KD,
            batch.first,
            temperature,
            batch.false_negatives[query],
            None if frequency_K2 is None else frequency_K2[:, 1 - query],
            self.settings.margin,
        )


def link_loss(
    anchor_BD: Tensor,
    key_KD: Tensor,
    first: int,
    temperature: float | Tensor,
    false_negatives: Tensor | None = None,
    log_frequency_K: Tensor | None = None,
    margin: float = 0.0,
) -> Tensor:
    """Cross entropy of each anchor's positive among all keys, eq. 6.

    Args:
        anchor_BD: The vectors of the anchors.
        key_KD: The vectors of all keys.
        first: The key that is the positive of the first anchor; the others follow.
        temperature: Scores are divided by it.
        false_negatives: (2, number) int64: indices of anchors and of their false negatives.
        log_frequency_K: The log of how often each key occurs in the training pairs, which is
            subtracted from its scores (logQ correction). Keys are sampled in proportion to their
            links; without the correction a softmax over them learns the ratio of a link's
            probability to that by chance. With it, it learns the probability, by which uniformly
            sampled candidates are ranked.
        margin: Subtracted from the scores of positives, so that they have to exceed those of
            negatives by it.

    Returns:
        The sum over the anchors, a scalar.
    """
    # In float32: half precision would round scores of hundreds to steps of 0.5 to 4.
    labels_B = torch.arange(first, first + len(anchor_BD), device=anchor_BD.device)
    scores_BK = anchor_BD.float() @ key_KD.float().T
    if margin:
        margin_B1 = scores_BK.new_full((len(labels_B), 1), -margin)
        scores_BK = scores_BK.scatter_add(1, labels_B[:, None], margin_B1)
    scores_BK = scores_BK / temperature
    if log_frequency_K is not None:
        scores_BK = scores_BK - log_frequency_K
    if false_negatives is not None and false_negatives.shape[1]:
        # made on the device: a copy from the CPU would wait for it
        excluded = torch.full((), -math.inf, dtype=scores_BK.dtype, device=scores_BK.device)
        scores_BK = scores_BK.index_put((false_negatives[0], false_negatives[1]), excluded)
    return F.cross_entropy(scores_BK, labels_B, reduction="sum")


def find_false_negatives(
    anchors_B: Array, keys_K: Array, first: int, indptr: Array, indices: Array
) -> Array:
    """Finds the false negatives: an anchor's positive again, itself, and nodes linked to it.

    The neighbours of the anchors are looked up among the keys, so the cost grows with their number,
    not with B times K.

    Args:
        anchors_B: Row numbers of the anchors of this process.
        keys_K: Row numbers of the keys of all processes.
        first: The key that is the positive of the first anchor; the others follow.
        indptr: The links that models may see, as compressed sparse rows.
        indices: The columns of those rows.

    Returns:
        (2, number) int64: indices into `anchors_B` and `keys_K`.
    """
    count = len(anchors_B)
    degrees = indptr[anchors_B + 1] - indptr[anchors_B]
    positives = keys_K[first : first + count]
    anchor_of = np.concatenate(
        [np.repeat(np.arange(count), degrees), np.arange(count), np.arange(count)]
    )
    node = np.concatenate([indices[ranges(indptr[anchors_B], degrees)], anchors_B, positives])
    order = np.argsort(keys_K, kind="stable")
    starts = np.searchsorted(keys_K[order], node, "left")
    found = np.searchsorted(keys_K[order], node, "right") - starts
    pairs = np.unique(np.repeat(anchor_of, found) * len(keys_K) + order[ranges(starts, found)])
    rows, columns = np.divmod(pairs, max(len(keys_K), 1))
    return np.stack([rows, columns])[:, rows + first != columns]
