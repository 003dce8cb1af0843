"""Wikidata5M, the entity graph of the paper.

Files without headers hold `id<TAB>text` or `head<TAB>relation<TAB>tail`; the number of fields of
their first line distinguishes them. The first sentence of a text is the node's text.
"""

import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from graphformers.errors import InputError
from graphformers.graph.builder import GraphBuilder
from graphformers.graph.importers.records import Records
from graphformers.graph.importers.sources import Source
from graphformers.graph.settings import ImportSettings

# A sentence ends at . ! ? (with closing quotes or brackets) before a space and a character that can
# start a sentence, unless the full stop belongs to an initial or an abbreviation.
_END = re.compile(r"[.!?][\"')\]]*(?=\s+[\"'(\[]*[A-Z0-9À-ÖØ-Þ])")
_NO_END = re.compile(
    r"(?:\b[A-Za-z]|\b(?:Mr|Mrs|Ms|Dr|Prof|Rev|Gen|Col|Lt|Sgt|Capt|Sen|Rep|Gov|Hon|St|Ste|Mt|Ft|Jr|Sr|vs|etc|approx|ca|cf|fl|resp"
    r"|No|Nos|Vol|Inc|Ltd|Co|Corp|Bros|lit|trans|born|ed|eds|pp|op|est|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec|[A-Z]\.[A-Z]))\.$"
)


def first_sentence(text: str) -> str:
    """The first sentence of a paragraph; the whole paragraph if no end is found."""
    for match in _END.finditer(text):
        sentence = text[: match.end()]
        if sentence[-1] != "." or not _NO_END.search(sentence):
            return sentence
    return text


def read(files: Sequence[Source], builder: GraphBuilder, settings: ImportSettings) -> None:
    opened = [_Opened(source.path, builder, settings) for source in files]
    for width in (2, 3):
        for file in opened:
            if file.width == width:
                file.read()
        if width == 2:
            builder.seal_nodes()


class _Opened:
    """A file whose first lines were read, up to one that tells how many fields its lines have."""

    def __init__(self, path: Path, builder: GraphBuilder, settings: ImportSettings) -> None:
        self._records = Records(builder, path)
        lines = self._records.lines(settings)
        ahead = []
        self.width = 0
        for line, text in lines:
            ahead.append((line, text))
            width = text.count("\t") + 1
            if width in (2, 3):
                self.width = width
                break
            if text and not settings.skip_bad:
                raise InputError(
                    f"{path}:{line}: {width} fields separated by tabs, expected 2 (id, text) or 3 "
                    f"(head, relation, tail)"
                )
        if not self.width:
            raise InputError(
                f"{path}: no rows, expected id<TAB>text or head<TAB>relation<TAB>tail lines"
            )
        self._lines = chain(ahead, lines)

    def read(self) -> None:
        """Adds the rows to the builder."""
        expected = "id<TAB>text" if self.width == 2 else "head<TAB>relation<TAB>tail"
        with self._records as records:
            for line, text in self._lines:
                fields = text.split("\t", 1) if self.width == 2 else text.split("\t")
                if not text:
                    continue
                if len(fields) != self.width:
                    detail = f"{len(fields)} fields ({text[:60]!r}), expected {expected}"
                    records.reject(line, detail)
                elif self.width == 2:
                    records.add_node(line, fields[0], first_sentence(fields[1]))
                else:
                    records.add_edge(line, fields[0], fields[2], fields[1])
