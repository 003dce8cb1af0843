"""Writes docs/benchmarks.md from results/*.json."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "results"
# folders of results/tables, and how their graphs are called
GRAPHS = {
    "arxiv9196": "arXiv 1991–96",
    "wordnet30": "WordNet 3.0",
    "debian_src": "Debian's packages",
    "fb15k237": "Freebase, FB15k-237",
}
HEAD = """# Benchmarks

Made from `results/*.json` by `make docs`. Each section names the file and the command that wrote
it; the scripts are in `benchmarks/`. Figures of a GPU are of one NVIDIA H200 with bfloat16, those
of a CPU of two cores with float32. Every figure is of one run, unless it says otherwise."""


def benchmarks_page() -> str:
    """The whole page."""
    sections = [
        _links,
        _seeds,
        _training,
        _embedding,
        _updates,
        _encoding,
        _search,
        _server,
        _scale,
    ]
    return "\n\n".join([HEAD, *(section() for section in sections)]) + "\n"


def result(name: str) -> Any:
    """A file of results."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    lines = [list(header), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def source(name: str, *commands: str) -> str:
    """The line that says where figures come from."""
    made = ", ".join(f"`{command}`" for command in commands)
    return f"File: `results/{name}`. Command: {made}."


def share(value: float) -> str:
    """A metric between 0 and 1."""
    return f"{value:.3f}".lstrip("0")


def _links() -> str:
    rows = []
    for folder, title in GRAPHS.items():
        trained = result(f"tables/{folder}/overall")["trained"].values()
        values = {each["title"]: each["asked"]["P@1"]["value"] for each in trained}
        best = max(values.values())
        cells = [f"**{share(v)}**" if v == best else share(v) for v in values.values()]
        rows.append([title, *cells])
    return f"""## Link prediction

P@1: the share of questions in which the true neighbour is ranked first among 300 candidates. All
methods have the same backbone (MiniLM), five neighbours, batches of 512 pairs and 400 steps, half
of them on masked text. Means of three seeds. PLM encodes texts alone; TNVE and IFTN have a trained
vector for each node; PLM+GAT to PLM+Att combine encoded texts by a graph layer afterwards.

{table(["P@1", *values], rows)}

{source("tables/*/overall.json", "python benchmarks/tables.py")}"""


def _seeds() -> str:
    rows = [
        [f"{run['steps']:,}", share(run["mean"]["graphformers"]), share(run["mean"]["max"])]
        for run in result("arxiv9196_seeds")["runs"]
    ]
    commands = result("arxiv9196_seeds")["runs"][0]["commands"]
    return f"""### More neighbours and steps

P@1 on arXiv titles with the recipe `minilm`: 20 neighbours, two stages. Means of three seeds.

{table(["steps", "GraphFormers", "PLM+Max"], rows)}

{source("arxiv9196_seeds.json", *commands)}"""


def _training() -> str:
    found = result("train_h200")
    rows = []
    for row in found["result"]:
        if row["shape"] == "base":
            theirs = row["reference"]
            rows.append(
                [
                    f"{row['graph']}, {row['tokens_per_text']:.0f} tokens a text",
                    f"{row['pairs_per_s']:,.0f}",
                    f"{row['peak_gib']:.1f} GiB",
                    f"{theirs['pairs_per_s']:,.0f}",
                    f"{theirs['peak_gib']:.1f} GiB",
                    f"{row['times_reference']:.1f} ×",
                ]
            )
    header = ["graph", "pairs/s", "memory", "2021 code, pairs/s", "memory", "ratio"]
    small = next(row for row in found["result"] if row["shape"] == "small")
    return f"""## Training

Optimizer steps of 240 pairs with five neighbours each, BERT-base's shape, gradients through the
neighbours, all parameters trained, on one H200, beside microsoft/GraphFormers in the same run.

{table(header, rows)}

With MiniLM's shape and batches of 512 pairs, {small["graph"]} takes {small["ms_per_step"]:.0f} ms a
step: {small["pairs_per_s"]:,.0f} pairs/s.

{source("train_h200.json", found["commands"]["result"])}"""


def _embedding() -> str:
    found = result("embed_h200")
    rows = []
    for words, part, variant in (
        ("1 million titles, states in GPU memory", "one million", "memory"),
        ("1 million titles, states also written to disk", "one million", "written"),
        ("1 million titles, states on disk, read back from there", "one million", "disk"),
        ("5 million titles, states in GPU memory", "five million", "memory"),
    ):
        row = found[part][variant]
        rows.append([words, f"{row['nodes_per_s']:,.0f}", f"{100 * row['share_of_ceiling']:.0f} %"])
    saved = [
        [str(row["neighbours"]), f"{row['times_faster']:.1f} ×"]
        for row in found["with and without states"]["neighbours"]
    ]
    beside = result("embed_cpu")
    cpu = beside["result"]
    cpu_rows = [
        ["sentence-transformers, texts alone", f"{cpu['sentence_transformers_nodes_per_s']:.0f}"],
        ["graphformers, texts alone", f"{cpu['plain_states_nodes_per_s']:.0f}"],
        ["graphformers, five neighbours each", f"{cpu['graph_vectors_nodes_per_s']:.0f}"],
    ]
    return f"""## Embedding

From a graph folder with tokenised texts to a folder of vectors: BERT-base's shape, five neighbours
a node, one H200. The right column compares with a large matrix product on the same GPU.

{table(["", "nodes/s", "of the matrix product"], rows)}

Each text is encoded once, and its layer states are cached. How much faster that is than encoding
the distinct neighbours of each batch again, on 150,000 titles with 127 links each:

{table(["neighbours", "times faster"], saved)}

{source("embed_h200.json", *found["commands"].values())}

On two CPU cores, MiniLM, {cpu["nodes"]:,} titles, from text to vectors:

{table(["", "nodes/s"], cpu_rows)}

{source("embed_cpu.json", beside["command"])}"""


