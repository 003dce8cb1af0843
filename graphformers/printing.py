"""What commands print: tables for people, JSON for programs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphformers.progress import clock
from graphformers.table import Table

if TYPE_CHECKING:  # torch takes seconds to import
    from graphformers.train.trainer import TrainResult

LONG_SECONDS = 1800.0  # of training on a CPU, from which on there is advice


def print_forecast(found: dict[str, Any], as_json: bool) -> None:
    """What a run would take."""
    if as_json:
        print(json.dumps(found))
        return
    memory = f"{found['memory_gib']:.1f} GiB" + (
        f", {found['gpu_memory_gib']:.1f} GiB on the GPU" if found["gpu_memory_gib"] else ""
    )
    rows = {
        "method": f"{found['method']}, {found['parameters']:,} parameters, on {found['device']}",
        "steps": (
            f"{found['steps_per_epoch']:,} an epoch of {found['pairs']:,} "
            f"pairs, {found['steps_at_most']:,} at most"
        ),
        "memory": f"{memory}; {found['checkpoint_gib']:.1f} GiB on disk",
        "a step": f"{found['seconds_per_step']:.3f} s",
        "a validation": f"{found['seconds_per_validation']:.0f} s",
        "time": (
            f"{clock(found['seconds_at_most'])} at most, measured on {found['steps_tried']} steps"
        ),
    }
    if found["device"] == "cpu" and found["seconds_at_most"] > LONG_SECONDS:
        own = found["settings"]
        advice = {
            "batch_size=64": own["batch_size"] > 64,
            "num_neighbors=5": own["num_neighbors"] > 5,
            "neighbor_gradients=false": own["neighbor_gradients"] and own["num_neighbors"] > 0,
            "max_steps=200": found["steps_at_most"] > 200,
        }
        rows["for less"] = (
            ", ".join(f"--set {words}" for words, is_less in advice.items() if is_less)
            or "max_steps, max_seconds"
        )
    print_rows(list(rows.items()))


def print_training(result: "TrainResult", output: Path, as_json: bool) -> None:
    """How a run went."""
    shown = ("stage", "epoch", "step", "loss", "P@1", "NDCG", "MRR", "pairs_per_second")
    history = [
        {name: entry[name] for name in shown}
        for entry in result.history
        if entry["kind"] == "validation"
    ]
    if as_json:
        summary = {
            "output": str(output),
            "valid_P@1": result.valid,
            "steps": result.steps,
            "seconds": round(result.seconds, 1),
        }
        print(json.dumps(summary | {"start_P@1": result.start, "history": history}))
        return
    rows = [
        tuple(
            f"{value:.4f}" if isinstance(value, float) else f"{value:,}" for value in entry.values()
        )
        for entry in history
    ]
    print_rows(rows, [name.replace("_per_", "/").replace("second", "s") for name in shown])
    before = "" if result.start is None else f" ({result.start:.4f} before training)"
    took = f"{result.steps:,} steps in {clock(result.seconds)}"
    print(f"\n{output}: the model of the best validation, P@1 {result.valid:.4f}{before}; {took}")


def print_rows(rows: list[tuple[str, ...]], header: list[str] | None = None) -> None:
    """Prints the rows of a table."""
    Table(header or (), rows).print()
