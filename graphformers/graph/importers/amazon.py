"""SNAP's amazon-meta.txt: titles of products, linked to the products listed as similar.

Discontinued products have no title and are left out. Similar products outside the file are normal.
"""

from collections.abc import Sequence

from graphformers.graph.builder import GraphBuilder
from graphformers.graph.importers.records import Records
from graphformers.graph.importers.sources import Source
from graphformers.graph.settings import ImportSettings

WANTED = ("ASIN", "title", "group", "salesrank", "similar")


def read(files: Sequence[Source], builder: GraphBuilder, settings: ImportSettings) -> None:
    for source in files:
        with Records(builder, source.path, ["group", "salesrank"]) as records:
            product: dict[str, str] = {}
            start = 0
            for line, text in records.lines(settings):
                key, colon, value = text.strip().partition(":")
                is_comment = text.startswith("#") or key == "Total items"
                if key == "Id" and colon:
                    _finish(start, product, builder, records)
                    product, start = {"Id": value.strip()}, line
                elif key in WANTED and colon and key not in product:
                    product[key] = value.strip()
                elif key == "discontinued product":
                    product["discontinued"] = key
                elif text.strip() and not (product or is_comment):
                    expected = "a product that starts with 'Id:'"
                    records.reject(line, f"{text[:60]!r}, expected {expected}")
            _finish(start, product, builder, records)


def _finish(line: int, product: dict[str, str], builder: GraphBuilder, records: Records) -> None:
    if not product:
        return
    if "ASIN" not in product:
        records.reject(line, f"product {product['Id']!r} has no ASIN, expected a line 'ASIN: …'")
    elif "discontinued" in product:
        builder.problems.normal["discontinued products"] += 1
    else:
        id, rank = product["ASIN"], product.get("salesrank", "")
        sales_rank = int(rank) if rank.isdigit() else None
        records.add_node(line, id, product.get("title"), product.get("group"), sales_rank)
        for similar in product.get("similar", "").split()[1:]:
            records.add_edge(line, id, similar, "similar")
