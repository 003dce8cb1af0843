"""SplitSettings: how links are held out."""

from dataclasses import dataclass

from graphformers.errors import GraphFormersError
from graphformers.settings import MOST_SEED, Settings, require, setting


@dataclass(frozen=True)
class SplitSettings(Settings):
    """How links are held out for validation and test.

    Examples:
        >>> SplitSettings(valid=0.05, test=1000, seed=7).held_out
        'links'
    """

    valid: float = setting(
        0.05,
        "Validation pairs: a share below 1 of all pairs (of all nodes when nodes are held out), or "
        "a count.",
        above=0,
        option="--valid NUMBER",
    )
    test: float = setting(
        0.05, "Test pairs: a share below 1, or a count.", above=0, option="--test NUMBER"
    )
    seed: int = setting(
        42,
        "Random seed; equal seeds make equal splits.",
        at_least=0,
        at_most=MOST_SEED,
        option="--seed NUMBER",
    )
    held_out: str = setting(
        "links",
        "What to hold out: links; latest-links (by the edges' times); nodes (inductive: unknown in "
        "training); or a node column, whose latest nodes are held out.",
        option="--held-out WHAT",
    )
    candidates: int | None = setting(
        None,
        "Candidates per question, one positive and the rest negatives; by default 300, or fewer "
        "where the graph is small.",
        at_least=2,
        option="--candidates NUMBER",
    )
    max_train: int | None = setting(
        None,
        "Maximum number of training pairs; other links remain visible as neighbours.",
        at_least=1,
        option="--max-train NUMBER",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("valid", "test"):
            value = getattr(self, name)
            is_valid = value < 1 or (value < 2**40 and value == int(value))
            require(self, is_valid, name, "a share between 0 and 1 or a whole number of pairs")
        if self.valid < 1 and self.test < 1 and self.valid + self.test >= 1:
            raise GraphFormersError(
                f"valid={self.valid} and test={self.test} given, expected shares that leave "
                f"something to train on"
            )
