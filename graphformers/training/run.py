"""TrainingRun: the loop of a training run: stages, steps, validations and checkpoints.

Everything a run does is a function of its settings and of its state, so that a run that was stopped
or killed gives the same result when it continues.
"""

import logging
import math
import os
import signal
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from torch import Tensor

from graphformers.batching.tokens import truncation_warning
from graphformers.errors import GraphFormersError, StoppedError
from graphformers.files import require_space
from graphformers.model.encoder import GraphFormers
from graphformers.model.fast import compile_network
from graphformers.progress import progress
from graphformers.records import checked
from graphformers.settings import SettingValue, usage
from graphformers.splits.split import LinkSplit
from graphformers.training.batches import BatchMaker, TrainBatch
from graphformers.training.budget import plan_budget
from graphformers.training.checkpoint import (
    LogEntry,
    RecentSteps,
    RunFolder,
    TrainState,
    bytes_of_run,
    fingerprint,
    restore_optimizer,
)
from graphformers.training.chunks import ChunkSize
from graphformers.training.distributed import World
from graphformers.training.loader import Loader
from graphformers.training.log import STEPS_PER_EPOCH, TrainingLog
from graphformers.training.memory import plan_memory
from graphformers.training.optimizer import make_optimizer, set_learning_rate
from graphformers.training.schedule import Schedule
from graphformers.training.settings import CHANGEABLE, TrainConfig
from graphformers.training.step import TrainStep, mix_seed
from graphformers.training.stopping import InterruptedWork, StopSignal
from graphformers.training.validation import Validation

logger = logging.getLogger(__name__)

ADVICE = "a smaller learning_rate, warmup or max_norm=1 may help"
# A first step that is faster than this is repeated, because it may be slower than later ones.
FAST_STEP_SECONDS = 5.0


@dataclass(frozen=True)
class UnreadStep:
    """A step whose loss has not been copied from the device yet.

    Attributes:
        loss_and_norm: The loss, and the norm of the gradient.
        pairs: (B, 2) int64: the pairs of this process.
        num_pairs: The pairs of all processes.
        place: The numbers of the step, its stage and its epoch, from 1.
        learning_rate: The learning rate of the step.
    """

    loss_and_norm: Tensor
    pairs: Tensor
    num_pairs: int
    place: tuple[int, int, int]
    learning_rate: float


