"""Speed of two trees of graphformers, measured in turns on one machine; prints JSON.

    python benchmarks/turns.py OLD NEW --graph arxiv9196 --tokenizer tokenizer.json          # GPU
    python benchmarks/turns.py OLD NEW --graph arxiv9196 --tokenizer tokenizer.json --cpu    # CPU

OLD and NEW are checkouts of this repository. Each tree has one process, which prepares a part,
compilation included, and then measures it on request. Old and new are measured in turns, so that
other load on the machine slows both. The results of each part are the ratios NEW / OLD of all
rounds, their geometric mean, and its 95 % interval by Student's t over their logarithms.

The parts, with BERT-base's shape and bfloat16 on a GPU, or MiniLM's shape and float32 on a CPU:

- encode_plm, encode: packed batches through the network, texts without or with 5 neighbours;
- train: optimizer steps on masked text, gradients through neighbours, dropout 0.1;
- embed: a graph folder to a folder of vectors, states in memory.
"""

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# quantiles of Student's t, two-sided 95 %, by degrees of freedom
QUANTILES = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 9: 2.262}
SHAPES = {
    "base": {"hidden_size": 768, "num_layers": 12, "num_heads": 12, "intermediate_size": 3072},
    "small": {"hidden_size": 384, "num_layers": 6, "num_heads": 12, "intermediate_size": 1536},
}
# glibc returns large buffers to the system or keeps them, depending on the memory layout. This
# alone made one process of a tree 10 % slower than another. With these settings all are kept.
KEEP_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(10**11),
    "MALLOC_TOP_PAD_": str(10**9),
}
# does some work and returns its number of units; the caller measures the time
Window = Callable[[], float]


class Parts:
    """The parts of the benchmark, in the process of one tree.

    The names that differ between trees are looked up where they are used.
    """

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        import torch

        from graphformers import read_graph, split_links

        self.options = options
        self.on_cpu = options.cpu
        self.shape = options.shape or ("small" if options.cpu else "base")
        self.folder = folder
        self.num_nodes = options.nodes or (1500 if options.cpu else 300_000)
        self.device = torch.device("cpu" if options.cpu else "cuda")
        modules = self._tokens_module()
        self.tokenizer = modules.Tokenizer.from_file(options.tokenizer)
        self.graph_tokens = modules.graph_tokens
        nodes, edges = (options.graph / f"{name}.parquet" for name in ("nodes", "edges"))
        self.graph = read_graph(nodes, edges).save(folder / "a.graph")
        self.split = split_links(self.graph)

    @staticmethod
    def _tokens_module() -> Any:
        try:
            from graphformers.batching import tokens
        except ImportError:
            from graphformers.data import tokens
        return tokens

    def model(self, method: str = "graphformers", **changes: Any) -> Any:
        import torch

        from graphformers import GraphFormers, ModelConfig

        torch.manual_seed(0)
        sizes = {"vocab_size": self.tokenizer.vocab_size, "max_positions": 512}
        sizes["max_tokens"] = self.options.max_tokens
        config = ModelConfig(method=method, **sizes, **SHAPES[self.shape], **changes)
        return GraphFormers(config, self.tokenizer).to(self.device)

    def synchronize(self) -> None:
        import torch

        if not self.on_cpu:
            torch.cuda.synchronize()

    @contextmanager
    def encode_plm(self) -> Iterator[Window]:
        yield self._encoding("plm")

    @contextmanager
    def encode(self) -> Iterator[Window]:
        yield self._encoding("graphformers")

    def _encoding(self, method: str) -> Window:
        import numpy as np

        try:
            from graphformers.batching.packing import to_device
        except ImportError:
            from graphformers.data.packing import to_device
        model = self.model(method).eval()
        if not self.on_cpu:
            model.compile_layers()
        inference = model.inference if hasattr(model, "inference") else model.reading
        tokens = self.graph_tokens(self.graph, self.tokenizer)
        count, size = (512, 128) if self.on_cpu else (40_960, 2048)
        nodes = np.random.default_rng(0).permutation(self.graph.num_nodes)[:count]
        sampler = self.split.sampler(5 if method == "graphformers" else 0)
        packer = model.packer() if self.on_cpu else model.packer(8, 5)
        batches = []
        for start in range(0, count, size):
            drawn = sampler.sample(nodes[start : start + size])
            batches.append(to_device(packer.pack_neighborhoods(tokens, drawn), model.device))

        def window() -> float:
            with inference() as network:
                for batch in batches:
                    network(batch)
            self.synchronize()
            return count

        return window

    @contextmanager
    def train(self) -> Iterator[Window]:
        from graphformers import TrainConfig, Trainer

        steps, batch_size = (2, 24) if self.on_cpu else (100, 240)
        batch_size = self.options.batch_size or batch_size
        settings = {"batch_size": batch_size, "learning_rate": 1e-6, "max_norm": 1.0}
        config = TrainConfig(**settings, workers=1 if self.on_cpu else 6, validate_start=False)
        trainer = Trainer(self.model(), self.split, config)
        if hasattr(trainer, "start"):
            context = trainer.start()
            run = context.__enter__()
            step, wait = run.step, run.wait
        else:
            trainer.set_up()
            run, step, wait = trainer, trainer._step, lambda: trainer._drain(0)
        run.model.train()

        def window() -> float:
            for _ in range(steps):
                step()
            wait()
            self.synchronize()
            return steps * batch_size

        try:
            yield window
        finally:
            if hasattr(trainer, "start"):
                context.__exit__(None, None, None)
            else:
                trainer.clean_up()

    @contextmanager
    def embed(self) -> Iterator[Window]:
        from graph_scale import make_files

        from graphformers import embed, read_graph

        model = self.model().eval()
        count = self.num_nodes
        nodes, edges = make_files(self.folder, count, 8 * count, "parquet")
        graph = read_graph(nodes, edges).save(self.folder / "made.graph")
        self.graph_tokens(graph, self.tokenizer)
        output = self.folder / "out.vectors"
        settings = {"states": "memory", "keep_states": False, "compile": not self.on_cpu}

        def window() -> float:
            embed(model, graph, output, **settings)
            shutil.rmtree(output)
            return count

        yield window


