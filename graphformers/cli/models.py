"""Commands on models: train, evaluate, compare, convert."""

from pathlib import Path
from typing import Any

import typer

from graphformers.cli.command import UsageError, argument, command, given, option
from graphformers.cli.options import AS_JSON, DEVICE, FORCE, OUTPUT, RECIPE, SET, SPLIT
from graphformers.cli.output import show_result
from graphformers.embedding.settings import EmbedSettings
from graphformers.settings import SettingValue

# the exit code of a training that did not improve the model
NOT_IMPROVED = 3


@command("train")
def train_command(
    split: Path = SPLIT,
    output: Path = OUTPUT,
    source: str = option(
        "minilm",
        "--from BACKBONE",
        "A backbone (folder, minilm, name on the hub), or a model to train further.",
    ),
    method: str | None = option(
        None, "--method NAME", "graphformers (default), plm, gat, max, mean, att, tnve, iftn."
    ),
    config: Path = RECIPE,
    set: list[str] | None = SET,
    minutes: float | None = option(
        None,
        "--minutes NUMBER",
        "Minutes of the whole run by the clock, compiling, validations and saving included; the "
        "same as --set minutes=NUMBER.",
    ),
    device: str | None = DEVICE,
    dry_run: bool = option(
        False,
        "--dry-run",
        "Estimate memory, then try a few steps and estimate time; nothing is written.",
    ),
    force: bool = FORCE,
    keep_start: bool = option(
        False,
        "--keep-start",
        "Write the model also if training did not improve it; it then has the weights it started "
        "from.",
    ),
    as_json: bool = AS_JSON,
) -> None:
    """Train a model to find links. The same command continues a run that was stopped.

    The weights before the first step take part in the choice of the best. If no later validation is
    better, no model is written and the exit code is 3.

    graphformers train papers.split -o papers.model

    Several GPUs: torchrun --nproc-per-node 8 -m graphformers train …
    """
    from graphformers.splits.split import LinkSplit
    from graphformers.training.auto import find_recipe
    from graphformers.training.checkpoint import RunFolder
    from graphformers.training.distributed import is_first_process
    from graphformers.training.forecast import forecast
    from graphformers.training.recipes import Recipe, merge_settings
    from graphformers.training.trainer import check_output, make_trainer

    own, loaded = given_settings(set, minutes), LinkSplit.load(split)
    if not dry_run:
        check_output(output, force=force)
    recipe = find_recipe(config, loaded, source, device, own)
    settings = merge_settings(recipe.settings, own)
    trainer = make_trainer(loaded, source, output, method, settings, device)
    if dry_run:
        estimate = forecast(trainer)
        if is_first_process():
            show_result(estimate, as_json)
        return
    result = trainer.train(force=force, keep_start=keep_start)
    is_written = result.improved or keep_start
    if is_first_process():
        Recipe(settings, recipe.reasons).save(RunFolder(output).path / "recipe.toml")
        show_result(result, as_json, output if as_json and is_written else None)
        if not as_json:
            print(f"\n{output if is_written else 'not written'}: {result}")
    # torchrun ends all processes as soon as one fails.
    if not result.improved and is_first_process():
        raise typer.Exit(NOT_IMPROVED)


def given_settings(set: list[str] | None, minutes: float | None) -> dict[str, SettingValue]:
    """The settings that were given by --set and --minutes."""
    from graphformers.training.recipes import parse_settings

    found = parse_settings(set or [])
    if minutes is not None:
        if found.get("minutes", minutes) != minutes:
            raise UsageError(f"--minutes {minutes:g} and --set minutes given, expected one of them")
        found["minutes"] = minutes
    return found


