"""Variants of methods, and which variants each table of the paper compares."""

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
    """A method without one of its parts."""

    title: str
    table_title: str  # in the paper's Table 4
    settings: Mapping[str, SettingValue]


# the first one applies to all methods, the others to graphformers alone
ABLATIONS = {
    ONE_STAGE: Ablation("one stage", "- Progressive", {"two_stage": False}),
    "simplified": Ablation("bidirectional", "- Simplified", {"direction": "bidirectional"}),
    "shared": Ablation("a GNN for every layer", "- Shared GNNs", {"share_gnn": False}),
    "position": Ablation("without position bias", "- Position", {"position_bias": False}),
}


@dataclass(frozen=True)
class Variant:
    """A method with certain settings.

    Args:
        name: Names the folders of its runs.
        title: Names it in tables and reports.
        method: The method.
        settings: The settings in which it differs from the other variants of a comparison.
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
        """Whether it is not the plain method."""
        return self.name != self.method


def variant(name: str) -> Variant:
    """The variant of a name.

    Args:
        name: A method such as max, trained in two stages; max.one-stage, trained in one;
            graphformers.simplified, .shared or .position, the ablations of the paper.

    Raises:
        GraphFormersError: There is no such method, or no such variant of it.

    Example:
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
    """The variants of some names, without repetitions."""
    return [variant(name) for name in dict.fromkeys(names)]


def ablations() -> dict[str, Variant]:
    """The variants of Table 4 by their titles there."""
    complete = {each.title: each for each in variants(["graphformers", "max"])}
    return complete | {
        ablation.table_title: variant(f"graphformers.{name}")
        for name, ablation in ABLATIONS.items()
    }


def with_neighbors(count: int) -> list[Variant]:
    """The variants of Table 3 that are trained with `count` neighbours, too."""
    return [
        Variant(
            f"{method}.n{count}",
            f"{method_class(method).title} (#N = {count})",
            method,
            {"two_stage": True, "num_neighbors": count},
        )
        for method in NEIGHBOR_METHODS
    ]


def variants_of(table: str, *, retrain: bool = False, most_neighbors: int = 5) -> list[Variant]:
    """The variants that a table of the paper compares.

    Args:
        table: datasets, overall, neighbours, ablation or efficiency.
        retrain: neighbours: whether models are trained for every number of neighbours.
        most_neighbors: neighbours: the largest number.

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
        fewer = range(1, most_neighbors) if retrain else ()
        return variants(NEIGHBOR_METHODS) + [
            each for count in fewer for each in with_neighbors(count)
        ]
    return []
