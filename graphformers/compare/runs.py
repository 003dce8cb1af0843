"""Runs of a comparison: each variant trained with each seed under one budget, scored under several
conditions, and kept.

A run is a model folder and a folder of ranks beside it. What is finished is never done again; what
was interrupted goes on.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from graphformers.artifact import MANIFEST, open_artifact, write_artifact
from graphformers.compare.efficiency import device_name
from graphformers.compare.variants import Variant
from graphformers.data.arrays import Array, load_array, mix, save_array
from graphformers.data.sampling import Neighborhood, NeighborSampler
from graphformers.data.split import LinkSplit
from graphformers.errors import GraphFormersError
from graphformers.evaluation.baselines import baseline_scores, sentence_vectors
from graphformers.evaluation.metrics import METRICS, PRIMARY, Ranks
from graphformers.evaluation.ranking import asked_nodes, model_scores, rank, rank_listed
from graphformers.evaluation.scores import Scorer, VectorScores
from graphformers.files import checksum, held, write_whole
from graphformers.model.backbones import find_backbone, training_of
from graphformers.model.encoding import GraphFormers
from graphformers.model.modeling import ModelConfig
from graphformers.places import read_object
from graphformers.progress import say
from graphformers.train.checkpoint import RunFolder
from graphformers.train.runs import make_trainer
from graphformers.train.settings import (
    CHANGEABLE,
    MODEL_SETTINGS,
    divide_settings,
    filled,
    settings_for,
)

KIND = "scores"
VERSION = 1
TIMED = 2.0  # seconds of reading nodes that are enough to tell the pace
NEVER = 10**6  # epochs or validations: more than anybody waits for
BACKBONE_WORDS = "backbone_words"  # in a run's note; older ones do not have it
BUDGET = ("max_steps", "max_seconds", "epochs", "batch_size", "first_share")
ASKED = "asked"  # the condition under which the model is meant to work
ALONE = "no neighbours"
SHUFFLED = "shuffled neighbours"
UNTRAINED = ", untrained"  # behind the name of a backbone


@dataclass(frozen=True)
class Plan:
    """What all runs of a comparison share."""

    split: LinkSplit
    folder: Path  # runs/ inside it holds models and ranks
    source: str = "minilm"  # the backbone
    # of training, for all; max.learning_rate for one method
    settings: Mapping[str, Any] | None = None
    seeds: tuple[int, ...] = (42,)
    device: str | None = None
    force: bool = False  # train anew what was made with other settings
    keep_models: bool = True

    def __post_init__(self) -> None:
        if (Path(self.source) / MANIFEST).is_file():
            raise GraphFormersError(
                f"{self.source}: a model of ours, a comparison starts every method from a backbone"
            )
        for name in self.settings or {}:
            method, _, own = name.rpartition(".")
            if own in ("seed", "two_stage"):
                advice = "--seeds" if own == "seed" else "methods such as max and max.one-stage"
                raise GraphFormersError(f"{name} has no meaning in a comparison; use {advice}")
            if method and own in BUDGET:
                raise GraphFormersError(
                    f"{name} given, but a comparison has one budget: {own} is for all methods"
                )
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise GraphFormersError(
                f"seeds {', '.join(map(str, self.seeds)) or 'none'} given, expected different ones"
            )

    def place(self, variant: Variant, seed: int) -> Path:
        return self.folder / "runs" / f"{variant.name}-{seed}.model"

    def resolve(self, variant: Variant, seed: int) -> dict[str, Any]:
        """The settings of a run: the common ones, the method's own, the variant's; and the same
        budget for everyone.

        The budget is max_seconds if that is set, else max_steps, else both stages' epochs in steps.
        Nobody stops early: who did would have had less of it.
        """
        settings = (
            settings_for(variant.method, self.settings or {})
            | dict(variant.settings)
            | {"seed": seed}
        )
        settings.setdefault("validate_start", False)  # the untrained backbone has a row of its own
        if settings.get("max_seconds") is not None:
            return settings | {"max_steps": None, "epochs": NEVER, "patience": NEVER}
        config, _ = divide_settings(settings)
        per_epoch = max(1, -(-len(self.split.train) // config.batch_size))
        steps = config.max_steps or 2 * config.epochs * per_epoch
        return settings | {
            "max_steps": steps,
            "epochs": -(-steps // per_epoch) + 1,
            "patience": NEVER,
        }

    @cached_property
    def backbone_hash(self) -> str:
        """Of the backbone's weights and configuration: a folder may change under its name."""
        return _hash_of(
            file
            for file in sorted(find_backbone(self.source).glob("*"))
            if file.suffix in (".safetensors", ".json")
        )

    @cached_property
    def words_hash(self) -> str:
        """Of what else it is read by: its words, where they are no JSON, and how
        sentence-transformers pool.
        """
        folder = find_backbone(self.source)
        return _hash_of(
            file for name in ("vocab.txt", "1_Pooling/config.json") for file in folder.glob(name)
        )


