"""Folders of every kind that are damaged or forged: refused in one sentence, or read as before."""

import contextlib
import hashlib
import io
import json
import random
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from graphformers.arrays import Array
from graphformers.batching.tokens import graph_tokens
from graphformers.cli import main
from graphformers.compare.comparison import compare
from graphformers.compare.runs import finish_run, rank_untrained
from graphformers.compare.settings import ComparisonSettings
from graphformers.compare.variants import variant
from graphformers.embedding.job import embed
from graphformers.embedding.update import update
from graphformers.embedding.vectors import VectorStore
from graphformers.errors import GraphFormersError
from graphformers.files import checksum
from graphformers.graph.textgraph import TextGraph
from graphformers.model.backbones import training_of
from graphformers.model.encoder import GraphFormers
from graphformers.records import JsonObject, digest_of
from graphformers.retrieval.searcher import Searcher
from graphformers.splits.split import LinkSplit, split_links
from graphformers.training.checkpoint import RunFolder
from graphformers.training.settings import TrainConfig
from graphformers.training.trainer import Trainer
from tests import forked
from tests.compare.test_comparison import SETTINGS, write_backbone
from tests.training.conftest import make_model, make_topics

Reading = Callable[[Path], object]
METHOD = "graphformers.one-stage"
REPORT = "report.jsonl"


def make_graph(place: Path) -> TextGraph:
    graph = make_topics().save(place / "t.graph")
    graph_tokens(graph, make_model().tokenizer)
    return graph


def read_graph(folder: Path) -> object:
    graph = TextGraph.load(folder)
    tokens = graph_tokens(graph, make_model().tokenizer)
    arrays = (graph.id_hashes, graph.indptr, graph.indices, graph.edges, tokens.tokens)
    return graph.table.to_pydict(), graph.type_names, graph.summary, *map(content, arrays)


def make_split(place: Path) -> LinkSplit:
    graph = make_graph(place)
    return split_links(graph, valid=30, test=30, candidates=20).save(place / "t.split")


def read_split(folder: Path) -> object:
    split = LinkSplit.load(folder)
    arrays = (split.indptr, split.indices, split.train, split.valid.candidates, split.test.pairs)
    return split.settings, split.notes, *map(content, arrays)


def train(place: Path) -> None:
    config = TrainConfig(batch_size=16, max_steps=4, workers=0, two_stage=False)
    Trainer(make_model(), make_split(place), config, place / "t.model").train(keep_start=True)


def read_model(folder: Path) -> object:
    model = GraphFormers.from_pretrained(folder, device="cpu")
    weights = {name: content(tensor.numpy()) for name, tensor in model.network.state_dict().items()}
    return model.config, model.tokenizer.fingerprint, weights, training_of(folder)


def make_vectors(place: Path) -> None:
    make_model().save_pretrained(place / "t.model")
    embed(place / "t.model", make_graph(place), place / "t.vectors", shard_size=32)


def read_vectors(folder: Path) -> object:
    store = VectorStore.load(folder)
    nodes = store.nodes(list(store))
    found = store.states_of(nodes)
    links = [store.graph.neighbors_of(node) for node in nodes]
    texts = store.graph.texts_of(nodes)
    return list(store), texts, content(np.asarray(store)), content(found), *map(content, links)


def make_edited(place: Path) -> None:
    make_vectors(place)
    for i in range(3):
        nodes = {"new": f"graph node {i}", "n3": f"another text {i}"}
        update(place / "t.vectors", nodes=nodes, edges=[("new", f"n{i}")], remove=[f"n{70 + i}"])


def make_index(place: Path) -> None:
    make_edited(place)
    read_index(place / "t.vectors")


def read_index(folder: Path) -> object:
    return Searcher(folder, index="usearch").similar("n7", 10).to_dict()


def make_checkpoint(place: Path) -> None:
    config = TrainConfig(batch_size=16, max_steps=4, workers=0, two_stage=False)
    trainer = Trainer(make_model(), make_split(place), config)
    with trainer.start(RunFolder(place / "t.model")) as run:
        run._resume()
        for _ in range(2):
            run.step()
        run.validate()
        run.save()


def read_checkpoint(settings: JsonObject, folder: Path) -> object:
    run, model = RunFolder(folder.with_suffix("")), make_model()
    state, tensors, entries = run.load(model, settings)
    tensors |= model.network.state_dict() | {
        f"best {k}": v for k, v in run.load_best(state).items()
    }
    return asdict(state), entries, {name: content(each.numpy()) for name, each in tensors.items()}


