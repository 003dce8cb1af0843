"""The command line: each command parses, calls one public function and prints.

Results go to stdout, progress and messages to stderr; exit 0 done, 1 failed, 2 misuse. Heavy imports happen inside the commands,
so that --help answers at once.
"""

import json
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from graphformers import __version__
from graphformers.errors import GraphFormersError, StoppedError

app = typer.Typer(
    name="graphformers",
    help="Vectors for graphs of texts that know both the text and its neighbourhood.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Output = Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="The folder to write.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the output if it exists.")]
Device = Annotated[
    str | None, typer.Option("--device", metavar="NAME", help="cpu, cuda, cuda:1 or mps; by default the best there is.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

FORMAT_HELP = (
    "tables: node and edge tables; dblp: dblp.v12.json; wikidata5m: id/text and head/relation/tail files; amazon: SNAP's "
    "amazon-meta.txt; debian: Packages files; sessions: an item table and a log of user, time, item; pairs: the TSV of the 2021 "
    "code; python: installed packages by name, the standard library when none is named."
)


class Interrupted(BaseException):
    """Ctrl-C: nothing on the way catches it, so that drafts are removed and the last word is ours."""


def _interrupt(signum: int, frame: Any) -> None:
    raise Interrupted


def main() -> None:
    """Runs the command line; an error the user can mend is one message, not a traceback."""
    signal.signal(signal.SIGINT, _interrupt)
    try:
        app()
    except StoppedError as error:
        print(error, file=sys.stderr)
        sys.exit(128 + error.signum)
    except GraphFormersError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        print(f"error: {error.filename or 'input or output'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(1)
    except Interrupted:
        print("interrupted; nothing half-written was left behind", file=sys.stderr)
        sys.exit(130)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"graphformers {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


@app.command("import")
def import_command(
    output: Output,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILES", help="Tables are told apart by their columns. With --format python: packages."),
    ] = None,
    format: Annotated[str, typer.Option(metavar="NAME", help=FORMAT_HELP)] = "tables",
    nodes: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="A file of nodes, where the columns do not tell. Repeatable.")
    ] = None,
    edges: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="A file of edges, likewise. Repeatable.")] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROLE=NAME",
            help="Which column is id, text (several: text=title,abstract), src, dst, type, user, time or item.",
        ),
    ] = None,
    keep: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Node columns to keep, separated by commas; all by default, '' for none.")
    ] = None,
    header: Annotated[
        bool, typer.Option(help="Whether the first line of .csv and .tsv files names the columns; else they are 1, 2, 3.")
    ] = True,
    quotes: Annotated[bool, typer.Option(help="Whether quotes in .csv and .tsv files enclose fields.")] = True,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave bad rows out, count and list them, instead of stopping at the first.")
    ] = False,
    window: Annotated[
        float, typer.Option(metavar="MINUTES", help="sessions: minutes within which two views by one user link their items.")
    ] = 30.0,
    min_count: Annotated[
        int, typer.Option(metavar="NUMBER", help="sessions: how many users must have viewed two items together.")
    ] = 1,
    max_views: Annotated[
        int, typer.Option(metavar="NUMBER", help="sessions: users with more views in a window are robots.")
    ] = 500,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Read a textual graph from files.

    graphformers import papers.csv citations.csv -o papers.graph
    """
    from graphformers.artifact import check_writable
    from graphformers.data.formats.tables import sort_inputs
    from graphformers.data.readers import read_graph
    from graphformers.data.settings import ImportSettings
    from graphformers.data.sources import check_files
    from graphformers.printing import print_import

    settings = ImportSettings(
        format=format,
        columns=dict(_parse_column(word) for word in column or []),
        keep=None if keep is None else tuple(name.strip() for name in keep.split(",") if name.strip()),
        header=header,
        quotes=quotes,
        skip_bad=skip_bad,
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
    print_import(graph, output, as_json)


@app.command("split")
def split_command(
    graph: Annotated[Path, typer.Argument(metavar="GRAPH", help="A graph folder.")],
    output: Output,
    valid: Annotated[
        float,
        typer.Option(
            metavar="NUMBER", help="Valid pairs: a share below 1 (of pairs; of nodes when nodes are held out) or a count."
        ),
    ] = 0.05,
    test: Annotated[float, typer.Option(metavar="NUMBER", help="Test pairs, likewise.")] = 0.05,
    held_out: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help="links; nodes (inductive: unknown in training); or a node column, whose latest nodes are held out.",
        ),
    ] = "links",
    candidates: Annotated[
        int | None,
        typer.Option(metavar="NUMBER", help="Candidates per question: 1 positive, the rest negatives. 300, or what fits."),
    ] = None,
    max_train: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="At most so many train pairs; the others stay visible as neighbours.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="NUMBER", help="The same seed gives the same bytes.")] = 42,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Divide a graph's links into train, valid and test, with candidates to rank.

    graphformers split papers.graph -o papers.split
    """
    from graphformers.artifact import check_writable
    from graphformers.data.graph import TextGraph
    from graphformers.data.split import SplitSettings, split_links
    from graphformers.printing import print_split

    settings = SplitSettings(valid, test, seed, held_out, candidates, max_train)
    check_writable(output, "split", force=force)
    split = split_links(TextGraph.load(graph), settings).save(output, force=force)
    print(f"{output}: written", file=sys.stderr)
    print_split(split, as_json)


