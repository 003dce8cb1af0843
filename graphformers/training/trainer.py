"""Trainer: link prediction in two stages, on masked text until validation stops improving, then
on clean text from there.

Everything a run does is a function of its settings and of where it stands (TrainState), so that a
run that was stopped, killed or lost its machine goes on as if nothing had been: the same command
continues it.
"""

import logging
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphformers.artifact import check_writable
from graphformers.batching.prefetch import Parcel
from graphformers.batching.tokens import cut_words
from graphformers.data.arrays import equal_parts
from graphformers.errors import GraphFormersError, StoppedError
from graphformers.evaluation.metrics import METRICS
from graphformers.evaluation.ranking import asked_nodes, rank_listed
from graphformers.evaluation.scores import VectorScores
from graphformers.files import require_space
from graphformers.model.backbones import own_random_numbers, save_pretrained
from graphformers.model.encoder import GraphFormers
from graphformers.model.fast import compile_network
from graphformers.progress import clock, progress
from graphformers.splits.split import LinkQuestions, LinkSplit, loaded_split
from graphformers.table import Table
from graphformers.training.batches import BatchMaker, TrainBatch
from graphformers.training.checkpoint import (
    Recent,
    RunFolder,
    TrainState,
    bytes_of_run,
    fingerprint,
    restore_optimizer,
)
from graphformers.training.distributed import World, joined
from graphformers.training.loading import Loader
from graphformers.training.log import STEPS_PER_EPOCH, TrainingLog
from graphformers.training.optimizer import make_optimizer, set_learning_rate
from graphformers.training.schedule import Schedule
from graphformers.training.settings import CHANGEABLE, TrainConfig
from graphformers.training.step import Stepper, mix_seed, repeatable
from graphformers.version import __version__

logger = logging.getLogger(__name__)

ADVICE = "a smaller learning_rate, warmup or max_norm=1 may help"


@dataclass(frozen=True)
class TrainResult:
    """How a run ended.

    Attributes:
        valid: Validation P@1 of the model that was kept.
        steps: Optimizer steps.
        seconds: Seconds of training, without validation.
        history: The entries of the training log.
        start: Validation P@1 before the first step, where it was measured.
    """

    valid: float
    steps: int
    seconds: float
    history: list[dict[str, Any]] = field(repr=False)
    start: float | None = None

    def __str__(self) -> str:
        before = "" if self.start is None else f" ({self.start:.4f} before training)"
        took = f"{self.steps:,} steps in {clock(self.seconds)}"
        return f"the model of the best validation, P@1 {self.valid:.4f}{before}; {took}"

    def validations(self) -> list[dict[str, Any]]:
        """The validations, each with the training since the one before."""
        names = ("stage", "epoch", "step", "loss", "P@1", "NDCG", "MRR", "pairs_per_second")
        return [
            {name: entry[name] for name in names}
            for entry in self.history
            if entry["kind"] == "validation"
        ]

    def to_dict(self) -> dict[str, Any]:
        """The result with its validations, for JSON."""
        return {
            "valid_P@1": self.valid,
            "steps": self.steps,
            "seconds": round(self.seconds, 1),
            "start_P@1": self.start,
            "history": self.validations(),
        }

    def as_table(self) -> Table:
        """The validations, for a terminal."""
        header = ("stage", "epoch", "step", "loss", "P@1", "NDCG", "MRR", "pairs/s")
        rows = [
            tuple(
                f"{value:.4f}" if isinstance(value, float) else f"{value:,}"
                for value in entry.values()
            )
            for entry in self.validations()
        ]
        return Table(header, rows)

    def _repr_html_(self) -> str:
        return self.as_table()._repr_html_()