def comparison_settings(place: Path) -> ComparisonSettings:
    split, backbone = LinkSplit.load(place / "t.split"), str(place / "backbone")
    return ComparisonSettings(split, place / "report", backbone, SETTINGS, (1,), device="cpu")


def make_comparison(place: Path) -> None:
    make_split(place)
    write_backbone(place / "backbone")
    compare(comparison_settings(place), methods=[METHOD])


def read_comparison(folder: Path) -> object:
    settings = comparison_settings(folder.parent)
    run, untrained = finish_run(settings, variant(METHOD), 1), rank_untrained(settings)
    ranks = [run.ranks, *untrained.values()]
    found = [
        (name, content(r.better), content(r.tied)) for each in ranks for name, r in each.items()
    ]
    return found, list(untrained), run.facts


def command(*words: str) -> Reading:
    """What a command prints about a folder; a traceback is raised, and an error, too."""

    def read(folder: Path) -> str:
        sys.argv = ["graphformers", *(word.format(folder) for word in words)]
        out, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            try:
                main()
            except SystemExit as end:
                code = end.code
        if code:
            *_, last = errors.getvalue().splitlines()
            assert (code, last[:7]) == (1, "error: "), errors.getvalue()
            raise GraphFormersError(last)
        return out.getvalue()

    return read


@dataclass(frozen=True)
class Kind:
    """A kind of folder: how one is made, and what is read of it.

    Attributes:
        folder: Its name.
        make: Makes it in a folder, with all that it refers to.
        readings: What commands print and Python reads.
    """

    folder: str
    make: Callable[[Path], object]
    readings: tuple[Reading, ...]


INFO = command("info", "{}", "--json")
SEARCH = command("search", "{}", "--id", "n7", "--index", "usearch", "--json")
KINDS = {
    "graph": Kind("t.graph", make_graph, (INFO, read_graph)),
    "split": Kind("t.split", make_split, (INFO, read_split)),
    "model": Kind("t.model", train, (INFO, read_model)),
    "vectors": Kind("t.vectors", make_vectors, (INFO, read_vectors)),
    "edited vectors": Kind("t.vectors", make_edited, (INFO, read_vectors)),
    "index": Kind("t.vectors", make_index, (SEARCH, read_index)),
    "checkpoint": Kind("t.model.training", make_checkpoint, (command("info", "{}/checkpoint"),)),
    "comparison": Kind("report", make_comparison, (INFO, read_comparison)),
}


def content(array: Array) -> str:
    """An array, short enough for a message."""
    array = np.ascontiguousarray(array)
    return f"{array.dtype}{array.shape} {hashlib.sha256(array.tobytes()).hexdigest()[:12]}"


def outcome(reading: Reading, folder: Path) -> object:
    """What a reading gives; None if it is refused."""
    try:
        return reading(folder)
    except GraphFormersError as error:
        if "\n" in str(error):
            raise AssertionError("several lines, expected one sentence") from error
        return None


Change = Callable[[random.Random, Path], str]


