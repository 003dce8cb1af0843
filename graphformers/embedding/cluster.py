"""Embedding on a Ray cluster, over a shared folder.

The head makes the plan, the folder and the graph inside it. Workers load model and graph from their
folders, compute whole shards and write them as a local run would: with the same number of threads
the bytes are the same. If a worker dies, another computes its shard again; any other failure of a
shard ends the run. Phase 2 begins when all states are there.
"""

import logging
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphformers.batching.tokens import graph_tokens
from graphformers.embedding.job import (
    Workplace,
    check_output,
    num_nodes,
    tokens_of,
    work_path,
    working,
)
from graphformers.embedding.phases import Phases
from graphformers.embedding.plan import Plan, stay_in_memory
from graphformers.embedding.settings import Cluster, EmbedSettings
from graphformers.embedding.states import model_fingerprint
from graphformers.embedding.vectors import VectorStore
from graphformers.errors import GraphFormersError, MissingExtraError
from graphformers.graph.textgraph import TextGraph
from graphformers.model.encoder import GraphFormers
from graphformers.progress import Progress, progress

logger = logging.getLogger(__name__)

# Deaths of workers at one shard after which the shard itself is blamed.
MOST_DEATHS = 5


class Worker:
    """Computes shards in a process of its own, on any machine that sees the folders."""

    def __init__(
        self,
        folders: tuple[str, str, str],
        plan: Plan,
        settings: EmbedSettings,
        device: str,
        threads: int,
    ) -> None:
        import torch

        torch.set_num_threads(threads)
        model, graph, work = folders
        self.plan, self.settings = plan, settings
        loaded, texts = GraphFormers.from_pretrained(model, device=device), TextGraph.load(graph)
        if model_fingerprint(loaded) != self.plan.key.model:
            raise GraphFormersError(
                f"{model}: another model than the one that is being embedded with; is the folder "
                f"shared?"
            )
        place = Workplace(Path(work), self.plan)
        if not place.folder.is_dir():
            raise GraphFormersError(
                f"{work}: not there on this machine; workers need the folder of the result, shared"
            )
        if self.plan.compile:
            loaded.compile_layers()
        self.phases = Phases(
            loaded,
            texts,
            graph_tokens(texts, loaded.tokenizer),
            self.plan,
            (place.states, place.vectors),
        )

    def ready(self) -> int:
        """Returns when everything is loaded."""
        return self.phases.splitter.num_pieces

    def run(self, phase: int, shard: int) -> int:
        """Computes and writes one shard.

        Returns:
            The number of pieces in which batches were read for want of memory.
        """
        task, phases = Progress("", None, ""), self.phases
        if phase == 1:
            phases.encode_texts([shard], task)
        else:
            if phases.table is None and stay_in_memory(
                self.plan, self.settings, phases.model.device
            ):
                phases.load_states(range(len(self.plan.shards)))
            phases.encode_centers([shard], task)
        return phases.splitter.num_pieces


def embed_on_cluster(
    model: GraphFormers,
    graph: TextGraph,
    out: str | Path,
    settings: EmbedSettings,
    cluster: Cluster,
    *,
    force: bool = False,
) -> VectorStore:
    """`embed` on a Ray cluster.

    Model, graph and result must be folders that all machines see.

    Raises:
        MissingExtraError: If Ray is not installed.
        GraphFormersError: If model or graph are not saved, or a shard fails.
    """
    output = Path(os.path.realpath(out))
    check_output(output, force=force)
    if model.source is None or graph.artifact is None:
        raise GraphFormersError(
            "a model and a graph in memory given; workers read them from folders, so save both "
            "first"
        )
    if settings.workers is not None:
        raise GraphFormersError(
            f"workers={settings.workers} given, which pack batches on this machine; on Ray, "
            f"workers of Ray do"
        )
    plan = Plan.of(model, graph, settings, cluster.device)
    folders = (model.source, graph.artifact.path, work_path(output))
    with (
        _Actors(cluster, plan, folders, settings) as actors,
        working(model, graph, output, plan, force=force, in_memory=False) as work,
    ):
        # Made once, before all workers look for them.
        tokens_of(graph, model)
        texts, left = work.missing(in_memory=False)
        actors.do(1, texts, "Encoding texts")
        actors.do(2, left, "Embedding")
    return VectorStore.load(output)


