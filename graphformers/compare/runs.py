"""Runs of a comparison: trains each variant with each seed, and scores it under conditions.

A run is a model folder and a folder of ranks beside it. Finished parts are reused, and interrupted
ones continued.
"""

import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np

from graphformers.arrays import load_array, save_array
from graphformers.artifact import MANIFEST, open_artifact, write_artifact
from graphformers.compare.conditions import OWN_NEIGHBORS, TEXT_SEARCH, sampler_of
from graphformers.compare.efficiency import device_name
from graphformers.compare.settings import ComparisonSettings
from graphformers.compare.variants import Variant
from graphformers.errors import ArtifactError, GraphFormersError
from graphformers.evaluation.baselines import baseline_scores, sentence_encoder
from graphformers.evaluation.metrics import METRICS, PRIMARY, Ranks
from graphformers.evaluation.ranking import model_scores, question_nodes, rank, rank_listed
from graphformers.evaluation.scores import Scorer, VectorScores
from graphformers.evaluation.text_search import (
    TextQueries,
    search_by_vectors,
    text_search,
    word_search,
)
from graphformers.files import held, write_whole
from graphformers.model.backbones import ModelSummary, Validated, training_of
from graphformers.model.encoder import GraphFormers
from graphformers.records import ELSEWHERE, JsonObject, checked, read_sealed, sealed
from graphformers.settings import SettingValue, usage
from graphformers.training.checkpoint import RunFolder
from graphformers.training.trainer import make_trainer

logger = logging.getLogger(__name__)

KIND = "scores"
# 2: ranks of search by words beside those of links
VERSION = 2
# Encoding is timed up to three times, until this many seconds are spent.
TIMED_SECONDS = 2.0
# suffix of a backbone's name in the titles of untrained systems
UNTRAINED = ", untrained"


class TrainedFacts(TypedDict):
    """Facts that every run has."""

    valid: float
    steps: int
    seconds: float
    parameters: int
    history: list[Validated]
    model: str


class RunFacts(TrainedFacts, total=False):
    """Facts about a run. Speed and device are added when it is scored with its own neighbours.

    Attributes:
        valid: The primary metric on the valid questions.
        steps: Training steps.
        seconds: Seconds of training.
        parameters: Number of parameters.
        history: The validations.
        improved: Whether training improved on the starting weights; missing where these were not
            validated, which is the default of a comparison.
        model: The fingerprint of the model.
        nodes_per_second: Encoding speed.
        device: The device of the encoding.
    """

    improved: bool
    nodes_per_second: float
    device: str


class ScoresSummary(TypedDict):
    """What the manifest of a folder of ranks says under `summary`."""

    names: list[str]
    # none of systems that need no training
    facts: JsonObject


@dataclass(frozen=True)
class Run:
    """A finished run. Ranks are by condition, those of search by words under TEXT_SEARCH."""

    variant: Variant
    seed: int
    ranks: dict[str, Ranks]
    facts: RunFacts


def finish_run(
    settings: ComparisonSettings,
    variant: Variant,
    seed: int,
    conditions: Sequence[str] = (OWN_NEIGHBORS,),
    queries: TextQueries | None = None,
) -> Run:
    """Trains a variant and scores it under conditions, as far as that is not done yet.

    Args:
        settings: The settings of the comparison.
        variant: The variant.
        seed: The seed of the training.
        conditions: The conditions under which links are ranked.
        queries: Queries of search by words, always the same ones for a folder.

    Raises:
        GraphFormersError: The run was made with other settings, or another process is making it.
    """
    model = settings.model_folder(variant, seed)
    lock = model.with_name(f".{model.stem}.lock")
    with held(lock, f"{model}: another process is making this run"):
        _check_record(model, settings.run_record(variant, seed), force=settings.force)
        scores = model.with_suffix(".scores")
        ranks, facts = load_ranks(scores) if _is_readable(scores) else ({}, None)
        searches = [TEXT_SEARCH] if queries else []
        wanted = list(dict.fromkeys([*ranks, *conditions, *searches]))
        if facts is not None and wanted == list(ranks):
            return Run(variant, seed, ranks, facts)
        if not (model / MANIFEST).is_file():
            again = " again, because its model was not kept" if ranks else ""
            logger.info(f"{variant.title}, seed {seed}: training{again}")
            run_settings = settings.run_settings(variant, seed)
            make_trainer(
                settings.split,
                settings.source,
                model,
                variant.method,
                run_settings,
                settings.device,
            ).train(keep_start=True)
        trained = training_facts(model)
        # Kept ranks may belong to an earlier model of this run, which was not kept.
        if facts is None or any(facts[name] != trained[name] for name in ("model", "history")):
            ranks, facts = {}, trained
        facts = trained | facts
        loaded = GraphFormers.from_pretrained(model, device=settings.device)
        known: VectorScores | None = None
        for condition in [name for name in wanted if name not in (*ranks, TEXT_SEARCH)]:
            ranks[condition], speed, scorer = score_model(settings, loaded, condition)
            if condition == OWN_NEIGHBORS:
                known = scorer
                facts |= {"nodes_per_second": speed, "device": device_name(loaded.device)}
                mean = float(METRICS[PRIMARY](ranks[condition]).mean())
                logger.info(f"{variant.title}, seed {seed}: {PRIMARY} {mean:.4f}")
        if TEXT_SEARCH in wanted and TEXT_SEARCH not in ranks:
            sampler = settings.split.sampler(loaded.config.num_neighbors)
            ranks[TEXT_SEARCH] = text_search(
                loaded, settings.split, queries, sampler=sampler, known=known
            )
        save_ranks(scores, ranks, facts)
        if not settings.keep_models:
            shutil.rmtree(model)
        return Run(variant, seed, ranks, facts)


