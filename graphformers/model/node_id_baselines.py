"""The paper's baselines with node-id vectors (section 4.2): TNVE and IFTN.

Both encode a text from word vectors, through a convolution and one attention over its words, and
both have a trainable vector for every node that was seen in training, its node-id vector. Nodes are
identified by the hashes of their ids, so that a node has its vector in every graph that contains
it. A node that was not seen in training, or a text without a node, is represented by its text
only. In training the node-id vectors of some nodes are dropped at random, so that networks learn to
represent such nodes. Neighbours' texts are not used.

Word vectors start as the backbone's, the text's vector as their average; the backbone's Transformer
layers are not used.

Shapes: R rows, W tokens of a row, C slots of a row, N nodes of a batch, P pairs, D hidden size,
S size of a node-id vector, T nodes seen in training, V tokens of the vocabulary.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphformers.arrays import Array
from graphformers.batching.packing import (
    NetworkInputs,
    PackedBatch,
    PackedNeighborhoods,
)
from graphformers.model.activations import BatchSize
from graphformers.model.config import ModelConfig
from graphformers.model.layers import at_least_float32, token_owners, working_dtype
from graphformers.model.registry import TextNetwork, register_method
from graphformers.settings import Settings, setting


@dataclass(frozen=True)
class NodeIdSettings(Settings):
    """Hyperparameters that the two papers do not fix."""

    width: int = setting(3, "Width of the convolution in words, an odd number.", at_least=1)
    node_size: int = setting(128, "Size of a node-id vector, at most the hidden size.", at_least=1)
    node_dropout: float = setting(
        0.3, "Share of nodes whose node-id vector is dropped in a training step.", at_least=0
    )
    correlation: float = setting(
        0.99, "TNVE: prior correlation of the latents of two linked nodes.", above=0, below=1
    )
    noise: float = setting(1.0, "TNVE: scale of the posterior's noise in training.", at_least=0)
    bound_weight: float = setting(
        0.001, "TNVE: weight of the variational bound beside the link loss.", at_least=0
    )


class NodeVectors(nn.Module):
    """A table of trainable vectors (T, S), looked up by the hashes of node ids."""

    hashes_T: Tensor

    def __init__(self, config: ModelConfig, size: int) -> None:
        super().__init__()
        size = min(size, config.hidden_size)
        # Hashes are kept sorted.
        self.register_buffer("hashes_T", torch.zeros(0, dtype=torch.int64))
        self.vectors_TS = nn.Parameter(torch.zeros(0, size))
        self.project = nn.Linear(size, config.hidden_size, bias=False)
        # An orthogonal projection preserves the inner products of the vectors at the start.
        nn.init.orthogonal_(self.project.weight)

    def add(self, id_hashes: Array, seed: int) -> None:
        """Adds nodes with small random vectors; known nodes keep theirs."""
        known = self.hashes_T.cpu().numpy()
        new = np.setdiff1d(np.asarray(id_hashes).view(np.int64), known)
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(len(new), self.vectors_TS.shape[1], generator=generator) * 0.1
        hashes = np.concatenate([known, new])
        order = np.argsort(hashes, kind="stable")
        vectors = torch.cat([self.vectors_TS.detach(), drawn.to(self.vectors_TS)])
        self.hashes_T = torch.from_numpy(hashes[order]).to(self.hashes_T.device)
        self.vectors_TS = nn.Parameter(vectors[torch.from_numpy(order)])

    def forward(self, texts: PackedBatch, dropout: float) -> Tensor:
        """(N, D): zero for unknown nodes and for dropped ones."""
        if texts.ids_N is None or not len(self.hashes_T):
            return self.project.weight.new_zeros(texts.num_nodes, self.project.out_features)
        row_N = torch.searchsorted(self.hashes_T, texts.ids_N).clamp(max=len(self.hashes_T) - 1)
        is_known_N = self.hashes_T[row_N] == texts.ids_N
        if self.training and dropout:
            is_known_N &= torch.rand(len(is_known_N), device=is_known_N.device) >= dropout
        vectors_NS = F.embedding(row_N, self.vectors_TS) * is_known_N[:, None]
        projected_ND: Tensor = self.project(vectors_NS)
        return projected_ND

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Tensor], prefix: str, *rest: object
    ) -> None:
        """Resizes the table to that of the state dict before loading it."""
        hashes = state_dict.get(f"{prefix}hashes_T")
        if hashes is not None and len(hashes) != len(self.hashes_T):
            self.hashes_T = self.hashes_T.new_zeros(len(hashes))
            empty_TS = self.vectors_TS.detach().new_zeros(len(hashes), self.vectors_TS.shape[1])
            self.vectors_TS = nn.Parameter(empty_TS)
        super()._load_from_state_dict(state_dict, prefix, *rest)


class WordFeatures(nn.Module):
    """A convolution over the words of each text, pooled to one vector by attention.

    The convolution is added to the word vectors and starts small, the attention starts uniform:
    initially a text is the average of its words.
    """

    def __init__(self, config: ModelConfig, width: int) -> None:
        super().__init__()
        assert width % 2 == 1, "as many words before as after"
        size = config.hidden_size
        self.reach = width // 2
        self.norm = nn.LayerNorm(size, config.layer_norm_eps)
        self.convolution = nn.Linear(width * size, size)
        self.down = nn.Linear(size, size)
        self.attention = nn.Linear(size, 1, bias=False)
        self.dropout = nn.Dropout(config.dropout)
        nn.init.normal_(self.down.weight, std=0.02 / size**0.5)
        nn.init.zeros_(self.down.bias)
        nn.init.zeros_(self.attention.weight)

    def forward(
        self, words_RWD: Tensor, texts: PackedBatch, node_ND: Tensor | None = None
    ) -> Tensor:
        """(N, D); `node_ND` is added to all words of each node."""
        own_RCW = token_owners(texts, words_RWD.dtype)
        normed_RWD = self.norm(words_RWD).to(working_dtype(words_RWD))
        if node_ND is not None:
            slot_RWC = own_RCW.to(normed_RWD.dtype).transpose(1, 2)
            normed_RWD = normed_RWD + slot_RWC @ spread(node_ND, texts)
        hidden_RWD = self.dropout(normed_RWD)
        windows_RWX = self._windows(hidden_RWD, texts.slots_RW)
        convolved_RWD = self.down(F.gelu(self.convolution(windows_RWX)))
        found_RWD = normed_RWD + self.dropout(convolved_RWD)
        scores_RCW = at_least_float32(self.attention(found_RWD)).transpose(1, 2)
        # The lowest number instead of -inf avoids NaN in empty slots, whose results are not used.
        scores_RCW = scores_RCW.masked_fill(own_RCW == 0, torch.finfo(scores_RCW.dtype).min)
        pooled_RCD = scores_RCW.softmax(-1).to(found_RWD.dtype) @ found_RWD
        text_ND: Tensor = pooled_RCD.flatten(0, 1)[texts.slot_N]
        return text_ND

    def _windows(self, hidden_RWD: Tensor, slots_RW: Tensor) -> Tensor:
        """(R, W, width * D): each word with those around it, zero outside the word's text."""
        parts, count = [], hidden_RWD.shape[1]
        for offset in range(-self.reach, self.reach + 1):
            before, after = max(-offset, 0), max(offset, 0)
            moved_RWD = F.pad(hidden_RWD, (0, 0, before, after))[:, after : after + count]
            moved_RW = F.pad(slots_RW, (before, after), value=-1)[:, after : after + count]
            parts.append(moved_RWD * (moved_RW == slots_RW)[..., None])
        return torch.cat(parts, -1)


