"""ModelConfig: everything that defines a network except its weights."""

from dataclasses import dataclass

from graphformers.model.registry import PART_KINDS, layer_part, method_class
from graphformers.settings import Settings, require, setting

DIRECTIONS = ("unidirectional", "bidirectional")
SIMILARITIES = ("dot", "cosine")
POOLINGS = ("cls", "mean")
ACTIVATIONS = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}


@dataclass(frozen=True)
class ModelConfig(Settings):
    """The architecture of a model: its backbone, its graph layers, and how vectors are compared.

    Examples:
        >>> config = GraphFormers.from_pretrained("papers.model").config
        >>> config.method, config.num_neighbors
        ('graphformers', 5)
    """

    vocab_size: int = setting(help="Tokens of the vocabulary.", at_least=1)
    hidden_size: int = setting(help="Size of hidden states and of vectors.", at_least=1)
    num_layers: int = setting(help="Transformer layers.", at_least=1, at_most=1000)
    num_heads: int = setting(help="Attention heads of a layer.", at_least=1)
    intermediate_size: int = setting(help="Inner size of the MLPs.", at_least=1)
    max_positions: int = setting(
        help="Longest sequence the backbone can encode, special tokens included."
    )
    pad_token: int = setting(0, "Id of the padding token.")
    activation: str = setting("gelu", "Activation of the MLPs.", choices=ACTIVATIONS)
    layer_norm_eps: float = setting(1e-12, "Epsilon of the norms.", above=0)
    relative_buckets: int = setting(
        0, "Buckets of the relative position bias (T5, MPNet, UniLM v2); 0 for none.", at_least=0
    )
    relative_distance: int = setting(
        128, "Token distance from which on all distances share a bucket.", at_least=1
    )
    dropout: float = setting(0.1, "Dropout of hidden states.", at_least=0, below=1)
    attention_dropout: float = setting(0.1, "Dropout of attention weights.", at_least=0, below=1)
    method: str = setting("graphformers", "The network: graphformers or a baseline.")
    direction: str = setting(
        "unidirectional",
        "Whether only the centre attends to its neighbours, or neighbours attend, too.",
        choices=DIRECTIONS,
    )
    share_gnn: bool = setting(True, "One graph attention for all layers instead of one for each.")
    position_bias: bool = setting(
        True,
        "Learnable biases for centre-centre, centre-neighbour and neighbour-neighbour attention.",
    )
    max_tokens: int = setting(32, "Tokens at which texts are cut, special tokens included.")
    num_neighbors: int = setting(5, "Neighbours sampled for a node.", at_least=0)
    similarity: str = setting(
        "dot", "How vectors are compared, in training and after.", choices=SIMILARITIES
    )
    link_weight: float = setting(
        0.0,
        "Weight of common neighbours (Adamic–Adar) in the scores of likely links; training chooses "
        "it by the validation questions.",
        at_least=0,
    )
    pooling: str = setting(
        "cls", "A node's state: its [CLS], or the mean of its tokens.", choices=POOLINGS
    )
    graph_token_scale: float = setting(
        1.0, "Initial scale of the graph token, relative to the mean state of the nodes.", above=0
    )
    isolated_graph_token: bool = setting(
        True,
        "Whether nodes without neighbours have a graph token, too, made of their own state alone; "
        "without, the backbone encodes them as plain texts.",
    )
    learn_temperature: bool = setting(
        False, "Whether training learns the temperature of the objective, too."
    )
    norm: str = setting("layer_norm", "Norm of the layers.")
    mlp: str = setting("plain", "MLP of the layers.")
    layer: str = setting("post_norm", "Layer: where its norms are, and how tokens attend.")
    positions: str = setting("learned", "Position embeddings, added to those of the words.")
    attention_mask: str = setting("own_text", "Which tokens of a text attend to which.")

    def __post_init__(self) -> None:
        super().__post_init__()
        # These raise an error for a name that is not registered.
        method_class(self.method)
        for kind in PART_KINDS:
            layer_part(kind, getattr(self, kind))
        require(
            self,
            self.relative_buckets == 0 or self.relative_buckets >= 4,
            "relative_buckets",
            "0 or at least 4",
        )
        require(
            self,
            self.hidden_size % self.num_heads == 0,
            "hidden_size",
            f"a multiple of num_heads, {self.num_heads}",
        )
        require(
            self,
            2 < self.max_tokens <= self.max_positions,
            "max_tokens",
            f"3 to {self.max_positions}, the backbone's limit",
        )