def _updates() -> str:
    found = result("embed_update")
    row = found["result"]
    rows = [
        ["the whole graph", f"{row['full_forwards']:,}", f"{row['full_s']:.0f} s"],
        [f"{row['added']} new papers", f"{row['update_forwards']:,}", f"{row['update_s']:.1f} s"],
    ]
    return f"""### Updates

{row["added"]} papers with {row["links"]} links are added to a graph of {row["nodes"]:,} nodes
(MiniLM, two CPU cores). The vectors are then those of embedding the new graph (cosine at least
{math.floor(1e6 * row["least_cosine_with_scratch"]) / 1e6:.6f}).

{table(["embedded", "forward passes", "time"], rows)}

{source("embed_update.json", found["command"])}"""


def _encoding() -> str:
    found = result("encode_h200")
    encode = found["result"]
    padding = [
        [
            words,
            *(f"{encode['padding'][name][key]:,.0f}" for key in ("nodes_per_s", "useful_tflops")),
        ]
        for words, name in (
            ("several texts packed into each row", "packed"),
            ("padded to the longest text of the batch", "padded"),
            ("sorted by length, then padded", "sorted"),
        )
    ]
    counts = [row["neighbours"] for row in encode["table_5"]]
    steps = [
        [title, *(f"{row[f'{name}_graph_ms']:.3g}" for row in encode["table_5"])]
        for title, name in (("GraphFormers", "graphformers"), ("PLM+Max", "max"))
    ]
    return f"""## Encoding

Texts of 16 tokens without neighbours, BERT-base's shape, one H200. A large matrix product reaches
{encode["ceiling_tflops"]:.0f} TFLOP/s there. Work on padding does not count.

{table(["texts", "nodes/s", "TFLOP/s"], padding)}

The paper's Table 5: 32 nodes with their neighbours, 16 tokens each, nothing cached. Milliseconds of
GPU time, replayed as a CUDA graph, so that the time of launching kernels does not count.

{table(["neighbours", *map(str, counts)], steps)}

{source("encode_h200.json", found["commands"]["result"])} `results/encode_cpu.json` has the same for
two CPU cores."""


def _search() -> str:
    found = result("search")
    rows = []
    for row in found["result"]:
        chosen = next(each for each in row["widths"] if each["width"] == row["chosen_width"])
        rows.append(
            [
                f"{row['vectors']:,}",
                share(chosen["recall@10"]),
                f"{chosen['queries_per_s_one_by_one']:,.0f}",
                f"{row['index_gb']:.2f} GB",
                f"{row['build_s']:,.0f} s",
            ]
        )
    ranking, on_gpu = result("ranking"), result("ranking_h200")
    ranked = [
        [
            device,
            *(f"{value:,}" for value in (row["anchors"], row["nodes"])),
            f"{row['ranking_s']:.0f} s",
        ]
        for device, row in (("two CPU cores", ranking["result"]), ("H200", on_gpu["result"]))
    ]
    return f"""## Search

Vectors of {rows[0][0]} arXiv titles, and a million vectors grown from them, on two CPU cores. The
index is usearch's, with one byte a number; queries come one after the other.

{table(["vectors", "recall@10", "queries/s", "index", "built in"], rows)}

{source("search.json", *found["commands"])}

Ranking all nodes for each question, as `evaluate --protocol full` does:

{table(["", "questions", "nodes", "time"], ranked)}

{source("ranking.json", ranking["command"])} On the GPU: `results/ranking_h200.json`."""


def _server() -> str:
    found = result("serve")
    rows = []
    for kind, words in (("id", "search by id"), ("text", "search by text")):
        row = found["result"][kind]["answers"][kind]
        times = [f"{row[key]:.0f} ms" for key in ("p50_ms", "p99_ms")]
        rows.append([words, f"{row['requests_per_second']:,.0f}", *times])
    result_of = found["result"]
    return f"""## Server

{result_of["clients"]} clients at once, {result_of["nodes"]:,} nodes, MiniLM; server and clients
share two CPU cores. The script also writes, kills the server and looks for each acknowledged write:
none was lost.

{table(["", "requests/s", "median", "99th percentile"], rows)}

{source("serve.json", found["command"])}"""


def _scale() -> str:
    found = result("graph_scale")
    row = found["result"]
    rows = [
        [f"import from CSV ({row['files_gb']:.1f} GB)", f"{row['import_s']:.0f} s"],
        ["its peak memory", f"{row['import_peak_gb']:.1f} GB"],
        ["opening the graph", f"{1000 * row['load_s']:.0f} ms"],
        ["sampling 5 neighbours of 4,096 nodes", f"{row['sample_4096x5_ms_median']:.1f} ms"],
        ["tokenising", f"{row['tokenise_texts_per_s']:,.0f} texts/s"],
    ]
    return f"""## Large graphs

{row["nodes"]:,} titles and {row["edges"]:,} links on two CPU cores.

{table(["", "measured"], rows)}

{source("graph_scale.json", found["command"])}"""
