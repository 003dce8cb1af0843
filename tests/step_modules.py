"""Lists the modules that one training step executes, with the number of functions called in each.

    python -m tests.step_modules

The list stands in docs/architecture.md; tests/test_docs.py compares the two.

Only public names are used: a small model is trained on a CPU, without worker processes and without
an output folder. The first optimizer step is the warm-up. Calls are counted from its end to the end
of the second step, both of stage 1 (masked text), so that set-up, validation and checkpoints do not
count.
"""

import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

from torch.optim.optimizer import register_optimizer_step_post_hook

import graphformers
from graphformers import GraphFormers, LinkSplit, TrainConfig, Trainer

PACKAGE = Path(graphformers.__file__).parent


def step_modules(model: GraphFormers, split: LinkSplit) -> dict[str, int]:
    """The modules of the package that a training step executes.

    Args:
        model: The model to train.
        split: The split whose train links it is trained on; more than two batches of 8 pairs.

    Returns:
        The number of distinct functions and methods called, by the name of the module.
    """
    called: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            called.add(frame.f_code)

    num_steps = 0

    def after_step(*_: object) -> None:
        nonlocal num_steps
        num_steps += 1
        sys.setprofile(note if num_steps == 1 else None)

    config = TrainConfig(
        batch_size=8, max_steps=8, workers=0, compile=False, max_valid=2, validate_start=False
    )
    hook = register_optimizer_step_post_hook(after_step)
    try:
        Trainer(model, split, config).train()
    finally:
        hook.remove()
        sys.setprofile(None)
    assert num_steps > 1, "at least two steps were made"
    return count_by_module(called)


def count_by_module(called: set[CodeType]) -> dict[str, int]:
    """Functions of the package by module; comprehensions and generated methods do not count."""
    counts: Counter[str] = Counter()
    for code in called:
        file = Path(code.co_filename)
        if not code.co_name.startswith("<") and file.is_relative_to(PACKAGE):
            parts = file.relative_to(PACKAGE).with_suffix("").parts
            counts[".".join(part for part in parts if part != "__init__")] += 1
    return dict(sorted(counts.items()))


if __name__ == "__main__":
    from tests.training.conftest import make_model, make_split

    found = step_modules(make_model(), make_split())
    for name, count in found.items():
        print(f"{count:4} {name}")
    print(f"{sum(found.values())} functions in {len(found)} modules")
