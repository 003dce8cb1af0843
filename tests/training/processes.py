"""What one of several processes does in the tests of distributed training: five steps, then
gradients and weights to a file.
"""

import sys
from pathlib import Path
from typing import ClassVar

import torch
from safetensors.torch import save_file

from graphformers.model.node_id_baselines import NodeIdNetwork, NodeIdSettings
from graphformers.training.batches import TrainBatch
from graphformers.training.distributed import World
from graphformers.training.run import TrainingRun
from graphformers.training.settings import TrainConfig
from graphformers.training.trainer import Trainer
from tests.training.conftest import make_model, make_split


class RecordingRun(TrainingRun):
    """Keeps the gradients of the first step, summed over all processes; fails where it is told
    to.
    """

    fail_on: int | None = None
    gradients: ClassVar[dict[str, torch.Tensor]] = {}
    place: ClassVar[World] = World()

    def next_batch(self) -> TrainBatch:
        if self.fail_on == self.world.rank and self.state.step == 2:
            raise ValueError("the cable was pulled")
        return super().next_batch()

    def update_weights(self) -> torch.Tensor:
        RecordingRun.place = self.world
        if self.state.step == 0:
            self.world.sum_gradients(self.model.network.parameters())
            RecordingRun.gradients = {
                n: p.grad.clone()
                for n, p in self.model.network.named_parameters()
                if p.grad is not None
            }
            for parameter in self.model.network.parameters():  # they are summed once more below
                if parameter.grad is not None:
                    parameter.grad /= self.world.size
        return super().update_weights()


def main(output: Path, method: str, batch_size: int, fail_on: int | None = None) -> None:
    config = TrainConfig(
        batch_size=batch_size,
        learning_rate=1e-3,
        epsilon=1e-3,
        max_steps=5,
        two_stage=False,
        workers=0,
        symmetric=True,
        logq_correction=True,
        max_norm=1.0,
        margin=0.1,
    )
    model = make_model(method=method, learn_temperature=True)
    # what is drawn differs with the number of processes
    if isinstance(model.network, NodeIdNetwork):
        model.network.settings = NodeIdSettings(node_dropout=0.0, noise=0.0, bound_weight=0.05)
    trainer = Trainer(model, make_split(), config)
    trainer.run_type, RecordingRun.fail_on = RecordingRun, fail_on
    result = trainer.train()
    world = RecordingRun.place
    weights = {
        f"weight:{name}": tensor for name, tensor in trainer.model.network.state_dict().items()
    }
    gradients = {f"gradient:{name}": tensor for name, tensor in RecordingRun.gradients.items()}
    valid = {"valid": torch.tensor([result.valid])}
    save_file(
        weights | gradients | valid,
        output / f"rank{world.rank}of{world.size}.safetensors",
    )


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        sys.argv[2],
        int(sys.argv[3]),
        int(sys.argv[4]) if len(sys.argv) > 4 else None,
    )