class Trainer:
    """Trains a model on a split's train links: `Trainer(model, split,
    TrainConfig(epochs=5)).train()`.

    With `output`, the run can be continued at any time, and the trained model is written there.
    `model` and `split` may be folders.
    """

    def __init__(
        self,
        model: GraphFormers | str | Path,
        split: LinkSplit | str | Path,
        config: TrainConfig | None = None,
        output: str | Path | None = None,
    ) -> None:
        self.model = (
            model if isinstance(model, GraphFormers) else GraphFormers.from_pretrained(model)
        )
        self.split = loaded_split(split)
        self.config = config or TrainConfig()
        self.output = None if output is None else Path(output)
        self.run = None if output is None else RunFolder(output)
        self.state = TrainState()
        self.world = World()
        # what the model was made from, for who wants to compare with that
        self.backbone: str | None = None
        self._best: dict[str, Tensor] = {}
        self._start = ""  # fingerprint of the weights it starts from
        self._settings: dict[str, Any] = {}
        self._signal = 0
        self._signalled_at = 0.0
        self._is_forced = False
        self._parcels: Iterator[Parcel] | None = None
        self._check()

    def _check(self) -> None:
        if not isinstance(self.config, TrainConfig):
            raise GraphFormersError(
                f"a {type(self.config).__name__} given as settings, expected TrainConfig(…)"
            )
        if len(self.split.train) < 2:
            raise GraphFormersError(
                f"{len(self.split.train)} pairs to train on, expected at least 2"
            )
        if self.model.two_pass().is_joint and not self.config.neighbor_gradients:
            raise GraphFormersError(
                "neighbor_gradients=false is not for bidirectional models: their neighbours read "
                "each other"
            )

    def train(self, *, force: bool = False) -> TrainResult:
        """Trains to the end, or on to the end; `force` starts anew and replaces a finished model.

        The model holds the best weights afterwards. In several processes started by torchrun, every
        one calls this.
        """
        check_output(self.output, force=force)
        self.state, self._best, self._start, self._signal, self._is_forced = (
            TrainState(),
            {},
            "",
            0,
            force,
        )
        with (
            joined(self.model.device) as self.world,
            own_random_numbers(),
            repeatable(self.model.device),
            self._held(),
        ):
            self.set_up()
            try:
                self._begin(force)
                self._compile()
                with self._signals():
                    while self.state.stage < len(self.config.stages):
                        self._run_stage()
                    return self._finish()
            finally:
                self.clean_up()

    def _held(self) -> AbstractContextManager[None]:
        return self.run.held() if self.run is not None and self.world.is_first else nullcontext()

    def _begin(self, force: bool) -> None:
        """From the start, or from the checkpoint that there is."""
        first = self.run if self.world.is_first else None
        if first is not None:
            self._settings = self._what_defines_the_run()
            if force or not first.exists():
                first.clear()
        optimizer_tensors: dict[str, Tensor] = {}
        resumed = self.world.any(first is not None and first.exists())
        if resumed and first is not None:
            self.state, optimizer_tensors = first.load(self.model, self._settings)
            if self.state.best_step >= 0:
                self._best = first.load_best(self.state)
        self._share(optimizer_tensors)
        self.log = TrainingLog(first, self.state)
        if words := cut_words(self.maker.tokens, self.model.config.max_tokens):
            logger.info(words)
        if resumed:
            logger.info(f"continuing an unfinished run at step {self.state.step:,}")
        elif first is not None:
            size = sum(parameter.numel() for parameter in self.model.network.parameters())
            require_space(first.folder, bytes_of_run(size))
        self._saved_at = time.monotonic()

    def _compile(self) -> None:
        """Has the layers compiled by a step that changes nothing: what takes a minute once is not
        time spent on training.
        """
        if not self._is_compiled or self.state.stage == len(self.config.stages):
            return
        started = time.perf_counter()
        self.model.train()
        self.stepper.run(self.next_batch(), seed=0)
        self.model.zero_grad(set_to_none=True)
        self._parcels = None  # the batch comes again
        taken = time.perf_counter() - started
        if taken > 5:
            logger.info(f"layers compiled in {taken:.0f} s")

    def set_up(self) -> None:
        """All that is needed to make a step."""
        config, device = self.config, self.model.device
        nodes = np.unique(self.split.train)
        self.model.add_nodes(self.split.graph.id_hashes[nodes], config.seed)
        with self.world.first_then_others():
            self.maker = BatchMaker.of(
                self.model, self.split, config, self.world.rank, self.world.size
            )
        count = len(self.split.valid)
        few = np.linspace(0, count - 1, min(count, config.max_valid)).astype(np.int64)
        self.questions = LinkQuestions(
            self.split.valid.pairs[few], self.split.valid.candidates[few]
        )
        self.asked = asked_nodes(self.questions)
        self.optimizer = make_optimizer(self.model, config)
        self.loader = Loader(self.maker, self._num_workers(), device)
        self.stepper = Stepper(self.model, config, self.world, self._remake)
        self._told_chunk = config.chunk_size
        self.schedule = Schedule(config, self.maker.num_batches)
        self._pending: list[_Pending] = []
        self._loss, self._pace = math.nan, 0.0
        self.log = TrainingLog(None, self.state)
        self._is_compiled = config.compile or (config.compile is None and device.type == "cuda")
        if self._is_compiled:
            compile_network(self.model.network, self.model.compute, trains=True)

    def clean_up(self) -> None:
        """Ends what `set_up` began."""
        self._parcels = None
        self.loader.close()
        self.log.close()
        self.model.eval()

    def _num_workers(self) -> int:
        if self.config.workers is not None:
            return self.config.workers
        cores = (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
        return (
            min(8, max(1, cores // self.world.size - 1)) if self.model.device.type == "cuda" else 1
        )

    def _what_defines_the_run(self) -> dict[str, Any]:
        settings = {
            name: value for name, value in asdict(self.config).items() if name not in CHANGEABLE
        }
        model = {f"model.{name}": value for name, value in asdict(self.model.config).items()}
        if not self._start:
            own = fingerprint(self.model.network.state_dict())
            self._start = own if self.run is None or self._is_forced else self.run.start_of(own)
        return (
            settings
            | model
            | {
                "split": self.split.fingerprint,
                "weights": self._start,
                "processes": self.world.size,
            }
        )

    def _share(self, optimizer_tensors: dict[str, Tensor]) -> None:
        """Everybody stands where the first process stands."""
        world, device, network = self.world, self.model.device, self.model.network
        self.state = TrainState.of(world.share_json(asdict(self.state)))
        network.load_state_dict(world.share(dict(network.state_dict()), device))
        restore_optimizer(network, self.optimizer, world.share(optimizer_tensors, device))
        self._best = {
            name: tensor.to(device) for name, tensor in world.share(self._best, device).items()
        }

    def _run_stage(self) -> None:
        """Steps and validations until the stage is over; then everything is set for the next
        one.
        """
        state = self.state
        if state.step == 0 and state.start < 0 and self.config.validate_start:
            numbers = self.world.share_json(self._measure_valid())
            state.start = numbers["P@1"]
            self.log.start(numbers)
            self._stop_if_asked()
        while True:
            if self.schedule.is_validation_due(state):
                self._validate()
                self._stop_if_asked()
            reason = self.schedule.why_over(state)
            if reason:
                break
            self._run_steps()
        logger.info(
            f"stage {state.stage + 1} ends, {reason}: best valid P@1 {state.best:.4f} at step "
            f"{state.best_step:,}"
        )
        state.stage, state.epoch = state.stage + 1, state.epoch + int(state.number > 0)
        state.number = state.stage_epoch = state.stage_step = state.waited = 0
        state.stage_seconds, state.stage_best = 0.0, -1.0
        self._parcels = None
        self.model.network.load_state_dict(self._best)
        self.optimizer = make_optimizer(self.model, self.config)
        if state.stage < len(self.config.stages):
            self._save()

    def _run_steps(self) -> None:
        """Steps until the next validation is due."""
        state, config = self.state, self.config
        self.model.train()
        best = f"best P@1 {state.best:.4f}, " if state.best_step >= 0 else ""
        left = self.schedule.limits(state)[0] - state.stage_step
        # of the epoch, as far as steps allow
        total = min(len(self.split.train), (state.number + left) * config.batch_size)
        with progress(self._place(), total, "pairs") as task:
            task.skip(state.number * config.batch_size)
            while True:
                self._step()
                # read a step later
                loss = "" if math.isnan(self._loss) else f"loss {self._loss:.3f}, "
                task.note = (
                    f"{best}{loss}stage ends in "
                    f"{clock(self.schedule.seconds_left(state))} or sooner"
                )
                task.update(
                    min((state.number or self.maker.num_batches) * config.batch_size, total)
                )
                self._stop_if_asked()
                if time.monotonic() - self._saved_at >= 60 * config.checkpoint_minutes:
                    self._save()
                if state.number == 0 or self.schedule.is_validation_due(state):
                    return

    def _place(self) -> str:
        of = (
            f" of {len(self.config.stages)} ({self.config.stages[self.state.stage]} text)"
            if self.config.two_stage
            else ""
        )
        return f"stage {self.state.stage + 1}{of}, epoch {self.state.epoch + 1}"

    def _step(self) -> None:
        """One optimizer step."""
        state, started = self.state, time.perf_counter()
        batch = self.next_batch()
        waited = time.perf_counter() - started
        rate = self.schedule.learning_rate(state)
        set_learning_rate(self.optimizer, rate)
        loss = self.stepper.run(batch, mix_seed(self.config.seed, state.step, self.world.rank))
        self._tell_chunks()
        norm = self.update_weights()
        place = state.step + 1, state.stage + 1, state.epoch + 1
        state.step, state.stage_step, state.number = (
            state.step + 1,
            state.stage_step + 1,
            state.number + 1,
        )
        if state.number == self.maker.num_batches:
            state.epoch, state.stage_epoch, state.number = state.epoch + 1, state.stage_epoch + 1, 0
            self._parcels = None
        state.recent.steps += 1
        state.recent.counts += batch.counts
        self._pending.append(
            _Pending(torch.stack([loss, norm]), batch.pairs, batch.counts.pairs, place, rate)
        )
        self._drain(1)  # the GPU is one step behind: waiting for it here would let it run empty
        seconds = time.perf_counter() - started
        if self.config.max_seconds is not None:
            seconds = self.world.largest(seconds)
        state.seconds, state.stage_seconds = state.seconds + seconds, state.stage_seconds + seconds
        state.recent.seconds, state.recent.data_wait = (
            state.recent.seconds + seconds,
            state.recent.data_wait + waited,
        )
        self._pace = state.recent.counts.pairs / max(state.recent.seconds, 1e-9)

    def _tell_chunks(self) -> None:
        """Says when the memory of the GPU changes how many pairs are computed at a time."""
        used, before = self.stepper.used, self._told_chunk
        if used == before:
            return
        self._told_chunk = used
        if used is not None and (before is None or used < before):
            words = (
                f"the GPU's memory is full: {used} pairs of a batch are computed "
                f"at a time now, which takes longer; "
            )
            words += "more are tried again later"
        else:
            words = (
                f"the GPU's memory is enough for {used or 'all'} pairs of a batch at a time again"
            )
        # each has its own memory, and slows down all
        who = f"process {self.world.rank}: " if self.world.size > 1 else ""
        logger.warning(who + words)

    def next_batch(self) -> TrainBatch:
        """The batch of the next step."""
        state = self.state
        self.loader.chunk_size = self.stepper.chunk_size
        if self._parcels is None:
            is_masked = self.config.stages[state.stage] == "masked"
            self._parcels = self.loader.epoch(state.epoch, is_masked=is_masked, start=state.number)
        batch: TrainBatch = next(self._parcels).open(self.model.device)
        most = self.stepper.chunk_size
        # made before memory ran out
        if most is not None and (batch.key.chunk_size is None or batch.key.chunk_size > most):
            return self._remake(batch, most)
        return batch

    def _remake(self, batch: TrainBatch, chunk_size: int | None) -> TrainBatch:
        remade: TrainBatch = Parcel.of(
            self.maker.make(replace(batch.key, chunk_size=chunk_size))
        ).open(self.model.device)
        return remade

    def update_weights(self) -> Tensor:
        """The optimizer's step; gives the length of the gradient."""
        parameters = list(self.model.network.parameters())
        self.world.sum_gradients(parameters)
        norm = torch.nn.utils.get_total_norm(
            [parameter.grad for parameter in parameters if parameter.grad is not None]
        )
        if self.config.max_norm:
            torch.nn.utils.clip_grads_with_norm_(parameters, self.config.max_norm, norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def _drain(self, keep: int) -> None:
        """Reads the losses of all steps but the last few. A loss or a gradient that is no number
        ends the run.
        """
        while len(self._pending) > keep:
            done = self._pending.pop(0)
            self._loss, norm = done.loss_and_norm.tolist()
            self.state.recent.loss += self._loss * done.num_pairs
            if not math.isfinite(self._loss):
                self._fail(done, f"the loss of step {done.place[0]:,} is {self._loss}")
            if not math.isfinite(norm):
                self._fail(done, f"the gradient of step {done.place[0]:,} is {norm} long")
            if done.place[0] % max(1, self.maker.num_batches // STEPS_PER_EPOCH) == 0:
                self.log.step(done.place, self._loss, done.learning_rate, self._pace)

    def _fail(self, failed: "_Pending", what: str) -> None:
        ids = self.split.graph.ids_of(failed.pairs.flatten().cpu().numpy())
        pairs = [f"{a} – {b}" for a, b in zip(ids[::2], ids[1::2], strict=True)]
        self.log.failure(failed.place, failed.learning_rate, pairs)
        kept = ""
        if self.run is not None and self.run.exists():
            best = (
                f", the best model so far in {self.run.best(self.state)}"
                if self.run.best(self.state).is_dir()
                else ""
            )
            kept = f". The last checkpoint is kept in {self.run.folder}{best}"
        shown = f"{', '.join(pairs[:3])}{' …' if pairs[3:] else ''}"
        raise GraphFormersError(
            f"{what}, at learning rate {failed.learning_rate:.2g}; its pairs: {shown}{kept}; "
            f"{ADVICE}"
        )

    def _validate(self) -> None:
        """P@1 on clean text; the best weights are kept."""
        self._drain(0)
        state = self.state
        numbers = self._recent_numbers() | self.world.share_json(self._measure_valid())
        state.waited = 0 if numbers["P@1"] > state.stage_best else state.waited + 1
        state.stage_best = max(state.stage_best, numbers["P@1"])
        if (numbers["P@1"], numbers["MRR"]) > (state.best, state.best_mrr):
            state.best, state.best_mrr, state.best_step = numbers["P@1"], numbers["MRR"], state.step
            self._best = {
                name: tensor.detach().clone()
                for name, tensor in self.model.network.state_dict().items()
            }
        self.log.validation(state, numbers)
        state.recent = Recent()

    def _measure_valid(self) -> dict[str, float]:
        """Each process encodes its share of the nodes; all rank all questions and so come to the
        same numbers.
        """
        nodes = self.asked
        edges = equal_parts(len(nodes), self.world.size)
        sampler = self.split.sampler(self.model.config.num_neighbors)
        part = nodes[edges[self.world.rank] : edges[self.world.rank + 1]]
        own = self.model.encode_nodes(
            self.split.graph, part, sampler=sampler, tokens=self.maker.tokens
        )
        sizes = [b - a for a, b in pairwise(edges)]
        vectors = (
            self.world.gather(torch.from_numpy(own).to(self.model.device), sizes).cpu().numpy()
        )
        ranks = rank_listed(
            VectorScores(vectors, nodes, cosine=self.model.is_cosine), self.questions
        )
        return {name: float(METRICS[name](ranks).mean()) for name in ("P@1", "NDCG", "MRR")}

    def _recent_numbers(self) -> dict[str, float]:
        recent = self.state.recent
        counts = recent.counts
        return {
            "loss": recent.loss / counts.pairs,
            "pairs_per_second": counts.pairs / max(recent.seconds, 1e-9),
            "negatives": counts.negatives / max(counts.anchors, 1),
            "left_out": counts.left_out / max(counts.anchors, 1),
            "saved": 1 - counts.distinct / max(counts.neighbors, 1) if counts.neighbors else 0.0,
            "fullness": counts.tokens / max(counts.places, 1),
            "data_wait": recent.data_wait / max(recent.seconds, 1e-9),
        }

    def _save(self) -> None:
        """Writes a checkpoint; the first process does."""
        self._drain(0)
        if self.run is not None and self.world.is_first:
            if not all(
                bool(tensor.isfinite().all()) for tensor in self.model.network.state_dict().values()
            ):
                raise GraphFormersError(
                    f"the weights after step {self.state.step:,} are no numbers any more; {ADVICE}"
                )
            if self.state.best_step >= 0:
                self.run.save_best(self.state, self.model, self._best)
            self.run.save(self.state, self.model, self.optimizer, self._settings)
        self._saved_at = time.monotonic()

    def _stop_if_asked(self) -> None:
        if self.world.any(self._signal > 0):
            self._save()
            self.world.wait()  # who leaves early has the others ended by torchrun
            command = "the same command without --force" if self._is_forced else "the same command"
            message = f"stopped after step {self.state.step:,}; {command} goes on from there"
            raise StoppedError(message, self._signal or signal.SIGTERM)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the run after the step; a second one ends it at once.

        Not within two seconds: a signal to a whole job comes twice, from its sender and from
        torchrun.
        """
        if self.output is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def ask(number: int, frame: Any) -> None:
            if self._signal and time.monotonic() - self._signalled_at > 2:
                signal.signal(number, before[signal.Signals(number)] or signal.SIG_DFL)
                os.kill(os.getpid(), number)
            if not self._signal:
                self._signal, self._signalled_at = number, time.monotonic()
                logger.info("stopping after this step …")

        for number in before:
            signal.signal(number, ask)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler or signal.SIG_DFL)

    def _finish(self) -> TrainResult:
        """The best weights, in the model and in the output folder."""
        state = self.state
        entries = self.log.entries
        start = state.start if state.start >= 0 else None
        if state.best < state.start:
            logger.info(
                f"training made it worse: valid P@1 {state.best:.4f} at best, {state.start:.4f} "
                f"before; {ADVICE}"
            )
        if self.output is not None and self.run is not None and self.world.is_first:
            validations = [entry for entry in entries if entry["kind"] == "validation"]
            valid = {"P@1": state.best, "step": state.best_step, "start": start}
            made = {
                "settings": self._settings,
                "valid": valid,
                "steps": state.step,
                "seconds": round(state.seconds, 3),
            }
            made |= {"backbone": self.backbone, "history": validations}
            made["versions"] = {"graphformers": __version__, "torch": torch.__version__}
            save_pretrained(self.model, self.output, force=True, training=made)
            self.run.finish()
        self.world.wait()
        return TrainResult(state.best, state.step, state.seconds, entries, start)


@dataclass(frozen=True)
class _Pending:
    """A step whose loss has not been read yet."""

    loss_and_norm: Tensor
    pairs: Tensor  # of this process
    num_pairs: int  # of all
    place: tuple[int, int, int]  # step, stage, epoch
    learning_rate: float


def check_output(output: Path | None, *, force: bool) -> None:
    """Raises early what the end of a run would raise. A finished model may be replaced by a run
    that is under way.
    """
    if output is not None:
        check_writable(output, "model", force=force or RunFolder(output).exists())