@app.command("train")
def train_command(
    split: Annotated[Path, typer.Argument(metavar="SPLIT", help="A split folder.")],
    output: Output,
    source: Annotated[
        str,
        typer.Option("--from", metavar="BACKBONE", help="A backbone (folder, minilm, name on the hub), or a model to train on."),
    ] = "minilm",
    method: Annotated[
        str | None, typer.Option(metavar="NAME", help="graphformers (default), plm, gat, max, mean, att, tnve, iftn.")
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="A recipe such as recipes/minilm.toml.")] = None,
    set: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A single setting, stronger than the recipe; docs/cli.md lists them. Repeatable."
        ),
    ] = None,
    device: Device = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Try a few steps and tell what the run would take; nothing is written.")
    ] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Train a model to find links. The same command continues a run that was stopped.

    graphformers train papers.split --config recipes/minilm.toml -o papers.model

    Several GPUs: torchrun --nproc-per-node 8 -m graphformers train …
    """
    from graphformers.data.split import LinkSplit
    from graphformers.printing import print_forecast, print_training
    from graphformers.train.runs import forecast, make_trainer
    from graphformers.train.settings import merge_settings, parse_settings, read_recipe
    from graphformers.train.trainer import check_output

    settings = merge_settings({} if config is None else read_recipe(config), parse_settings(set or []))
    if not dry_run:
        check_output(output, force=force)
    trainer = make_trainer(LinkSplit.load(split), source, output, method, settings, device)
    if dry_run:
        found = forecast(trainer)
        if trainer.world.is_first:
            print_forecast(found, as_json)
        return
    result = trainer.train(force=force)
    if trainer.world.is_first:
        print_training(result, output, as_json)


@app.command("evaluate")
def evaluate_command(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="[MODEL] SPLIT", help="A model folder and a split folder; or a split and --vectors."),
    ],
    vectors: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Vectors of any system: .npz with ids and vectors, .parquet with id and vector, or word2vec's .txt. Repeatable.",
        ),
    ] = None,
    cosine: Annotated[bool, typer.Option("--cosine", help="Compare --vectors by cosine instead of inner product.")] = False,
    protocol: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="saved: among the saved candidates; in-batch: among 300 consecutive positives, as the 2021 code asks; full: "
            "among all nodes, known links left out; all: these three.",
        ),
    ] = "saved",
    valid: Annotated[bool, typer.Option("--valid", help="Ask the valid questions instead of the test questions.")] = False,
    backbone: Annotated[
        str | None, typer.Option(metavar="BACKBONE", help="The language model to show untrained; by default the model's own.")
    ] = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Rank the true link of every question: P@1, NDCG, MRR with 95 % intervals, in all and in slices.

    Beside the model stand rankings that need no training: by degree, common neighbours, words, and the untrained backbone.

    graphformers evaluate papers.model papers.split
    """
    from graphformers.data.split import LinkSplit
    from graphformers.evaluation.overview import evaluate_beside_baselines
    from graphformers.evaluation.ranking import PROTOCOLS
    from graphformers.printing import print_overview

    expected = (1, 2) if vectors else (2,)
    if len(paths) not in expected:
        raise typer.BadParameter(f"{len(paths)} folders given, expected MODEL SPLIT, or SPLIT with --vectors", param_hint="paths")
    loaded = LinkSplit.load(paths[-1])
    found = evaluate_beside_baselines(
        paths[0] if len(paths) == 2 else None,
        loaded,
        loaded.valid if valid else loaded.test,
        protocols=PROTOCOLS if protocol == "all" else (protocol,),
        vectors={str(file): cosine for file in vectors or []},
        backbone=backbone,
        device=device,
    )
    print_overview(found, as_json)


