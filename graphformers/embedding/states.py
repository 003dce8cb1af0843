"""LayerStates: the states that nodes contribute to their neighbours' vectors, on disk.

z^1..z^{L-1} of every node (the text vector in a baseline), (N, S, D), float16 by default, in
memory-mapped shards; all layers of a node are one read. They depend on the weights, the tokenizer,
max_tokens and the text only. The key names the first three, and states under another key are never
used; the texts are those of the graph in the same folder, under the same checksums, and `info
--verify` compares them with the hashes that each shard was made with.
"""

import hashlib
import json
from dataclasses import asdict, dataclass

import numpy as np
import torch

from graphformers.arrays import Array
from graphformers.artifact import Artifact
from graphformers.embedding.shards import ShardedRows, load_rows
from graphformers.errors import ArtifactError
from graphformers.graph.textgraph import TextGraph
from graphformers.model.encoder import GraphFormers

FOLDER = "states"


@dataclass(frozen=True)
class StatesKey:
    """What states depend on besides the text."""

    # Fingerprint of configuration and weights.
    model: str
    tokenizer: str
    max_tokens: int
    precision: str

    @staticmethod
    def of(model: GraphFormers, precision: str) -> "StatesKey":
        """The key of a model's states."""
        return StatesKey(
            model_fingerprint(model),
            model.tokenizer.fingerprint,
            model.config.max_tokens,
            precision,
        )


@dataclass(frozen=True)
class LayerStates:
    """The states of the nodes of a graph."""

    key: StatesKey
    rows: ShardedRows  # (N, S, D)
    # Hashes of the texts of each shard.
    text_hashes: tuple[str, ...]

    def take(self, nodes: Array) -> Array:
        """(len(nodes), S, D)."""
        return self.rows.take(nodes)

    def check(self, graph: TextGraph) -> None:
        """Raises an error if the states were made from other texts than this graph's."""
        size = self.rows.size
        for shard, expected in enumerate(self.text_hashes):
            if graph.text_hash(shard * size, min((shard + 1) * size, graph.num_nodes)) != expected:
                raise ArtifactError(
                    f"the states of shard {shard} were made from other texts than this graph's; "
                    f"embed it again"
                )

    @staticmethod
    def load(artifact: Artifact) -> "LayerStates | None":
        """The states in a folder of vectors; None if they were not kept."""
        kept = artifact.settings["states"]
        if not kept:
            return None
        base, size = artifact.settings["base"], artifact.settings["shard_size"]
        rows = load_rows(artifact, f"{base}/{FOLDER}", size)
        return LayerStates(StatesKey(**kept["key"]), rows, tuple(kept["text_hashes"]))


def model_fingerprint(model: GraphFormers) -> str:
    """A hash of everything that determines a vector: configuration, tokenizer and weights."""
    config = asdict(model.config)
    # The initial scale does not matter once there are weights.
    del config["graph_token_scale"]
    # It ranks links and changes no vector.
    del config["link_weight"]
    # Older models lack this field.
    if config["pooling"] == "cls":
        del config["pooling"]
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    digest.update(model.tokenizer.fingerprint.encode())
    for name, tensor in sorted(model.network.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(
            tensor.detach()
            .to("cpu", torch.float32)
            .contiguous()
            .numpy()
            .reshape(-1)
            .view(np.uint8)
            .data
        )
    return digest.hexdigest()


def states_dtype(precision: str) -> torch.dtype:
    """The torch type of a precision of layer states."""
    return torch.float16 if precision == "float16" else torch.float32
