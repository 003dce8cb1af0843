"""The same shards on many machines: Ray actors over a shared folder.

The head makes the plan, the folder and the graph inside it; workers read model and graph from their folders, compute whole shards
and write them as a local run would, so that with as many threads the bytes are the same. A worker that dies has its shard done
again by another; a shard that fails for another reason ends the run with its message. Phase 2 begins when all states are there.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from graphformers.data.graph import TextGraph
from graphformers.data.tokens import graph_tokens
from graphformers.embedding.job import Workplace, check_output, check_space, num_nodes
from graphformers.embedding.phases import Phases
from graphformers.embedding.plan import EmbedSettings, Plan, fits_on_device
from graphformers.embedding.states import StatesKey, model_fingerprint
from graphformers.embedding.vectors import VectorStore
from graphformers.errors import GraphFormersError, MissingExtraError
from graphformers.files import full_disk
from graphformers.model.encoding import GraphFormers
from graphformers.progress import Progress, progress, say

MOST_DEATHS = 5  # of workers at one shard: then it is the shard that kills them


@dataclass(frozen=True)
class Cluster:
    """Where to compute."""

    address: str = "local"  # of a Ray cluster; "local" starts one on this machine
    workers: int = 2
    gpus_per_worker: float = 0.0
    threads: int | None = None  # of a worker on a CPU; by default this machine's share for each

    @property
    def device(self) -> str:
        """What workers compute on."""
        return "cuda" if self.gpus_per_worker else "cpu"

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise GraphFormersError(f"workers={self.workers} given, expected at least 1")


class Worker:
    """Computes shards in a process of its own, anywhere that sees the folders."""

    def __init__(self, folders: tuple[str, str, str], plan: dict[str, Any], device: str, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        model, graph, work = folders
        self.plan = Plan(**plan | {"key": StatesKey(**plan["key"])})
        loaded, texts = GraphFormers.from_pretrained(model, device=device), TextGraph.load(graph)
        if model_fingerprint(loaded) != self.plan.key.model:
            raise GraphFormersError(f"{model}: another model than the one that is being embedded with; is the folder shared?")
        place = Workplace(Path(work), self.plan)
        if not place.folder.is_dir():
            raise GraphFormersError(f"{work}: not there on this machine; workers need the folder of the result, shared")
        self.phases = Phases(loaded, texts, graph_tokens(texts, loaded.tokenizer), self.plan, (place.states, place.vectors))

    def run(self, phase: int, shard: int) -> int:
        """Computes and writes one shard; in how many pieces batches had to be read."""
        task = Progress("", None, "")
        if phase == 1:
            self.phases.read_texts([shard], task)
        else:
            if self.phases.table is None and fits_on_device(self.plan, self.phases.model.device):
                self.phases.hold_states()
            self.phases.read_centers([shard], task)
        return self.phases.pieces.count

    def pid(self) -> int:
        return os.getpid()


def embed_on_cluster(
    model: GraphFormers,
    graph: TextGraph,
    out: str | Path,
    settings: EmbedSettings,
    cluster: Cluster,
    *,
    force: bool = False,
) -> VectorStore:
    """`embed` on Ray. Model and graph must lie in folders that all machines see, and so must the result."""
    output = Path(out).resolve()
    check_output(output, force=force)
    if model.source is None or graph.artifact is None:
        raise GraphFormersError("a model and a graph in memory given; workers read them from folders, so save both first")
    plan = Plan.of(model, graph, settings, cluster.device)
    work = Workplace.beside(output, plan)
    try:
        with work.opened(force=force):
            check_space(work)
            work.put_graph(graph)
            graph_tokens(graph, model.tokenizer)  # once, before everybody looks for them
            with _Actors(cluster, (model.source, graph.artifact.path, work)) as actors:
                if plan.num_states and work.unfinished("vectors"):
                    actors.do(1, work.unfinished("states"), "Reading texts")
                actors.do(2, work.unfinished("vectors"), "Embedding")
            work.publish(output, {"model": model.source, "graph": graph.artifact.path}, force=force)
    except OSError as error:
        raise full_disk(error, output) from error
    return VectorStore.load(output)


class _Actors:
    """As many workers as asked for, replaced when they die."""

    def __init__(self, cluster: Cluster, where: tuple[Path, Path, Workplace]) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingExtraError("ray", "embedding on a cluster", "ray") from error
        self._ray: Any = ray
        self._cluster = cluster
        model, graph, self._work = where
        self._folders = tuple(str(path.resolve()) for path in (model, graph, self._work.path))
        self._pieces = 1  # in how many a worker had to read its batches

    def __enter__(self) -> "_Actors":
        local = self._cluster.address == "local"
        options: dict[str, Any] = {"num_cpus": max(self._cluster.workers, os.cpu_count() or 1)} if local else {}
        self._ray.init(address=self._cluster.address, include_dashboard=False, log_to_driver=False, **options)
        return self

    def __exit__(self, *reason: object) -> None:
        self._ray.shutdown()

    def _new(self) -> Any:
        threads = self._cluster.threads or max(1, (os.cpu_count() or 1) // self._cluster.workers)
        kind = self._ray.remote(num_cpus=1, num_gpus=self._cluster.gpus_per_worker, max_restarts=0)(Worker)
        return kind.remote(self._folders, asdict(self._work.plan), self._cluster.device, threads)

    def do(self, phase: int, shards: Sequence[int], title: str) -> None:
        """Has all these shards computed."""
        plan, left = self._work.plan, list(reversed(shards))
        deaths = dict.fromkeys(shards, 0)
        running: dict[Any, tuple[Any, int]] = {}
        idle = [self._new() for _ in range(min(self._cluster.workers, len(left)))]
        with progress(title, plan.num_nodes, "nodes") as task:
            task.skip(plan.num_nodes - num_nodes(plan, shards))
            while left or running:
                while left and idle:
                    actor, shard = idle.pop(), left.pop()
                    running[actor.run.remote(phase, shard)] = (actor, shard)
                done, _ = self._ray.wait(list(running))
                for reference in done:
                    actor, shard = running.pop(reference)
                    if self._is_done(reference, shard, deaths):
                        task.advance(num_nodes(plan, [shard]))
                        idle.append(actor)
                    else:
                        left.append(shard)
                        idle.append(self._new())
        for actor in idle:
            self._ray.kill(actor)

    def _is_done(self, reference: Any, shard: int, deaths: dict[int, int]) -> bool:
        """False when the worker died; what went wrong in it otherwise is raised."""
        try:
            pieces = self._ray.get(reference)
        except self._ray.exceptions.RayActorError as error:
            inner = getattr(error, "cause", None) or error.__cause__
            if isinstance(inner, GraphFormersError):
                raise inner from error
            deaths[shard] += 1
            say(f"a worker died at shard {shard}; the shard is done again")
            if deaths[shard] >= MOST_DEATHS:
                raise GraphFormersError(f"shard {shard} killed {MOST_DEATHS} workers, the last with: {error}") from error
            return False
        except self._ray.exceptions.RayTaskError as error:
            raise GraphFormersError(f"shard {shard} could not be computed: {error.cause}") from error
        if pieces > self._pieces:
            self._pieces = pieces
            say(f"the GPU's memory is full at a worker: it reads batches in {pieces} pieces, which takes longer")
        return True
