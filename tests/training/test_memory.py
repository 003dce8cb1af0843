import json
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from graphformers.errors import GraphFormersError, StoppedError
from graphformers.model.encoder import GraphFormers
from graphformers.training.batches import BatchKey, BatchMaker, TrainBatch
from graphformers.training.checkpoint import RunFolder
from graphformers.training.chunks import ChunkSize
from graphformers.training.distributed import World
from graphformers.training.loader import Loader
from graphformers.training.memory import HEAP_FACTOR, LARGEST_SHARE, StepMemory, plan_memory
from graphformers.training.run import TrainingRun
from graphformers.training.settings import TrainConfig
from graphformers.training.step import TrainStep
from graphformers.training.trainer import Trainer
from tests.training.conftest import make_model, make_split

SPLIT = make_split()
MIB = 1 << 20
# large enough that the layers take most of the memory, as in real models
LARGER = {"hidden_size": 64, "num_heads": 4, "num_layers": 6, "intermediate_size": 256}


def make_larger(**changes: Any) -> GraphFormers:
    model = make_model(**{**LARGER, **changes})
    model.add_nodes(SPLIT.graph.id_hashes)
    return model.train()


def maker_of(model: GraphFormers, **changes: Any) -> BatchMaker:
    return BatchMaker.of(model, SPLIT, TrainConfig(**{"batch_size": 128, **changes}))


def kept_bytes(model: GraphFormers, batch: TrainBatch) -> int:
    """The bytes that the forward pass keeps for the backward pass, besides the weights."""
    loader = Loader(maker_of(model), ChunkSize(None), 0, torch.device("cpu"))
    step = TrainStep(model, loader.maker.config, World(), loader)
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        encoded = step.encode(batch, 0)
    assert encoded.chunks
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    own |= {tensor.untyped_storage().data_ptr() for tensor in model.buffers()}
    return sum(size for place, size in kept.items() if place not in own)


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "graphformers"},
        {"method": "graphformers", "pooling": "mean"},
        {"method": "graphformers", "dropout": 0.1, "attention_dropout": 0.1},
        {"method": "graphformers", "num_neighbors": 1},
        {"direction": "bidirectional"},
        {"method": "max"},
        {"method": "gat", "pooling": "mean"},
        {"method": "plm"},
        {"method": "plm", "relative_buckets": 8},
        {"method": "tnve"},
        {"method": "iftn"},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_the_estimate_is_what_a_forward_pass_keeps(changes: dict[str, Any]) -> None:
    """And the gradients of a layer, which are computed when nothing has been freed yet."""
    model = make_larger(**changes)
    batch = maker_of(model).make(BatchKey(0, 0, False))
    kept = kept_bytes(model, batch)
    step = StepMemory.of(model, batch)
    largest = max(parameter.nbytes for parameter in model.parameters())
    estimate = (step.activations - largest) / HEAP_FACTOR
    # Networks with node ids consist of little more than one layer.
    most = 1.35 if model.network.has_transformer else 1.5
    assert 0.9 * kept < estimate < most * kept


def plan(model: GraphFormers, available: int | None, limit: int | None = None) -> Any:
    return plan_memory(model, maker_of(model), limit=limit, available=available)


def test_chunks_are_the_largest_that_fit() -> None:
    model = make_larger()
    whole = plan(model, None)
    assert whole.chunk_size is None
    assert whole.reason() is None
    assert plan(model, None, 50).chunk_size == 50
    smaller = plan(model, whole.step.total)
    assert smaller.chunk_size in (64, 32, 16)
    assert smaller.whole == whole.step
    assert smaller.step.total < whole.step.total
    assert f"128 pairs are computed {smaller.chunk_size} at a time" in smaller.reason()
    assert plan(model, whole.step.total, 8).chunk_size == 8
    # A larger limit changes nothing.
    assert plan(model, whole.step.total, 100).chunk_size <= smaller.chunk_size


def test_how_much_is_available_matters_only_when_it_is_scarce() -> None:
    model = make_larger()
    rich = plan(model, 1 << 40)
    assert rich.chunk_size == plan(model, 5 << 30).chunk_size
    assert rich.step == plan(model, 5 << 30).step


def test_what_does_not_fit_is_refused_with_what_would() -> None:
    model = make_larger()
    least = plan(model, 1 << 40, 1).step
    with pytest.raises(
        GraphFormersError, match=r"even for one pair at a time; .* would fit"
    ) as error:
        plan(model, int(least.total / LARGEST_SHARE) - 1000)
    assert "train_neighbors=2" in str(error.value)
    assert "batch_size=64" in str(error.value)
    with pytest.raises(GraphFormersError, match="use a smaller backbone"):
        plan(model, MIB // 8)


def test_a_continued_run_keeps_its_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other chunks would round differently."""

    def stopping(run: TrainingRun) -> Callable[[], None]:
        def steps() -> None:
            run.model.train()
            run.step()
            run.step()
            run.stop.number = signal.SIGTERM
            run._stop_if_asked()

        return steps

    config = TrainConfig(batch_size=64, max_steps=4, chunk_size=10, workers=0, two_stage=False)
    unchunked = replace(config, chunk_size=None)
    whole, stopped = make_model(), make_model()
    Trainer(whole, SPLIT, config).train()
    with Trainer(stopped, SPLIT, config).start(RunFolder(tmp_path / "new.model")) as run:
        monkeypatch.setattr(run, "_run_steps", stopping(run))
        with pytest.raises(StoppedError):
            run.train()
    Trainer(stopped, SPLIT, unchunked, tmp_path / "new.model").train()
    results = whole.network.state_dict(), stopped.network.state_dict()
    for key, tensor in results[0].items():
        assert torch.equal(tensor, results[1][key]), key


SMALL_PROCESS = """
import json, logging, resource, sys
from pathlib import Path
import torch
from graphformers.errors import GraphFormersError
from graphformers.training.settings import TrainConfig
from graphformers.training.trainer import Trainer
from tests.training.conftest import make_model, make_split

torch.set_num_threads(1)
sizes = {"hidden_size": 256, "num_heads": 4, "num_layers": 4, "intermediate_size": 1024}
model = make_model(**sizes)
split = make_split()
config = TrainConfig(
    batch_size=256, max_steps=2, two_stage=False, workers=0, validate_start=False, max_valid=10
)
with Trainer(model, split, config).start() as run:
    whole = run.memory.whole.total
rows = Path("/proc/self/status").read_text().splitlines()
(used,) = (int(row.split()[1]) * 1024 for row in rows if row.startswith("VmSize"))
limit = used + int(float(sys.argv[1]) * whole)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
logging.basicConfig(level=logging.INFO, format="%(message)s")
try:
    steps = Trainer(model, split, config).train().steps
except GraphFormersError as error:
    steps = str(error)
print(json.dumps(steps))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of the address space are Linux's")
def test_a_process_with_little_memory_trains_in_chunks_and_is_not_killed() -> None:
    def run(share: float) -> tuple[Any, str]:
        command = [sys.executable, "-c", SMALL_PROCESS, str(share)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), done.stderr

    steps, messages = run(0.6)
    assert steps == 2
    assert "256 pairs are computed" in messages
    # It was known before, not found out.
    assert "out of memory" not in messages
    refusal, _ = run(0.02)
    assert "even for one pair at a time" in refusal


def test_an_estimate_needs_no_memory_of_its_own_size() -> None:
    model = make_larger()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    plan(model, None)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024