def spread(vectors_ND: Tensor, texts: PackedBatch) -> Tensor:
    """(R, C, D): the vectors of nodes in the slots where the nodes are, zero elsewhere."""
    empty = vectors_ND.new_zeros(texts.cls_RC.numel(), vectors_ND.shape[-1])
    filled = empty.index_copy(0, texts.slot_N, vectors_ND)
    return filled.view(*texts.cls_RC.shape, vectors_ND.shape[-1])


class NodeIdNetwork(TextNetwork):
    """Base class of TNVE and IFTN: word vectors, a text encoder and node-id vectors."""

    has_transformer = False
    # Tables of words and nodes need larger steps than Transformer layers; the factor lets all
    # methods share a recipe.
    learning_rate_factor = 10.0

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.settings = NodeIdSettings()
        self.text = nn.Module()
        self.text.words = nn.Embedding(config.vocab_size, config.hidden_size)
        self.features = WordFeatures(config, self.settings.width)
        self.nodes = NodeVectors(config, self.settings.node_size)

    @classmethod
    def inputs(cls, config: ModelConfig) -> NetworkInputs:
        return NetworkInputs(node_ids=True)

    @property
    def words(self) -> nn.Embedding:
        """The word vectors, which are the backbone's part of the network."""
        words = self.text.words
        assert isinstance(words, nn.Embedding)
        return words

    def activations(self, size: BatchSize) -> int:
        # words before and after their norm, windows, and states after the convolution; then
        # the gradients of the windows
        in_slot = (5 + 2 * self.settings.width) * self.config.hidden_size + 3 * size.row_nodes
        return size.slots * in_slot + 4 * size.nodes * self.config.hidden_size

    def add_nodes(self, id_hashes: Array, seed: int) -> None:
        self.nodes.add(id_hashes, seed)

    @classmethod
    def backbone_weights(cls, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"text.words.weight": weights["embedding.words.weight"]}

    def is_pretrained(self, name: str) -> bool:
        return name.startswith("text.")

    def learns_faster(self, name: str) -> bool:
        # Convolution and gates start so that a text is the average of its words; large steps
        # would destroy that.
        return name == "nodes.vectors_TS"


