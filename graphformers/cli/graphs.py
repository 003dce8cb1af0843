"""Commands on graphs: import, split, info."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from graphformers.cli.options import (
    AsJson,
    Force,
    Output,
    app,
    listed,
    parse_column,
    setting_help,
)
from graphformers.cli.output import show_result
from graphformers.data.settings import FORMATS, ImportSettings, SplitSettings

FORMAT_HELP = setting_help(
    ImportSettings,
    "format",
    "; ".join(f"{name}: {format.about}" for name, format in FORMATS.items()) + ".",
)


@app.command("import")
def import_command(
    output: Output,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILES",
            help="Node and edge tables are told apart by their columns. With --format python: "
            "packages.",
        ),
    ] = None,
    format: Annotated[str, typer.Option(metavar="NAME", help=FORMAT_HELP)] = "tables",
    nodes: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="A file of nodes, where its columns are ambiguous. Repeatable."
        ),
    ] = None,
    edges: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="A file of edges, where its columns are ambiguous. Repeatable."
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROLE=NAME",
            help=(
                "Which column is id, text (several: text=title,abstract), src, "
                "dst, type, time (links, views), user, item."
            ),
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Node columns to keep, separated by commas; all by default, '' for none.",
        ),
    ] = None,
    header: Annotated[
        bool,
        typer.Option(help=setting_help(ImportSettings, "header")),
    ] = True,
    quotes: Annotated[bool, typer.Option(help=setting_help(ImportSettings, "quotes"))] = True,
    skip_bad: Annotated[
        bool,
        typer.Option(
            "--skip-bad",
            help=setting_help(ImportSettings, "skip_bad"),
        ),
    ] = False,
    keep_empty: Annotated[
        bool,
        typer.Option("--keep-empty", help=setting_help(ImportSettings, "keep_empty")),
    ] = False,
    window: Annotated[
        float,
        typer.Option(
            metavar="MINUTES",
            help=setting_help(ImportSettings, "window"),
        ),
    ] = 30.0,
    min_count: Annotated[
        int,
        typer.Option(metavar="NUMBER", help=setting_help(ImportSettings, "min_count")),
    ] = 1,
    max_views: Annotated[
        int,
        typer.Option(metavar="NUMBER", help=setting_help(ImportSettings, "max_views")),
    ] = 500,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Read a text graph from files.

    graphformers import papers.csv citations.csv -o papers.graph
    """
    from graphformers.artifact import check_writable
    from graphformers.data.describe import describe_import
    from graphformers.data.formats.tables import sort_inputs
    from graphformers.data.readers import read_graph
    from graphformers.data.sources import check_files

    settings = ImportSettings(
        format=format,
        columns=dict(parse_column(word) for word in column or []),
        keep=None if keep is None else tuple(listed(keep)),
        header=header,
        quotes=quotes,
        skip_bad=skip_bad,
        keep_empty=keep_empty,
        window=window,
        min_count=min_count,
        max_views=max_views,
    )
    check_writable(output, "graph", force=force)
    node_files, edge_files = list(nodes or []), list(edges or [])
    given = [Path(name) for name in inputs or []]
    if format == "tables":
        check_files(given)
        more_nodes, more_edges = sort_inputs(given, settings)
        node_files, edge_files = node_files + more_nodes, edge_files + more_edges
    else:
        node_files += given
    graph = read_graph(node_files, edge_files, settings).save(output, force=force)
    show_result(describe_import(graph), as_json, output)
    if not graph.num_pairs:
        print(
            "warning: no two nodes are linked; a graph without links cannot be split or trained on",
            file=sys.stderr,
        )


@app.command("split")
def split_command(
    graph: Annotated[Path, typer.Argument(metavar="GRAPH", help="A graph folder.")],
    output: Output,
    valid: Annotated[
        float,
        typer.Option(
            metavar="NUMBER",
            help=setting_help(SplitSettings, "valid"),
        ),
    ] = 0.05,
    test: Annotated[
        float, typer.Option(metavar="NUMBER", help=setting_help(SplitSettings, "test"))
    ] = 0.05,
    held_out: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help=setting_help(SplitSettings, "held_out"),
        ),
    ] = "links",
    candidates: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER",
            help=setting_help(SplitSettings, "candidates"),
        ),
    ] = None,
    max_train: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER",
            help=setting_help(SplitSettings, "max_train"),
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="NUMBER", help=setting_help(SplitSettings, "seed"))
    ] = 42,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Divide a graph's links into train, valid and test, with candidates to rank.

    graphformers split papers.graph -o papers.split
    """
    from graphformers.artifact import check_writable
    from graphformers.data.graph import TextGraph
    from graphformers.splits.split import split_links

    settings = SplitSettings(valid, test, seed, held_out, candidates, max_train)
    check_writable(output, "split", force=force)
    split = split_links(TextGraph.load(graph), settings).save(output, force=force)
    print(f"{output}: written", file=sys.stderr)
    show_result(split, as_json)


@app.command("info")
def info_command(
    artifact: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Any folder that graphformers wrote.")
    ],
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare every file with its checksum.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a folder holds.

    graphformers info papers.graph
    """
    from graphformers.artifact import COMPARISON, open_artifact
    from graphformers.data.describe import describe_graph
    from graphformers.data.graph import TextGraph
    from graphformers.places import refuse_links_out
    from graphformers.splits.split import LinkSplit

    if (artifact / COMPARISON).is_file():
        # Links would show files from elsewhere.
        refuse_links_out(artifact)
        for place in sorted(artifact.glob("*.md")):
            print(place.read_text(encoding="utf-8"))
        print(
            f"{artifact}: a comparison; open report.html in a browser",
            file=sys.stderr,
        )
        return
    found = open_artifact(artifact, None, None)
    if verify:
        found.verify()
        print(f"{artifact}: all {len(found.files)} files match their checksums", file=sys.stderr)
    if found.kind == "graph":
        show_result(describe_graph(TextGraph.load(artifact)), as_json)
    elif found.kind == "split":
        show_result(LinkSplit.load(artifact), as_json)
    elif found.kind == "vectors":
        from graphformers.embedding.describe import describe_store
        from graphformers.embedding.vectors import VectorStore

        store = VectorStore.load(artifact)
        if verify and store.states is not None:
            store.states.check(store.live.base)
        show_result(describe_store(store), as_json)
    elif found.kind == "model":
        from graphformers.embedding.describe import describe_model

        show_result(describe_model(artifact), as_json)
    else:
        print(
            json.dumps(
                {
                    "kind": found.kind,
                    "fingerprint": found.fingerprint,
                    **found.settings,
                    **found.summary,
                },
                indent=None if as_json else 1,
            )
        )
