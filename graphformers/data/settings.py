"""What an import can be told: the format, which column plays which role, what to do with bad
rows.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphformers.errors import GraphFormersError, InputError, require_types


@dataclass(frozen=True)
class Format:
    """An input format: what it reads, in words; and whether edges to nodes outside the data are
    normal in it.
    """

    about: str
    outside: bool = False
    # the settings that it heeds, but for skip_bad and keep_empty, which GraphBuilder heeds for all
    reads: tuple[str, ...] = ()


TABLES = ("columns", "keep", "header", "quotes")
VIEWS = ("window", "min_count", "max_views")
FORMATS = {
    "tables": Format(
        "node and edge tables: .csv .tsv .jsonl .parquet, told apart by their columns", reads=TABLES
    ),
    "dblp": Format("dblp.v12.json: titles and references, one record per line", outside=True),
    "wikidata5m": Format(
        "id<TAB>text and head<TAB>relation<TAB>tail files; the first sentence is the text"
    ),
    "amazon": Format("SNAP's amazon-meta.txt: titles and similar items", outside=True),
    "debian": Format(
        "Debian Packages files (.xz too): descriptions and dependencies", outside=True
    ),
    "sessions": Format(
        "an item table and a log of user, time, item: items viewed together are linked",
        reads=(*TABLES, *VIEWS),
    ),
    "pairs": Format(
        "the TSV of the 2021 code: text|'|neighbour|'|…<TAB>text|'|…; equal texts are one node"
    ),
    "python": Format(
        "Python itself: docstrings; member of, calls, inherits. The standard library, or installed "
        "packages by name"
    ),
}


@dataclass(frozen=True)
class ImportSettings:
    """How foreign files are read."""

    format: str = "tables"  # one of FORMATS
    columns: dict[str, str] = field(
        default_factory=dict
    )  # role -> column name, where the name does not say it: {"text": "abstract"}
    keep: tuple[str, ...] | None = None  # node columns kept beside id and text; None keeps all
    # the first line of a .csv or .tsv names the columns; otherwise they are called 1, 2, 3, …
    header: bool = True
    # a quote in a .csv or .tsv opens a field that may hold separators and line ends
    quotes: bool = True
    # leave bad rows out, counted and listed, instead of stopping at the first
    skip_bad: bool = False
    # keep nodes without a text, read as texts without words, instead of taking them for bad rows
    keep_empty: bool = False
    window: float = 30.0  # sessions: minutes within which two views by one user link their items
    min_count: int = 1  # sessions: how many users must have viewed two items together
    # sessions: users with more views than this within one window are robots and left aside
    max_views: int = 500

    def __post_init__(self) -> None:
        require_types(self)
        if self.format not in FORMATS:
            raise GraphFormersError(f"no format {self.format!r}; there are: {', '.join(FORMATS)}")
        chosen = [
            name
            for name in (*TABLES, *VIEWS)
            if getattr(self, name) != getattr(ImportSettings, name, {})
        ]
        unread = next((name for name in chosen if name not in FORMATS[self.format].reads), None)
        if unread is not None:
            raise GraphFormersError(
                f"{unread}={getattr(self, unread)!r} given, but the format {self.format!r} has no "
                f"use for it"
            )
        unknown = sorted(set(self.columns) - set(ROLES))
        if unknown:
            raise GraphFormersError(f"no column role {unknown[0]!r}; there are: {', '.join(ROLES)}")
        if isinstance(self.keep, str):
            raise GraphFormersError(
                f"keep={self.keep!r} given, expected a list of columns: keep=[{self.keep!r}]"
            )
        if self.max_views < 2:
            raise GraphFormersError(f"max_views={self.max_views} given, expected at least 2")
        if self.window <= 0 or self.min_count < 1:
            raise GraphFormersError(
                f"window {self.window} and min_count {self.min_count} given, expected more than 0 "
                f"minutes and at least 1 user"
            )

    def remembered(self) -> dict[str, Any]:
        """What a graph notes of how its tables were read, so that an update reads its own in the
        same way.
        """
        columns = {
            role: name
            for role, name in self.columns.items()
            if role in ("id", "text", "src", "dst", "type")
        }
        found = {
            "columns": columns,
            "keep": self.keep,
            "header": self.header,
            "quotes": self.quotes,
            "keep_empty": self.keep_empty,
        }
        usual = ImportSettings()
        return {name: value for name, value in found.items() if value != getattr(usual, name)}


ROLES = {  # role -> column names that mean it, the best first
    "id": ("id", "node", "node_id", "paperid", "key", "name"),
    "text": ("text", "title", "name", "label", "description", "abstract"),
    "src": (
        "src",
        "source",
        "source_id",
        "src_id",
        "from",
        "from_id",
        "head",
        "u",
        "citing",
        "id1",
        "subject",
    ),
    "dst": (
        "dst",
        "target",
        "target_id",
        "dst_id",
        "to",
        "to_id",
        "tail",
        "v",
        "cited",
        "id2",
        "object",
    ),
    "type": ("type", "relation", "rel", "predicate", "edge_type"),
    "user": ("user", "user_id", "userid", "visitor", "visitorid", "customer", "session"),
    "time": ("time", "timestamp", "ts", "date", "datetime"),
    "item": ("item", "item_id", "itemid", "product", "product_id", "id"),
}


def guess_column(role: str, names: list[str], settings: ImportSettings) -> str | None:
    """The column that plays `role`: the one the user named, or the first whose name means it; None
    when there is none.
    """
    if role in settings.columns:
        return settings.columns[role] if settings.columns[role] in names else None
    return next(iter(meaning(role, names, settings)), None)


def meaning(role: str, names: list[str], settings: ImportSettings) -> list[str]:
    """All columns whose names mean `role`, the best first."""
    lower = {name.lower(): name for name in reversed(names)}
    words = ROLES[role]
    # the id of an item is what the log calls the item
    if role == "id" and settings.format == "sessions":
        named = [settings.columns["item"].lower()] if "item" in settings.columns else []
        words = (*named, *(word for word in words if word != "name"), *ROLES["item"], "name")
    return list(dict.fromkeys(lower[word] for word in words if word in lower))


def require_column(role: str, names: list[str], settings: ImportSettings, path: Path) -> str:
    """The column that plays `role`, or the error that says what to type."""
    found = guess_column(role, names, settings)
    if found is None:
        wanted = settings.columns.get(role) or " or ".join(ROLES[role][:3])
        raise InputError(
            f"{path}:1: no column for {role} (looked for {wanted}) among: {', '.join(names)}; name "
            f"it with --column {role}=NAME"
        )
    return found
