"""Commands on models: train, evaluate, compare, convert."""

import json
from pathlib import Path
from typing import Annotated

import typer

from graphformers.cli.options import AsJson, Device, Force, Neighbors, Output, Recipe, app
from graphformers.cli.output import show_result


@app.command("train")
def train_command(
    split: Annotated[Path, typer.Argument(metavar="SPLIT", help="A split folder.")],
    output: Output,
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="BACKBONE",
            help="A backbone (folder, minilm, name on the hub), or a model to train on.",
        ),
    ] = "minilm",
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="graphformers (default), plm, gat, max, mean, att, tnve, iftn."
        ),
    ] = None,
    config: Recipe = None,
    set: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A single setting, stronger than the recipe; docs/cli.md lists them. Repeatable.",
        ),
    ] = None,
    device: Device = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Try a few steps and tell what the run would take; nothing is written.",
        ),
    ] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Train a model to find links. The same command continues a run that was stopped.

    graphformers train papers.split --config minilm -o papers.model

    Several GPUs: torchrun --nproc-per-node 8 -m graphformers train …
    """
    from graphformers.splits.split import LinkSplit
    from graphformers.training.distributed import is_first_process
    from graphformers.training.forecast import forecast
    from graphformers.training.recipes import merge_settings, parse_settings, read_recipe
    from graphformers.training.trainer import check_output, make_trainer

    settings = merge_settings(
        {} if config is None else read_recipe(config), parse_settings(set or [])
    )
    if not dry_run:
        check_output(output, force=force)
    trainer = make_trainer(LinkSplit.load(split), source, output, method, settings, device)
    if dry_run:
        found = forecast(trainer)
        if is_first_process():
            show_result(found, as_json)
        return
    result = trainer.train(force=force)
    if is_first_process():
        if as_json:
            show_result(result, as_json, output)
        else:
            result.as_table().print()
            print(f"\n{output}: {result}")


@app.command("evaluate")
def evaluate_command(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="[MODEL] SPLIT",
            help="A model folder and a split folder; or a split and --vectors.",
        ),
    ],
    vectors: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Vectors of any system: a folder that `embed` wrote, .npz with ids and vectors, "
            ".npy with .ids.txt beside it, .parquet with id and vector, or word2vec's .txt. "
            "Repeatable. Vectors computed from the whole graph, as by `embed`, have seen the "
            "held-out links, and score too well.",
        ),
    ] = None,
    cosine: Annotated[
        bool, typer.Option("--cosine", help="Compare --vectors by cosine instead of inner product.")
    ] = False,
    protocol: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="saved: among the saved candidates; in-batch: among 300 consecutive positives, "
            "as in the 2021 code; full: among all nodes, without known links; all: these three.",
        ),
    ] = "saved",
    valid: Annotated[
        bool,
        typer.Option("--valid", help="Rank the valid questions instead of the test questions."),
    ] = False,
    backbone: Annotated[
        str | None,
        typer.Option(
            metavar="BACKBONE",
            help="The backbone to evaluate untrained; by default the model's own.",
        ),
    ] = None,
    neighbors: Neighbors = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Rank held-out links: P@1, NDCG and MRR with 95 % intervals, in total and by slices.

    The model is compared with rankings that need no training: degree, common neighbours, TF-IDF,
    and the untrained backbone.

    graphformers evaluate papers.model papers.split
    """
    from graphformers.evaluation.overview import evaluate_with_baselines
    from graphformers.evaluation.ranking import PROTOCOLS, check_protocol
    from graphformers.splits.split import LinkSplit

    expected = (1, 2) if vectors else (2,)
    if len(paths) not in expected:
        raise typer.BadParameter(
            f"{len(paths)} folders given, expected MODEL SPLIT, or SPLIT with --vectors",
            param_hint="paths",
        )
    check_protocol(protocol, (*PROTOCOLS, "all"))
    if cosine and not vectors:
        raise typer.BadParameter(
            "is for --vectors; a model knows how its vectors are compared", param_hint="--cosine"
        )
    loaded = LinkSplit.load(paths[-1])
    found = evaluate_with_baselines(
        paths[0] if len(paths) == 2 else None,
        loaded,
        loaded.valid if valid else loaded.test,
        protocols=PROTOCOLS if protocol == "all" else (protocol,),
        vectors={str(file): cosine for file in vectors or []},
        backbone=backbone,
        num_neighbors=neighbors,
        device=device,
    )
    if as_json:
        print(json.dumps(found.to_dict(), ensure_ascii=False))
    else:
        found.print()