@register_method("tnve")
class TnveNetwork(NodeIdNetwork):
    """TNVE, variational homophilic embedding (Wang et al., NeurIPS 2019, arXiv:1909.13456).

    A text is generated from a latent z with posterior N(μ, σ²), computed by the text encoder. In
    the prior the latents of two linked nodes are standard normal with a positive correlation, those
    of unlinked nodes are independent. The variational bound, reconstruction of the words plus
    divergence from these priors, is added to the link loss. The vector of a node is z + s with its
    node-id vector s. The inner product of two such vectors is the sum of the four products of the
    paper's objective: text with text, structure with structure, and each with the other.

    Simplifications: the encoder of a text does not use the text at the other end of a link; words
    are reconstructed as a bag, from the backbone's word vectors, not in order by an LSTM; the
    posterior correlation of a linked pair is not predicted, but the one that makes the bound
    tightest, which has a closed form; the link loss is that of all methods here; z and s are added
    instead of concatenated.
    """

    title = "TNVE"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        size = config.hidden_size
        self.mean = nn.Linear(size, size)
        self.log_variance = nn.Linear(size, size)
        self.decoder = nn.Linear(size, size)
        self.frequency_V = nn.Parameter(torch.zeros(config.vocab_size))
        nn.init.eye_(self.mean.weight)
        nn.init.normal_(self.log_variance.weight, std=0.02 / size**0.5)
        nn.init.normal_(self.decoder.weight, std=0.02)
        nn.init.zeros_(self.mean.bias)
        nn.init.constant_(self.log_variance.bias, -3.0)
        nn.init.zeros_(self.decoder.bias)

    def vectors(self, texts: PackedBatch) -> Tensor:
        node_ND: Tensor = self.nodes(texts, self.settings.node_dropout)
        return self._latents(self.words(texts.tokens_RW), texts)[0] + node_ND.float()

    def activations(self, size: BatchSize) -> int:
        # the scores of all words, their exponentials and their gradients
        return super().activations(size) + 3 * size.nodes * self.config.vocab_size

    def forward_with_loss(
        self, batch: PackedNeighborhoods, num_pairs: int
    ) -> tuple[Tensor, Tensor | None]:
        return self.vectors_and_bound(batch.centers, num_pairs)

    def vectors_and_bound(self, texts: PackedBatch, num_pairs: int) -> tuple[Tensor, Tensor]:
        """Vectors (N, D), and the weighted bound of the P pairs, a scalar.

        The texts are P anchors, their positives, and text queries, which the bound leaves out.
        """
        words_RWD = self.words(texts.tokens_RW)
        latent_ND, mean_ND, log_variance_ND = self._latents(words_RWD, texts)
        (anchor_mean, positive_mean), (anchor_variance, positive_variance) = (
            each[: 2 * num_pairs].chunk(2) for each in (mean_ND, log_variance_ND)
        )
        linked_P = linked_divergence(
            anchor_mean,
            anchor_variance,
            positive_mean,
            positive_variance,
            self.settings.correlation,
        )
        single_N = divergence(mean_ND, log_variance_ND)[: 2 * num_pairs]
        # The bound has as many unlinked pairs as linked ones. The divergence of an unlinked pair
        # is the sum of those of its nodes.
        unlikelihood_N = self._negative_log_likelihood(latent_ND, words_RWD, texts)
        bound = unlikelihood_N[: 2 * num_pairs].sum() + (linked_P.sum() + single_N.sum()) / 2
        vectors_ND = latent_ND + self.nodes(texts, self.settings.node_dropout).float()
        return vectors_ND, self.settings.bound_weight * bound

    def _latents(self, words_RWD: Tensor, texts: PackedBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Latents, their means and the logarithms of their variances, (N, D), float32 at least.

        In training latents are sampled from the posterior, otherwise they are its mean.
        """
        text_ND = self.features(words_RWD, texts)
        mean_ND = at_least_float32(self.mean(text_ND))
        log_variance_ND = at_least_float32(self.log_variance(text_ND)).clamp(-10.0, 10.0)
        if not self.training or not self.settings.noise:
            return mean_ND, mean_ND, log_variance_ND
        noise_ND = self.settings.noise * torch.randn_like(mean_ND) * (log_variance_ND / 2).exp()
        return mean_ND + noise_ND, mean_ND, log_variance_ND

    def _negative_log_likelihood(
        self, latent_ND: Tensor, words_RWD: Tensor, texts: PackedBatch
    ) -> Tensor:
        """(N,): -log p(words | latent).

        All words of a text but [CLS] are sampled from one softmax over the vocabulary.
        """
        is_word_RCW = token_owners(texts, torch.bool) & (texts.positions_RW > 0)[:, None]
        # Sums over a vocabulary need float32.
        with torch.autocast(latent_ND.device.type, enabled=False):
            word_RCW = is_word_RCW.to(latent_ND.dtype)

            def sum_words(values_RWX: Tensor) -> Tensor:
                """(N, X): values of words, summed over each text."""
                return (word_RCW @ values_RWX).flatten(0, 1)[texts.slot_N]

            words_ND = sum_words(words_RWD.to(latent_ND.dtype))
            frequency_N1 = sum_words(self.frequency_V[texts.tokens_RW][..., None])
            count_N = word_RCW.sum(-1).flatten()[texts.slot_N]
            decoded_ND = self.decoder(latent_ND)
            scores_NV = F.linear(decoded_ND, self.words.weight, self.frequency_V)
            score_N: Tensor = (decoded_ND * words_ND).sum(-1) + frequency_N1[:, 0]
        return count_N * torch.logsumexp(scores_NV, -1) - score_N


@register_method("iftn")
class IftnNetwork(NodeIdNetwork):
    """IFTN, information fusion (Xu et al., EMNLP 2019, arXiv:1908.11057).

        t = features(words, s)                                 s: the node-id vector
        vector = σ(A [t; s]) ∘ t + σ(B [t; s]) ∘ s

    Simplifications: nothing depends on the other end of a link, so that a node has one vector for
    all candidates; the loss is the link loss of all methods here; the vectors of a node's
    neighbours are not added to its own.
    """

    title = "IFTN"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        size = config.hidden_size
        self.gates = nn.Linear(2 * size, 2 * size)
        self.inform = nn.Linear(size, size, bias=False)
        nn.init.normal_(self.gates.weight, std=0.02 / size**0.5)
        # Gates start nearly open.
        nn.init.constant_(self.gates.bias, 2.0)
        nn.init.normal_(self.inform.weight, std=0.02)

    def vectors(self, texts: PackedBatch) -> Tensor:
        node_ND = self.nodes(texts, self.settings.node_dropout)
        words_RWD = self.words(texts.tokens_RW)
        text_ND = self.features(words_RWD, texts, self.inform(node_ND))
        both_N2D = torch.cat([text_ND, node_ND.to(text_ND.dtype)], -1)
        gated_N2D: Tensor = self.gates(both_N2D).sigmoid() * both_N2D
        text_ND, node_ND = gated_N2D.chunk(2, -1)
        return text_ND.float() + node_ND.float()


def divergence(mean_ND: Tensor, log_variance_ND: Tensor) -> Tensor:
    """(N,): KL(N(mean, variance) || N(0, 1)), summed over the dimensions."""
    return (mean_ND**2 + log_variance_ND.exp() - 1 - log_variance_ND).sum(-1) / 2


def linked_divergence(
    mean_a_PD: Tensor,
    log_variance_a_PD: Tensor,
    mean_b_PD: Tensor,
    log_variance_b_PD: Tensor,
    correlation: float,
) -> Tensor:
    """(P,): KL of the joint posterior of linked pairs from their prior, over the dimensions.

    In each dimension the prior is normal with variances 1 and covariance λ; the posterior has
    means a and b, variances s² and t² and covariance γ s t. The divergence is least for γ with
    2c(1 - γ²) = 2γ, c = λ s t / (1 - λ²).
    """
    rest = 1 - correlation**2
    # s t
    product_PD = ((log_variance_a_PD + log_variance_b_PD) / 2).exp()
    # c
    slope_PD = correlation * product_PD / rest
    gamma_PD = 2 * slope_PD / (1 + (1 + 4 * slope_PD**2).sqrt())
    covariance_PD = 2 * correlation * gamma_PD * product_PD
    trace_PD = (log_variance_a_PD.exp() + log_variance_b_PD.exp() - covariance_PD) / rest
    cross_PD = 2 * correlation * mean_a_PD * mean_b_PD
    means_PD = (mean_a_PD**2 + mean_b_PD**2 - cross_PD) / rest
    log_determinant_PD = math.log(rest) - log_variance_a_PD - log_variance_b_PD
    log_determinant_PD = log_determinant_PD - torch.log1p(-(gamma_PD**2))
    total_PD: Tensor = trace_PD + means_PD - 2 + log_determinant_PD
    return total_PD.sum(-1) / 2