class TrainingRun:
    """A training run, as one of its processes sees it.

    Args:
        model: The model to train.
        split: The pairs to train on and the questions to validate with.
        config: The settings.
        world: The processes that train together.
        folder: The folder of the run; None on all processes but the first.
        force: Whether to start anew where the folder holds an unfinished run.

    Attributes:
        state: The progress of the run.
        best: The weights of the best validation so far.
        memory: The estimated memory of a step, and the chunks that fit.
    """

    def __init__(
        self,
        model: GraphFormers,
        split: LinkSplit,
        config: TrainConfig,
        world: World,
        folder: RunFolder | None = None,
        *,
        force: bool = False,
    ) -> None:
        # The clock of the run starts here, before texts are tokenised.
        self._clock_start = time.monotonic()
        self.model = model
        self.split = split
        self.config = config
        self.world = world
        self.folder = folder
        self.force = force
        model.add_nodes(split.graph.id_hashes[np.unique(split.train)], config.seed)
        with world.first_then_others():
            maker = BatchMaker.of(model, split, config, world.rank, world.size)
        workers = self._num_workers()
        self.memory = plan_memory(model, maker, workers, config.chunk_size)
        chunks = self._chunks(self.memory.chunk_size)
        self.loader = Loader(maker, chunks, workers, model.device)
        self.train_step = TrainStep(model, config, world, self.loader)
        self.optimizer = make_optimizer(model, config)
        self.schedule = Schedule(config, maker.num_batches)
        self.stop = StopSignal()
        valid = model, split, config, maker.tokens, world, self.stop
        self.validation = Validation(*valid)
        self.state = TrainState()
        self.best: dict[str, Tensor] = {}
        self.definition: dict[str, SettingValue] = {}
        self.log = TrainingLog()
        self._batches: Iterator[TrainBatch] | None = None
        self._unread: deque[UnreadStep] = deque()
        self._loss = math.nan
        self._saved_at = time.monotonic()
        on_gpu = model.device.type == "cuda"
        self._is_compiled = on_gpu if config.compile is None else config.compile
        if self._is_compiled:
            compile_network(model.network, model.compute, trains=True)

    def close(self) -> None:
        """Ends worker processes and closes the log."""
        self._batches = None
        self.loader.close()
        self.log.close()
        self.model.eval()

    def train(self) -> None:
        """Starts or continues the run and trains to its end; leaves the model the best weights."""
        self._resume()
        self._compile()
        self.plan()
        with self.stop.listening():
            while self.state.stage < len(self.config.stages):
                self._run_stage()
        logger.info(str(self.state.link_weight))
        self.model.config = replace(self.model.config, link_weight=self.state.link_weight.weight)

    def _num_workers(self) -> int:
        """Worker processes: on a GPU one for each core but one, otherwise one."""
        if self.config.workers is not None:
            return self.config.workers
        if self.model.device.type != "cuda":
            return 1
        has_affinity = hasattr(os, "sched_getaffinity")
        cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
        return min(8, max(1, cores // self.world.size - 1))

    def _chunks(self, size: int | None) -> ChunkSize:
        """Chunks of at most `size` pairs, the same for all processes; None for whole batches."""
        smallest = -self.world.largest(-(size or math.inf))
        limit = None if math.isinf(smallest) else int(smallest)
        rank = self.world.rank if self.world.size > 1 else None
        return ChunkSize(limit, self.config.chunk_retry_steps, rank)

    def _resume(self) -> None:
        """Starts the run, or continues from its checkpoint, the same on all processes."""
        if self.folder is not None:
            self.definition = self._define(self.folder)
            if self.force or not self.folder.exists():
                self.folder.clear()
        optimizer_tensors: dict[str, Tensor] = {}
        entries: list[LogEntry] = []
        is_resumed = self.world.any(self.folder is not None and self.folder.exists())
        if is_resumed and self.folder is not None:
            loaded = self.folder.load(self.model, self.definition)
            self.state, optimizer_tensors, entries = loaded
            if self.state.best_step >= 0:
                self.best = self.folder.load_best(self.state)
        self._share(optimizer_tensors)
        # A run that is continued has spent some of its time already.
        self._clock_start -= self.state.clock
        self._resume_chunks(is_resumed=is_resumed)
        self.log = TrainingLog(self.folder, entries)
        if words := truncation_warning(self.loader.maker.tokens, self.model.config.max_tokens):
            logger.info(words)
        if is_resumed:
            logger.info(f"continuing an unfinished run at step {self.state.step:,}")
        elif self.folder is not None:
            size = sum(parameter.numel() for parameter in self.model.network.parameters())
            require_space(self.folder.path, bytes_of_run(size))
        self._saved_at = time.monotonic()

    def _resume_chunks(self, *, is_resumed: bool) -> None:
        """Continues in the chunks of the checkpoint: others would round differently."""
        state, memory = self.state, self.memory
        if is_resumed and state.chunk_size != self.loader.chunks.limit:
            sizes = [size for size in (state.chunk_size, self.config.chunk_size) if size]
            size = min(sizes, default=None)
            # As much as before is fine as long as it is there at all.
            makes = self.loader.maker, self._num_workers()
            memory = plan_memory(self.model, *makes, size, work=memory.available)
            self.loader.chunks = self._chunks(memory.chunk_size)
        state.chunk_size = self.loader.chunks.limit
        if reason := memory.reason():
            logger.info(reason)

    def _define(self, folder: RunFolder) -> dict[str, SettingValue]:
        """Everything that the result of the run depends on."""
        settings = {
            name: value for name, value in asdict(self.config).items() if name not in CHANGEABLE
        }
        model = {f"model.{name}": value for name, value in asdict(self.model.config).items()}
        weights = fingerprint(self.model.network.state_dict())
        return {
            **settings,
            **model,
            "split": self.split.fingerprint,
            "weights": weights if self.force else folder.initial_weights(weights),
            "processes": self.world.size,
        }

    def _share(self, optimizer_tensors: dict[str, Tensor]) -> None:
        """Copies state, weights and optimizer of the first process to all others."""
        world, device, network = self.world, self.model.device, self.model.network
        shared = world.share_json(asdict(self.state))
        self.state = checked("the state of the run", shared, TrainState)
        network.load_state_dict(world.share(dict(network.state_dict()), device))
        restore_optimizer(network, self.optimizer, world.share(optimizer_tensors, device))
        best = world.share(self.best, device)
        self.best = {name: tensor.to(device) for name, tensor in best.items()}

    def _compile(self) -> None:
        """Compiles the layers by a step that changes nothing and is not timed."""
        if not self._is_compiled or self.state.stage == len(self.config.stages):
            return
        seconds = self.try_step()
        if seconds > 5:
            logger.info(f"layers compiled in {seconds:.0f} s")

    def try_step(self) -> float:
        """Computes the gradients of a step, which changes nothing, and returns its seconds."""
        self.model.train()
        batch = self.next_batch()
        started = time.perf_counter()
        self.train_step.run(batch, seed=0)
        if self.model.device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - started
        self.model.zero_grad(set_to_none=True)
        # The next step uses the same batch.
        self._batches = None
        return self.world.largest(seconds)

    def plan(self) -> None:
        """Chooses the questions of validations by `minutes`; a run that is continued keeps them.

        Raises:
            GraphFormersError: The minutes do not suffice.
        """
        state, minutes = self.state, self.config.minutes
        if minutes is None or state.stage == len(self.config.stages):
            return
        total = len(self.validation.questions)
        if not state.budget.questions:
            step = self.try_step()
            if step < FAST_STEP_SECONDS:
                step = min(step, self.try_step())
            self.validation.estimate_seconds()
            save = 0.0 if self.folder is None else self.folder.measure_save(self.model)
            save = self.world.largest(save)
            self._tick()
            estimate = self.validation.estimate_for
            state.budget = plan_budget(self.config, total, state.clock, step, save, estimate)
            state.validation_seconds = estimate(state.budget.questions)
        self.validation.limit(state.budget.questions)
        if state.budget.questions < total:
            logger.info(
                f"validations rank {state.budget.questions:,} of {total:,} questions, so that all "
                f"of them take at most a tenth of the {minutes:g} minutes"
            )

    def read_clock(self) -> float:
        """Seconds of the run by the clock of this process, over all times it was continued."""
        return time.monotonic() - self._clock_start

    def _tick(self) -> None:
        """Updates the clock of the state; with a budget, all processes agree on it."""
        self.state.clock = self._agreed(self.read_clock())

    def _agreed(self, seconds: float) -> float:
        """Seconds on which decisions depend if there is a budget: the largest of all processes."""
        return seconds if self.config.minutes is None else self.world.largest(seconds)

    def _run_stage(self) -> None:
        """Trains and validates until the stage is over, then prepares the next stage."""
        state = self.state
        if state.step == 0 and state.start < 0 and self.config.validate_start:
            numbers = self._measure()
            state.add_start(numbers["P@1"], numbers["MRR"])
            self._keep_best()
            self.log.start(numbers)
            self._stop_if_asked()
        if state.step == 0:
            self._tick()
            state.stage_clock = state.clock
        while True:
            if self.schedule.is_validation_due(state):
                self.validate()
                self._stop_if_asked()
            reason = self.schedule.end_reason(state)
            if reason:
                break
            self._run_steps()
        where = "before the first step" if state.is_start_best else f"at step {state.best_step:,}"
        logger.info(
            f"stage {state.stage + 1} ended ({reason}): best valid P@1 {state.best:.4f} {where}"
        )
        state.next_stage()
        self._batches = None
        self.model.network.load_state_dict(self.best)
        self.optimizer = make_optimizer(self.model, self.config)
        if state.stage < len(self.config.stages):
            self.save()

    def _run_steps(self) -> None:
        """Steps until the next validation is due."""
        state, size = self.state, self.config.batch_size
        self.model.train()
        best = f"best P@1 {state.best:.4f}, " if state.best_step >= 0 else ""
        steps_left = self.schedule.limits(state)[0] - state.stage_step
        # the pairs of the epoch, or of the steps that are left
        total = min(len(self.split.train), (state.batch + steps_left) * size)
        with progress(self._place(), total, "pairs") as task:
            task.skip(state.batch * size)
            while True:
                self.step()
                loss = "" if math.isnan(self._loss) else f"loss {self._loss:.3f}, "
                task.note = f"{best}{loss}".removesuffix(", ")
                task.seconds_left = self.schedule.seconds_left(state)
                task.update(min((state.batch or self.loader.maker.num_batches) * size, total))
                self._stop_if_asked()
                if time.monotonic() - self._saved_at >= 60 * self.config.checkpoint_minutes:
                    self.save()
                if state.batch == 0 or self.schedule.is_validation_due(state):
                    return

    def _place(self) -> str:
        """The stage and the epoch, for the progress bar."""
        stages = self.config.stages
        of = f" of {len(stages)} ({stages[self.state.stage]} text)" if len(stages) > 1 else ""
        return f"stage {self.state.stage + 1}{of}, epoch {self.state.epoch + 1}"

    def step(self) -> None:
        """Makes one optimizer step."""
        state, started = self.state, time.perf_counter()
        batch = self.next_batch()
        waited = time.perf_counter() - started
        rate = self.schedule.learning_rate(state)
        set_learning_rate(self.optimizer, rate)
        seed = mix_seed(self.config.seed, state.step, self.world.rank)
        loss = self.train_step.run(batch, seed)
        norm = self.update_weights()
        place = state.step + 1, state.stage + 1, state.epoch + 1
        state.next_batch(self.loader.maker.num_batches)
        if state.batch == 0:
            self._batches = None
        self._unread.append(
            UnreadStep(torch.stack([loss, norm]), batch.pairs, batch.counts.pairs, place, rate)
        )
        # Reading the loss of this step would wait for the GPU, which computes it meanwhile.
        self._read_losses(keep=1)
        state.add_step(batch.counts, time.perf_counter() - started, waited)
        self._tick()

    def next_batch(self) -> TrainBatch:
        """The batch of the next step."""
        state = self.state
        if self._batches is None:
            stage = self.config.stages[state.stage]
            self._batches = self.loader.epoch(state.epoch, stage, start=state.batch)
        return next(self._batches)

    def update_weights(self) -> Tensor:
        """Sums and clips gradients, updates the weights, and returns the norm of the gradient."""
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

    def _read_losses(self, keep: int) -> None:
        """Reads the losses of all steps but the last few.

        Raises:
            GraphFormersError: A loss or a gradient is not finite.
        """
        while len(self._unread) > keep:
            step = self._unread.popleft()
            self._loss, norm = step.loss_and_norm.tolist()
            self.state.recent.loss += self._loss * step.num_pairs
            if not math.isfinite(self._loss):
                self._fail(step, f"the loss of step {step.place[0]:,} is {self._loss}")
            if not math.isfinite(norm):
                self._fail(step, f"the norm of the gradient of step {step.place[0]:,} is {norm}")
            if step.place[0] % max(1, self.loader.maker.num_batches // STEPS_PER_EPOCH) == 0:
                pace = self.state.recent.pairs_per_second
                self.log.step(step.place, self._loss, step.learning_rate, pace)

    def wait(self) -> None:
        """Waits until all steps so far are computed, and reads their losses."""
        self._read_losses(keep=0)

    def _fail(self, failed: UnreadStep, problem: str) -> None:
        """Raises an error for a loss or gradient that is not finite; keeps the last checkpoint."""
        ids = self.split.graph.ids_of(failed.pairs.flatten().cpu().numpy())
        pairs = [f"{a} – {b}" for a, b in zip(ids[::2], ids[1::2], strict=True)]
        self.log.failure(failed.place, failed.learning_rate, pairs)
        kept = ""
        if self.folder is not None and self.folder.exists():
            kept = f". The last checkpoint is kept in {self.folder.path}"
            best = self.folder.best(self.state)
            if best.is_dir() and not self.state.is_start_best:
                kept += f", the best model so far in {best}"
        shown = f"{', '.join(pairs[:3])}{' …' if pairs[3:] else ''}"
        raise GraphFormersError(
            f"{problem}, at learning rate {failed.learning_rate:.2g}; its pairs: {shown}{kept}; "
            f"{ADVICE}"
        )

    def validate(self) -> None:
        """Ranks the validation questions on clean text; keeps the weights if they are the best."""
        self.wait()
        state = self.state
        numbers = state.recent.summary() | self._measure()
        if state.add_validation(numbers["P@1"], numbers["MRR"]):
            self._keep_best()
        self.log.validation(state, numbers)
        state.recent = RecentSteps()

    def _measure(self) -> dict[str, float]:
        """Measures and times a validation. A signal interrupts it; it is repeated later."""
        state, started = self.state, time.perf_counter()
        try:
            numbers = self.validation.measure()
        except InterruptedWork:
            self._stop_if_asked()
            raise
        state.validation_seconds = self._agreed(time.perf_counter() - started)
        state.validating_seconds += state.validation_seconds
        self._tick()
        return numbers

    def _keep_best(self) -> None:
        """Keeps a copy of the weights, as the best so far, and the link weight that suits them."""
        weights = self.model.network.state_dict()
        self.best = {name: tensor.detach().clone() for name, tensor in weights.items()}
        self.state.link_weight = self.validation.link_weight

    def save(self) -> None:
        """Writes a checkpoint, on the first process."""
        self.wait()
        if self.folder is not None:
            weights = self.model.network.state_dict().values()
            if not all(bool(tensor.isfinite().all()) for tensor in weights):
                raise GraphFormersError(
                    f"the weights after step {self.state.step:,} are not finite; {ADVICE}"
                )
            if self.state.best_step >= 0:
                self.folder.save_best(self.state, self.model, self.best)
            self.folder.save(
                self.state, self.model, self.optimizer, self.definition, self.log.entries
            )
        self._saved_at = time.monotonic()

    def _stop_if_asked(self) -> None:
        """Saves and raises if a signal has arrived at any process."""
        if self.world.any(self.stop.number > 0):
            self._tick()
            self.save()
            # torchrun ends the others as soon as one process exits.
            self.world.wait()
            without = f" without {usage('force', True)}" if self.force else ""
            message = (
                f"stopped after step {self.state.step:,}; the same command{without} continues from "
                f"there"
            )
            raise StoppedError(message, self.stop.number or signal.SIGTERM)