@app.command("compare")
def compare_command(
    split: Annotated[Path, typer.Argument(metavar="SPLIT", help="A split folder.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="The folder for the report and the runs."
        ),
    ],
    table: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="One of the paper's tables: datasets, overall, neighbours, ablation, efficiency.",
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A method to compare, trained in two stages; NAME.one-stage: on unmasked text "
            "alone; graphformers.simplified, .shared or .position: the paper's ablations. "
            "Repeatable. By default plm, max and graphformers, in two stages and in one.",
        ),
    ] = None,
    source: Annotated[
        str,
        typer.Option("--from", metavar="BACKBONE", help="A folder, minilm, or a name on the hub."),
    ] = "minilm",
    config: Recipe = None,
    set: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of all runs, or of one method: max.learning_rate=1e-4. Repeatable.",
        ),
    ] = None,
    seeds: Annotated[
        str,
        typer.Option(
            metavar="NUMBERS", help="Every method is trained with each seed, as in 42,43,44."
        ),
    ] = "42",
    retrain: Annotated[
        bool,
        typer.Option(
            "--retrain",
            help="With --table neighbours: train with fewer neighbours, too, not only test.",
        ),
    ] = False,
    keep_models: Annotated[
        bool, typer.Option(help="Keep trained models once they are scored.")
    ] = True,
    device: Device = None,
    force: Annotated[
        bool, typer.Option("--force", help="Train runs again that were made with other settings.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train several methods under one budget, and report whether the graph helps, which method to
    choose, and what it costs.

    Every run has the same number of steps: max_steps, or the epochs of both stages, without early
    stopping. With max_seconds every run has the same time instead.

    The same command continues a comparison that was interrupted, and reuses finished runs.

    graphformers compare papers.split --config minilm -o report
    """
    from graphformers.compare.comparison import compare
    from graphformers.compare.settings import ComparisonSettings
    from graphformers.splits.split import LinkSplit
    from graphformers.training.recipes import merge_settings, parse_settings, read_recipe

    words = [word.strip() for word in seeds.split(",")]
    numbers = tuple(int(word) for word in words if word.isdecimal())
    if len(numbers) < len(words) or len(numbers) > len(dict.fromkeys(numbers)):
        raise typer.BadParameter(
            f"{seeds!r} given, expected different whole numbers such as 42,43,44",
            param_hint="--seeds",
        )
    settings = merge_settings(
        {} if config is None else read_recipe(config), parse_settings(set or [])
    )
    comparison = ComparisonSettings(
        LinkSplit.load(split), output, source, settings, numbers, device, force, keep_models
    )
    found = compare(comparison, table=table, methods=method, retrain=retrain)
    if as_json:
        print(json.dumps(found.to_dict(), ensure_ascii=False, indent=1))
    else:
        found.print()


@app.command("convert")
def convert_command(
    weights: Annotated[
        str,
        typer.Argument(
            metavar="WEIGHTS",
            help="A .bin or .pt file, a folder of weights, minilm, or a name on the hub.",
        ),
    ],
    output: Output,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="A folder, tokenizer.json or vocab.txt; by default beside the weights.",
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(metavar="NAME", help="graphformers, plm, gat, max, mean, att, tnve, iftn."),
    ] = "graphformers",
    max_tokens: Annotated[int, typer.Option(metavar="NUMBER", help="Texts are cut here.")] = 32,
    pooling: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=(
                "What stands for a text: cls, or mean of its tokens; "
                "by default cls, with plm as made."
            ),
        ),
    ] = None,
    similarity: Annotated[
        str, typer.Option(metavar="NAME", help="How vectors are compared: dot or cosine.")
    ] = "dot",
    force: Force = False,
) -> None:
    """Turn foreign weights into a model folder: a language model's, as it is, or a checkpoint of
    the 2021 code.

    The only place where .bin and .pt files are read, as plain tensors: nothing in them is ever run.
    With
    --method plm a language model reads texts alone, as it was made to; other methods add what is
      untrained.

    graphformers convert checkpoint.bin --tokenizer vocab.txt -o papers.model

    graphformers convert minilm --method plm --similarity cosine --max-tokens 256 -o minilm.model
    """
    from graphformers.artifact import check_writable
    from graphformers.model.backbones import convert

    check_writable(output, "model", force=force)
    changes = {"max_tokens": max_tokens, "similarity": similarity} | (
        {} if pooling is None else {"pooling": pooling}
    )
    model = convert(weights, tokenizer, method, **changes)
    model.save_pretrained(output, force=force)
    print(
        f"{output}: {model.config.method}, {sum(p.numel() for p in model.parameters()):,} "
        f"parameters"
    )
