"""GraphFormers, the model as users hold it: a network with its tokenizer, and texts in, vectors
out.

One class serves GraphFormers and every baseline; `config.method` says which network it holds.
"""

import copy
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from graphformers.data.arrays import Array, is_unicode, unit_rows
from graphformers.data.graph import TextGraph, loaded_graph
from graphformers.data.packing import PackedBatch, PackedNeighborhoods, Packer, to_device
from graphformers.data.sampling import Neighborhood, NeighborSampler
from graphformers.data.tokens import TokenCache, Tokenizer, graph_tokens, tokenize
from graphformers.errors import GraphFormersError, UnlessMemoryIsFull
from graphformers.model.cascaded import CascadedNetwork
from graphformers.model.classic import ClassicNetwork, classic_network
from graphformers.model.modeling import (
    GraphAttention,
    GraphFormersNetwork,
    ModelConfig,
    NestedLayer,
    Sight,
    TransformerLayer,
    kernels_on,
)
from graphformers.model.passes import CenterBatch, Passes, Pieces, cut, read_centers, read_texts
from graphformers.progress import progress

# held for the moment in which a model changes between training and encoding
_MODES = threading.Lock()
BATCH_TOKENS = {"cpu": 4096, "cuda": 65_536, "mps": 16_384}


def best_device() -> str:
    """A GPU where there is one."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def chosen_device(name: str | None) -> torch.device:
    """The device of this name, where this machine has it; by default the best there is."""
    try:
        device = torch.device(name or best_device())
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # what torch says is about its own build
        has = [
            "cpu",
            *(f"cuda:{i}" for i in range(torch.cuda.device_count())),
            *["mps"] * torch.backends.mps.is_available(),
        ]
        raise GraphFormersError(
            f"device={name!r} given, this machine has: {', '.join(has)}"
        ) from error
    return device


class GraphFormers(nn.Module):
    """A model of textual graphs: `encode` texts, with or without neighbours, or the nodes of a
    graph.

    Made by `GraphFormers.from_backbone` or `GraphFormers.from_pretrained`.
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
                "this tokenizer puts no [CLS] before a text, but that is the token whose state is "
                "the node's"
            )
        self.config = config
        self.tokenizer = tokenizer
        self.source: Path | None = None  # the folder this model was last read from or written to
        self.network = make_network(config)
        self._copy: nn.Module | None = None
        self._is_compiled = False
        self._num_encoding = 0
        self._modes: list[tuple[nn.Module, bool]] = []

    @staticmethod
    def from_backbone(
        source: str | Path,
        method: str = "graphformers",
        *,
        seed: int = 42,
        device: str | None = None,
        **changes: Any,
    ) -> "GraphFormers":
        """A model on a language model's weights: a folder, "minilm", or a name on the hub; on the
        best device there is.

        See `backbones.from_backbone`; `changes` are settings of ModelConfig.
        """
        # backbones builds models, so it stands above this module
        from graphformers.model.backbones import from_backbone

        return from_backbone(source, method, seed=seed, **changes).to(chosen_device(device))

    @staticmethod
    def from_pretrained(path: str | Path, *, device: str | None = None) -> "GraphFormers":
        """A model from a folder that `save_pretrained` wrote, on the best device there is."""
        from graphformers.model.backbones import from_pretrained

        return from_pretrained(path).to(chosen_device(device))

    def save_pretrained(self, path: str | Path, *, force: bool = False) -> None:
        """Writes the model as a folder."""
        from graphformers.model.backbones import save_pretrained

        save_pretrained(self, path, force=force)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def is_cosine(self) -> bool:
        """Whether vectors are compared by their cosine, not by their inner product."""
        return self.config.similarity == "cosine"

    @property
    def is_bidirectional(self) -> bool:
        return self.config.method == "graphformers" and self.config.direction == "bidirectional"

    def compile_layers(self) -> "GraphFormers":
        """Compiles the layers with torch.compile: worth its minute of start-up on a GPU and for
        long work.
        """
        if not self._is_compiled:
            self._is_compiled, self._copy = True, None
            compile_network(self.network)
        return self

    def packer(self, row_multiple: int = 1, width_multiple: int = 1) -> Packer:
        """Packs batches as this model wants them."""
        nested = self.config.method == "graphformers"
        distinct = not self.is_bidirectional
        sizes, named = (self.config.max_tokens, self.config.pad_token), self.config.is_classic
        multiples = {
            "row_multiple": row_multiple,
            "width_multiple": max(width_multiple, 1) if self.config.reads_neighbors else 1,
        }
        return Packer(*sizes, distinct, nested=nested, named=named, **multiples)

    def know_nodes(self, id_hashes: Array, seed: int = 42) -> None:
        """Gives these nodes vectors of their own, where the method has such; those that have one
        keep it.
        """
        if isinstance(self.network, ClassicNetwork):
            self.network.nodes.learn(id_hashes, seed)
            self._copy = None  # it has room for the nodes of before

    def encode(
        self,
        texts: str | Sequence[str],
        neighbors: Sequence[Sequence[str]] | Sequence[str] | None = None,
        *,
        normalize: bool = False,
    ) -> Array:
        """(len(texts), D) float32 vectors of texts, in order, each in the light of its neighbours'
        texts where they are given.

        One text gives one vector, (D,), and may have one list of neighbours. `normalize` gives
        vectors of length one. Equal texts among the neighbours are read once. An empty text is read
        as one without words; a text longer than max_tokens is cut; a neighbour with the centre's
        own text is a neighbour like any other.
        """
        if isinstance(texts, str):
            around: Any = neighbors
            if neighbors is not None and all(isinstance(text, str) for text in neighbors):
                around = [neighbors]
            vector: Array = self.encode([texts], around, normalize=normalize)[0]
            return vector
        if not isinstance(texts, Iterable):
            raise GraphFormersError(
                f"a {type(texts).__name__} given, expected a text or a list of texts"
            )
        texts = list(texts)
        strange = [
            around
            for around in neighbors or ()
            if not isinstance(around, list | tuple | np.ndarray)
        ]
        if strange:
            kind = (
                "a single text" if isinstance(strange[0], str) else f"a {type(strange[0]).__name__}"
            )
            raise GraphFormersError(
                f"neighbors takes a list of texts for each text, {kind} was given: "
                f"neighbors=[[text]]"
            )
        given = (
            [list(around) for around in neighbors] if neighbors is not None else [[] for _ in texts]
        )
        if len(given) != len(texts):
            raise GraphFormersError(
                f"{len(given)} lists of neighbours for {len(texts)} texts, expected one each"
            )
        kinds = {type(text).__name__ for text in chain(texts, *given) if not isinstance(text, str)}
        if kinds:
            raise GraphFormersError(f"a {min(kinds)} given, expected texts: strings")
        places: dict[str, int] = {}
        flat = [places.setdefault(text, len(places)) for around in given for text in around]
        if not all(map(is_unicode, chain(places, texts))):
            raise GraphFormersError(
                "a text given that is no Unicode: it holds half of a character (a lone surrogate)"
            )
        tokens = tokenize([*places, *texts], self.tokenizer)
        counts = np.array([len(around) for around in given], dtype=np.int64)
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        centers = np.arange(len(texts)) + len(places)
        vectors = self._encode(
            tokens, Neighborhood(centers, indptr, np.array(flat, dtype=np.int64))
        )
        return unit_rows(vectors) if normalize else vectors

    def similarity(self, one: Array, other: Array) -> Array:
        """(A, B) float32: how near (A, D) vectors are to (B, D) vectors, as this model compares
        them.
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
        """(len(nodes), D) float32 vectors of a graph's nodes (all by default) with the neighbours
        that the sampler draws.

        `graph` may be a folder; `tokens` are its own, where they are at hand.
        """
        graph = loaded_graph(graph)
        nodes = np.arange(graph.num_nodes) if nodes is None else np.asarray(nodes)
        if sampler is None:
            sampler = NeighborSampler(
                graph.indptr, graph.indices, graph.id_hashes, self.config.num_neighbors
            )
        return self._encode(tokens or graph_tokens(graph, self.tokenizer), sampler.sample(nodes))

    def passes(
        self,
        row_multiple: int = 1,
        batch_tokens: int | None = None,
        width_multiple: int | None = None,
    ) -> Passes:
        """How this model reads nodes, in batches that suit its device."""
        usual = BATCH_TOKENS.get(self.device.type, BATCH_TOKENS["cpu"])
        if width_multiple is None:
            width_multiple = self.config.num_neighbors if self._is_compiled else 1
        return Passes(self.config, self.packer(row_multiple, width_multiple), batch_tokens or usual)

    def _encode(self, tokens: TokenCache, neighborhood: Neighborhood) -> Array:
        """Two passes: the states of every distinct neighbour once, then the centres. Bidirectional
        models need a joint one.

        A few nodes on a GPU gain by one: most of their time is launching, and one pass launches
        half as much. (Compiled layers would have to be compiled once more for it.)
        """
        passes = self.passes()
        if (
            self.device.type == "cuda"
            and not self._is_compiled
            and passes.fit_together(tokens, neighborhood)
        ):
            # else in two, which can be cut into pieces
            with UnlessMemoryIsFull(), self.reading() as network:
                batch = to_device(
                    passes.packer.pack_neighborhoods(tokens, neighborhood), self.device
                )
                vectors_BD: Tensor = network(batch)
                return vectors_BD.cpu().numpy()
        known = passes.needed(neighborhood)
        return self.read_centers(tokens, neighborhood, self.read_texts(tokens, known), known)

    def read_texts(self, tokens: TokenCache, nodes: Array) -> Tensor:
        """(len(nodes), S, D) on the model's device: the states of nodes, each read on its own."""
        passes, pieces = self.passes(), Pieces()
        with self.reading() as network, progress("Reading texts", len(nodes), "texts") as task:
            dtype = next(network.parameters()).dtype
            result = torch.empty(
                len(nodes),
                passes.num_states,
                self.config.hidden_size,
                dtype=dtype,
                device=self.device,
            )

            def read(part: slice) -> None:
                result[part] = read_texts(
                    network, to_device(passes.pack_texts(tokens, nodes[part]), self.device)
                )

            for part in passes.text_parts(tokens, nodes) if passes.num_states else ():
                pieces.read(part, read)
                task.advance(part.stop - part.start)
        return result

    def read_centers(
        self,
        tokens: TokenCache,
        neighborhood: Neighborhood,
        states_NSD: Tensor,
        known: Array | None = None,
    ) -> Array:
        """(B, D) float32: centres in the light of their neighbours, whose states are given, as
        `known` says of which nodes.
        """
        passes, pieces = self.passes(), Pieces()
        result = np.empty((len(neighborhood), self.config.hidden_size), dtype=np.float32)
        with self.reading() as network, progress("Encoding", len(neighborhood), "nodes") as task:

            def read(part: slice) -> None:
                batch = to_device(
                    passes.pack_centers(tokens, cut(neighborhood, part), known), self.device
                )
                states_MSD = (
                    states_NSD[batch.needed_M] if isinstance(batch, CenterBatch) else states_NSD
                )
                result[part] = read_centers(network, batch, states_MSD).cpu().numpy()

            for part in passes.center_parts(tokens, neighborhood):
                pieces.read(part, read)
                task.advance(part.stop - part.start)
        return result

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """The network to read with, for the length of a `with` block: without dropout, without
        gradients.
        """
        with torch.inference_mode(), self._evaluating():
            yield self._inference_network()

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Without dropout while anybody encodes; every module back in its own mode when the last
        one is done.
        """
        with _MODES:
            if not self._num_encoding:
                self._modes = [(module, module.training) for module in self.modules()]
                self.eval()
            self._num_encoding += 1
        try:
            yield
        finally:
            with _MODES:
                self._num_encoding -= 1
                for module, mode in self._modes if not self._num_encoding else []:
                    module.training = mode

    @torch.inference_mode()
    def _inference_network(self) -> Any:
        """The network to encode with: itself on a CPU, a bfloat16 copy on a GPU.

        The copy takes over the weights of the moment at every call: optimizers do not always tell
        that they changed them.
        """
        if self.device.type != "cuda" or next(self.parameters()).dtype != torch.float32:
            return self.network
        if self._copy is None:
            self._copy = copy.deepcopy(self.network).to(torch.bfloat16).eval()
            if self._is_compiled:
                compile_network(self._copy)
        torch._foreach_copy_(list(self._copy.parameters()), list(self.network.parameters()))
        return self._copy


def make_network(config: ModelConfig) -> GraphFormersNetwork | CascadedNetwork | ClassicNetwork:
    """The network of a method, with new weights."""
    if config.is_classic:
        return classic_network(config)
    return (
        GraphFormersNetwork(config) if config.method == "graphformers" else CascadedNetwork(config)
    )


def compile_network(network: nn.Module, backend: Any = "inductor", *, trains: bool = False) -> None:
    """Layer by layer: all layers share one compiled graph, so that compiling takes seconds and any
    number of rows is served.

    There are as many graphs as kinds of calls: [CLS] alone or all tokens, with gradients or
    without, few numbers of neighbours. One that `trains` has norms by kernels of our own, where
    they work (norms.py).
    """
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 32)
    # the compiler speaks of its own choices
    warnings.filterwarnings("ignore", r"\s*Online softmax is disabled")
    device = next(network.parameters()).device
    has_norm_kernels = trains and device.type == "cuda" and kernels_on(device, "norms") is not None
    options: dict[str, Any] = {}
    if backend == "inductor" and device.type == "cuda" and not trains:
        # without the compiler's own processes: on an H200, torch 2.11, they did not answer for
        # minutes when another number of neighbours came, whose kernels take less than a second each
        options = {"compile_threads": 1}
    options_apart = options
    if backend == "inductor" and torch.__version__ < "2.13":
        # where it joins the two reductions of a norm's gradient, it forgot brackets around a sum of
        # sizes
        options_apart = options | {"triton.mix_order_reduction": False}
    for module in network.modules():
        if isinstance(module, TransformerLayer):
            module.has_norm_kernels = has_norm_kernels
        if isinstance(module, Sight | NestedLayer | TransformerLayer | GraphAttention):
            call = torch.compile(module._call_impl, backend=backend, options=options or None)
            apart = call
            if options_apart != options:
                apart = torch.compile(module._call_impl, backend=backend, options=options_apart)
            module._compiled_call_impl = _announcing(call, apart)


def _announcing(call: Any, apart: Any) -> Callable[..., Any]:
    """The call, with torch.compile told that the first dimension of tensors varies: else it
    compiles again for another size.

    `apart` is called instead for tokens chosen by the last argument, whose number is a sum: all of
    some rows, [CLS] of others.
    """

    def announced(*arguments: Any) -> Any:
        _announce(arguments)
        chosen = arguments[-1]
        is_apart = isinstance(chosen, Tensor) and not chosen.is_floating_point()
        return (apart if is_apart else call)(*arguments)

    return announced


def _announce(value: Any) -> None:
    if isinstance(value, Tensor):
        # most were announced for the layer before
        if not hasattr(value, "_dynamo_weak_dynamic_indices"):
            torch._dynamo.maybe_mark_dynamic(value, 0)
            # else the next width would be compiled for any
            torch._dynamo.mark_static(value, list(range(1, value.dim())))
    elif isinstance(value, list | tuple):
        for entry in value:
            _announce(entry)
    elif isinstance(value, PackedBatch | PackedNeighborhoods):
        _announce(list(vars(value).values()))
