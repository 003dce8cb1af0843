"""SNAP's amazon-meta.txt: products with their titles, linked to the products that Amazon called
similar.

Discontinued products have no title and are left aside; similar products outside the file are
normal.
"""

from pathlib import Path

from graphformers.data.builder import GraphBuilder
from graphformers.data.records import Records
from graphformers.data.settings import ImportSettings
from graphformers.data.sources import read_lines

WANTED = ("ASIN", "title", "group", "salesrank", "similar")


def read(
    nodes: list[Path], edges: list[Path], builder: GraphBuilder, settings: ImportSettings
) -> None:
    for path in nodes + edges:
        with Records(builder, path, ["group", "salesrank"]) as records:
            product: dict[str, str] = {}
            start = 0
            for line, text in read_lines(path, builder.problems):
                key, colon, value = text.strip().partition(":")
                if key == "Id" and colon:
                    _finish(path, start, product, builder, records)
                    product, start = {"Id": value.strip()}, line
                elif key in WANTED and colon and key not in product:
                    product[key] = value.strip()
                elif key == "discontinued product":
                    product["discontinued"] = key
                elif (
                    not product
                    and text.strip()
                    and not text.startswith("#")
                    and key != "Total items"
                ):
                    expected = "a product that starts with 'Id:'"
                    builder.problems.add(
                        "malformed row", path, line, f"{text[:60]!r}, expected {expected}"
                    )
            _finish(path, start, product, builder, records)


def _finish(
    path: Path, line: int, product: dict[str, str], builder: GraphBuilder, records: Records
) -> None:
    if not product:
        return
    if "ASIN" not in product:
        builder.problems.add(
            "malformed row",
            path,
            line,
            f"product {product['Id']!r} has no ASIN, expected a line 'ASIN: …'",
        )
    elif "discontinued" in product:
        builder.problems.normal["discontinued products"] += 1
    else:
        rank = product.get("salesrank", "")
        records.add_node(
            line,
            product["ASIN"],
            product.get("title"),
            product.get("group"),
            int(rank) if rank.isdigit() else None,
        )
        for similar in product.get("similar", "").split()[1:]:
            records.add_edge(line, product["ASIN"], similar, "similar")
