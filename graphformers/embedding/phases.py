"""The two phases over shards of nodes: what every text gives on its own, then every centre in the
light of its neighbours.

Batches are fixed by the plan: nodes of a shard, as many as fill a batch, packed by length; in the
second phase those with as many neighbours stand together, since a batch is as wide as its widest
neighbourhood. So a shard has the same bytes whoever computes it and whatever was computed before,
as long as the memory is enough for the batches. While the device computes one, the next ones
are packed (in processes on a GPU, whose kernels one Python thread must launch), gathered and
copied, and finished shards are written.

Between the phases states lie on the device, where they fit, or in their shards on disk.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from graphformers.arrays import Array, load_array
from graphformers.batching.packing import PackedBatch, PackedNeighborhoods, to_device
from graphformers.batching.prefetch import FlatBatch, Prefetcher
from graphformers.batching.tokens import TokenCache
from graphformers.batching.two_pass import CenterBatch
from graphformers.embedding.plan import Plan
from graphformers.embedding.settings import EmbedSettings
from graphformers.embedding.shards import ShardedRows, ShardFolder, ShardWriter, shard_name
from graphformers.embedding.states import states_dtype
from graphformers.embedding.vectors import to_precision
from graphformers.errors import GraphFormersError
from graphformers.graph.sampling import NeighborSampler
from graphformers.graph.textgraph import TextGraph
from graphformers.memory import BatchSplitter, SuppressOutOfMemory
from graphformers.model.encoder import GraphFormers, center_vectors, text_states
from graphformers.model.registry import Network
from graphformers.progress import Progress
from graphformers.settings import usage

AHEAD = 2  # batches made ready while one is computed
# threads that gather states from disk for a batch; elsewhere one: processors have enough to do
READERS = {"cuda": 8}
Item = TypeVar("Item")
Centers = CenterBatch | PackedNeighborhoods
Packed = PackedBatch | Centers
Ready = PackedBatch | tuple[Centers, Tensor | None]  # on the device, with gathered states


@dataclass(frozen=True)
class BatchKey:
    """Nodes of a shard that follow one another in the order of the phase."""

    phase: int
    shard: int
    start: int  # in the shard
    stop: int
    is_last: bool  # of its shard

    def __str__(self) -> str:
        return f"batch {self.start:,} to {self.stop - 1:,} of shard {self.shard}"


class Phases:
    """Computes shards of one plan, with one model, on one device."""

    def __init__(
        self,
        model: GraphFormers,
        graph: TextGraph,
        tokens: TokenCache,
        plan: Plan,
        folders: tuple[ShardFolder, ShardFolder],
        *,
        in_memory: bool = False,
        workers: int = 0,
    ) -> None:
        self.model, self.graph, self.tokens, self.plan = model, graph, tokens, plan
        self.states, self.vectors = folders  # where the shards of states and of vectors are written
        self.two_pass = plan.two_pass(model)
        self.sampler = NeighborSampler(
            graph.indptr, graph.indices, graph.id_hashes, plan.num_neighbors, plan.seed
        )
        # (N, S, D), where states stay on the device
        self.table = self._new_rows(0, plan.num_nodes) if in_memory else None
        self.splitter = BatchSplitter()
        self._num_workers = workers
        self._rows: ShardedRows | None = None
        self._ordered: tuple[int, Array] | None = None  # the last shard that was put in order

    def encode_texts(self, shards: Sequence[int], task: Progress) -> None:
        """Phase 1: the states of these shards, in the table where there is one, and on disk where
        they are kept or there is none.
        """

        def rows_of(start: int, stop: int) -> Tensor:
            return self._new_rows(start, stop) if self.table is None else self.table[start:stop]

        def write(shard: int, rows: Array) -> None:
            about = {"text_hash": self.graph.text_hash(*self.plan.shards[shard])}
            self.states.write(shard_name("states", shard), rows, about)

        is_written = self.plan.keep_states or self.table is None
        self._run(1, shards, task, (rows_of, text_states, write if is_written else None))

    def encode_centers(self, shards: Sequence[int], task: Progress) -> None:
        """Phase 2: the vectors of these shards, from the states of all."""

        def rows_of(start: int, stop: int) -> Tensor:
            return torch.empty(stop - start, self.plan.hidden_size, device=self.model.device)

        def write(shard: int, rows: Array) -> None:
            raw = to_precision(rows, self.plan.precision)
            if raw.scales is not None:
                self.vectors.write(shard_name("scales", shard), raw.scales)
            self.vectors.write(shard_name("vectors", shard), raw.numbers)

        def compute(network: Network, prepared: tuple[Centers, Tensor | None]) -> Tensor:
            batch, states_MSD = prepared
            if states_MSD is None:
                assert self.table is not None
                states_MSD = self.table[
                    batch.needed_M if isinstance(batch, CenterBatch) else slice(0)
                ]
            return center_vectors(network, batch, states_MSD)

        self._run(2, shards, task, (rows_of, compute, write))

    def _new_rows(self, start: int, stop: int) -> Tensor:
        shape = (stop - start, self.plan.num_states, self.plan.hidden_size)
        return torch.empty(
            shape, dtype=states_dtype(self.plan.key.precision), device=self.model.device
        )

    def load_states(self, shards: Iterable[int]) -> None:
        """Takes finished states from disk to the device."""
        if self.table is None:
            self.table = self._new_rows(0, self.plan.num_nodes)
        for shard in shards:
            start, stop = self.plan.shards[shard]
            found = load_array(self.states.folder / shard_name("states", shard))
            self.table[start:stop] = torch.from_numpy(np.array(found)).to(self.model.device)

    def make(self, key: BatchKey) -> Packed:
        """Packs a batch; called in worker processes where there are some."""
        nodes = self._nodes(key.phase, key.shard)[key.start : key.stop]
        if key.phase == 1:
            return self.two_pass.packer.pack(self.tokens, nodes)
        return self.two_pass.pack_centers(self.tokens, self.sampler.sample(nodes))

    def keys(self, phase: int, shards: Sequence[int]) -> Iterator[BatchKey]:
        """The batches of these shards, in order."""
        for shard in shards:
            parts = list(self._parts(phase, self._nodes(phase, shard)))
            for part in parts:
                yield BatchKey(phase, shard, part.start, part.stop, part is parts[-1])

    def _parts(self, phase: int, nodes: Array) -> Iterator[slice]:
        if phase == 1:
            return self.two_pass.text_parts(self.tokens, nodes)
        if self.two_pass.packer.inputs.joint:
            return self.two_pass.center_parts(self.tokens, self.sampler.sample(nodes))
        return self.two_pass.center_parts_by_count(
            self.tokens, nodes, self.plan.counts(self.graph, nodes)
        )

    def _nodes(self, phase: int, shard: int) -> Array:
        """The nodes of a shard in the order in which the phase takes them."""
        if phase == 1 or self.two_pass.packer.inputs.joint:
            return np.arange(*self.plan.shards[shard])
        last = self._ordered
        if last is None or last[0] != shard:
            self._ordered = last = (
                shard,
                self.plan.by_neighbors(self.graph, np.arange(*self.plan.shards[shard])),
            )
        return last[1]

    def _run(
        self,
        phase: int,
        shards: Sequence[int],
        task: Progress,
        how: tuple[
            Callable[[int, int], Tensor],
            Callable[[Network, Any], Tensor],
            Callable[[int, Array], None] | None,
        ],
    ) -> None:
        rows_of, compute, write = how
        device = self.model.device
        workers, writer = Prefetcher(self.make, self._num_workers, device), ShardWriter(device)
        readers = ThreadPoolExecutor(READERS.get(device.type, 1), "gather")
        try:
            with self.model.inference() as network:
                prepare = self._prepared(phase, readers)
                batches = ahead(
                    map(
                        partial(self._if_it_fits, prepare),
                        workers.batches(self.keys(phase, shards)),
                    )
                )
                rows: Tensor | None = None  # of the shard that is being read
                places: Tensor | None = None  # in them, of nodes that are read in another order

                def read(batch: Ready, part: slice) -> None:
                    assert rows is not None
                    rows[part if places is None else places[part]] = compute(network, batch).to(
                        rows.dtype
                    )

                for key in self.keys(phase, shards):
                    if rows is None:
                        rows = self._rows_of_shard(key.shard, rows_of, writer)
                        first = self.plan.shards[key.shard][0]
                        places = (
                            None
                            if phase == 1
                            else torch.from_numpy(self._nodes(phase, key.shard) - first).to(device)
                        )
                    self._read(key, next(batches), prepare, read)
                    if key.is_last:
                        if write is not None:
                            writer.put(rows, partial(write, key.shard))
                        rows = None
                    task.advance(key.stop - key.start)
                writer.finish()
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
        finally:
            writer.close()
            workers.close()
            readers.shutdown()

    def _read(
        self,
        key: BatchKey,
        ready: Ready | None,
        prepare: Callable[[FlatBatch[Packed]], Ready],
        read: Callable[[Ready, slice], None],
    ) -> None:
        """Has a batch read. `ready` is the whole of it, where there was room for that; smaller
        pieces are made here.
        """
        whole, waiting = slice(key.start, key.stop), [ready]
        del ready  # so that it is gone when pieces are made

        def work(part: slice) -> None:
            batch = waiting.pop() if waiting else None
            if batch is None or part != whole:
                batch = prepare(
                    FlatBatch.of(self.make(replace(key, start=part.start, stop=part.stop)))
                )
            read(batch, part)

        self.splitter.run(whole, work)

    def _if_it_fits(
        self, prepare: Callable[[FlatBatch[Packed]], Ready], flat: FlatBatch[Packed]
    ) -> Ready | None:
        """A batch made ready ahead of time; None where memory is not enough for that, or where it
        is to be read in pieces.
        """
        with SuppressOutOfMemory():
            return prepare(flat) if self.splitter.num_pieces == 1 else None
        return None

    def _rows_of_shard(
        self, shard: int, rows_of: Callable[[int, int], Tensor], writer: ShardWriter
    ) -> Tensor:
        """Room for a shard's results; where there is none left, after those before are written."""
        with SuppressOutOfMemory():
            return rows_of(*self.plan.shards[shard])
        writer.finish()
        torch.cuda.empty_cache()
        with SuppressOutOfMemory():
            return rows_of(*self.plan.shards[shard])
        raise GraphFormersError(
            f"no room in memory for a shard of {self.plan.shard_size:,} nodes; start anew with "
            f"smaller ones: {usage('force', True)}, "
            f"{EmbedSettings.usage(shard_size=max(1, self.plan.shard_size // 4))}"
        )

    def _prepared(
        self, phase: int, readers: ThreadPoolExecutor
    ) -> Callable[[FlatBatch[Any]], Ready]:
        """Turns a flat batch into the input of `compute`: on the device, states gathered."""
        device = self.model.device
        if phase == 1:
            return lambda flat: flat.to(device)
        if self.table is not None:
            return lambda flat: (flat.to(device), None)

        def gather(flat: FlatBatch[Centers]) -> Ready:
            batch = flat.to(torch.device("cpu"))
            states_MSD = self._from_disk(batch, readers)
            return to_device(batch, device), states_MSD.to(device, non_blocking=True)

        return gather

    def _from_disk(self, batch: Centers, readers: ThreadPoolExecutor) -> Tensor:
        """The states that a batch needs, or none; where the device is a GPU, in memory that it
        copies from at once.
        """
        nodes_M = batch.needed_M if isinstance(batch, CenterBatch) else torch.zeros(0)
        states_MSD = torch.empty(
            (len(nodes_M), self.plan.num_states, self.plan.hidden_size),
            dtype=states_dtype(self.plan.key.precision),
            pin_memory=self.model.device.type == "cuda",
        )
        if not len(nodes_M):
            return states_MSD
        if self._rows is None:
            names = [
                self.states.folder / shard_name("states", shard)
                for shard in range(len(self.plan.shards))
            ]
            self._rows = ShardedRows(tuple(map(load_array, names)), self.plan.shard_size)
        self._rows.take(nodes_M.numpy(), states_MSD.numpy(), readers)
        return states_MSD


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items, the next few of them made in a thread while one is used."""
    end = object()
    with ThreadPoolExecutor(1, "ahead") as thread:
        waiting: deque[Future[Any]] = deque(thread.submit(next, items, end) for _ in range(AHEAD))
        while True:
            found = [waiting.popleft().result()]  # a list: who waits here keeps no item
            if found[0] is end:
                return
            waiting.append(thread.submit(next, items, end))
            yield found.pop()