class _Actors:
    """The workers: as many as the cluster has room for, replaced when they die."""

    def __init__(
        self,
        cluster: Cluster,
        plan: Plan,
        folders: tuple[Path, Path, Path],
        settings: EmbedSettings,
    ) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingExtraError("ray", "embedding on a cluster", "ray") from error
        self._ray: Any = ray
        self._cluster, self._plan, self._settings = cluster, plan, settings
        self._folders = tuple(str(path.resolve()) for path in folders)
        # The most pieces in which a worker read its batches.
        self._pieces = 1
        # Workers by the call that returns when they are ready.
        self._starting: dict[Any, Any] = {}
        # Workers stay for the next phase: loading and compiling takes time.
        self._idle: list[Any] = []

    def __enter__(self) -> "_Actors":
        address, workers = self._cluster.address, self._cluster.workers
        options: dict[str, Any] = (
            {"num_cpus": max(workers, os.cpu_count() or 1)} if address == "local" else {}
        )
        try:
            self._ray.init(address=address, include_dashboard=False, log_to_driver=False, **options)
        except Exception as error:
            # Ray raises many kinds of errors for a wrong address or one that does not answer.
            raise GraphFormersError(f"no Ray cluster at {address!r}: {error}") from error
        room = self._room()
        if not room and address == "local":
            self._ray.shutdown()
            raise GraphFormersError(f"this machine has not {self._needed()}, which a worker needs")
        # The room may change: more workers start when there is some, and shards go to those there
        # are.
        if room < workers:
            logger.info(
                f"the cluster has room for {room} of {workers} workers, each with {self._needed()}"
            )
        return self

    def __exit__(self, *reason: object) -> None:
        self._ray.shutdown()

    def _room(self) -> int:
        """Number of workers for which the cluster has room, if nobody else uses it."""
        gpus, room = self._cluster.gpus_per_worker, 0
        for machine in self._ray.nodes():
            has = machine["Resources"] if machine["Alive"] else {}
            room += int(min(has.get("CPU", 0), has.get("GPU", 0) / gpus if gpus else math.inf))
        return room

    def _needed(self) -> str:
        gpus = self._cluster.gpus_per_worker
        return f"a CPU and {gpus:g} GPUs" if gpus else "a CPU"

    def _start(self) -> None:
        """Asks for a worker, which starts when there is room."""
        threads = self._cluster.threads or max(1, (os.cpu_count() or 1) // self._cluster.workers)
        kind = self._ray.remote(num_cpus=1, num_gpus=self._cluster.gpus_per_worker, max_restarts=0)(
            Worker
        )
        actor = kind.remote(
            self._folders, self._plan, self._settings, self._cluster.device, threads
        )
        self._starting[actor.ready.remote()] = actor

    def do(self, phase: int, shards: Sequence[int], title: str) -> None:
        """Computes shards and returns when all are done."""
        plan, left = self._plan, list(reversed(shards))
        deaths: dict[str, int] = {}
        # Workers and their shards.
        running: dict[Any, tuple[Any, list[int]]] = {}
        # Some workers may have died since.
        waited = {actor.ready.remote(): actor for actor in self._idle}
        self._idle = []
        self._starting |= waited
        for _ in range(min(self._cluster.workers, len(left)) - len(self._starting)):
            self._start()
        with progress(title, plan.num_nodes, "nodes") as task:
            task.skip(plan.num_nodes - num_nodes(plan, shards))
            while left or running:
                while left and self._idle:
                    actor, shard = self._idle.pop(), left.pop()
                    running[actor.run.remote(phase, shard)] = (actor, [shard])
                for reference in self._next([*self._starting, *running]):
                    is_new = reference in self._starting
                    actor, own = (
                        (self._starting.pop(reference), []) if is_new else running.pop(reference)
                    )
                    where = (
                        "while it waited"
                        if reference in waited
                        else "on starting"
                        if is_new
                        else f"at shard {own[0]}"
                    )
                    if self._is_done(reference, where, {} if reference in waited else deaths):
                        task.advance(num_nodes(plan, own))
                        self._idle.append(actor)
                    else:
                        left += own
                        if len(self._starting) + len(self._idle) < len(left):
                            self._start()

    def _next(self, awaited: list[Any]) -> list[Any]:
        """Waits for some of the calls; logs a message when no worker starts for a while."""
        done, _ = self._ray.wait(awaited, timeout=self._cluster.patience)
        if not done and len(awaited) == len(self._starting):
            logger.info("waiting for a worker: the cluster has no room for one now")
            done, _ = self._ray.wait(awaited)
        return list(done)

    def _is_done(self, reference: Any, where: str, deaths: dict[str, int]) -> bool:
        """False if the worker died. Raises any other error of the worker."""
        try:
            pieces = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise GraphFormersError(f"a worker failed {where}: {error.cause}") from error
        except self._ray.exceptions.RayError as error:
            # An actor that died; for want of memory that is no RayActorError.
            inner = getattr(error, "cause", None) or error.__cause__
            if isinstance(inner, GraphFormersError):
                raise inner from error
            deaths[where] = deaths.get(where, 0) + 1
            logger.warning(f"a worker died {where}; another takes its place")
            if deaths[where] >= MOST_DEATHS:
                raise GraphFormersError(
                    f"{MOST_DEATHS} workers died {where}, the last with: {error}"
                ) from error
            return False
        deaths.pop(where, None)
        if pieces > self._pieces:
            self._pieces = pieces
            logger.info(
                f"out of memory at a worker: batches are computed in {pieces} pieces, which "
                f"takes longer"
            )
        return True