PARTS = ("encode_plm", "encode", "train", "embed")


def work(options: argparse.Namespace) -> None:
    """Runs the process of one tree: measures each part once per line of stdin, until `next`."""
    import graphformers

    # the tree's own benchmarks, not those beside this script
    sys.path[0] = str(Path(graphformers.__file__).parents[1] / "benchmarks")
    answers = os.fdopen(os.dup(1), "w")
    # Output of the tree goes to stderr, so that it is not taken for an answer.
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory() as folder:
        parts = Parts(options, Path(folder))
        for name in options.part:
            with getattr(parts, name)() as window:
                window()
                window()
                print("ready", file=answers, flush=True)
                for line in sys.stdin:
                    if line.strip() == "next":
                        break
                    started = time.perf_counter()
                    done = window()
                    print(done / (time.perf_counter() - started), file=answers, flush=True)


def interval(ratios: list[float]) -> dict[str, Any]:
    """The geometric mean of ratios, and its 95 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    mean, reach = statistics.fmean(logs), 0.0
    if len(logs) > 1:
        spread = statistics.stdev(logs) / math.sqrt(len(logs))
        reach = QUANTILES.get(len(logs) - 1, 1.96) * spread
    low, middle, high = (round(math.exp(mean + sign * reach), 4) for sign in (-1, 0, 1))
    return {"ratio": middle, "interval": [low, high], "ratios": [round(r, 4) for r in ratios]}


def compare(options: argparse.Namespace) -> None:
    """Starts a process for each tree and measures all parts in turns."""
    processes = {}
    for name, tree in (("old", options.old), ("new", options.new)):
        words = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:], "--worker"]
        processes[name] = subprocess.Popen(
            words,
            env=os.environ | KEEP_MEMORY | {"PYTHONPATH": str(tree.resolve())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def answer(name: str) -> str:
        line = processes[name].stdout.readline()  # type: ignore[union-attr]
        if not line:
            sys.exit(f"the process of the {name} tree has ended")
        return line.strip()

    def tell(name: str, word: str) -> None:
        processes[name].stdin.write(word + "\n")  # type: ignore[union-attr]
        processes[name].stdin.flush()  # type: ignore[union-attr]

    # Absolute paths are replaced by their last part, since the rest differs between machines.
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    result: dict[str, Any] = {"command": " ".join(["python", "benchmarks/turns.py", *words])}
    result |= {"commits": {"old": options.commits[0], "new": options.commits[1]}, "parts": {}}
    for part in options.part:
        for name in processes:
            answer(name)
        rounds = []
        for number in range(options.times):
            speeds: dict[str, list[float]] = {"old": [], "new": []}
            for turn in range(options.repeat):
                # The order changes from turn to turn, so that neither tree is always first.
                order = ("old", "new") if (number + turn) % 2 == 0 else ("new", "old")
                for name in order:
                    tell(name, "measure")
                    speeds[name].append(float(answer(name)))
            # All windows do equal work, so speeds are averaged by the harmonic mean.
            rounds.append(
                {name: round(statistics.harmonic_mean(speeds[name]), 1) for name in speeds}
            )
        for name in processes:
            tell(name, "next")
        compared = interval([each["new"] / each["old"] for each in rounds])
        result["parts"][part] = {"per_second": rounds, **compared}
        print(json.dumps({part: compared}), file=sys.stderr, flush=True)
        if options.output:
            options.output.write_text(json.dumps(result, indent=1) + "\n")
    for process in processes.values():
        process.wait()
    print(json.dumps(result, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--graph", type=Path, required=True, help="nodes.parquet, edges.parquet")
    parser.add_argument("--tokenizer", type=Path, required=True, help="a tokenizer.json")
    parser.add_argument("--cpu", action="store_true", help="less work, on a CPU")
    parser.add_argument("--shape", choices=SHAPES, help="network shape; base, or small on a CPU")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--batch-size", type=int, help="pairs of a training step")
    parser.add_argument("--nodes", type=int, help="nodes to embed; 300,000, or 1,500 on a CPU")
    parser.add_argument("--times", type=int, default=5, help="rounds")
    parser.add_argument("--repeat", type=int, default=1, help="turns of each tree in a round")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--commits", nargs=2, default=("?", "?"), help="of OLD and NEW")
    parser.add_argument("-o", "--output", type=Path, help="results are also written here")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    work(options) if options.worker else compare(options)


if __name__ == "__main__":
    main()
