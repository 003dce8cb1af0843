"""Commands on graphs: import, split, info."""

import json
import sys
from pathlib import Path

from graphformers.cli.command import UsageError, argument, command, option
from graphformers.cli.options import AS_JSON, FORCE, GRAPH, OUTPUT
from graphformers.cli.output import show_result
from graphformers.graph.formats import FORMATS, find_format, other_formats
from graphformers.graph.settings import ImportSettings
from graphformers.splits.settings import SplitSettings


def _formats() -> dict[str, list[tuple[str, str]]]:
    """The formats that an import can read, for its help text."""
    ours = [(name, each.about) for name, each in FORMATS.items()]
    others = [(name, f"of the package {package}") for name, package in other_formats().items()]
    return {"Formats (docs/formats.md shows their files)": ours + others}


@command("import", _formats)
def import_command(
    *,
    output: Path = OUTPUT,
    inputs: list[str] | None = argument(
        None,
        "FILES",
        "Node and edge tables, distinguished by their columns: files, folders of tables, pipes, or "
        "- for standard input. Commas, tabs, semicolons and bars that separate fields are "
        "recognised. With --format python: packages.",
    ),
    nodes: list[str] | None = option(
        None, "--nodes FILE...", "A file of nodes, if its columns are ambiguous."
    ),
    edges: list[str] | None = option(
        None, "--edges FILE...", "A file of edges, if its columns are ambiguous."
    ),
    settings: ImportSettings,
    force: bool = FORCE,
    as_json: bool = AS_JSON,
) -> None:
    """Read a text graph from files.

    graphformers import papers.csv citations.csv -o papers.graph
    """
    from graphformers.artifact import check_writable
    from graphformers.graph.describe import describe_import, describe_missing_links
    from graphformers.graph.readers import read_graph

    if not (inputs or nodes or edges) and find_format(settings.format).reads_files:
        raise UsageError(
            "no files given, expected at least one: graphformers import papers.csv links.csv "
            "-o papers.graph"
        )
    check_writable(output, "graph", force=force)
    graph = read_graph(
        inputs or [], nodes=nodes or [], edges=edges or [], settings=settings, force=force
    ).save(output, force=force)
    show_result(describe_import(graph, settings.bad_rows), as_json, output)
    if not graph.num_pairs:
        print(describe_missing_links(graph), file=sys.stderr)


@command("split")
def split_command(
    *,
    graph: Path = GRAPH,
    output: Path = OUTPUT,
    settings: SplitSettings,
    force: bool = FORCE,
    as_json: bool = AS_JSON,
) -> None:
    """Divide a graph's links into train, valid and test.

    For each valid and test link, candidates to rank are drawn and saved.

    graphformers split papers.graph -o papers.split
    """
    from graphformers.artifact import check_writable
    from graphformers.graph.textgraph import TextGraph
    from graphformers.splits.split import split_links

    check_writable(output, "split", force=force)
    split = split_links(TextGraph.load(graph), settings).save(output, force=force)
    print(f"{output}: written", file=sys.stderr)
    show_result(split, as_json)


@command("info")
def info_command(
    artifact: Path | None = argument(None, "FOLDER", "Any folder that graphformers wrote."),
    verify: bool = option(False, "--verify", "Compare every file with its checksum."),
    as_json: bool = AS_JSON,
) -> None:
    """Describe a folder that graphformers wrote; without one, what is installed.

    graphformers info papers.graph
    """
    if artifact is None:
        from graphformers.environment import describe_environment

        show_result(describe_environment(), as_json)
        return
    from graphformers.artifact import COMPARISON, comparison_files, open_artifact
    from graphformers.graph.describe import describe_graph
    from graphformers.graph.textgraph import TextGraph
    from graphformers.places import refuse_links_out
    from graphformers.splits.split import LinkSplit

    if (artifact / COMPARISON).is_file():
        # A symbolic link could make this print files from elsewhere.
        refuse_links_out(artifact)
        for name in sorted(comparison_files(artifact)):
            if name.endswith(".md"):
                print((artifact / name).read_text(encoding="utf-8"))
        print(f"{artifact}: a comparison; open report.html in a browser", file=sys.stderr)
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
        if verify:
            store.database.verify()
            if store.states is not None:
                store.states.check(store.graph.base)
        show_result(describe_store(store), as_json)
    elif found.kind == "model":
        from graphformers.embedding.describe import describe_model

        show_result(describe_model(artifact), as_json)
    else:
        facts = {"kind": found.kind, "fingerprint": found.fingerprint}
        print(json.dumps(facts | found.settings | found.summary, indent=None if as_json else 1))
