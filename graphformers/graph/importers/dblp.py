"""dblp.v12.json, the citation graph of the paper: a JSON array with one record per line.

The file has 12 GB and is read line by line. The text is the title; an edge runs from a paper to
each paper that it cites. Citations of papers outside the file are normal.
"""

from collections.abc import Sequence

from graphformers.graph.builder import GraphBuilder
from graphformers.graph.importers.records import Records
from graphformers.graph.importers.sources import Source
from graphformers.graph.settings import ImportSettings


def read(files: Sequence[Source], builder: GraphBuilder, settings: ImportSettings) -> None:
    import msgspec

    class Paper(msgspec.Struct):
        """The fields that are read; the decoder skips all others."""

        id: int | str
        title: str | None = None
        year: int | None = None
        references: list[int | str] | None = None

    decoder = msgspec.json.Decoder(Paper)
    for source in files:
        with Records(builder, source.path, ["year"]) as records:
            for line, text in records.lines(settings):
                record = text.strip().strip(",")
                if record in ("", "[", "]"):
                    continue
                try:
                    paper = decoder.decode(record)
                except msgspec.DecodeError as error:
                    expected = 'a record {"id": …, "title": …, "references": […]}, one per line'
                    records.reject(line, f"{error}; found {record[:60]!r}, expected {expected}")
                    continue
                records.add_node(line, str(paper.id), paper.title, paper.year)
                for reference in paper.references or []:
                    records.add_edge(line, str(paper.id), str(reference))
