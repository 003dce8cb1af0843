"""The paper's baselines with simple text encoders (section 4.2): TNVE and IFTN.

Both read a text as word vectors, through a convolution and one attention over its words, and both
have a trainable vector for every node that was seen in training. Nodes are known by the hashes of
their ids, so that a vector is found in whatever graph its node turns up. A node that was never
seen, or a text without a node, is represented by its text alone; in training the vectors of some
nodes are hidden at random, so that the text alone is worth something. Neighbours' texts are not
read.

The words start as the backbone's own vectors and the text's vector as their average; its
Transformer layers are not used.

Shapes as in modeling.py, with N nodes of a batch, S the size of a node's own vector, V tokens of
the vocabulary.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphformers.data.arrays import Array
from graphformers.data.packing import PackedBatch, PackedNeighborhoods
from graphformers.model.modeling import ModelConfig, node_states, slot_owners, working_dtype


@dataclass(frozen=True)
class ClassicSettings:
    """What the two papers leave to the experimenter."""

    width: int = 3  # words that the convolution sees at a time, an odd number
    node_size: int = 128  # of a node's own vector, or the model's size where that is smaller
    node_dropout: float = 0.3  # share of nodes whose own vector is hidden in a training step
    # TNVE: of the latents of two linked nodes, before their texts are read
    correlation: float = 0.99
    noise: float = 1.0  # TNVE: times the posterior's deviation, in training
    bound_weight: float = 0.001  # TNVE: of the variational bound beside the link loss


class NodeVectors(nn.Module):
    """A trainable vector (S,) for each of the nodes seen in training, found by the hash of its
    id.
    """

    hashes_T: Tensor

    def __init__(self, config: ModelConfig, size: int) -> None:
        super().__init__()
        size = min(size, config.hidden_size)
        self.register_buffer("hashes_T", torch.zeros(0, dtype=torch.int64))  # sorted
        self.vectors_TS = nn.Parameter(torch.zeros(0, size))
        self.project = nn.Linear(size, config.hidden_size, bias=False)
        # inner products of nodes start as those of their own vectors
        nn.init.orthogonal_(self.project.weight)

    def learn(self, id_hashes: Array, seed: int) -> None:
        """Makes room for these nodes; those that are known keep their vectors, new ones start small
        and random.
        """
        known = self.hashes_T.cpu().numpy()
        new = np.setdiff1d(np.asarray(id_hashes).view(np.int64), known)
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(len(new), self.vectors_TS.shape[1], generator=generator) * 0.1
        order = np.argsort(np.concatenate([known, new]), kind="stable")
        everyone = torch.cat([self.vectors_TS.detach(), drawn.to(self.vectors_TS)])[
            torch.from_numpy(order)
        ]
        self.hashes_T = torch.from_numpy(np.concatenate([known, new])[order]).to(
            self.hashes_T.device
        )
        self.vectors_TS = nn.Parameter(everyone)

    def make_room(self, count: int) -> None:
        """For a table of `count` nodes that is about to be loaded."""
        self.hashes_T = self.hashes_T.new_zeros(count)
        self.vectors_TS = nn.Parameter(
            self.vectors_TS.detach().new_zeros(count, self.vectors_TS.shape[1])
        )

    def forward(self, batch: PackedBatch, dropout: float) -> Tensor:
        """(N, D): zero for nodes that are not known, and in training for a share of the others."""
        if batch.ids_N is None or not len(self.hashes_T):
            return self.project.weight.new_zeros(batch.num_nodes, self.project.out_features)
        rows_N = torch.searchsorted(self.hashes_T, batch.ids_N).clamp(max=len(self.hashes_T) - 1)
        open_N = self.hashes_T[rows_N] == batch.ids_N
        if self.training and dropout:
            open_N &= torch.rand(len(open_N), device=open_N.device) >= dropout
        vectors_NS = F.embedding(rows_N, self.vectors_TS) * open_N[:, None]
        projected_ND: Tensor = self.project(vectors_NS)
        return projected_ND


class WordFeatures(nn.Module):
    """A convolution over the words of each text, and an attention that makes one vector of them.

    The convolution is added to the words it sees and starts small, the attention starts even: at
    first a text is the average of its words.
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
        self, words_RWD: Tensor, batch: PackedBatch, about_ND: Tensor | None = None
    ) -> Tensor:
        """(N, D); with `about_ND` every word is read in the light of what is known of its node."""
        owners_RCW = slot_owners(batch).to(words_RWD.dtype)
        normed_RWD = self.norm(words_RWD).to(working_dtype(words_RWD))
        if about_ND is not None:
            normed_RWD = normed_RWD + owners_RCW.to(normed_RWD.dtype).transpose(1, 2) @ slot_states(
                about_ND, batch
            )
        hidden_RWD = self.dropout(normed_RWD)
        convolved_RWD = self.down(
            F.gelu(self.convolution(self._windows(hidden_RWD, batch.slots_RW)))
        )
        found_RWD = normed_RWD + self.dropout(convolved_RWD)
        scores_RCW = _exact(self.attention(found_RWD)).transpose(1, 2)
        # an empty slot is never read
        scores_RCW = scores_RCW.masked_fill(owners_RCW == 0, torch.finfo(scores_RCW.dtype).min)
        pooled_RCD = scores_RCW.softmax(-1).to(found_RWD.dtype) @ found_RWD
        return node_states(pooled_RCD, batch.places_N)

    def _windows(self, hidden_RWD: Tensor, slots_RW: Tensor) -> Tensor:
        """(R, W, width * D): each word between its neighbours in the same text, zeros where the
        text ends.
        """
        parts, count = [], hidden_RWD.shape[1]
        for offset in range(-self.reach, self.reach + 1):
            before, after = max(-offset, 0), max(offset, 0)
            moved_RWD = F.pad(hidden_RWD, (0, 0, before, after))[:, after : after + count]
            moved_RW = F.pad(slots_RW, (before, after), value=-1)[:, after : after + count]
            parts.append(moved_RWD * (moved_RW == slots_RW)[..., None])
        return torch.cat(parts, -1)


