"""The TSV of the 2021 code: one linked pair per line, each side its text and its neighbours' texts.

    text|'|neighbour|'|neighbour<TAB>text|'|neighbour

The format has no node ids: equal texts become one node, whose id is a hash of the text.
"""

from collections.abc import Sequence

from graphformers.arrays import hash_strings
from graphformers.graph.builder import GraphBuilder
from graphformers.graph.importers.records import Records
from graphformers.graph.importers.sources import Source
from graphformers.graph.settings import ImportSettings

SEPARATOR = "|'|"


def text_id(text: str) -> str:
    """The id of a text: its hash, as 16 hexadecimal digits."""
    return f"{int(hash_strings([text])[0]):016x}"


def read(files: Sequence[Source], builder: GraphBuilder, settings: ImportSettings) -> None:
    ids: dict[str, str] = {}
    for source in files:
        with Records(builder, source.path) as records:
            for line, row in records.lines(settings):
                if not row.strip():
                    continue
                sides = [
                    [text.strip() for text in side.split(SEPARATOR)] for side in row.split("\t")
                ]
                if len(sides) != 2:
                    expected = (
                        f"two sides separated by a tab, each text{SEPARATOR}neighbour{SEPARATOR}…"
                    )
                    records.reject(line, f"{len(sides)} sides ({row[:60]!r}), expected {expected}")
                    continue
                if not (sides[0][0] and sides[1][0]):
                    detail = "one of the two texts is empty, expected some words"
                    records.reject(line, detail, "empty text")
                    continue
                for text in (text for side in sides for text in side if text and text not in ids):
                    ids[text] = text_id(text)
                    records.add_node(line, ids[text], text)
                records.add_edge(line, ids[sides[0][0]], ids[sides[1][0]], "pair")
                for center, *neighbors in sides:
                    for neighbor in filter(None, neighbors):
                        records.add_edge(line, ids[center], ids[neighbor], "neighbor")