def flip_bit(draw: random.Random, folder: Path) -> str:
    """Flips a bit of a file, and returns which."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.stat().st_size)
    file = draw.choice(files)
    data = bytearray(file.read_bytes())
    at, bit = draw.randrange(len(data)), draw.randrange(8)
    data[at] ^= 1 << bit
    file.unlink()
    file.write_bytes(data)
    return f"bit {bit} of byte {at:,} of {file.relative_to(folder)}"


# values for entries of JSON files; texts with @ stand for JSON that Python does not write
WRONG = [
    None,
    True,
    0,
    -1,
    2**62,
    1.5,
    "",
    "text",
    [],
    {},
    [[5]],
    "\ud800",
    "@deep",
    "@huge",
    "@gone",
]
SPECIAL = {'"@deep"': "[" * 100_000 + "]" * 100_000, '"@huge"': "9" * 3000}


def forge_json(draw: random.Random, folder: Path) -> str:
    """Puts a wrong value into a JSON file, with right checksums, and returns which and where."""
    file = draw.choice(sorted(folder.rglob("*.json")))
    content, path = json.loads(file.read_text()), list[object]()
    at = {"": content}
    key: object = ""
    while isinstance(at[key], dict | list) and at[key] and (not path or draw.random() < 0.8):  # type: ignore[index]
        at = at[key]  # type: ignore[index,assignment]
        key = draw.choice(sorted(at)) if isinstance(at, dict) else draw.randrange(len(at))
        path.append(key)
    value = draw.choice(WRONG)
    if value == "@gone" and isinstance(at, dict):
        del at[key]  # type: ignore[arg-type]
    else:
        at[key] = value  # type: ignore[index]
    write_json(file, content if path else at[""])
    seal_again(folder, file)
    return f"{value!r} for {path} of {file.relative_to(folder)}"


def write_json(file: Path, content: object) -> None:
    for seal in ("sha256", "manifest_sha256"):
        if isinstance(content, dict) and seal in content and file.parent.name != "notes":
            # Some of the values have no checksum that we could compute.
            with contextlib.suppress(UnicodeEncodeError):
                content[seal] = digest_of({k: v for k, v in content.items() if k != seal})
    text = json.dumps(content)
    for word, special in SPECIAL.items():
        text = text.replace(word, special)
    file.unlink()
    file.write_text(text)


def seal_again(folder: Path, file: Path) -> None:
    """Writes the size and the checksum of a file into the manifests that list it."""
    for place in file.parents:
        if not place.is_relative_to(folder):
            return
        manifest = place / "manifest.json"
        if manifest.is_file() and manifest != file:
            content = json.loads(manifest.read_text())
            entry = {"bytes": file.stat().st_size, "sha256": checksum(file)}
            if content["files"].get(str(file.relative_to(place))) not in (None, entry):
                content["files"][str(file.relative_to(place))] = entry
                write_json(manifest, content)
                seal_again(folder, manifest)


def examine(kind: str, change: str, place: Path, seed: int, count: int) -> None:
    """Changes copies of a folder; writes what is wrong, as JSON, and each change before it.

    The process ends with a crash, should a change cause one: the last line then names it.
    """
    report = (place / REPORT).open("a", buffering=1)
    torch.set_num_threads(1)
    folder, readings = place / KINDS[kind].folder, KINDS[kind].readings
    whole = folder.rename(place / "whole")
    if kind == "checkpoint":
        manifest = json.loads((whole / "checkpoint" / "manifest.json").read_text())
        readings += (partial(read_checkpoint, manifest["settings"]),)
    shutil.copytree(whole, folder, symlinks=True)
    expected = [reading(folder) for reading in readings]
    draw = random.Random(seed)
    for number in range(count):
        shutil.rmtree(folder)
        shutil.copytree(whole, folder, symlinks=True)
        about = CHANGES[change](draw, folder)
        report.write(json.dumps({"about": f"change {number} of seed {seed}, {about}"}) + "\n")
        for reading, usual in zip(readings, expected, strict=True):
            wrong, found = "", usual
            try:
                found = outcome(reading, folder)
            except BaseException:
                wrong = traceback.format_exc()
            if change == "flip_bit" and found not in (None, usual):
                wrong = f"read as {found}, expected {usual}"
            report.write(json.dumps({"refused": found is None, "wrong": wrong}) + "\n")


CHANGES: dict[str, Change] = {"flip_bit": flip_bit, "forge_json": forge_json}


def damage(kind: str, change: str, place: Path, seed: int, count: int) -> None:
    """Reads changed folders in a process of its own, which one of them might crash."""
    print(f"{change} in {kind}: seed {seed}, {count} times")
    KINDS[kind].make(place)
    done = forked.run(examine, kind, change, place, seed, count, timeout=3600)
    lines = [json.loads(line) for line in (place / REPORT).read_text().splitlines()]
    wrong, about = [], "before the first change"
    for line in lines:
        about = line.get("about", about)
        if line.get("wrong"):
            wrong.append(f"{about}: {line['wrong']}")
    assert not wrong, f"{len(wrong)} of {kind}:\n" + "\n".join(wrong[:5])
    assert done.returncode == 0, f"{kind}, ended by {done.returncode} at {about}: {done.stderr}"
    # Most of them concern something that is read.
    assert sum(line.get("refused", False) for line in lines) > count / 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_refused_or_without_effect(kind: str, tmp_path: Path) -> None:
    damage(kind, "flip_bit", tmp_path, seed=1, count=25)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_flipped_bits(kind: str, tmp_path: Path) -> None:
    damage(kind, "flip_bit", tmp_path, seed=time.time_ns() % 10**6, count=2000 // len(KINDS))


@pytest.mark.parametrize("kind", KINDS)
def test_forged_json_ends_in_no_traceback(kind: str, tmp_path: Path) -> None:
    """All checksums are right, since somebody made the folder so."""
    damage(kind, "forge_json", tmp_path, seed=1, count=25)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_much_forged_json(kind: str, tmp_path: Path) -> None:
    damage(kind, "forge_json", tmp_path, seed=time.time_ns() % 10**6, count=200)
