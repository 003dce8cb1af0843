"""ImportSettings: settings for reading files.

This module imports nothing heavy, so that the command line can show the help texts at once.
"""

import codecs
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from graphformers.errors import GraphFormersError, InputError
from graphformers.graph.formats import LIMITS, TABLES, TEXT, VIEWS, find_format
from graphformers.settings import Settings, require, setting, usage


@dataclass(frozen=True)
class ImportSettings(Settings):
    """The format of the files of a graph, and options for reading them.

    Examples:
        >>> ImportSettings(columns={"text": "abstract"}, skip_bad=True).format
        'tables'
    """

    format: str = setting(
        "tables",
        "Input format, one of those listed below.",
        option="--format NAME",
    )
    columns: dict[str, str] = setting(
        default_factory=dict,
        help="Which column is id, text (several: text=title,abstract; within JSON objects: "
        "text=doc.title), src, dst, type, time (of links or views), user or item, where its name "
        "does not say so; links=references is a column of nodes that lists ids of linked nodes, "
        "links=references:cites with a type.",
        option="--column ROLE=NAME...",
    )
    keep: tuple[str, ...] | None = setting(
        None,
        "Keep only these node columns besides id and text; '' keeps none.",
        option="--keep NAMES",
    )
    header: bool = setting(
        True,
        "Whether the first line of .csv and .tsv files names the columns; those without a name are "
        "called by their numbers: 1, 2, 3.",
        option="--header/--no-header",
    )
    quotes: bool = setting(
        True, "Whether quotes in .csv and .tsv files enclose fields.", option="--quotes/--no-quotes"
    )
    encoding: str = setting(
        "utf-8",
        "Encoding of text files, such as cp1252, latin-1 or utf-16; UTF-8 with or without a byte "
        "order mark is the default.",
        option="--encoding NAME",
    )
    list_separator: str = setting(
        ";",
        "What separates the ids of linked nodes in a field of text.",
        option="--list-separator TEXT",
    )
    skip_bad: bool = setting(
        False,
        "Leave out, count and list bad rows (malformed, without id or text, with a repeated id, "
        "links to unknown nodes) instead of stopping at the first.",
        option="--skip-bad",
    )
    bad_rows: str | Path | None = setting(
        None,
        "List all bad rows that are left out in this .jsonl file, with file, line, reason and "
        "detail.",
        option="--bad-rows FILE",
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
        is_dict = isinstance(self.columns, Mapping) and all(
            isinstance(word, str) for pair in self.columns.items() for word in pair
        )
        expected = "a dict of names, such as {'text': 'title'} or {'text': 'title,abstract'}"
        require(self, is_dict, "columns", expected)
        known = "an encoding that Python knows, such as cp1252, latin-1, utf-16 or gb18030"
        require(self, _is_encoding(self.encoding), "encoding", known)
        # Python has several names for each encoding. A byte order mark is left out in any case.
        if codecs.lookup(self.encoding).name in ("utf-8", "utf-8-sig"):
            object.__setattr__(self, "encoding", "utf-8")
        if self.bad_rows is not None:
            is_jsonl = str(self.bad_rows).endswith(".jsonl")
            require(self, is_jsonl, "bad_rows", "a name that ends in .jsonl")
            if not self.skip_bad:
                raise GraphFormersError(
                    f"{self.usage(bad_rows=self.bad_rows)} given without "
                    f"{self.usage(skip_bad=True)}, which leaves out rows"
                )
        require(self, self.list_separator != "", "list_separator", "a character or more")
        used = find_format(self.format).settings
        for name in (*TABLES, *TEXT, *VIEWS):
            value = getattr(self, name)
            if name not in used and value != getattr(ImportSettings, name, {}):
                raise GraphFormersError(
                    f"{self.usage(**{name: value})} given, but the format {self.format!r} "
                    f"does not use it"
                )
        unknown = sorted(set(self.columns) - set(ROLES))
        if unknown:
            role, name = unknown[0], self.columns[unknown[0]]
            given = self.usage(columns={role: name})
            near = get_close_matches(role, ROLES, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            if name in ROLES:
                hint = f"; did you mean {self.usage(columns={name: role})}?"
            raise GraphFormersError(
                f"{given} given, but there is no column role {role!r}; there are: "
                f"{', '.join(ROLES)}{hint}"
            )
        keep: object = self.keep
        is_list = keep is None or (
            isinstance(keep, list | tuple) and all(isinstance(name, str) for name in keep)
        )
        names = [name.strip() for name in str(self.keep).split(",")]
        require(self, is_list, "keep", f"a list of columns: keep={names}")

    @property
    def row_bytes(self) -> int:
        """The number of bytes that one row may hold."""
        return int(self.max_row * 1e6)

    def remembered(self) -> dict[str, object]:
        """The settings that a graph saves, so that updates read tables in the same way.

        The encoding is not among them: text in another one would be read without an error.

        Returns:
            The settings that differ from the defaults.
        """
        roles = ("id", "text", "src", "dst", "type", "links")
        remembered = (*TABLES, "keep_empty", *LIMITS)
        found: dict[str, object] = {name: getattr(self, name) for name in remembered}
        found["columns"] = {role: self.columns[role] for role in self.columns if role in roles}
        usual = ImportSettings()
        return {name: value for name, value in found.items() if value != getattr(usual, name)}


def _is_encoding(name: str) -> bool:
    """Whether text of an encoding can be converted piece by piece."""
    try:
        # Codecs that are no encodings of text do not know how to go on after errors.
        decoder = codecs.getincrementaldecoder(name)("backslashreplace")
        return isinstance(decoder.decode(b"a", final=True), str)
    except (LookupError, UnicodeError, AssertionError, ValueError, TypeError):
        return False


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
    # is never guessed: ids that a column lists may be of anything
    "links": (),
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


def require_columns(
    roles: Sequence[str], names: list[str], settings: ImportSettings, path: Path
) -> list[str]:
    """The column of each role.

    Raises:
        InputError: Some are missing; the message names all of them.
    """
    found = [guess_column(role, names, settings) for role in roles]
    missing = [role for role, name in zip(roles, found, strict=True) if name is None]
    if missing:
        raise missing_columns({role: settings.columns.get(role) for role in missing}, names, path)
    return [name for name in found if name is not None]


def missing_columns(missing: Mapping[str, str | None], names: list[str], path: Path) -> InputError:
    """An error that names all columns that are missing, and how the user can name them.

    Args:
        missing: The roles, each with the name that the user gave, if any.
        names: The columns that there are.
        path: The file.
    """
    looked_for, proposed = list[str](), dict[str, str]()
    for role, given in missing.items():
        free = [name for name in names if name not in proposed.values()]
        if given is None:
            looked_for.append(f"{role} (looked for {' or '.join(ROLES[role][:3])})")
            proposed[role] = _nearest_column(role, free) or "NAME"
            continue
        # Of several columns, only some may be missing.
        absent, parts = list[str](), list[str]()
        for part in map(str.strip, given.split(",")):
            name, colon, kind = part.rpartition(":") if role == "links" else (part, "", "")
            if part in names or name in names:
                parts.append(part)
                continue
            absent.append(name or part)
            near = get_close_matches(name or part, names, 1)
            parts.append((near[0] if near else "NAME") + (colon + kind if name else ""))
        looked_for.append(f"{role} (looked for {' and '.join(absent)})")
        proposed[role] = ",".join(parts)
    # Of two columns of links, one is the source and the other one is the target.
    if len(names) == 2 and {"src", "dst"} <= set(missing):
        for role in [role for role in ("src", "dst") if proposed[role] == "NAME"]:
            free = [name for name in names if name not in proposed.values()]
            proposed[role] = free[0] if free else "NAME"
    words = "it" if len(missing) == 1 else "them"
    # Tables in memory are called nodes and edges.
    is_file = path.is_absolute() or path.suffix != ""
    message = (
        f"{path}{':1' if is_file else ''}: no column for {' and '.join(looked_for)} among: "
        f"{', '.join(names)}; name {words} with {ImportSettings.usage(columns=proposed)}"
    )
    return InputError(message + (_other_advice(proposed, names, path) if is_file else ""))


def _other_advice(proposed: Mapping[str, str], names: list[str], path: Path) -> str:
    """What a file may be instead, if columns of it are missing.

    Args:
        proposed: The roles that are missing, each with the column that is probably meant, or NAME.
        names: The columns that there are.
        path: The file.
    """
    usual, ends, contents = ImportSettings(), {"src", "dst"}, {"id", "text"}
    missing = set(proposed)
    if "nodes" in names and {"edges", "links"} & set(names):
        return (
            "; is it a graph of networkx? In Python, networkx.node_link_graph reads its JSON, and "
            "from_networkx converts it"
        )
    if contents <= missing and all(columns_for(role, names, usual) for role in ends):
        return f"; if its rows are links, {usage('edges', path)}"
    if ends <= missing and all(columns_for(role, names, usual) for role in contents):
        return f"; is it a table of nodes? {usage('nodes', path)}"
    is_delimited = not path.suffix or bool({".csv", ".tsv", ".txt"} & set(path.suffixes))
    if len(names) == 1:
        asked = (
            "; is it one column? commas, tabs, semicolons and bars separate fields; lines before "
            "the header must be removed"
        )
        return asked if is_delimited else ""
    numbers = [str(i + 1) for i in range(len(names))]
    # Names of columns rarely have digits or three words.
    like_data = [name for name in names if re.search(r"\d|\s\S+\s", name)]
    if is_delimited and like_data and names != numbers:
        nodes = ImportSettings.usage(header=False, columns={"id": "1", "text": "2"})
        links = ImportSettings.usage(columns={"src": "1", "dst": "2"})
        is_unnamed = set(like_data) <= set(numbers)
        numbered = " (a column without a name is called by its number)" if is_unnamed else ""
        return f"{numbered}; or, if the first line is data, {nodes} (of links: {links})"
    # Objects and their fields are no ids. A table of links has few columns, and none of texts.
    outer = {name.rpartition(".")[0] for name in names}
    ids = [name for name in names if "." not in name and name not in outer]
    is_small = "id" in missing or len(names) <= 3
    if len(ids) > 1 and is_small and proposed.get("text") == "NAME":
        links = ImportSettings.usage(columns={"src": ids[0], "dst": ids[1]})
        return f"; or, if the rows are links, {links}"
    return ""


def _nearest_column(role: str, names: list[str]) -> str | None:
    """The column that is probably meant for a role."""
    words = set(ROLES[role])
    # Columns without names are called by their numbers, and ids and sources come first.
    if names and names[0] in ("1", "2"):
        return names[0]
    for name in names:
        # such as paper_id, paperId and "Paper id"
        parts = re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower()
        if words & set(re.split(r"[^a-z0-9]+", parts)):
            return name
    near = [get_close_matches(word, names, 1, cutoff=0.75) for word in ROLES[role]]
    return next((found[0] for found in near if found), None)