@app.command("compare")
def compare_command(
    split: Annotated[Path, typer.Argument(metavar="SPLIT", help="A split folder.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where report and runs go.")],
    table: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="One of the paper's tables: datasets, overall, neighbours, ablation, efficiency."),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A method to compare, trained in two stages; NAME.one-stage on clean text alone. Repeatable. By default plm, "
            "max and graphformers, both ways.",
        ),
    ] = None,
    source: Annotated[str, typer.Option("--from", metavar="BACKBONE", help="A folder, minilm, or a name on the hub.")] = "minilm",
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="A recipe such as recipes/minilm.toml.")] = None,
    set: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A setting of all runs, or of one method: max.learning_rate=1e-4. Repeatable."
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(metavar="NUMBERS", help="Every method is trained with each, as in 42,43,44.")] = "42",
    retrain: Annotated[
        bool, typer.Option("--retrain", help="neighbours: fewer neighbours in training as well, not only at test.")
    ] = False,
    keep_models: Annotated[bool, typer.Option(help="Whether trained models are kept once they are scored.")] = True,
    device: Device = None,
    force: Annotated[bool, typer.Option("--force", help="Train anew what was made with other settings.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train several methods under one budget and report whether the graph helps, which to take, and what it costs.

    Every run makes the same number of steps: max_steps, or the epochs of both stages; nobody stops early. With max_seconds every
    run has the same time instead.

    The same command continues a comparison that was stopped, and uses the runs that are finished.

    graphformers compare papers.split --config recipes/minilm.toml -o report
    """
    from graphformers.compare.comparison import compare
    from graphformers.compare.runs import Plan
    from graphformers.data.split import LinkSplit
    from graphformers.printing import print_comparison
    from graphformers.train.settings import merge_settings, parse_settings, read_recipe

    numbers = [word.strip() for word in seeds.split(",")]
    if not all(word.isdecimal() for word in numbers) or len(numbers) > len(dict.fromkeys(numbers)):
        raise typer.BadParameter(f"{seeds!r} given, expected different whole numbers such as 42,43,44", param_hint="--seeds")
    settings = merge_settings({} if config is None else read_recipe(config), parse_settings(set or []))
    plan = Plan(LinkSplit.load(split), output, source, settings, tuple(map(int, numbers)), device, force, keep_models)
    print_comparison(compare(plan, table=table, methods=method, retrain=retrain), as_json)


@app.command("embed")
def embed_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder.")],
    graph: Annotated[Path, typer.Argument(metavar="GRAPH", help="A graph folder.")],
    output: Output,
    precision: Annotated[str, typer.Option(metavar="NAME", help="Of the vectors: float32, float16 or int8.")] = "float32",
    states_precision: Annotated[str, typer.Option(metavar="NAME", help="Of the layer states: float16 or float32.")] = "float16",
    keep_states: Annotated[
        bool, typer.Option(help="Whether layer states stay beside the vectors, so that updates need not compute them again.")
    ] = True,
    states: Annotated[
        str, typer.Option(metavar="WHERE", help="States between the two passes: memory (of the GPU), disk, or auto: what fits.")
    ] = "auto",
    neighbors: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="Neighbours sampled for a node; by default as the model was trained.")
    ] = None,
    shard_size: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="Nodes of a shard; by default 65,536 on a GPU, 4,096 elsewhere.")
    ] = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Compute on a Ray cluster over a shared folder; local for this machine.")
    ] = None,
    workers: Annotated[int | None, typer.Option(metavar="NUMBER", help="With --ray: how many workers.")] = None,
    gpus_per_worker: Annotated[float, typer.Option(metavar="NUMBER", help="With --ray: GPUs of each worker.")] = 0.0,
    device: Device = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Tell what it would take, in time and on disk; nothing is written.")
    ] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Compute the vector of every node. The same command continues what was stopped.

    graphformers embed papers.model papers.graph -o papers.vectors
    """
    from graphformers.data.graph import TextGraph
    from graphformers.embedding.forecast import forecast
    from graphformers.embedding.job import check_output, embed
    from graphformers.embedding.plan import EmbedSettings
    from graphformers.model.encoding import GraphFormers
    from graphformers.printing import print_embedding_forecast, print_vectors

    settings = EmbedSettings(precision, states_precision, keep_states, states, neighbors, shard_size=shard_size)
    if not dry_run:
        check_output(output, force=force)
    loaded, texts = GraphFormers.from_pretrained(model, device="cpu" if ray else device), TextGraph.load(graph)
    if dry_run:
        print_embedding_forecast(forecast(loaded, texts, settings), as_json)
        return
    if ray is not None:
        from graphformers.embedding.cluster import Cluster, embed_on_cluster

        store = embed_on_cluster(loaded, texts, output, settings, Cluster(ray, workers or 2, gpus_per_worker), force=force)
    else:
        store = embed(loaded, texts, output, settings, force=force)
    print_vectors(store, as_json)


@app.command("update")
def update_command(
    vectors: Annotated[Path, typer.Argument(metavar="VECTORS", help="A folder of vectors.")],
    nodes: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A table of new nodes, and of known ones whose text or columns changed.")
    ] = None,
    edges: Annotated[Path | None, typer.Option(metavar="FILE", help="A table of new links.")] = None,
    remove: Annotated[Path | None, typer.Option(metavar="FILE", help="Ids of nodes to remove, one a line.")] = None,
    remove_edges: Annotated[Path | None, typer.Option(metavar="FILE", help="A table of links to remove.")] = None,
    model: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="The model folder, if it is no longer where it was.")
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(metavar="ROLE=NAME", help="Which column is id, text, src, dst or type.")
    ] = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Bring vectors up to date with changes of the graph: only what they touch is computed.

    graphformers update papers.vectors --nodes new.csv --edges links.csv --remove ids.txt
    """
    from graphformers.data.settings import ImportSettings
    from graphformers.embedding.update import update
    from graphformers.model.encoding import GraphFormers
    from graphformers.printing import print_update

    if not any((nodes, edges, remove, remove_edges)):
        raise typer.BadParameter("nothing to change; give --nodes, --edges, --remove or --remove-edges")
    settings = ImportSettings(columns=dict(_parse_column(word) for word in column or []))
    loaded = None if model is None else GraphFormers.from_pretrained(model, device=device)
    report = update(
        vectors,
        nodes=nodes,
        edges=edges,
        remove=remove,
        remove_edges=remove_edges,
        model=loaded,
        settings=settings,
        device=device,
    )
    print_update(report, vectors, as_json)


@app.command("export")
def export_command(
    vectors: Annotated[Path, typer.Argument(metavar="VECTORS", help="A folder of vectors.")],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="NAME.npy (ids beside it in NAME.ids.txt), .parquet, or .txt."),
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


@app.command("convert")
def convert_command(
    weights: Annotated[Path, typer.Argument(metavar="WEIGHTS", help="A .bin or .pt file, or a folder with one.")],
    output: Output,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="PATH", help="A folder, tokenizer.json or vocab.txt; by default beside the weights.")
    ] = None,
    method: Annotated[
        str, typer.Option(metavar="NAME", help="graphformers, plm, gat, max, mean, att, tnve, iftn.")
    ] = "graphformers",
    max_tokens: Annotated[int, typer.Option(metavar="NUMBER", help="Texts are cut here.")] = 32,
    force: Force = False,
) -> None:
    """Turn foreign weights into a model folder: a language model's, or a checkpoint of the 2021 code.

    The only place where .bin and .pt files are read, as plain tensors: nothing in them is ever run.

    graphformers convert checkpoint.bin --tokenizer vocab.txt -o papers.model
    """
    from graphformers.artifact import check_writable
    from graphformers.model.backbones import convert

    check_writable(output, "model", force=force)
    model = convert(weights, tokenizer, method, max_tokens=max_tokens)
    model.save_pretrained(output, force=force)
    print(f"{output}: {model.config.method}, {sum(p.numel() for p in model.parameters()):,} parameters")


@app.command("search")
def search_command(
    vectors: Annotated[Path, typer.Argument(metavar="VECTORS", help="A folder of vectors.")],
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="What to look for.")] = None,
    id: Annotated[str | None, typer.Option(metavar="ID", help="Nodes similar to this one, instead of a text.")] = None,
    links: Annotated[str | None, typer.Option(metavar="ID", help="Likely links that this node does not have yet.")] = None,
    neighbors: Annotated[
        str | None, typer.Option(metavar="IDS", help="The company in which the text is read: ids, separated by commas.")
    ] = None,
    count: Annotated[int, typer.Option("-k", metavar="NUMBER", help="How many to show.")] = 10,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="FILTER", help="Only nodes whose column fits, as in 'year>=1995' or category=cs. Repeatable."),
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Look at every vector instead of using the index.")] = False,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Find the nodes nearest to a text or to a node. The index is made when it is first needed.

    graphformers search papers.vectors "graph neural networks" -k 10
    """
    from graphformers.printing import print_matches
    from graphformers.search.searcher import Searcher

    given = [name for name, value in (("TEXT", text), ("--id", id), ("--links", links)) if value is not None]
    if len(given) != 1:
        raise typer.BadParameter(
            f"{' and '.join(given) or 'nothing'} given, expected one of TEXT, --id, --links", param_hint="TEXT"
        )
    if neighbors is not None and text is None:
        raise typer.BadParameter("--neighbors given without a text to read among them", param_hint="--neighbors")
    searcher, filters = Searcher(vectors, exact=True if exact else None, device=device), where or []
    if text is not None:
        around = [word.strip() for word in (neighbors or "").split(",") if word.strip()]
        found = searcher.text(text, count, neighbors=around, filters=filters)
    elif id is not None:
        found = searcher.similar(id, count, filters=filters)
    else:
        found = searcher.links(str(links), count, filters=filters)
    print_matches(found, as_json)


