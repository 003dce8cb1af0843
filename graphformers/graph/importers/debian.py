"""Debian Packages files: descriptions, linked by Depends, Recommends and Suggests.

Several versions of a package are normal: the first one is read. Dependencies outside the file and
on virtual packages are normal as well.
"""

from collections.abc import Iterator, Sequence

from graphformers.graph.builder import GraphBuilder
from graphformers.graph.importers.records import Records
from graphformers.graph.importers.sources import Source
from graphformers.graph.settings import ImportSettings

RELATIONS = {
    "pre-depends": "depends",
    "depends": "depends",
    "recommends": "recommends",
    "suggests": "suggests",
}


def read(files: Sequence[Source], builder: GraphBuilder, settings: ImportSettings) -> None:
    seen: set[str] = set()
    for source in files:
        with Records(builder, source.path, ["section"]) as records:
            for line, stanza in _stanzas(records, settings):
                package = stanza.get("package", "")
                if not package:
                    records.reject(
                        line, "a stanza without a Package field, expected 'Package: name'"
                    )
                elif package in seen:
                    builder.problems.normal["further versions of a package"] += 1
                else:
                    seen.add(package)
                    records.add_node(
                        line, package, stanza.get("description"), stanza.get("section")
                    )
                    for relation, type in RELATIONS.items():
                        for target in dependencies(stanza.get(relation, "")):
                            records.add_edge(line, package, target, type)


def dependencies(field: str) -> list[str]:
    """The distinct package names of a dependency field: "a (>= 1), b:any | c" gives a, b, c."""
    alternatives = (name for group in field.split(",") for name in group.split("|"))
    names = (
        alternative.split("(")[0].split("[")[0].split("<")[0].strip().split(":")[0]
        for alternative in alternatives
    )
    return list(dict.fromkeys(name for name in names if name))


def _stanzas(records: Records, settings: ImportSettings) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields (first line, fields by lower-case name); continuation lines are joined with spaces."""
    stanza: dict[str, str] = {}
    start, field = 1, ""
    for line, text in records.lines(settings):
        if not text.strip():
            if stanza:
                yield start, stanza
            stanza, field = {}, ""
            continue
        if not stanza:
            start = line
        if text[0] in " \t":
            if field:
                stanza[field] += " " + text.strip().removeprefix(".")
            continue
        name, colon, value = text.partition(":")
        if not colon:
            records.reject(line, f"{text[:60]!r}, expected 'Field: value'")
            continue
        field = name.strip().lower()
        stanza[field] = value.strip()
    if stanza:
        yield start, stanza
