"""Runs of a comparison: each variant trained with each seed under one budget, scored under several conditions, and kept.

A run is a model folder and a folder of ranks beside it. What is finished is never done again; what was interrupted goes on.
"""

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphformers.artifact import MANIFEST, open_artifact, write_artifact
from graphformers.compare.variants import Variant
from graphformers.data.arrays import Array, load_array, mix, save_array
from graphformers.data.sampling import Neighborhood, NeighborSampler
from graphformers.data.split import LinkSplit
from graphformers.errors import GraphFormersError
from graphformers.evaluation.baselines import sentence_vectors, simple_scores
from graphformers.evaluation.metrics import Ranks
from graphformers.evaluation.ranking import asked_nodes, evaluate, rank_listed
from graphformers.evaluation.scores import Scorer, VectorScores
from graphformers.model.backbones import find_backbone
from graphformers.model.encoding import GraphFormers
from graphformers.progress import say
from graphformers.train.runs import make_trainer
from graphformers.train.settings import CHANGEABLE, divide_settings, settings_for

KIND = "scores"
VERSION = 1
ASKED = "asked"  # the condition under which the model is meant to work
ALONE = "no neighbours"
SHUFFLED = "shuffled neighbours"


@dataclass(frozen=True)
class Plan:
    """What all runs of a comparison share."""

    split: LinkSplit
    folder: Path  # runs/ inside it holds models and ranks
    source: str = "minilm"  # the backbone
    settings: Mapping[str, Any] | None = None  # of training, for all; max.learning_rate for one method
    seeds: tuple[int, ...] = (42,)
    device: str | None = None
    force: bool = False  # train anew what was made with other settings
    keep_models: bool = True

    def place(self, variant: Variant, seed: int) -> Path:
        return self.folder / "runs" / f"{variant.name}-{seed}.model"

    def resolve(self, variant: Variant, seed: int) -> dict[str, Any]:
        """The settings of a run: the common ones, the method's own, the variant's; and the same budget for everyone.

        The budget is max_seconds if that is set, else max_steps, else both stages' epochs in steps. Nobody stops early: who did
        would have had less of it.
        """
        settings = settings_for(variant.method, self.settings or {}) | dict(variant.settings) | {"seed": seed}
        if settings.get("max_seconds") is not None:
            return settings
        config, _ = divide_settings(settings)
        per_epoch = max(1, -(-len(self.split.train) // config.batch_size))
        steps = config.max_steps or 2 * config.epochs * per_epoch
        return settings | {"max_steps": steps, "epochs": -(-steps // per_epoch) + 1, "patience": steps}


@dataclass(frozen=True)
class Run:
    """A finished run: where the positives stand under each condition, and what it took."""

    variant: Variant
    seed: int
    ranks: dict[str, Ranks]  # by condition
    facts: dict[str, Any]  # steps, seconds, valid, parameters, nodes_per_second, history


def finish_run(plan: Plan, variant: Variant, seed: int, conditions: Sequence[str] = (ASKED,)) -> Run:
    """Trains a variant, if that is not done, and scores it under each condition, if that is not done."""
    model, settings = plan.place(variant, seed), plan.resolve(variant, seed)
    ranks_folder = model.with_suffix(".scores")
    made = _what_made_it(plan, variant, settings)
    found = load_ranks(ranks_folder) if (ranks_folder / MANIFEST).is_file() else None
    if found is not None and not _is_same(plan, ranks_folder, found[2], made):
        found = None
    ranks, facts = ({}, {}) if found is None else found[:2]
    missing = [name for name in conditions if name not in ranks]
    if not missing:
        return Run(variant, seed, ranks, facts)
    if not _is_trained(plan, model, made):
        say(f"{variant.title}, seed {seed}: training")
        trainer = make_trainer(plan.split, plan.source, model, variant.method, settings, plan.device)
        trainer.train(force=(model / MANIFEST).is_file())
    facts = training_facts(model) | facts
    trained = GraphFormers.from_pretrained(model, device=plan.device)
    for condition in missing:
        started = time.perf_counter()
        ranks[condition] = evaluate(trained, plan.split, sampler=sampler_of(condition, plan.split, trained)).ranks
        if condition == ASKED:
            taken = time.perf_counter() - started
            say(f"{variant.title}, seed {seed}: P@1 {float((ranks[ASKED].better == 0).mean()):.4f}")
            facts["nodes_per_second"] = len(asked_nodes(plan.split.test)) / taken
    save_ranks(ranks_folder, ranks, facts, made)
    if not plan.keep_models:
        shutil.rmtree(model)
    return Run(variant, seed, ranks, facts)


def _is_trained(plan: Plan, model: Path, made: dict[str, Any]) -> bool:
    """Whether a run ended before its scores were kept, and was told the same."""
    if not (model / MANIFEST).is_file():
        return False
    told = read_training(model)["settings"]
    return _is_same(plan, model, {name: told.get(name, value) for name, value in made.items()}, made)


def _what_made_it(plan: Plan, variant: Variant, settings: Mapping[str, Any]) -> dict[str, Any]:
    """All that a run's numbers depend on."""
    config, model = divide_settings(settings)
    told = {name: value for name, value in asdict(config).items() if name not in CHANGEABLE}
    split = plan.split.artifact.fingerprint if plan.split.artifact else None
    return {"method": variant.method, "backbone": plan.source, "split": split, **told, **model}


def _is_same(plan: Plan, place: Path, found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    differing = [name for name in {**found, **wanted} if found.get(name) != wanted.get(name)]
    if not differing:
        return True
    if plan.force:
        return False
    name = differing[0]
    raise GraphFormersError(
        f"{place}: made with {name}={found.get(name)!r}, now {name}={wanted.get(name)!r} is given; choose another output folder, "
        "or --force to train anew"
    )


def training_facts(model: Path) -> dict[str, Any]:
    """What a model folder says of its training."""
    told = read_training(model)
    parameters = open_artifact(model, "model", None).summary["parameters"]
    shown = ("stage", "epoch", "step", "loss", "P@1")
    history = [{name: entry[name] for name in shown} for entry in told["history"]]
    return {
        "valid": told["valid"]["P@1"],
        "steps": told["steps"],
        "seconds": told["seconds"],
        "parameters": parameters,
        "history": history,
    }


def read_training(model: Path) -> dict[str, Any]:
    """How a model folder was made."""
    return dict(json.loads((model / "training.json").read_text(encoding="utf-8")))


@dataclass(frozen=True)
class ShuffledSampler(NeighborSampler):
    """Every node gets the neighbours of some other node: as many texts to read, none of them its own company."""

    def sample(self, centers: Array, *, epoch: int = 0, exclude: Array | None = None) -> Neighborhood:
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
    """What needs no training, on the same questions: rankings by words and links, and the backbone as it is."""
    place, split = plan.folder / "runs" / "untrained.scores", plan.split
    _, model = divide_settings(settings_for("graphformers", plan.settings or {}))
    max_tokens, count = model.get("max_tokens", 32), model.get("num_neighbors", 5)
    made = {"backbone": plan.source, "split": split.artifact.fingerprint if split.artifact else None}
    made |= {"max_tokens": max_tokens, "num_neighbors": count}
    if (place / MANIFEST).is_file():
        ranks, _, found = load_ranks(place)
        if _is_same(plan, place, found, made):
            return ranks
    nodes = asked_nodes(split.test)
    systems: dict[str, Scorer] = dict(simple_scores(split, count))
    if not (Path(plan.source) / MANIFEST).is_file():
        find_backbone(plan.source)
        vectors = sentence_vectors(plan.source, split.graph, nodes, max_tokens, plan.device)
        systems[f"{Path(plan.source).name}, untrained"] = VectorScores(vectors, nodes, cosine=True)
    ranks = {name: rank_listed(scorer, split.test) for name, scorer in systems.items()}
    save_ranks(place, ranks, {}, made)
    return ranks


def save_ranks(path: Path, ranks: Mapping[str, Ranks], facts: dict[str, Any], made: dict[str, Any]) -> None:
    """Writes ranks by name as an artifact, replacing an older one."""
    with write_artifact(path, KIND, VERSION, force=True) as draft:
        for place, each in enumerate(ranks.values()):
            save_array(draft.path(f"ranks_{place}.npy"), np.stack([each.better, each.tied]).astype(np.int32))
        draft.settings = made
        draft.summary = {"names": list(ranks), "facts": facts}


def load_ranks(path: Path) -> tuple[dict[str, Ranks], dict[str, Any], dict[str, Any]]:
    """The ranks by name, what the run took, and what made it."""
    artifact = open_artifact(path, KIND, VERSION)
    ranks = {}
    for place, name in enumerate(artifact.summary["names"]):
        better, tied = load_array(artifact.file(f"ranks_{place}.npy")).astype(np.int64)
        ranks[name] = Ranks(better, tied)
    return ranks, dict(artifact.summary["facts"]), dict(artifact.settings)
