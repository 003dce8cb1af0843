"""ImportSettings: settings for reading files.

This module imports nothing heavy, so that the command line can show the help texts at once.
"""

from dataclasses import dataclass
from pathlib import Path

from graphformers.errors import GraphFormersError, InputError
from graphformers.settings import Settings, require, setting


@dataclass(frozen=True)
class Format:
    """An input format.

    Attributes:
        about: The content of the files, in one sentence.
        outside: Whether edges to nodes outside the data are normal in this format.
        reads: The settings that the format uses, besides skip_bad and keep_empty, which apply to
            all formats.
    """

    about: str
    outside: bool = False
    reads: tuple[str, ...] = ()


TABLES = ("columns", "keep", "header", "quotes")
LIMITS = ("max_row", "max_columns", "max_nesting", "max_expansion")
VIEWS = ("window", "min_count", "max_views")
FORMATS = {
    "tables": Format(
        "node and edge tables (.csv, .tsv, .jsonl, .parquet), distinguished by their columns",
        reads=TABLES,
    ),
    "dblp": Format("titles and references of dblp.v12.json, one record per line", outside=True),
    "wikidata5m": Format(
        "id<TAB>text and head<TAB>relation<TAB>tail files, the first sentence being the text"
    ),
    "amazon": Format("titles and similar items of SNAP's amazon-meta.txt", outside=True),
    "debian": Format(
        "descriptions and dependencies of Debian Packages files (.xz too)", outside=True
    ),
    "sessions": Format(
        "an item table and a log of user, time, item, linking items viewed together",
        reads=(*TABLES, *VIEWS),
    ),
    "pairs": Format(
        "the TSV of the 2021 code (text|'|neighbour|'|…<TAB>text|'|…), equal texts being one node"
    ),
    "python": Format(
        "docstrings of installed Python packages, given by name, or of the standard library, with "
        "the links member of, calls and inherits"
    ),
}


@dataclass(frozen=True)
class ImportSettings(Settings):
    """The format of the files of a graph, and options for reading them.

    Example:
        >>> ImportSettings(columns={"text": "abstract"}, skip_bad=True).format
        'tables'
    """

    format: str = setting(
        "tables",
        f"Input format; {'; '.join(f'{name}: {each.about}' for name, each in FORMATS.items())}.",
        choices=FORMATS,
        option="--format NAME",
    )
    columns: dict[str, str] = setting(
        default_factory=dict,
        help="Which column is id, text (several: text=title,abstract), src, dst, type, time "
        "(of links or views), user or item, where its name does not say so.",
        option="--column ROLE=NAME...",
    )
    keep: tuple[str, ...] | None = setting(
        None,
        "Keep only these node columns besides id and text; '' keeps none.",
        option="--keep NAMES",
    )
    header: bool = setting(
        True,
        "Whether the first line of .csv and .tsv files names the columns; otherwise they are "
        "called 1, 2, 3.",
        option="--header/--no-header",
    )
    quotes: bool = setting(
        True, "Whether quotes in .csv and .tsv files enclose fields.", option="--quotes/--no-quotes"
    )
    skip_bad: bool = setting(
        False,
        "Leave out, count and list bad rows instead of stopping at the first.",
        option="--skip-bad",
    )
    keep_empty: bool = setting(
        False,
        "Keep nodes without a text, as empty texts, instead of treating them as bad rows.",
        option="--keep-empty",
    )
    window: float = setting(
        30.0,
        "sessions: minutes within which two views by the same user link their items.",
        above=0,
        option="--window MINUTES",
    )
    min_count: int = setting(
        1,
        "sessions: number of users who must have viewed two items together.",
        at_least=1,
        option="--min-count NUMBER",
    )
    max_views: int = setting(
        500,
        "sessions: users with more views within one window are treated as robots and left out.",
        at_least=2,
        option="--max-views NUMBER",
    )

    max_row: float = setting(
        16.0,
        "Megabytes that one row, line or record may hold.",
        above=0,
        option="--max-row MB",
    )
    max_columns: int = setting(
        2000, "Number of columns that a table may have.", at_least=1, option="--max-columns NUMBER"
    )
    max_nesting: int = setting(
        32,
        "Levels of lists and objects within each other that a JSON record may have.",
        at_least=1,
        option="--max-nesting NUMBER",
    )
    max_expansion: int = setting(
        200,
        "How many times its own size a compressed file may hold, if that is more than 16 MB.",
        at_least=1,
        option="--max-expansion NUMBER",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in (*TABLES, *VIEWS):
            value = getattr(self, name)
            is_used = name in FORMATS[self.format].reads
            if not is_used and value != getattr(ImportSettings, name, {}):
                raise GraphFormersError(
                    f"{name}={value!r} given, but the format {self.format!r} does not use it"
                )
        unknown = sorted(set(self.columns) - set(ROLES))
        if unknown:
            raise GraphFormersError(f"no column role {unknown[0]!r}; there are: {', '.join(ROLES)}")
        is_list = not isinstance(self.keep, str)
        require(self, is_list, "keep", f"a list of columns: keep=[{self.keep!r}]")

    @property
    def row_bytes(self) -> int:
        """The number of bytes that one row may hold."""
        return int(self.max_row * 1e6)

    def remembered(self) -> dict[str, object]:
        """The settings that a graph saves, so that updates read tables in the same way.

        Returns:
            The settings that differ from the defaults.
        """
        roles = ("id", "text", "src", "dst", "type")
        remembered = (*TABLES, "keep_empty", *LIMITS)
        found: dict[str, object] = {name: getattr(self, name) for name in remembered}
        found["columns"] = {role: self.columns[role] for role in self.columns if role in roles}
        usual = ImportSettings()
        return {name: value for name, value in found.items() if value != getattr(usual, name)}


# column names by which each role is recognised, the preferred one first
ROLES = {
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
    """The column of a role: the one that the user named, or else the first of `columns_for`.

    Returns None if there is no such column.
    """
    if role in settings.columns:
        return settings.columns[role] if settings.columns[role] in names else None
    return next(iter(columns_for(role, names, settings)), None)


def columns_for(role: str, names: list[str], settings: ImportSettings) -> list[str]:
    """All columns whose names stand for a role, the preferred one first."""
    lower = {name.lower(): name for name in reversed(names)}
    words = ROLES[role]
    # In sessions, the id of an item is in the column named like the item column of the log.
    if role == "id" and settings.format == "sessions":
        named = [settings.columns["item"].lower()] if "item" in settings.columns else []
        words = (*named, *(word for word in words if word != "name"), *ROLES["item"], "name")
    return list(dict.fromkeys(lower[word] for word in words if word in lower))


def require_column(role: str, names: list[str], settings: ImportSettings, path: Path) -> str:
    """The column of a role.

    Raises:
        InputError: There is no such column.
    """
    found = guess_column(role, names, settings)
    if found is None:
        wanted = settings.columns.get(role) or " or ".join(ROLES[role][:3])
        raise InputError(
            f"{path}:1: no column for {role} (looked for {wanted}) among: {', '.join(names)}; name "
            f"it with --column {role}=NAME"
        )
    return found