def slot_states(states_ND: Tensor, batch: PackedBatch) -> Tensor:
    """(R, C, D): states of nodes put where the nodes lie; the counterpart of `node_states`."""
    empty = states_ND.new_zeros(batch.cls_RC.numel(), states_ND.shape[-1])
    return empty.index_copy(0, batch.places_N, states_ND).view(
        *batch.cls_RC.shape, states_ND.shape[-1]
    )


class ClassicNetwork(nn.Module):
    """What TNVE and IFTN share: words, a text encoder over them, and vectors of nodes."""

    text: Any  # words alone, where other networks keep the backbone's whole encoder

    def __init__(self, config: ModelConfig, settings: ClassicSettings | None = None) -> None:
        super().__init__()
        self.config, self.settings = config, settings or ClassicSettings()
        self.text = nn.ModuleDict({"words": nn.Embedding(config.vocab_size, config.hidden_size)})
        self.features = WordFeatures(config, self.settings.width)
        self.nodes = NodeVectors(config, self.settings.node_size)

    def forward(self, batch: PackedNeighborhoods) -> Tensor:
        """(B, D) float32: the vectors of the centres."""
        return self.vectors(batch.centers)

    def center_vectors(
        self, batch: PackedBatch, states: list[Tensor], index_BK: Tensor, open_BK: Tensor
    ) -> Tensor:
        """(B, D) float32, whatever the neighbours are."""
        return self.vectors(batch)

    def neighbor_states(self, batch: PackedBatch) -> list[Tensor]:
        """The vectors (N, D) of nodes, as a list of one."""
        return [self.vectors(batch)]

    def vectors(self, batch: PackedBatch) -> Tensor:
        """(N, D) float32."""
        raise NotImplementedError