@command("evaluate")
def evaluate_command(
    paths: list[Path] = argument(
        ..., "[MODEL] SPLIT", "A model folder and a split folder; or a split with --vectors."
    ),
    vectors: list[Path] | None = option(
        None,
        "--vectors FILE...",
        "Vectors of any system: a folder that `embed` wrote, .npz with ids and vectors, .npy "
        "with .ids.txt beside it, .parquet with id and vector, or word2vec's .txt. Vectors "
        "computed from the whole graph, as by `embed`, contain the held-out links, so their "
        "scores are too high.",
    ),
    cosine: bool = option(
        False, "--cosine", "Compare --vectors by cosine instead of inner product."
    ),
    protocol: str = option(
        "saved",
        "--protocol NAME",
        "saved: among the saved candidates; in-batch: among 300 consecutive positives, as in "
        "the 2021 code; full: among all nodes, without known links; all: all three.",
    ),
    valid: bool = option(
        False, "--valid", "Rank the valid questions instead of the test questions."
    ),
    backbone: str | None = option(
        None,
        "--backbone BACKBONE",
        "The backbone to evaluate untrained; by default the model's own.",
    ),
    sampling: dict[str, Any] = given(EmbedSettings, "num_neighbors"),
    queries: int = option(
        2000,
        "--queries NUMBER",
        "Queries of search by words, each half of the words of a node's text; 0: do not measure "
        "search by words.",
    ),
    device: str | None = DEVICE,
    as_json: bool = AS_JSON,
) -> None:
    """Rank held-out links: P@1, NDCG and MRR with 95 % intervals; and search by words.

    Scores are shown in total and by slices. The model is compared with baselines without training:
    degree, common neighbours, TF-IDF, and the untrained backbone.

    Search by words finds nodes by half of the words of their texts, among all nodes or 50,000 of
    them. The model is compared with the untrained backbone, TF-IDF and BM25.

    graphformers evaluate papers.model papers.split
    """
    from graphformers.evaluation.overview import evaluate_with_baselines
    from graphformers.evaluation.ranking import PROTOCOLS, check_protocol
    from graphformers.splits.split import LinkSplit

    *models, place = paths
    if len(models) > 1 or not (models or vectors):
        raise UsageError(
            f"{' '.join(map(str, paths))} given, expected MODEL SPLIT, or SPLIT with --vectors"
        )
    check_protocol(protocol, (*PROTOCOLS, "all"))
    if cosine and not vectors:
        raise UsageError(
            "--cosine given without --vectors; a model determines the comparison itself"
        )
    split = LinkSplit.load(place)
    found = evaluate_with_baselines(
        models[0] if models else None,
        split,
        split.valid if valid else split.test,
        protocols=PROTOCOLS if protocol == "all" else (protocol,),
        vectors={str(file): cosine for file in vectors or []},
        backbone=backbone,
        queries=queries,
        device=device,
        **sampling,
    )
    show_result(found, as_json)


