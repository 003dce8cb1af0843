"""Variant: a method with the settings that set it apart; and which variants each of the paper's
tables compares.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphformers.errors import GraphFormersError, nearest
from graphformers.model.registry import method_class

TITLES = {
    "plm": "PLM",
    "tnve": "TNVE",
    "iftn": "IFTN",
    "gat": "PLM+GAT",
    "max": "PLM+Max",
    "mean": "PLM+Mean",
    "att": "PLM+Att",
    "graphformers": "GraphFormers",
}
ONE_STAGE = "one-stage"
# to take from GraphFormers: in words, in Table 4, as a setting
LESS: dict[str, tuple[str, str, dict[str, Any]]] = {
    ONE_STAGE: ("one stage", "- Progressive", {"two_stage": False}),  # from other methods, too
    "simplified": ("bidirectional", "- Simplified", {"direction": "bidirectional"}),
    "shared": ("a GNN for every layer", "- Shared GNNs", {"share_gnn": False}),
    "position": ("without position bias", "- Position", {"position_bias": False}),
}


@dataclass(frozen=True)
class Variant:
    """What is trained. `name` is that of its folders, `title` that in tables."""

    name: str
    title: str
    method: str
    # what differs from the common settings
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reads_neighbors(self) -> bool:
        return method_class(self.method).reads_neighbors

    @property
    def is_two_stage(self) -> bool:
        return bool(self.settings.get("two_stage", True))


def variant(name: str) -> Variant:
    """A method by its name, such as max, trained in two stages; max.one-stage is trained on clean
    text alone.

    graphformers.simplified, .shared and .position are the paper's ablations.
    """
    method, dot, less = name.partition(".")
    if method not in TITLES:
        raise GraphFormersError(f"no method {method!r}; {nearest(method, TITLES)}")
    if not dot:
        return Variant(name, TITLES[method], method, {"two_stage": True})
    known = list(LESS) if method == "graphformers" else [ONE_STAGE]
    if less not in known:
        raise GraphFormersError(
            f"{name!r} given, expected {method} or "
            + " or ".join(f"{method}.{each}" for each in known)
        )
    words, _, changes = LESS[less]
    return Variant(name, f"{TITLES[method]} ({words})", method, {"two_stage": True} | changes)


def variants(names: Sequence[str]) -> list[Variant]:
    return [variant(name) for name in dict.fromkeys(names)]


def ablations() -> dict[str, Variant]:
    """Table 4: GraphFormers with one thing less each, beside PLM+Max; by their titles there."""
    whole = {each.title: each for each in variants(["graphformers", "max"])}
    return whole | {title: variant(f"graphformers.{less}") for less, (_, title, _) in LESS.items()}


def with_neighbors(count: int) -> list[Variant]:
    """Table 3, retrained: both methods with so many neighbours in training as well."""
    return [
        Variant(
            f"{method}.n{count}",
            f"{TITLES[method]} (#N = {count})",
            method,
            {"two_stage": True, "num_neighbors": count},
        )
        for method in ("graphformers", "max")
    ]


DEFAULT = ("plm", "max", "graphformers", "plm.one-stage", "max.one-stage", "graphformers.one-stage")
TABLES = ("datasets", "overall", "neighbours", "ablation", "efficiency")


def variants_of(table: str, *, retrain: bool = False, most_neighbors: int = 5) -> list[Variant]:
    """What has to be trained for one of the paper's tables."""
    if table == "overall":
        return variants(list(TITLES))
    if table == "ablation":
        return list(ablations().values())
    if table == "neighbours":
        own = variants(["graphformers", "max"])
        return (
            own + [each for count in range(1, most_neighbors) for each in with_neighbors(count)]
            if retrain
            else own
        )
    if table in TABLES:
        return []
    raise GraphFormersError(f"no table {table!r}; {nearest(table, TABLES)}")
