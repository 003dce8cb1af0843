"""Commands on vectors: embed, update, export, search, serve."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphformers.cli.options import (
    AsJson,
    Device,
    Force,
    MovedModel,
    Neighbors,
    Output,
    Vectors,
    app,
    listed,
    parse_column,
    setting_help,
)
from graphformers.cli.output import show_result
from graphformers.data.settings import ImportSettings
from graphformers.embedding.settings import Cluster, EmbedSettings
from graphformers.serve.settings import Limits, ServeSettings, read_token

if TYPE_CHECKING:
    from graphformers.model.encoder import GraphFormers


def _moved(model: Path | None, device: str | None) -> "GraphFormers | None":
    """The model given with --model; None where none was given."""
    from graphformers.model.encoder import GraphFormers

    return None if model is None else GraphFormers.from_pretrained(model, device=device)


@app.command("embed")
def embed_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder.")],
    graph: Annotated[Path, typer.Argument(metavar="GRAPH", help="A graph folder.")],
    output: Output,
    precision: Annotated[
        str, typer.Option(metavar="NAME", help=setting_help(EmbedSettings, "precision"))
    ] = "float32",
    states_precision: Annotated[
        str, typer.Option(metavar="NAME", help=setting_help(EmbedSettings, "states_precision"))
    ] = "float16",
    keep_states: Annotated[
        bool,
        typer.Option(help=setting_help(EmbedSettings, "keep_states")),
    ] = True,
    states: Annotated[
        str,
        typer.Option(
            metavar="WHERE",
            help=setting_help(EmbedSettings, "states"),
        ),
    ] = "auto",
    neighbors: Neighbors = None,
    shard_size: Annotated[
        int | None,
        typer.Option(metavar="NUMBER", help=setting_help(EmbedSettings, "shard_size")),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Compute on a Ray cluster over a shared folder; local for this machine.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER", help=f"With --ray: {setting_help(Cluster, 'workers')} By default 2."
        ),
    ] = None,
    gpus_per_worker: Annotated[
        float,
        typer.Option(
            metavar="NUMBER", help=f"With --ray: {setting_help(Cluster, 'gpus_per_worker')}"
        ),
    ] = 0.0,
    device: Device = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Estimate time and disk space; nothing is written."),
    ] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Compute the vector of every node. The same command continues a stopped run.

    graphformers embed papers.model papers.graph -o papers.vectors
    """
    from graphformers.data.graph import TextGraph
    from graphformers.embedding.cluster import embed_on_cluster
    from graphformers.embedding.describe import describe_store
    from graphformers.embedding.forecast import forecast
    from graphformers.embedding.job import check_output, embed
    from graphformers.model.encoder import GraphFormers

    if ray is None and (workers is not None or gpus_per_worker):
        raise typer.BadParameter(
            "is for --ray", param_hint="--gpus-per-worker" if workers is None else "--workers"
        )
    if ray is not None and device is not None:
        raise typer.BadParameter(
            "is for this machine; with --ray, --gpus-per-worker says what is used",
            param_hint="--device",
        )
    if ray is not None and dry_run:
        raise typer.BadParameter(
            "tries this machine; leave --ray out to try it", param_hint="--dry-run"
        )
    cluster = (
        None if ray is None else Cluster(ray, 2 if workers is None else workers, gpus_per_worker)
    )
    settings = EmbedSettings(
        precision, states_precision, keep_states, states, neighbors, shard_size=shard_size
    )
    if not dry_run:
        check_output(output, force=force)
    loaded, texts = (
        GraphFormers.from_pretrained(model, device="cpu" if ray else device),
        TextGraph.load(graph),
    )
    if dry_run:
        show_result(forecast(loaded, texts, settings), as_json)
        return
    if cluster is not None:
        store = embed_on_cluster(loaded, texts, output, settings, cluster, force=force)
    else:
        store = embed(loaded, texts, output, settings, force=force)
    show_result(describe_store(store), as_json)