@command("compare")
def compare_command(
    split: Path = SPLIT,
    output: Path = option(..., "-o, --output FOLDER", "The folder for the report and the runs."),
    table: str | None = option(
        None,
        "--table NAME",
        "One of the paper's tables: datasets, overall, neighbours, ablation, efficiency.",
    ),
    method: list[str] | None = option(
        None,
        "--method NAME...",
        "A method to compare, trained in two stages; NAME.one-stage: on clean text only; "
        "graphformers.simplified, .shared or .position: the paper's ablations. By default plm, "
        "max and graphformers, in two stages and in one.",
    ),
    source: str = option("minilm", "--from BACKBONE", "A folder, minilm, or a name on the hub."),
    config: Path = RECIPE,
    set: list[str] | None = SET,
    seeds: str = option(
        "42", "--seeds NUMBERS", "Every method is trained with each seed, as in 42,43,44."
    ),
    retrain: bool = option(
        False,
        "--retrain",
        "With --table neighbours: also train with fewer neighbours, instead of testing only.",
    ),
    minutes: float | None = option(
        None,
        "--minutes NUMBER",
        "Minutes of the whole comparison, scoring included; every run gets as many steps as fit.",
    ),
    dry_run: bool = option(
        False, "--dry-run", "Try a few steps of each method and estimate times; nothing is written."
    ),
    keep_models: bool = option(
        True, "--keep-models/--no-keep-models", "Keep trained models once they are scored."
    ),
    device: str | None = DEVICE,
    force: bool = option(False, "--force", "Repeat runs that were made with other settings."),
    as_json: bool = AS_JSON,
) -> None:
    """Train several methods under one budget, and write a report.

    The report says whether the graph helps, which method to choose, what neighbours cost, and
    whether training cost search by words.

    Every run has the same number of steps: max_steps, or the epochs of both stages, without early
    stopping. With --minutes, it is the largest number with which all runs are finished in time.

    The same command continues a comparison that was interrupted, and reuses finished runs.

    graphformers compare papers.split -o report
    """
    from graphformers.compare.comparison import compare, forecast_comparison
    from graphformers.compare.settings import ComparisonSettings
    from graphformers.splits.split import LinkSplit
    from graphformers.training.auto import find_recipe
    from graphformers.training.recipes import AUTO

    words = [word.strip() for word in seeds.split(",")]
    # Python refuses to convert thousands of digits.
    numbers = tuple(int(word) for word in words if word.isdecimal() and len(word) < 30)
    if len(numbers) < len(words) or len(numbers) > len(dict.fromkeys(numbers)):
        raise UsageError(
            f"--seeds {seeds} given, expected different whole numbers such as 42,43,44"
        )
    own, loaded = given_settings(set, minutes), LinkSplit.load(split)
    # These tables describe the data and measure networks; auto chooses how to train.
    trains = str(config) != AUTO or table not in ("datasets", "efficiency")
    recipe = find_recipe(config, loaded, source, device, own) if trains else None
    comparison = ComparisonSettings(
        loaded,
        output,
        source,
        own,
        numbers,
        device,
        force,
        keep_models,
        None if recipe is None else recipe.settings,
    )
    work = forecast_comparison if dry_run else compare
    show_result(work(comparison, table=table, methods=method, retrain=retrain), as_json)


@command("convert")
def convert_command(
    weights: str = argument(
        ..., "WEIGHTS", "A .bin or .pt file, a folder of weights, minilm, or a name on the hub."
    ),
    output: Path = OUTPUT,
    tokenizer: Path | None = option(
        None,
        "--tokenizer PATH",
        "A folder, tokenizer.json or vocab.txt; by default beside the weights.",
    ),
    method: str = option(
        "graphformers", "--method NAME", "graphformers, plm, gat, max, mean, att, tnve, iftn."
    ),
    max_tokens: int = option(
        32, "--max-tokens NUMBER", "Tokens at which texts are cut, special tokens included."
    ),
    pooling: str | None = option(
        None,
        "--pooling NAME",
        "Vector of a text: cls, or mean of its tokens; by default cls, with plm as the backbone.",
    ),
    similarity: str = option(
        "dot", "--similarity NAME", "How vectors are compared: dot or cosine."
    ),
    force: bool = FORCE,
) -> None:
    """Turn a language model or a 2021 checkpoint into a model folder.

    Only this command reads .bin and .pt files. They are read as plain tensors; code in them is
    never run. With --method plm, a language model encodes texts alone, as it was trained to; other
    methods add untrained layers.

    graphformers convert checkpoint.bin --tokenizer vocab.txt -o papers.model

    graphformers convert minilm --method plm --similarity cosine --max-tokens 256 -o minilm.model
    """
    from graphformers.artifact import check_writable
    from graphformers.model.backbones import convert

    check_writable(output, "model", force=force)
    changes: dict[str, Any] = {"max_tokens": max_tokens, "similarity": similarity}
    if pooling is not None:
        changes["pooling"] = pooling
    model = convert(weights, tokenizer, method, **changes)
    model.save_pretrained(output, force=force)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{output}: {model.config.method}, {parameters:,} parameters")