@app.command("serve")
def serve_command(
    vectors: Annotated[Path, typer.Argument(metavar="VECTORS", help="A folder of vectors.")],
    model: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="The model folder, if it is no longer where it was.")
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to listen; 0.0.0.0 lets other machines in, see above.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="NUMBER", help="0 takes any free one.", min=0, max=65535)] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Holds the token that writing needs; or the environment, GRAPHFORMERS_TOKEN."),
    ] = None,
    read_token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Holds the token that reading needs; or the environment, GRAPHFORMERS_READ_TOKEN."),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST", help="A name under which a proxy on this machine passes requests on. Repeatable."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER", help="Requests a second from one address; by default 100, on 127.0.0.1 any number.", min=0
        ),
    ] = None,
    device: Device = None,
) -> None:
    """Serve vectors: search, embeddings, new nodes that are found at once, and a page for people.

    Without a token, changes are taken from this machine alone: a server that other machines can reach, by itself or through a
    proxy, is then read-only. Tokens are sent as they are, so put a proxy that speaks TLS in front where the network is not yours.
    While a server that takes changes runs, no other process can change the folder; a read-only server shows the folder as it was
    at the start.

    graphformers serve papers.vectors --port 8000
    """
    import os

    # before torch and numpy are imported: their threads must not spin while they wait for each other (docs/design.md)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from graphformers.serve.settings import Limits, ServeSettings, read_token

    write = read_token(token_file, os.environ.get("GRAPHFORMERS_TOKEN"), "writing")
    read = read_token(read_token_file, os.environ.get("GRAPHFORMERS_READ_TOKEN"), "reading")
    try:
        from graphformers.serve.running import serve
    except ImportError as error:
        from graphformers.errors import MissingExtraError

        raise MissingExtraError(error.name or "fastapi", "the server", "serve") from error
    settings = ServeSettings(vectors, model, host, port, write, read, device, tuple(name or []))
    if rate is None:
        rate = 0 if settings.is_loopback else 100
    serve(replace(settings, limits=Limits(rate=rate)), lambda address: print(f"serving {vectors} at {address}", flush=True))