@app.command("update")
def update_command(
    vectors: Vectors,
    nodes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=(
                "A table of new or changed nodes with their texts; columns that it lacks stay "
                "unchanged."
            ),
        ),
    ] = None,
    edges: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A table of new links.")
    ] = None,
    remove: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Nodes to remove: a table with a column of ids, or a line for each.",
        ),
    ] = None,
    remove_edges: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=(
                "A table of links to remove: all links of a pair or, with a column of types, "
                "those of a type (empty: without a type)."
            ),
        ),
    ] = None,
    model: MovedModel = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROLE=NAME",
            help=(
                "Which column is id, text (several: text=title,abstract), src, "
                "dst, type; by default as in the graph's own."
            ),
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="New node columns to keep, separated by commas, '' for none; by default all, or "
            "none where the import left some out.",
        ),
    ] = None,
    header: Annotated[
        bool | None,
        typer.Option(
            help=(
                "Whether the first line of .csv and .tsv files names the "
                "columns; by default as in the graph's own."
            )
        ),
    ] = None,
    quotes: Annotated[
        bool | None,
        typer.Option(
            help="Whether quotes in .csv and .tsv files enclose fields; by default as in the "
            "graph's own."
        ),
    ] = None,
    skip_bad: Annotated[
        bool,
        typer.Option(
            "--skip-bad",
            help=setting_help(ImportSettings, "skip_bad"),
        ),
    ] = False,
    keep_empty: Annotated[
        bool,
        typer.Option(
            "--keep-empty",
            help="Accept nodes without a text; a graph that has some accepts more anyway.",
        ),
    ] = False,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Update vectors after changes of the graph, computing only what they affect.

    graphformers update papers.vectors --nodes new.csv --edges links.csv --remove ids.txt
    """
    from graphformers.embedding.update import update

    if not any((nodes, edges, remove, remove_edges)):
        raise typer.BadParameter(
            "nothing to change; give --nodes, --edges, --remove or --remove-edges"
        )
    columns = dict(parse_column(word) for word in column or [])
    given: dict[str, Any] = {
        "columns": columns,
        "keep": None if keep is None else tuple(listed(keep)),
        "header": header,
        "quotes": quotes,
        "skip_bad": skip_bad,
        "keep_empty": keep_empty or None,
    }
    report = update(
        vectors,
        nodes=nodes,
        edges=edges,
        remove=remove,
        remove_edges=remove_edges,
        model=_moved(model, device),
        device=device,
        **{name: value for name, value in given.items() if value is not None},
    )
    show_result(report, as_json, vectors)


@app.command("export")
def export_command(
    vectors: Vectors,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="NAME.npy (ids beside it in NAME.ids.txt), .parquet, or .txt.",
        ),
    ],
    force: Force = False,
) -> None:
    """Write vectors for other programs: NumPy, Parquet, or word2vec's text format (.txt).

    graphformers export papers.vectors -o papers.parquet
    """
    from graphformers.embedding.vectors import VectorStore

    store = VectorStore.load(vectors)
    store.export(output, force=force)
    print(f"{output}: {len(store):,} vectors of {store.size} numbers")


@app.command("search")
def search_command(
    vectors: Vectors,
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="The text to search for.")
    ] = None,
    id: Annotated[
        str | None, typer.Option(metavar="ID", help="Nodes similar to this one, instead of a text.")
    ] = None,
    links: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Likely new links of this node."),
    ] = None,
    neighbors: Annotated[
        list[str] | None,
        typer.Option(
            metavar="IDS",
            help=(
                "Nodes with which the text is encoded as its neighbours: ids separated by "
                "commas. Repeatable."
            ),
        ),
    ] = None,
    count: Annotated[int, typer.Option("-k", metavar="NUMBER", help="Number of results.")] = 10,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILTER",
            help="Only nodes with a matching column: 'year>=1995', venue=ICML, 'venue~neur' "
            "(contains), 'year in 1995,1996'. Repeatable; all must hold.",
        ),
    ] = None,
    show: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMNS",
            help="Columns of the results to show, separated by commas. Repeatable.",
        ),
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Compare every vector instead of using the index.")
    ] = False,
    model: MovedModel = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Find the nodes nearest to a text or to a node. The first search builds the index.

    graphformers search papers.vectors "graph neural networks" -k 10
    """
    from graphformers.retrieval.searcher import Searcher

    given = [
        name
        for name, value in (("TEXT", text), ("--id", id), ("--links", links))
        if value is not None
    ]
    if len(given) != 1:
        raise typer.BadParameter(
            f"{' and '.join(given) or 'nothing'} given, expected one of TEXT, --id, --links",
            param_hint="TEXT",
        )
    if neighbors and text is None:
        raise typer.BadParameter(
            "--neighbors given without a text to read among them", param_hint="--neighbors"
        )
    if text is not None and not text.strip():
        raise typer.BadParameter("an empty text given, expected some words", param_hint="TEXT")
    shown, where = [name for word in show or [] for name in listed(word)], where or []
    searcher = Searcher(
        vectors, _moved(model, device), exact=True if exact else None, device=device, columns=shown
    )
    if text is not None:
        # An id may contain commas.
        whole = [word for word in neighbors or [] if word in searcher.store]
        around = whole + [
            part for word in neighbors or [] if word not in whole for part in listed(word)
        ]
        found = searcher.text(text, count, neighbors=around, where=where)
    elif id is not None:
        found = searcher.similar(id, count, where=where)
    else:
        found = searcher.links(str(links), count, where=where)
    show_result(found, as_json)