class IftnNetwork(ClassicNetwork):
    """IFTN, the information fusion of Xu et al. (EMNLP 2019, https://arxiv.org/abs/1908.11057):
    text t and structure s in one.

        t = features(words, s)        words are read in the light of the node they describe
        vector = σ(A [t; s]) ∘ t + σ(B [t; s]) ∘ s

    Each of the two says how much of the other is let through. Simplified: nothing depends on the
    other end of a link, so that a node has one vector for all questions; the loss is the link loss
    that all methods here share, not the paper's own; the vectors of a node's neighbours are not
    mixed into its own.
    """

    def __init__(self, config: ModelConfig, settings: ClassicSettings | None = None) -> None:
        super().__init__(config, settings)
        size = config.hidden_size
        self.gates = nn.Linear(2 * size, 2 * size)
        self.inform = nn.Linear(size, size, bias=False)
        nn.init.normal_(self.gates.weight, std=0.02 / size**0.5)
        nn.init.constant_(self.gates.bias, 2.0)  # nearly open
        nn.init.normal_(self.inform.weight, std=0.02)

    def vectors(self, batch: PackedBatch) -> Tensor:
        """(N, D) float32."""
        node_ND = self.nodes(batch, self.settings.node_dropout)
        words_RWD = self.text["words"](batch.tokens_RW)
        text_ND = self.features(words_RWD, batch, self.inform(node_ND))
        both_N2D = torch.cat([text_ND, node_ND.to(text_ND.dtype)], -1)
        gated_N2D: Tensor = self.gates(both_N2D).sigmoid() * both_N2D
        text_ND, node_ND = gated_N2D.chunk(2, -1)
        return text_ND.float() + node_ND.float()


