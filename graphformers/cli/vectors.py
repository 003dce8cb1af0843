"""Commands on vectors: embed, update, export, search, serve."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from graphformers.cli.command import UsageError, argument, command, given, option, split_list
from graphformers.cli.options import AS_JSON, DEVICE, FORCE, GRAPH, MOVED_MODEL, OUTPUT, VECTORS
from graphformers.cli.output import show_result
from graphformers.embedding.settings import Cluster, EmbedSettings
from graphformers.graph.formats import LIMITS, TABLES, TEXT
from graphformers.graph.settings import ImportSettings
from graphformers.serve.settings import Limits, ServeSettings, read_token

# default limit of requests per second and client address, if other machines can reach the server
PUBLIC_RATE = 100.0


@command("embed")
def embed_command(
    *,
    model: Path = argument(..., "MODEL", "A model folder."),
    graph: Path = GRAPH,
    output: Path = OUTPUT,
    settings: EmbedSettings,
    ray: str | None = option(
        None,
        "--ray ADDRESS",
        "Compute on a Ray cluster over a shared folder; local for this machine.",
    ),
    cluster: dict[str, Any] = given(Cluster),
    device: str | None = DEVICE,
    dry_run: bool = option(False, "--dry-run", "Estimate time and disk space; nothing is written."),
    force: bool = FORCE,
    as_json: bool = AS_JSON,
) -> None:
    """Compute the vector of every node. The same command continues a stopped run.

    graphformers embed papers.model papers.graph -o papers.vectors
    """
    from graphformers.embedding.cluster import embed_on_cluster
    from graphformers.embedding.describe import describe_store
    from graphformers.embedding.forecast import forecast
    from graphformers.embedding.job import check_output, embed
    from graphformers.graph.textgraph import TextGraph
    from graphformers.model.encoder import GraphFormers

    if ray is None and cluster:
        name = next(iter(cluster)).replace("_", "-")
        raise UsageError(f"--{name} needs --ray")
    if ray is not None and device is not None:
        raise UsageError(
            "--device given with --ray, where --gpus-per-worker chooses the device; leave it out"
        )
    if ray is not None and dry_run:
        raise UsageError(
            "--dry-run given with --ray, but it measures this machine; leave --ray out"
        )
    workers = None if ray is None else Cluster(ray, **cluster)
    if not dry_run:
        check_output(output, force=force)
    loaded = GraphFormers.from_pretrained(model, device="cpu" if ray else device)
    texts = TextGraph.load(graph)
    if dry_run:
        show_result(forecast(loaded, texts, settings), as_json)
        return
    if workers is None:
        store = embed(loaded, texts, output, settings, force=force)
    else:
        store = embed_on_cluster(loaded, texts, output, settings, workers, force=force)
    show_result(describe_store(store), as_json)


@command("update")
def update_command(
    vectors: Path = VECTORS,
    nodes: Path | None = option(
        None,
        "--nodes FILE",
        "A table of new or changed nodes with their texts; columns that it lacks stay unchanged.",
    ),
    edges: Path | None = option(None, "--edges FILE", "A table of new links."),
    remove: Path | None = option(
        None, "--remove FILE", "Nodes to remove: a table with a column of ids, or an id per line."
    ),
    remove_edges: Path | None = option(
        None,
        "--remove-edges FILE",
        "A table of links to remove: all links of a pair or, with a column of types, those of "
        "a type (empty: without a type).",
    ),
    reading: dict[str, Any] = given(
        ImportSettings, *TABLES, "skip_bad", "keep_empty", *LIMITS, default="as in the import"
    ),
    encoding: dict[str, Any] = given(ImportSettings, *TEXT),
    model: Path | None = MOVED_MODEL,
    device: str | None = DEVICE,
    as_json: bool = AS_JSON,
) -> None:
    """Update vectors after changes of the graph.

    Only vectors that the changes affect are computed. Tables are read as when the graph was
    imported, unless an option says otherwise.

    graphformers update papers.vectors --nodes new.csv --edges links.csv --remove ids.txt
    """
    from graphformers.embedding.update import update

    if not any((nodes, edges, remove, remove_edges)):
        raise UsageError("nothing to change; give --nodes, --edges, --remove or --remove-edges")
    report = update(
        vectors,
        nodes=nodes,
        edges=edges,
        remove=remove,
        remove_edges=remove_edges,
        model=model,
        device=device,
        **reading,
        **encoding,
    )
    show_result(report, as_json, vectors)


@command("export")
def export_command(
    source: Path = argument(..., "FOLDER", "A folder of vectors, or a model."),
    output: Path = option(
        ...,
        "-o, --output PATH",
        "Of vectors: NAME.npy (ids beside it in NAME.ids.txt), .parquet, or .txt. Of a model: a "
        "folder.",
    ),
    force: bool = FORCE,
) -> None:
    """Write vectors or a model in a format of other programs.

    Vectors: a file of NumPy, Parquet or word2vec's text format.

    A model: its text encoder, as a folder of sentence-transformers. It encodes texts as the model
    encodes those without neighbours.

    graphformers export papers.vectors -o papers.parquet

    graphformers export papers.model -o papers.minilm
    """
    from graphformers.artifact import open_artifact
    from graphformers.embedding.vectors import VectorStore

    if open_artifact(source, None, None).kind == "model":
        from graphformers.model.encoder import GraphFormers

        GraphFormers.from_pretrained(source, device="cpu").save_language_model(output, force=force)
        print(f"{output}: a language model for sentence-transformers")
        return
    store = VectorStore.load(source)
    store.export(output, force=force)
    print(f"{output}: {len(store):,} vectors of {store.size} numbers")


@command("copy")
def copy_command(
    source: Path = VECTORS,
    output: Path = argument(..., "COPY", "The folder to write."),
    force: bool = FORCE,
) -> None:
    """Copy vectors, also while a server or an update changes them.

    Every file and every change is compared with its checksum. Other folders do not change, so they
    can be copied as any files.

    graphformers copy papers.vectors backup.vectors
    """
    from graphformers.embedding.copying import copy_store

    store = copy_store(source, output, force=force)
    print(f"{output}: {len(store):,} vectors of {store.size} numbers")


@command("search")
def search_command(
    vectors: Path = VECTORS,
    text: str | None = argument(None, "TEXT", "The text to search for."),
    id: str | None = option(None, "--id ID", "Nodes similar to this one, instead of a text."),
    links: str | None = option(
        None,
        "--links ID",
        "Likely new links of this node, by the model and by common neighbours.",
    ),
    neighbors: list[str] | None = option(
        None,
        "--neighbors IDS...",
        "Nodes to encode with the text as its neighbours: ids separated by commas.",
    ),
    count: int = option(10, "-k NUMBER", "Number of results."),
    where: list[str] | None = option(
        None,
        "--where FILTER...",
        "Only nodes with a matching column: 'year>=1995', venue=ICML, 'venue~neur' (contains), "
        "'year in 1995,1996'. A node must match all filters.",
    ),
    show: list[str] | None = option(
        None, "--show COLUMNS...", "Columns of the results to show, separated by commas."
    ),
    index: str | None = option(
        None,
        "--index NAME",
        "exact compares every vector; usearch finds most of the nearest in an index. By default "
        "exact below 20,000 nodes.",
    ),
    model: Path | None = MOVED_MODEL,
    device: str | None = DEVICE,
    as_json: bool = AS_JSON,
) -> None:
    """Find the nodes nearest to a text or to a node.

    The first search builds the index.

    graphformers search papers.vectors "graph neural networks" -k 10
    """
    from graphformers.model.encoder import GraphFormers
    from graphformers.retrieval.searcher import Searcher

    queries = {"TEXT": text, "--id": id, "--links": links}
    used = [name for name, value in queries.items() if value is not None]
    if len(used) != 1:
        raise UsageError(
            f"{' and '.join(used) or 'nothing'} given, expected one of TEXT, --id, --links"
        )
    if neighbors and text is None:
        raise UsageError("--neighbors given without a text to encode with them")
    if text is not None and not text.strip():
        raise UsageError("an empty text given, expected some words")
    searcher = Searcher(
        vectors,
        None if model is None else GraphFormers.from_pretrained(model, device=device),
        index=index,
        device=device,
        columns=[name for word in show or [] for name in split_list(word)],
    )
    where = where or []
    if text is not None:
        around = []
        for word in neighbors or []:
            # An id may contain commas.
            around += [word] if word in searcher.store else split_list(word)
        found = searcher.text(text, count, neighbors=around, where=where)
    elif id is not None:
        found = searcher.similar(id, count, where=where)
    else:
        found = searcher.links(str(links), count, where=where)
    show_result(found, as_json)


@command("serve")
def serve_command(
    vectors: Path = VECTORS,
    model: Path | None = MOVED_MODEL,
    settings: dict[str, Any] = given(ServeSettings),
    rate: dict[str, Any] = given(
        Limits, "rate", default=f"{PUBLIC_RATE:g}, or any number on 127.0.0.1"
    ),
    columns: dict[str, Any] = given(Limits, "max_columns"),
    token_file: Path | None = option(
        None,
        "--token-file FILE",
        "File with the token that writing needs; by default the variable GRAPHFORMERS_TOKEN.",
    ),
    read_token_file: Path | None = option(
        None,
        "--read-token-file FILE",
        "File with the token that reading needs; by default the variable "
        "GRAPHFORMERS_READ_TOKEN. The server is then read-only, unless there is a token for "
        "writing.",
    ),
    device: str | None = DEVICE,
) -> None:
    """Serve vectors over HTTP, with a web page to search in.

    Clients search, compute embeddings and change the graph.

    Without tokens, changes are accepted from this machine only. A server is read-only if it has no
    token and other machines can reach it, directly or through a proxy, or if it has a token for
    reading and none for writing. Tokens are sent unencrypted, so use a proxy with TLS on networks
    that you do not control. While a server accepts changes, no other process can change the folder;
    a read-only server serves the folder as it was at the start.

    graphformers serve papers.vectors --port 8000
    """
    # Set before torch and numpy are imported, so that their threads sleep instead of spinning while
    # they wait for each other.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    server = ServeSettings(
        vectors,
        model,
        device=device,
        write_token=read_token(token_file, os.environ.get("GRAPHFORMERS_TOKEN"), "writing"),
        read_token=read_token(
            read_token_file, os.environ.get("GRAPHFORMERS_READ_TOKEN"), "reading"
        ),
        **settings,
    )
    if not server.is_loopback:
        rate = {"rate": PUBLIC_RATE} | rate
    try:
        from graphformers.serve.startup import serve
    except ImportError as error:
        from graphformers.errors import MissingExtraError

        raise MissingExtraError(error.name or "uvicorn", "the server", "serve") from error
    serve(
        replace(server, limits=Limits(**rate, **columns)),
        lambda address: print(f"serving {vectors} at {address}", flush=True),
    )