@app.command("serve")
def serve_command(
    vectors: Vectors,
    model: MovedModel = None,
    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help=setting_help(ServeSettings, "host")),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(metavar="NUMBER", help=setting_help(ServeSettings, "port"), min=0, max=65535),
    ] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the token that writing needs; by default the variable "
            "GRAPHFORMERS_TOKEN.",
        ),
    ] = None,
    read_token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the token that reading needs; by default the variable "
            "GRAPHFORMERS_READ_TOKEN. Without a token for writing, nobody may write then.",
        ),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST",
            help=setting_help(ServeSettings, "names", "Repeatable."),
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER",
            help="Requests a second from one address; by default 100, on 127.0.0.1 any number.",
            min=0,
        ),
    ] = None,
    log: Annotated[
        bool,
        typer.Option(
            "--log",
            help=setting_help(ServeSettings, "is_logged"),
        ),
    ] = False,
    device: Device = None,
) -> None:
    """Serve vectors over HTTP: search, embeddings, changes of the graph, and a web page.

    Without a token, changes are accepted from this machine only: a server that other machines can
    reach, directly or through a proxy, is then read-only; and so is one with a token for reading
    and none for writing. Tokens are sent unencrypted, so use a proxy with TLS on networks that you
    do not control. While a server accepts changes, no other process can change the folder; a
    read-only server serves the folder as it was at the start.

    graphformers serve papers.vectors --port 8000
    """
    import os

    # Before torch and numpy are imported: their threads must not spin while they wait for each
    # other (docs/design.md).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    write = read_token(token_file, os.environ.get("GRAPHFORMERS_TOKEN"), "writing")
    read = read_token(read_token_file, os.environ.get("GRAPHFORMERS_READ_TOKEN"), "reading")
    try:
        from graphformers.serve.running import serve
    except ImportError as error:
        from graphformers.errors import MissingExtraError

        raise MissingExtraError(error.name or "fastapi", "the server", "serve") from error
    settings = ServeSettings(
        vectors, model, host, port, write, read, device, log, tuple(name or [])
    )
    if rate is None:
        rate = 0 if settings.is_loopback else 100
    serve(
        replace(settings, limits=Limits(rate=rate)),
        lambda address: print(f"serving {vectors} at {address}", flush=True),
    )