def score_model(
    settings: ComparisonSettings, model: GraphFormers, condition: str
) -> tuple[Ranks, float, VectorScores]:
    """Ranks the test questions under a condition; also returns nodes encoded per second."""
    split = settings.split
    sampler = sampler_of(condition, split, model.config.num_neighbors)
    nodes = question_nodes(split.test)
    # not timed, because the first call compiles kernels and fills caches
    model.encode_nodes(split.graph, nodes[:64], sampler=sampler)
    times: list[float] = []
    while not times or (
        condition == OWN_NEIGHBORS and len(times) < 3 and sum(times) < TIMED_SECONDS
    ):
        started = time.perf_counter()
        scorer = model_scores(model, split, split.test, sampler=sampler)
        times.append(time.perf_counter() - started)
    return rank(scorer, split.graph, split.test).ranks, len(nodes) / min(times), scorer


def rank_untrained(
    settings: ComparisonSettings, queries: TextQueries | None = None
) -> dict[str, dict[str, Ranks]]:
    """Ranks the test questions and queries by baselines and by the untrained backbone.

    The ranks are computed once for a folder; other processes that need them wait.

    Args:
        settings: The settings of the comparison.
        queries: Queries of search by words.

    Returns:
        Ranks by title of the system and condition, those of queries under TEXT_SEARCH.

    Raises:
        GraphFormersError: They were computed with other settings.
    """
    split, place = settings.split, settings.folder / "runs" / "untrained.model"
    with held(place.with_name(".untrained.lock")):
        _check_record(place, settings.baseline_record(), force=settings.force)
        scores = place.with_suffix(".scores")
        if _is_readable(scores):
            found = _by_title(load_ranks(scores)[0])
            if not queries or any(TEXT_SEARCH in each for each in found.values()):
                return found
        nodes = question_nodes(split.test)
        if queries:
            nodes = np.union1d(nodes, queries.candidates_of(split.graph))
        encoder = sentence_encoder(settings.source, settings.max_tokens, settings.device)
        vectors = encoder.encode_nodes(split.graph, nodes)
        backbone = f"{Path(settings.source).name}{UNTRAINED}"
        systems: dict[str, Scorer] = dict(baseline_scores(split, settings.num_neighbors))
        systems[backbone] = VectorScores(vectors, nodes, cosine=True)
        found = {
            name: {OWN_NEIGHBORS: rank_listed(scorer, split.test)}
            for name, scorer in systems.items()
        }
        if queries:
            rows = np.searchsorted(nodes, queries.candidates_of(split.graph))
            by_backbone = search_by_vectors(
                encoder, split.graph, queries, vectors[rows], cosine=True
            )
            for name, ranks in {backbone: by_backbone, **word_search(split.graph, queries)}.items():
                found.setdefault(name, {})[TEXT_SEARCH] = ranks
        flat = {
            f"{condition}: {name}": ranks
            for name, conditions in found.items()
            for condition, ranks in conditions.items()
        }
        save_ranks(scores, flat)
        return found