def _hash_of(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(checksum(file).encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class Run:
    """A finished run: where the positives stand under each condition, and what it took."""

    variant: Variant
    seed: int
    ranks: dict[str, Ranks]  # by condition
    # steps, seconds, valid, parameters, nodes_per_second, history; which model, on what device
    facts: dict[str, Any]


def finish_run(
    plan: Plan, variant: Variant, seed: int, conditions: Sequence[str] = (ASKED,)
) -> Run:
    """Trains a variant, if that is not done, and scores it under each condition, if that is not
    done.
    """
    model = plan.place(variant, seed)
    with held(
        model.with_name(f".{model.stem}.lock"), f"{model}: another process is making this run"
    ):
        return _finish(plan, variant, seed, conditions)


def _finish(plan: Plan, variant: Variant, seed: int, conditions: Sequence[str]) -> Run:
    model, settings = plan.place(variant, seed), plan.resolve(variant, seed)
    _agree(plan, model, _what_makes_it(plan, variant, settings))
    place = model.with_suffix(".scores")
    ranks, facts = load_ranks(place) if (place / MANIFEST).is_file() else ({}, {})
    wanted = list(dict.fromkeys([*ranks, *conditions]))
    if wanted == list(ranks):
        return Run(variant, seed, ranks, facts)
    if not (model / MANIFEST).is_file():
        say(
            f"{variant.title}, seed {seed}: "
            f"training{' again: its model was not kept' if ranks else ''}"
        )
        make_trainer(plan.split, plan.source, model, variant.method, settings, plan.device).train()
    told = training_facts(model)
    # ranks of another model, trained before
    if any(told[name] != facts.get(name, told[name]) for name in ("model", "history")):
        ranks, facts = {}, {}
    facts = told | facts
    trained = GraphFormers.from_pretrained(model, device=plan.device)
    for condition in [name for name in wanted if name not in ranks]:
        ranks[condition], speed = _score(plan, trained, condition)
        if condition == ASKED:
            facts |= {"nodes_per_second": speed, "device": device_name(trained.device)}
            say(
                f"{variant.title}, seed {seed}: P@1 "
                f"{float(METRICS[PRIMARY](ranks[ASKED]).mean()):.4f}"
            )
    save_ranks(place, ranks, facts)
    if not plan.keep_models:
        shutil.rmtree(model)
    return Run(variant, seed, ranks, facts)


def _score(plan: Plan, model: GraphFormers, condition: str) -> tuple[Ranks, float]:
    """Where the positives stand under a condition, and how many nodes were read in a second."""
    split, sampler = plan.split, sampler_of(condition, plan.split, model)
    nodes = asked_nodes(split.test)
    # what the first call takes is no part of the pace
    model.encode_nodes(split.graph, nodes[:64], sampler=sampler)
    taken: list[float] = []
    # what takes a moment is timed again
    while not taken or (condition == ASKED and len(taken) < 3 and sum(taken) < TIMED):
        started = time.perf_counter()
        scorer = model_scores(model, split, split.test, sampler=sampler)
        taken.append(time.perf_counter() - started)
    speed = len(nodes) / min(taken)  # of reading alone: ranking is the same for all
    return rank(scorer, split.graph, split.test).ranks, speed


def _what_makes_it(plan: Plan, variant: Variant, settings: Mapping[str, Any]) -> dict[str, Any]:
    """All that a run's numbers depend on; None where a model's setting is the backbone's own."""
    config, model = divide_settings(settings)
    told = {name: value for name, value in asdict(config).items() if name not in CHANGEABLE}
    own = {name: model.get(name) for name in MODEL_SETTINGS}
    return {"method": variant.method, **_what_all_share(plan), **told, **own}


def _what_all_share(plan: Plan) -> dict[str, Any]:
    return {
        "backbone": plan.backbone_hash,
        BACKBONE_WORDS: plan.words_hash,
        "split": plan.split.fingerprint,
    }


def _agree(plan: Plan, model: Path, wanted: dict[str, Any]) -> None:
    """Notes what makes a run before it begins. What was made otherwise is refused, or cleared away
    when that is forced.
    """
    note, run = model.with_suffix(".json"), RunFolder(model)
    others = [each for each in (model, run.folder, model.with_suffix(".scores")) if each.exists()]
    found = read_object(note) if note.is_file() else {}
    if found:  # by an older version, perhaps, which did not know all settings
        wanted = (
            wanted
            if BACKBONE_WORDS in found
            else {name: wanted[name] for name in wanted if name != BACKBONE_WORDS}
        )
        found = filled(found, [name for name in wanted if name not in MODEL_SETTINGS])
    differing = [name for name in {**found, **wanted} if found.get(name) != wanted.get(name)]
    if differing and others and not plan.force:
        name = differing[0]
        raise GraphFormersError(
            f"{model}: made with {name}={found.get(name)!r}, now {name}={wanted.get(name)!r} is "
            f"given; choose another output "
            "folder, or --force to train anew"
        )
    if not differing:
        return
    # not under another process that trains there
    with run.held() if run.folder in others else nullcontext():
        run.clear()
        for each in others:
            if each != run.folder:
                shutil.rmtree(each)
        write_whole(note, json.dumps(wanted, indent=1).encode() + b"\n")


def training_facts(model: Path) -> dict[str, Any]:
    """What a model folder says of its training."""
    told, artifact = training_of(model), open_artifact(model, "model", None)
    shown = ("stage", "epoch", "step", "loss", "P@1")
    history = [{name: entry[name] for name in shown} for entry in told["history"]]
    return {
        "valid": told["valid"]["P@1"],
        "steps": told["steps"],
        "seconds": told["seconds"],
        "parameters": artifact.summary["parameters"],
        "history": history,
        "model": artifact.fingerprint,
    }


@dataclass(frozen=True)
class ShuffledSampler(NeighborSampler):
    """Every node gets the neighbours of some other node: as many texts to read, none of them its
    own company.
    """

    def sample(
        self, centers: Array, *, epoch: int = 0, exclude: Array | None = None
    ) -> Neighborhood:
        order = np.argsort(mix(self.seed, self.id_hashes), kind="stable")
        partner = np.empty_like(order)
        partner[order] = np.roll(order, 1)
        others = super().sample(partner[np.asarray(centers)], epoch=epoch)
        return Neighborhood(np.asarray(centers), others.indptr, others.neighbors)


def sampler_of(condition: str, split: LinkSplit, model: GraphFormers) -> NeighborSampler:
    """Who a node's neighbours are under a condition; "#N = 3" are three of its own."""
    own = split.sampler(model.config.num_neighbors)
    if condition == ASKED:
        return own
    if condition == ALONE:
        return split.sampler(0)
    if condition == SHUFFLED:
        return ShuffledSampler(own.indptr, own.indices, own.id_hashes, own.num_neighbors, own.seed)
    return split.sampler(int(condition.removeprefix("#N = ")))


def untrained(plan: Plan) -> dict[str, Ranks]:
    """What needs no training, on the same questions: rankings by words and links, and the backbone
    as it is.
    """
    # who comes second uses what the first has made
    with held(plan.folder / "runs" / ".untrained.lock"):
        return _untrained(plan)


def _untrained(plan: Plan) -> dict[str, Ranks]:
    place, split = plan.folder / "runs" / "untrained.model", plan.split
    _, model = divide_settings(settings_for("graphformers", plan.settings or {}))
    max_tokens, count = (
        model.get(name, getattr(ModelConfig, name)) for name in ("max_tokens", "num_neighbors")
    )
    _agree(plan, place, _what_all_share(plan) | {"max_tokens": max_tokens, "num_neighbors": count})
    place = place.with_suffix(".scores")
    if (place / MANIFEST).is_file():
        return load_ranks(place)[0]
    nodes = asked_nodes(split.test)
    systems: dict[str, Scorer] = dict(baseline_scores(split, count))
    vectors = sentence_vectors(plan.source, split.graph, nodes, max_tokens, plan.device)
    systems[f"{Path(plan.source).name}{UNTRAINED}"] = VectorScores(vectors, nodes, cosine=True)
    ranks = {name: rank_listed(scorer, split.test) for name, scorer in systems.items()}
    save_ranks(place, ranks, {})
    return ranks


def save_ranks(path: Path, ranks: Mapping[str, Ranks], facts: dict[str, Any]) -> None:
    """Writes ranks by name as an artifact, replacing an older one."""
    with write_artifact(path, KIND, VERSION, force=True) as draft:
        for place, each in enumerate(ranks.values()):
            save_array(
                draft.path(f"ranks_{place}.npy"),
                np.stack([each.better, each.tied]).astype(np.int32),
            )
        draft.summary = {"names": list(ranks), "facts": facts}


def load_ranks(path: Path) -> tuple[dict[str, Ranks], dict[str, Any]]:
    """The ranks by name, and what the run took."""
    artifact = open_artifact(path, KIND, VERSION)
    ranks = {}
    for place, name in enumerate(artifact.summary["names"]):
        better, tied = load_array(artifact.file(f"ranks_{place}.npy")).astype(np.int64)
        ranks[name] = Ranks(better, tied)
    return ranks, dict(artifact.summary["facts"])
