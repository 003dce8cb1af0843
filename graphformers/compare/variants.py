"""Variants of methods, and the variants that each table of the paper compares."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from graphformers.errors import GraphFormersError, nearest
from graphformers.model.registry import method_class, methods
from graphformers.settings import SettingValue

# the methods of the paper in the order of its Table 2
PAPER_METHODS = ("plm", "tnve", "iftn", "gat", "max", "mean", "att", "graphformers")
TABLES = ("datasets", "overall", "neighbours", "ablation", "efficiency")
ONE_STAGE = "one-stage"
DEFAULT = ("plm", "max", "graphformers", "plm.one-stage", "max.one-stage", "graphformers.one-stage")
# the methods of Table 3
NEIGHBOR_METHODS = ("graphformers", "max")


@dataclass(frozen=True)
class Ablation:
    """A method without one of its parts.

    Attributes:
        title: The name in tables and reports.
        table_title: The name in the paper's Table 4.
        settings: The settings that leave the part out.
    """

    title: str
    table_title: str
    settings: Mapping[str, SettingValue]


# Neighbours that depend on their centre cannot be encoded without gradients.
SIMPLIFIED: dict[str, SettingValue] = {"direction": "bidirectional", "neighbor_gradients": True}
# The first one applies to all methods, the others only to graphformers.
ABLATIONS = {
    ONE_STAGE: Ablation("one stage", "- Progressive", {"two_stage": False}),
    "simplified": Ablation("bidirectional", "- Simplified", SIMPLIFIED),
    "shared": Ablation("a GNN for every layer", "- Shared GNNs", {"share_gnn": False}),
    "position": Ablation("without position bias", "- Position", {"position_bias": False}),
}


@dataclass(frozen=True)
class Variant:
    """A method with certain settings.

    Args:
        name: The name in the folders of its runs.
        title: The name in tables and reports.
        method: The method.
        settings: The settings by which it differs from the other variants of a comparison.
    """

    name: str
    title: str
    method: str
    settings: Mapping[str, SettingValue] = field(default_factory=dict)

    @property
    def reads_neighbors(self) -> bool:
        return method_class(self.method).reads_neighbors

    @property
    def is_modified(self) -> bool:
        """Whether it differs from the plain method."""
        return self.name != self.method


def variant(name: str) -> Variant:
    """The variant with a name.

    Args:
        name: A method such as max, trained in two stages; max.one-stage, trained in one;
            graphformers.simplified, .shared or .position, the ablations of the paper.

    Raises:
        GraphFormersError: There is no such method, or no such variant of it.

    Examples:
        >>> variant("max.one-stage").title
        'PLM+Max (one stage)'
    """
    method, dot, ablation = name.partition(".")
    if method not in methods():
        raise GraphFormersError(f"no method {method!r}; {nearest(method, methods())}")
    title = method_class(method).title
    if not dot:
        return Variant(name, title, method, {"two_stage": True})
    known = list(ABLATIONS) if method == "graphformers" else [ONE_STAGE]
    if ablation not in known:
        expected = " or ".join([method, *(f"{method}.{each}" for each in known)])
        raise GraphFormersError(f"{name!r} given, expected {expected}")
    found = ABLATIONS[ablation]
    settings = {"two_stage": True, **found.settings}
    return Variant(name, f"{title} ({found.title})", method, settings)


def variants(names: Sequence[str]) -> list[Variant]:
    """The variants with some names, without repetitions."""
    return [variant(name) for name in dict.fromkeys(names)]


def ablations() -> dict[str, Variant]:
    """The variants of Table 4, by their titles in the paper."""
    complete = {each.title: each for each in variants(["graphformers", "max"])}
    return complete | {
        ablation.table_title: variant(f"graphformers.{name}")
        for name, ablation in ABLATIONS.items()
    }


def with_neighbors(count: int) -> list[Variant]:
    """The variants of Table 3 that are also trained with `count` neighbours."""
    return [
        Variant(
            f"{method}.n{count}",
            f"{method_class(method).title} (#N = {count})",
            method,
            {"two_stage": True, "num_neighbors": count},
        )
        for method in NEIGHBOR_METHODS
    ]


def variants_of(table: str, *, retrain: bool = False, max_neighbors: int = 5) -> list[Variant]:
    """The variants that a table of the paper compares.

    Args:
        table: datasets, overall, neighbours, ablation or efficiency.
        retrain: For neighbours: whether models are trained with every number of neighbours.
        max_neighbors: For neighbours: the largest number.

    Raises:
        GraphFormersError: There is no such table.
    """
    if table not in TABLES:
        raise GraphFormersError(f"no table {table!r}; {nearest(table, TABLES)}")
    if table == "overall":
        return variants([*PAPER_METHODS, *methods()])
    if table == "ablation":
        return list(ablations().values())
    if table == "neighbours":
        fewer = range(1, max_neighbors) if retrain else ()
        return variants(NEIGHBOR_METHODS) + [
            each for count in fewer for each in with_neighbors(count)
        ]
    return []