def _by_title(flat: Mapping[str, Ranks]) -> dict[str, dict[str, Ranks]]:
    """The ranks of untrained systems by title and condition, from names such as "asked: TF-IDF"."""
    found: dict[str, dict[str, Ranks]] = {}
    for name, ranks in flat.items():
        condition, _, title = name.partition(": ")
        found.setdefault(title, {})[condition] = ranks
    return found


def _is_readable(scores: Path) -> bool:
    """Whether there are ranks in the present format; those of an older one are computed again."""
    return (scores / MANIFEST).is_file() and open_artifact(scores, KIND, None).format == VERSION


def read_run_record(model: Path, *, force: bool = False) -> JsonObject:
    """The record of the run of a model folder; empty if there is none.

    Args:
        model: The model folder.
        force: Whether a damaged record counts as none.

    Raises:
        ArtifactError: The record is damaged.
    """
    file = model.with_suffix(".json")
    try:
        return read_sealed(file, JsonObject) if file.is_file() else {}
    except ArtifactError as error:
        if force:
            return {}
        advice = f"{usage('force', True)} makes this run again"
        raise ArtifactError(f"{error}; {advice}") from error


def _check_record(model: Path, wanted: Mapping[str, SettingValue], *, force: bool) -> None:
    """Writes the record of a run before it starts: all settings that its results depend on.

    If there is a run with another record, raises an error, or removes that run with `force`.
    """
    file, run = model.with_suffix(".json"), RunFolder(model)
    others = [each for each in (model, run.path, model.with_suffix(".scores")) if each.exists()]
    found = read_run_record(model, force=force)
    differing = [name for name in {**found, **wanted} if found.get(name) != wanted.get(name)]
    if differing and others and not force:
        name = differing[0]
        raise GraphFormersError(
            f"{model}: made with {name}={found.get(name)!r}, now {name}={wanted.get(name)!r} is "
            f"given; choose another output folder, or {usage('force', True)} to train again"
        )
    if not differing:
        return
    # an error if another process is training in the folder
    with run.held() if run.path in others else nullcontext():
        run.clear()
        for each in others:
            if each != run.path:
                shutil.rmtree(each)
        write_whole(file, sealed(wanted))


def training_facts(model: Path) -> RunFacts:
    """Facts about the training of a model folder."""
    training, artifact = training_of(model), open_artifact(model, "model", None)
    if training is None:
        raise ArtifactError(f"{model}: does not say how it was trained; train it again")
    facts: RunFacts = {
        "valid": training["valid"][PRIMARY],
        "steps": training["steps"],
        "seconds": training["seconds"],
        "parameters": checked(artifact.manifest, artifact.summary, ModelSummary)["parameters"],
        "history": [
            {
                "stage": entry["stage"],
                "epoch": entry["epoch"],
                "step": entry["step"],
                "loss": entry["loss"],
                PRIMARY: entry[PRIMARY],
            }
            for entry in training["history"]
        ],
        "model": artifact.fingerprint,
    }
    if training["improved"] is not None:
        facts["improved"] = training["improved"]
    return facts


def save_ranks(path: Path, ranks: Mapping[str, Ranks], facts: RunFacts | None = None) -> None:
    """Writes ranks by condition, and facts about their run, as a folder; replaces an older one."""
    with write_artifact(path, KIND, VERSION, force=True) as draft:
        for number, each in enumerate(ranks.values()):
            array = np.stack([each.better, each.tied]).astype(np.int32)
            save_array(draft.path(f"ranks_{number}.npy"), array)
        draft.summary = {"names": list(ranks), "facts": facts or {}}


def load_ranks(path: Path) -> tuple[dict[str, Ranks], RunFacts | None]:
    """Reads what `save_ranks` wrote."""
    artifact = open_artifact(path, KIND, VERSION)
    summary = checked(artifact.manifest, artifact.summary, ScoresSummary, "summary")
    files = [f"ranks_{number}.npy" for number in range(len(summary["names"]))]
    ranks = {}
    for name, file in zip(summary["names"], artifact.paths(files), strict=True):
        array = load_array(file, "int32", 2)
        if len(array) != 2:
            raise ArtifactError(f"{file}: {len(array)} rows, expected 2; {ELSEWHERE}")
        ranks[name] = Ranks(*array.astype(np.int64))
    facts = summary["facts"]
    return ranks, checked(artifact.manifest, facts, RunFacts, "summary.facts") if facts else None