@app.command("info")
def info_command(
    artifact: Annotated[Path, typer.Argument(metavar="FOLDER", help="Any folder that graphformers wrote.")],
    verify: Annotated[bool, typer.Option("--verify", help="Compare every file with its checksum.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a folder holds.

    graphformers info papers.graph
    """
    from graphformers.artifact import open_artifact
    from graphformers.data.graph import TextGraph
    from graphformers.data.split import LinkSplit
    from graphformers.printing import print_graph, print_split

    found = open_artifact(artifact, None, None)
    if verify:
        found.verify()
        print(f"{artifact}: all {len(found.files)} files match their checksums", file=sys.stderr)
    if found.kind == "graph":
        print_graph(TextGraph.load(artifact), as_json)
    elif found.kind == "split":
        print_split(LinkSplit.load(artifact), as_json)
    elif found.kind == "vectors":
        from graphformers.embedding.vectors import VectorStore
        from graphformers.printing import print_vectors

        print_vectors(VectorStore.load(artifact), as_json)
    else:
        print(
            json.dumps(
                {"kind": found.kind, "fingerprint": found.fingerprint, **found.settings, **found.summary},
                indent=None if as_json else 1,
            )
        )


@app.command("demo")
def demo_command(
    folder: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where the demo puts its folders.")] = Path(
        "demo"
    ),
    seconds: Annotated[float, typer.Option(metavar="NUMBER", help="How long each of the two models is trained.")] = 90.0,
    as_json: AsJson = False,
) -> None:
    """The whole story on a graph that every machine has: Python's standard library.

    graphformers demo
    """
    from graphformers.demo import run_demo
    from graphformers.printing import print_demo

    print_demo(run_demo(folder, seconds), as_json)


def _parse_column(word: str) -> tuple[str, str]:
    role, equals, name = word.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{word!r} given, expected ROLE=NAME such as text=title", param_hint="--column")
    return role, name