class TnveNetwork(ClassicNetwork):
    """TNVE, the variational homophilic embedding of Wang et al. (NeurIPS 2019,
    https://arxiv.org/abs/1909.13456).

    A text is drawn from a latent z, whose posterior N(μ, σ²) the text encoder gives. Before texts
    are read, the latents of two linked nodes are standard normal with a positive correlation, those
    of unlinked nodes are independent: linked texts want similar latents. The variational bound,
    reconstruction of the words plus divergence from these priors, is added to the link loss. The
    vector of a node is z + s, with s the node's own: an inner product of two holds the text with
    the text, structure with structure, and each with the other, the four products of the paper's
    objective.

    Simplified: the encoder of a text does not look at the text at the other end; the words are
    reconstructed as a bag, from the backbone's word vectors, not in order by an LSTM; the
    correlation in the posterior of a linked pair is not a network's guess but the one that makes
    the bound tightest, which has a closed form; the paper's link losses are the one that all
    methods here share; z + s instead of both side by side.
    """

    def __init__(self, config: ModelConfig, settings: ClassicSettings | None = None) -> None:
        super().__init__(config, settings)
        size = config.hidden_size
        self.mean = nn.Linear(size, size)
        self.log_variance = nn.Linear(size, size)
        self.decoder = nn.Linear(size, size)
        self.frequency_V = nn.Parameter(torch.zeros(config.vocab_size))
        nn.init.eye_(self.mean.weight)
        nn.init.normal_(self.log_variance.weight, std=0.02 / size**0.5)
        nn.init.normal_(self.decoder.weight, std=0.02)
        for bias, value in (
            (self.mean.bias, 0.0),
            (self.log_variance.bias, -3.0),
            (self.decoder.bias, 0.0),
        ):
            nn.init.constant_(bias, value)

    def vectors(self, batch: PackedBatch) -> Tensor:
        """(N, D) float32."""
        node_ND: Tensor = self.nodes(batch, self.settings.node_dropout)
        return self._latents(self.text["words"](batch.tokens_RW), batch)[0] + node_ND.float()

    def vectors_and_loss(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """(2 n, D) float32 of n anchors followed by their positives; and the variational bound,
        summed over the pairs.
        """
        words_RWD = self.text["words"](batch.tokens_RW)
        latent_ND, mean_ND, log_variance_ND = self._latents(words_RWD, batch)
        anchor_mean, key_mean = mean_ND.chunk(2)
        anchor_variance, key_variance = log_variance_ND.chunk(2)
        linked_n = linked_divergence(
            anchor_mean, anchor_variance, key_mean, key_variance, self.settings.correlation
        )
        single_N = divergence(mean_ND, log_variance_ND)
        # as many unlinked pairs as linked ones; of theirs each node has its own share
        bound = (
            self._surprise(latent_ND, words_RWD, batch).sum()
            + (linked_n.sum() + single_N.sum()) / 2
        )
        vectors_ND = latent_ND + self.nodes(batch, self.settings.node_dropout).float()
        return vectors_ND, self.settings.bound_weight * bound

    def _latents(self, words_RWD: Tensor, batch: PackedBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Latents, their means and the logarithms of their variances, (N, D) each, in float32 at
        least.

        In training latents are drawn from the posterior, otherwise they are its mean.
        """
        text_ND = self.features(words_RWD, batch)
        mean_ND, log_variance_ND = (
            _exact(self.mean(text_ND)),
            _exact(self.log_variance(text_ND)).clamp(-10.0, 10.0),
        )
        if not self.training or not self.settings.noise:
            return mean_ND, mean_ND, log_variance_ND
        noise_ND = self.settings.noise * torch.randn_like(mean_ND) * (log_variance_ND / 2).exp()
        return mean_ND + noise_ND, mean_ND, log_variance_ND

    def _surprise(self, latent_ND: Tensor, words_RWD: Tensor, batch: PackedBatch) -> Tensor:
        """(N,): -log p(words | latent), all words of a text but [CLS] drawn from one softmax over
        the vocabulary.
        """
        spoken_RCW = slot_owners(batch) & (batch.positions_RW > 0)[:, None]
        # sums over a vocabulary want float32
        with torch.autocast(latent_ND.device.type, enabled=False):
            spoken_RCW = spoken_RCW.to(latent_ND.dtype)
            # the sum of the text's words
            words_ND = node_states(spoken_RCW @ words_RWD.to(latent_ND.dtype), batch.places_N)
            often_N1 = node_states(
                spoken_RCW @ self.frequency_V[batch.tokens_RW][..., None], batch.places_N
            )
            counts_N = node_states(spoken_RCW.sum(-1, keepdim=True), batch.places_N)[:, 0]
            guess_ND = self.decoder(latent_ND)
            all_N = torch.logsumexp(
                F.linear(guess_ND, self.text["words"].weight, self.frequency_V), -1
            )
            said_N: Tensor = (guess_ND * words_ND).sum(-1) + often_N1[:, 0]
        return counts_N * all_N - said_N


def _exact(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def divergence(mean_ND: Tensor, log_variance_ND: Tensor) -> Tensor:
    """(N,): KL(N(mean, variance) || N(0, 1)), summed over the dimensions."""
    return (mean_ND**2 + log_variance_ND.exp() - 1 - log_variance_ND).sum(-1) / 2


def linked_divergence(
    a_nD: Tensor, log_a_nD: Tensor, b_nD: Tensor, log_b_nD: Tensor, correlation: float
) -> Tensor:
    """(n,): KL of the joint posterior of linked pairs from their prior, summed over the dimensions.

    In each dimension the prior is normal with variances 1 and covariance λ, the posterior has means
    a and b, variances s² and t² and covariance γ s t. The divergence is least for γ with 2c(1 - γ²)
    = 2γ, c = λ s t / (1 - λ²).
    """
    rest = 1 - correlation**2
    product_nD = ((log_a_nD + log_b_nD) / 2).exp()  # s t
    slope_nD = correlation * product_nD / rest
    gamma_nD = 2 * slope_nD / (1 + (1 + 4 * slope_nD**2).sqrt())
    trace_nD = (log_a_nD.exp() + log_b_nD.exp() - 2 * correlation * gamma_nD * product_nD) / rest
    means_nD = (a_nD**2 + b_nD**2 - 2 * correlation * a_nD * b_nD) / rest
    determinants_nD = math.log(rest) - log_a_nD - log_b_nD - torch.log1p(-(gamma_nD**2))
    total_nD: Tensor = trace_nD + means_nD - 2 + determinants_nD
    return total_nD.sum(-1) / 2


def classic_network(config: ModelConfig) -> ClassicNetwork:
    """The network of a classic method."""
    return TnveNetwork(config) if config.method == "tnve" else IftnNetwork(config)
