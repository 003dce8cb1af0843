"""Descriptions of models and of stores of vectors, as `info` shows them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from graphformers.embedding.compaction import most_bytes
from graphformers.embedding.settings import CompactionSettings
from graphformers.embedding.states import model_fingerprint
from graphformers.embedding.vectors import VectorStore
from graphformers.model.backbones import Training, training_of
from graphformers.model.encoder import GraphFormers
from graphformers.progress import amount
from graphformers.table import Result, Table

# Characters of a fingerprint that are shown.
SHOWN = 12


@dataclass(frozen=True)
class StoreDescription(Result):
    """Size, origin and edits of a folder of vectors. Made by `describe_store`.

    Attributes:
        output: The folder.
        vectors: Number of vectors.
        size: Dimension of a vector.
        precision: Number type of the stored vectors.
        similarity: How vectors are compared: dot or cosine.
        method: Method of the model.
        neighbors: Neighbours sampled for a node.
        states: Precision of the layer states; None where they were not kept.
        edit_bytes: Size of the edits since the base was written.
        compacted_at: Size from which on they are compacted.
        model: The start of the model's fingerprint.
    """

    output: str
    vectors: int
    size: int
    precision: str
    similarity: str
    method: str
    neighbors: int
    states: str | None
    edit_bytes: int
    compacted_at: int
    model: str

    def to_dict(self) -> dict[str, object]:
        """All fields, for JSON."""
        return asdict(self)

    def as_table(self) -> Table:
        """A line for the size, one for the origin and one for the edits."""
        kept = f"states in {self.states}" if self.states else "no states"
        lines = [
            f"{self.output}: {self.vectors:,} vectors of {self.size} numbers, {self.precision}, "
            f"{kept}",
            f"by {self.method}, model {self.model}, {self.neighbors} neighbours, compared by "
            f"{self.similarity}",
        ]
        if self.edit_bytes:
            lines.append(
                f"{amount(self.edit_bytes, 'B')} of edits since then, which are compacted "
                f"automatically at {amount(self.compacted_at, 'B')}, or when many vectors changed"
            )
        return Table((), [(line,) for line in lines])


def describe_store(store: VectorStore) -> StoreDescription:
    """Size, origin and edits of a store of vectors."""
    settings = store.settings
    return StoreDescription(
        output=str(store.path),
        vectors=len(store),
        size=store.size,
        precision=store.precision,
        similarity=settings["similarity"],
        method=settings["method"],
        neighbors=settings["num_neighbors"],
        states=settings["states"]["key"]["precision"] if settings["states"] else None,
        edit_bytes=store.commit.bytes,
        compacted_at=most_bytes(store, CompactionSettings()),
        model=store.key.model[:SHOWN],
    )


@dataclass(frozen=True)
class ModelDescription(Result):
    """Configuration and training of a model folder. Made by `describe_model`.

    Attributes:
        output: The folder.
        model: The start of the model's fingerprint.
        facts: Parts of the configuration, and the number of parameters.
        training: What the folder notes of the training; empty where there was none.
    """

    output: str
    model: str
    facts: dict[str, object]
    training: Training | None

    def to_dict(self) -> dict[str, object]:
        """The configuration, and steps, seconds and validation of the training, for JSON."""
        told: Mapping[str, object] = self.training or {}
        trained = {name: told.get(name) for name in ("steps", "seconds", "valid")}
        return {"output": self.output, **self._identity(), **self.facts, **trained}

    def as_table(self) -> Table:
        """A line for each part of the configuration, and for the training."""
        rows = self._identity() | self.facts
        weight = rows.pop("link_weight")
        rows["likely links"] = f"scores + {weight:g} × Adamic–Adar" if weight else "scores alone"
        rows["trained"] = "no"
        if self.training:
            rows["trained"] = (
                f"{self.training['steps']:,} steps in {self.training['seconds']:.0f} s"
            )
            valid = self.training["valid"]
            rows["valid P@1"] = f"{valid['P@1']:.4f}, at step {valid['step']:,}"
        return Table(
            (),
            [
                (name.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value))
                for name, value in rows.items()
            ],
        )

    def _identity(self) -> dict[str, object]:
        return {"kind": "model", "model": self.model}


def describe_model(path: Path) -> ModelDescription:
    """Configuration and training of a model folder."""
    model = GraphFormers.from_pretrained(path, device="cpu")
    names = ["num_layers", "hidden_size", "max_tokens", "num_neighbors", "pooling", "similarity"]
    names.append("link_weight")
    facts = {
        "method": model.config.method,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        **{name: getattr(model.config, name) for name in names},
    }
    return ModelDescription(str(path), model_fingerprint(model)[:SHOWN], facts, training_of(path))
