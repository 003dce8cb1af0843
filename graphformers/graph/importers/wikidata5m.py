"""Wikidata5M, the entity graph of the paper.

Files without headers hold `id<TAB>text` or `head<TAB>relation<TAB>tail`; the number of fields of
their first line distinguishes them. The first sentence of a text is the node's text.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from graphformers.errors import InputError
from graphformers.graph.builder import GraphBuilder
from graphformers.graph.importers.records import Records
from graphformers.graph.importers.sources import Source, read_lines
from graphformers.graph.problems import Problems
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
    widths = {source.path: _num_fields(source.path, settings) for source in files}
    for wanted in (2, 3):
        for path in (path for path, width in widths.items() if width == wanted):
            with Records(builder, path) as records:
                _read_file(records, wanted)
        if wanted == 2:
            builder.seal_nodes()


def _read_file(records: Records, width: int) -> None:
    expected = "id<TAB>text" if width == 2 else "head<TAB>relation<TAB>tail"
    for line, text in records.lines():
        fields = text.split("\t", 1) if width == 2 else text.split("\t")
        if not text:
            continue
        if len(fields) != width:
            records.reject(line, f"{len(fields)} fields ({text[:60]!r}), expected {expected}")
        elif width == 2:
            records.add_node(line, fields[0], first_sentence(fields[1]))
        else:
            records.add_edge(line, fields[0], fields[2], fields[1])


def _num_fields(path: Path, settings: ImportSettings) -> int:
    """The number of fields of the first line; with --skip-bad of the first valid one."""
    for line, text in read_lines(path, Problems(strict=not settings.skip_bad)):
        width = text.count("\t") + 1
        if width in (2, 3):
            return width
        if text and not settings.skip_bad:
            raise InputError(
                f"{path}:{line}: {width} fields separated by tabs, expected 2 (id, text) or 3 "
                f"(head, relation, tail)"
            )
    raise InputError(f"{path}: no rows, expected id<TAB>text or head<TAB>relation<TAB>tail lines")
