"""GraphFormers, the public model class: a network with its tokenizer that encodes texts.

One class serves GraphFormers and every baseline; `config.method` chooses its network.
"""

import copy
import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from graphformers.arrays import Array, is_unicode, unit_rows
from graphformers.batching.packing import PackedBatch, PackedNeighborhoods, Packer, to_device
from graphformers.batching.tokens import TokenCache, Tokenizer, graph_tokens, tokenize
from graphformers.batching.two_pass import BatchLimits, CenterBatch, TwoPass
from graphformers.errors import GraphFormersError
from graphformers.graph.sampling import Neighborhood, NeighborSampler
from graphformers.graph.textgraph import TextGraph, loaded_graph
from graphformers.memory import BatchSplitter, SuppressOutOfMemory, work_bytes
from graphformers.model import fast
from graphformers.model.compute import Compute, choose_device
from graphformers.model.config import ModelConfig
from graphformers.model.registry import Network, network_class
from graphformers.progress import progress
from graphformers.settings import SettingValue

logger = logging.getLogger(__name__)

# held while a model changes between training and inference mode
_MODE_LOCK = threading.Lock()
BATCH_TOKENS = {"cpu": 4096, "cuda": 65_536, "mps": 16_384}


class GraphFormers(nn.Module):
    """A model of textual graphs that encodes texts, with or without neighbours, and nodes.

    Made by `GraphFormers.from_backbone` or `GraphFormers.from_pretrained`; the constructor
    initialises all weights at random.

    Args:
        config: The architecture and how vectors are compared.
        tokenizer: The tokenizer of the backbone.

    Attributes:
        config: The architecture and how vectors are compared.
        tokenizer: The tokenizer of the backbone.
        network: The network, which computes vectors from packed batches.
        source: The folder this model was last loaded from or saved to, if any.
        limits: Limits on the size of a batch in inference; None for those that suit the device.

    Raises:
        GraphFormersError: The tokenizer does not fit the configuration, or has no [CLS].

    Examples:
        >>> model = GraphFormers.from_backbone("minilm", pooling="mean")
        >>> vector = model.encode("graph neural networks", neighbors=["attention", "citations"])
        >>> vector.shape == (model.config.hidden_size,)
        True
    """

    def __init__(self, config: ModelConfig, tokenizer: Tokenizer) -> None:
        super().__init__()
        if tokenizer.vocab_size > config.vocab_size:
            raise GraphFormersError(
                f"the tokenizer has {tokenizer.vocab_size:,} tokens, the weights "
                f"{config.vocab_size:,}: they do not fit"
            )
        if not tokenizer.prefix:
            raise GraphFormersError(
                "this tokenizer puts no [CLS] before a text, the token whose state is the node's"
            )
        self.config = config
        self.tokenizer = tokenizer
        self.source: Path | None = None
        self.limits: BatchLimits | None = None
        self.network: Network = fast.install(network_class(config)(config))
        self._is_compiled = False
        self._inference_copy: Network | None = None
        self._num_encoding = 0
        self._modes: list[tuple[nn.Module, bool]] = []

    @staticmethod
    def from_backbone(
        source: str | Path,
        method: str = "graphformers",
        *,
        seed: int = 42,
        device: str | None = None,
        **changes: SettingValue,
    ) -> "GraphFormers":
        """A new model on a language model's weights.

        Args:
            source: A folder, "minilm", or the name of a model on the hub.
            method: "graphformers" or one of the baselines.
            seed: Seed of the weights that the language model does not have.
            device: "cpu", "cuda", "cuda:1" or "mps"; by default the fastest available.
            changes: Settings of `ModelConfig`.

        Returns:
            The model; its graph part is untrained.

        Raises:
            GraphFormersError: There is no such backbone, or a setting does not fit it.

        Examples:
            >>> model = GraphFormers.from_backbone("minilm", pooling="mean", num_neighbors=20)
        """
        # Imported here, since backbones imports this module.
        from graphformers.model.backbones import from_backbone

        model = from_backbone(source, method, seed=seed, tokenizer=None, **changes)
        return model.to(choose_device(device))

    @staticmethod
    def from_pretrained(path: str | Path, *, device: str | None = None) -> "GraphFormers":
        """A model from a folder that `save_pretrained` wrote.

        Args:
            path: The folder.
            device: "cpu", "cuda", "cuda:1" or "mps"; by default the fastest available.

        Returns:
            The model.

        Raises:
            GraphFormersError: The folder is missing, damaged or of another kind.

        Examples:
            >>> model = GraphFormers.from_pretrained("papers.model")
        """
        from graphformers.model.backbones import from_pretrained

        return from_pretrained(path).to(choose_device(device))

    def save_pretrained(self, path: str | Path, *, force: bool = False) -> None:
        """Writes the model as a folder: config.json, model.safetensors and tokenizer.json.

        Args:
            path: The folder to write.
            force: Replace a model folder that exists.

        Raises:
            GraphFormersError: The folder exists, or the disk is full.

        Examples:
            >>> model.save_pretrained("new.model")
        """
        from graphformers.model.backbones import save_pretrained

        save_pretrained(self, path, force=force)

    def save_language_model(self, path: str | Path, *, force: bool = False) -> None:
        """Writes the text encoder as a folder of sentence-transformers.

        It encodes texts as this model encodes texts without neighbours. Models of the method plm
        have such an encoder, and GraphFormers with `isolated_graph_token=False`.

        Args:
            path: The folder to write.
            force: Replace a folder of sentence-transformers that exists.

        Raises:
            GraphFormersError: The folder exists, or the model has no such encoder.

        Examples:
            >>> plm = GraphFormers.from_backbone("minilm", method="plm", pooling="mean")
            >>> plm.save_language_model("papers.minilm")
        """
        # Imported here, since it imports this module.
        from graphformers.model.language_model import save_language_model

        save_language_model(self, path, force=force)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    @property
    def compute(self) -> Compute:
        """Device, precision and compilation with which this model computes vectors."""
        return Compute.on(self.device, compiled=self._is_compiled)

    @property
    def is_cosine(self) -> bool:
        """Whether vectors are compared by their cosine, not by their inner product."""
        return self.config.similarity == "cosine"

    def compile_layers(self) -> "GraphFormers":
        """Compiles the layers with torch.compile, which pays off for long work on a GPU.

        Returns:
            The model itself.

        Examples:
            >>> model = GraphFormers.from_pretrained("papers.model").compile_layers()
        """
        if not self._is_compiled:
            self._is_compiled, self._inference_copy = True, None
            fast.compile_network(self.network, self.compute)
        return self

    def packer(self, row_multiple: int = 1, width_multiple: int = 1) -> Packer:
        """Packs texts into batches of this model's network.

        Args:
            row_multiple: The number of rows of a batch is a multiple of it.
            width_multiple: The width of the neighbour index of a batch is a multiple of it.

        Returns:
            The packer.

        Raises:
            GraphFormersError: The model's `max_tokens` is too small.
        """
        return Packer(
            self.config.max_tokens,
            self.config.pad_token,
            self.network.inputs(self.config),
            row_multiple=row_multiple,
            width_multiple=max(width_multiple, 1) if self.network.reads_neighbors else 1,
        )

    def two_pass(
        self,
        row_multiple: int = 1,
        width_multiple: int | None = None,
        limits: BatchLimits | None = None,
    ) -> TwoPass:
        """Divides an encoding into batches that suit the model's device.

        Args:
            row_multiple: As in `packer`.
            width_multiple: As in `packer`; by default `num_neighbors` in compiled models, else 1.
            limits: Limits on the size of a batch; by default `batch_limits()`.

        Returns:
            An object that makes the batches of both passes.
        """
        if width_multiple is None:
            width_multiple = self.config.num_neighbors if self._is_compiled else 1
        return TwoPass(self.packer(row_multiple, width_multiple), limits or self.batch_limits())

    def batch_limits(self) -> BatchLimits:
        """Limits on the size of a batch in inference.

        Returns:
            `limits`, or those that suit the model's device.
        """
        tokens = BATCH_TOKENS.get(self.device.type, BATCH_TOKENS["cpu"])
        return self.limits or BatchLimits(tokens=tokens)

    def add_nodes(self, id_hashes: Array, seed: int = 42) -> None:
        """Adds trainable node vectors, if the method has any; known nodes keep their vectors.

        Args:
            id_hashes: The nodes, by the hashes of their ids (`TextGraph.id_hashes`).
            seed: Seed of the new vectors.
        """
        self.network.add_nodes(id_hashes, seed)
        # The copy has tables of the old size.
        self._inference_copy = None

    def encode(
        self,
        texts: str | Sequence[str],
        neighbors: Sequence[Sequence[str]] | Sequence[str] | None = None,
        *,
        normalize: bool = False,
    ) -> Array:
        """Vectors of texts, each computed jointly with its neighbours' texts if it has neighbours.

        Equal texts among the neighbours are encoded once. Texts may be empty; those longer than
        `max_tokens` are truncated. A neighbour may have the same text as the centre.

        Args:
            texts: One text or a sequence of texts.
            neighbors: A sequence of neighbours' texts for each text; for one text also a single
                sequence.
            normalize: Scale vectors to length one.

        Returns:
            Float32 vectors: (len(texts), D), or (D,) for one text.

        Raises:
            GraphFormersError: The arguments are not texts, or there is not one sequence of
                neighbours for each text.

        Examples:
            >>> vectors = model.encode(["one text", "another"], neighbors=[["a neighbour"], []])
        """
        given, lists = _checked_texts(texts, neighbors)
        rows: dict[str, int] = {}
        flat = [rows.setdefault(text, len(rows)) for own in lists for text in own]
        if not all(map(is_unicode, chain(rows, given))):
            raise GraphFormersError(
                "a text given that is not Unicode: it holds half of a character (a lone surrogate)"
            )
        tokens = tokenize([*rows, *given], self.tokenizer)
        counts = np.array([len(own) for own in lists], dtype=np.int64)
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        centers = np.arange(len(given)) + len(rows)
        neighborhood = Neighborhood(centers, indptr, np.array(flat, dtype=np.int64))
        vectors = self._encode(tokens, neighborhood)
        if normalize:
            vectors = unit_rows(vectors)
        return vectors[0] if isinstance(texts, str) else vectors

    def similarity(self, one: Array, other: Array) -> Array:
        """Scores of every pair of vectors, as this model compares them.

        Args:
            one: Vectors (A, D), or one vector (D,).
            other: Vectors (B, D), or one vector (D,).

        Returns:
            (A, B) float32: inner products or cosines, as `config.similarity` says.

        Examples:
            >>> model.similarity(model.encode("a query"), model.encode(["one", "other"])).shape
            (1, 2)
        """
        one, other = (
            np.atleast_2d(np.asarray(vectors, dtype=np.float32)) for vectors in (one, other)
        )
        if self.is_cosine:
            one, other = unit_rows(one), unit_rows(other)
        scores: Array = one @ other.T
        return scores

    def encode_nodes(
        self,
        graph: TextGraph | str | Path,
        nodes: Array | None = None,
        *,
        sampler: NeighborSampler | None = None,
        tokens: TokenCache | None = None,
    ) -> Array:
        """Vectors of a graph's nodes, each computed jointly with sampled neighbours.

        Args:
            graph: A graph, or its folder.
            nodes: Row numbers of nodes; by default all.
            sampler: Samples the neighbours; by default `config.num_neighbors` of the graph's links.
            tokens: The graph's tokens, if they are available.

        Returns:
            (len(nodes), D) float32.

        Raises:
            GraphFormersError: The folder is not a graph, or a row number is out of range.

        Examples:
            >>> vectors = model.encode_nodes("papers.graph")
        """
        if not isinstance(graph, TextGraph | str | Path):
            raise GraphFormersError(
                f"a {type(graph).__name__} given, expected a TextGraph or its folder; "
                f"graph.freeze() makes one, with row numbers of its own"
            )
        graph = loaded_graph(graph)
        nodes = np.arange(graph.num_nodes) if nodes is None else np.asarray(nodes)
        if sampler is None:
            neighborhood = graph.sample(nodes, self.config.num_neighbors)
        else:
            neighborhood = sampler.sample(nodes)
        return self._encode(tokens or graph_tokens(graph, self.tokenizer), neighborhood)

    def _encode(self, tokens: TokenCache, neighborhood: Neighborhood) -> Array:
        """Encodes every distinct neighbour once, then the centres given their states.

        On a GPU, small batches are encoded in one pass, which launches half as many kernels. With
        compiled layers they are not, since the layers would have to be compiled again.
        """
        two_pass = self.two_pass()
        is_eager_gpu = self.device.type == "cuda" and not self._is_compiled
        if is_eager_gpu and two_pass.fits_one_pass(tokens, neighborhood):
            # If memory runs out, two passes follow, which can be split.
            with SuppressOutOfMemory(), self.inference() as network:
                batch = two_pass.packer.pack_neighborhoods(tokens, neighborhood)
                vectors_BD: Tensor = network(to_device(batch, self.device))
                return vectors_BD.cpu().numpy()
        parts = self._parts_in_memory(two_pass, neighborhood)
        if len(parts) > 1:
            logger.info(
                f"the states of all neighbours do not fit into memory: {len(neighborhood):,} nodes "
                f"are encoded in {len(parts)} parts, which takes longer; `embed` keeps states on "
                f"disk"
            )
        vectors = [np.empty((0, self.config.hidden_size), dtype=np.float32)]
        for part in parts:
            own = neighborhood.slice(part)
            known = two_pass.needed(own)
            vectors.append(
                self.encode_centers(tokens, own, self.encode_states(tokens, known), known)
            )
        return np.concatenate(vectors) if len(vectors) > 2 else vectors[-1]

    def _parts_in_memory(self, two_pass: TwoPass, neighborhood: Neighborhood) -> list[slice]:
        """Consecutive centres whose neighbours' states fit into memory, as many as possible."""
        dtype, num_states = self.compute.dtype, two_pass.packer.inputs.num_states
        node_bytes = max(num_states * self.config.hidden_size * dtype.itemsize, 1)
        most_nodes = two_pass.limits.states or work_bytes(self.device) // node_bytes
        parts, waiting = [], [slice(0, len(neighborhood))]
        while waiting:
            part = waiting.pop()
            count = part.stop - part.start
            if count < 2 or len(two_pass.needed(neighborhood.slice(part))) <= most_nodes:
                parts.append(part)
                continue
            middle = part.start + count // 2
            # the first half is taken first
            waiting += [slice(middle, part.stop), slice(part.start, middle)]
        return parts

    def encode_states(self, tokens: TokenCache, nodes: Array) -> Tensor:
        """The states that nodes contribute as neighbours, each text encoded on its own.

        Args:
            tokens: The texts.
            nodes: Their row numbers in `tokens`.

        Returns:
            (len(nodes), S, D) on the model's device: S states of each node.
        """
        two_pass, splitter = self.two_pass(), BatchSplitter()
        num_states = two_pass.packer.inputs.num_states
        shape = len(nodes), num_states, self.config.hidden_size
        with self.inference() as network, progress("Encoding texts", len(nodes), "texts") as task:
            dtype = next(network.parameters()).dtype
            result = torch.empty(shape, dtype=dtype, device=self.device)

            def compute(part: slice) -> None:
                texts = to_device(two_pass.packer.pack(tokens, nodes[part]), self.device)
                result[part] = text_states(network, texts)

            for part in two_pass.text_parts(tokens, nodes) if num_states else ():
                splitter.run(part, compute)
                task.advance(part.stop - part.start)
        return result

    def encode_centers(
        self,
        tokens: TokenCache,
        neighborhood: Neighborhood,
        states_NSD: Tensor,
        known: Array | None = None,
    ) -> Array:
        """Vectors of centres, given the states of their neighbours.

        Args:
            tokens: The texts.
            neighborhood: Centres and their neighbours.
            states_NSD: States as `encode_states` returns them.
            known: The nodes whose states are given, sorted; by default all nodes.

        Returns:
            (B, D) float32.
        """
        two_pass, splitter = self.two_pass(), BatchSplitter()
        result = np.empty((len(neighborhood), self.config.hidden_size), dtype=np.float32)
        with self.inference() as network, progress("Encoding", len(neighborhood), "nodes") as task:

            def compute(part: slice) -> None:
                batch = two_pass.pack_centers(tokens, neighborhood.slice(part), known)
                batch = to_device(batch, self.device)
                states_MSD = states_NSD
                if isinstance(batch, CenterBatch):
                    states_MSD = states_NSD[batch.needed_M]
                result[part] = center_vectors(network, batch, states_MSD).cpu().numpy()

            for part in two_pass.center_parts(tokens, neighborhood):
                splitter.run(part, compute)
                task.advance(part.stop - part.start)
        return result

    @contextmanager
    def inference(self) -> Iterator[Network]:
        """Yields the network for a `with` block, without dropout and without gradients.

        Yields:
            The network, or a copy in the precision of the device.
        """
        with torch.inference_mode(), self._evaluating():
            yield self._inference_network()

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Sets evaluation mode while any thread encodes; then restores the mode of every module."""
        with _MODE_LOCK:
            if not self._num_encoding:
                self._modes = [(module, module.training) for module in self.modules()]
                self.eval()
            self._num_encoding += 1
        try:
            yield
        finally:
            with _MODE_LOCK:
                self._num_encoding -= 1
                for module, mode in self._modes if not self._num_encoding else []:
                    module.training = mode

    @torch.inference_mode()
    def _inference_network(self) -> Network:
        """The network itself, or a copy in the precision of the device.

        Weights are copied at every call: not every change by an optimizer can be detected.
        """
        own, dtype = next(self.parameters()).dtype, self.compute.dtype
        if own != torch.float32 or own == dtype:
            return self.network
        if self._inference_copy is None:
            self._inference_copy = copy.deepcopy(self.network).to(dtype).eval()
            if self._is_compiled:
                fast.compile_network(self._inference_copy, self.compute)
        originals: list[Tensor] = list(self.network.parameters())
        copies: list[Tensor] = list(self._inference_copy.parameters())
        torch._foreach_copy_(copies, originals)
        return self._inference_copy


def _checked_texts(
    texts: object, neighbors: Sequence[object] | None
) -> tuple[list[str], list[list[str]]]:
    """The arguments of `encode` as lists, those for one text included.

    Raises:
        GraphFormersError: The arguments are not texts, or there is not a list for each text.
    """
    if isinstance(texts, str):
        texts = [texts]
        if neighbors is not None and all(isinstance(text, str) for text in neighbors):
            neighbors = [neighbors]
    if not isinstance(texts, Iterable):
        raise GraphFormersError(
            f"a {type(texts).__name__} given, expected a text or a list of texts"
        )
    texts, lists = list(texts), []
    for own in () if neighbors is None else neighbors:
        if not isinstance(own, list | tuple | np.ndarray):
            given = "a single text" if isinstance(own, str) else f"a {type(own).__name__}"
            raise GraphFormersError(
                f"neighbors takes a list of texts for each text, {given} was given: "
                "neighbors=[[text]]"
            )
        lists.append(list(own))
    if neighbors is None:
        lists = [[] for _ in texts]
    if len(lists) != len(texts):
        raise GraphFormersError(
            f"{len(lists)} lists of neighbours for {len(texts)} texts, expected one each"
        )
    kinds = {type(text).__name__ for text in chain(texts, *lists) if not isinstance(text, str)}
    if kinds:
        raise GraphFormersError(f"a {min(kinds)} given, expected texts: strings")
    return texts, lists


def text_states(network: Network, texts: PackedBatch) -> Tensor:
    """(N, S, D): the first pass of a two-pass encoding."""
    return torch.stack(network.neighbor_states(texts), 1)


def center_vectors(
    network: Network, batch: CenterBatch | PackedNeighborhoods, states_MSD: Tensor
) -> Tensor:
    """(B, D) float32: the second pass, given the states that the batch needs, in its order."""
    if isinstance(batch, PackedNeighborhoods):
        vectors_BD: Tensor = network(batch)
        return vectors_BD
    states_MSD = states_MSD.to(next(network.parameters()).dtype)
    states = list(states_MSD[: batch.num_neighbors].unbind(1))
    if batch.centers is None:
        own_BD = states_MSD[batch.num_neighbors :, 0]
        return network.vectors_from_states(own_BD, states, batch.index)
    return network.center_vectors(batch.centers, states, batch.index)
