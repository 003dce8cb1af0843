"""embed: the same vectors as from scratch, continued where it stopped, refused where it would
mix.
"""

import errno
import json
import shutil
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from graphformers.artifact import open_artifact
from graphformers.batching.two_pass import BatchLimits, TwoPass
from graphformers.cli import main
from graphformers.embedding import forecast as forecast_module
from graphformers.embedding import job, phases, shards
from graphformers.embedding.forecast import forecast
from graphformers.embedding.job import embed
from graphformers.embedding.phases import Phases
from graphformers.embedding.settings import EmbedSettings
from graphformers.embedding.states import LayerStates, model_fingerprint
from graphformers.embedding.update import update
from graphformers.embedding.vectors import FIRST_BASE, VectorStore
from graphformers.errors import GraphFormersError
from graphformers.files import write_whole
from graphformers.graph.interop import build_graph
from graphformers.graph.textgraph import TextGraph
from graphformers.model import encoder
from tests.conftest import make_graph
from tests.embedding.conftest import EXACT, MODELS, bytes_of, farthest, flip, make_model, some_graph


@pytest.mark.parametrize("states", ["disk", "memory"])
@pytest.mark.parametrize("name", MODELS)
def test_vectors_from_states_are_those_from_scratch(name: str, states: str, tmp_path: Path) -> None:
    model, graph = make_model(**MODELS[name]), some_graph()
    store = embed(model, graph, tmp_path / "some.vectors", states=states, **EXACT)
    assert farthest(store, model, graph) <= 1e-5
    assert not (tmp_path / "some.vectors.embedding").exists()


# a shard is a batch
ROOMY: dict[str, Any] = {"states_precision": "float32", "shard_size": 30, "batch_tokens": 10_000}


def short_of_memory(monkeypatch: pytest.MonkeyPatch, module: Any, most: int) -> list[int]:
    """No more than so many nodes can be read at a time from now on; gives a list of how many
    were.
    """
    seen: list[int] = []

    def limited(read: Any) -> Any:
        def tried(*arguments: Any) -> torch.Tensor:
            found: torch.Tensor = read(*arguments)
            if len(found) > most:
                raise torch.OutOfMemoryError("CUDA out of memory")
            seen.append(len(found))
            return found

        return tried

    for name in ("text_states", "center_vectors"):
        monkeypatch.setattr(module, name, limited(getattr(module, name)))
    return seen


@pytest.mark.parametrize("states", ["disk", "memory"])
@pytest.mark.parametrize("name", MODELS)
def test_with_little_memory_batches_are_read_in_pieces(
    name: str,
    states: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, graph = make_model(**MODELS[name]), some_graph()
    seen = short_of_memory(monkeypatch, phases, 7)
    store = embed(model, graph, tmp_path / "some.vectors", states=states, **ROOMY)
    assert farthest(store, model, graph) <= 1e-5
    assert max(seen) <= 7
    assert caplog.text.count("out of memory: batches are computed in") == 1
    assert "in 8 pieces" in caplog.text  # of 30 nodes each


@pytest.mark.parametrize("name", MODELS)
def test_encoding_with_little_memory_is_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, graph = make_model(**MODELS[name]), some_graph()
    expected = model.encode_nodes(graph)
    seen = short_of_memory(monkeypatch, encoder, 9)
    assert np.abs(model.encode_nodes(graph) - expected).max() <= 1e-5
    assert max(seen) <= 9


def test_what_is_prepared_ahead_may_not_fit_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor the rows of a shard while others are being written."""
    model, graph, refused = make_model(), some_graph(), []
    gather, new_rows = Phases._from_disk, Phases._new_rows

    def gather_later(*arguments: Any) -> torch.Tensor:
        if threading.current_thread().name.startswith("ahead"):
            refused.append("states")
            raise torch.OutOfMemoryError("CUDA out of memory")
        return gather(*arguments)

    def second_time(*arguments: Any) -> torch.Tensor:
        refused.append("rows")
        if refused.count("rows") % 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return new_rows(*arguments)

    monkeypatch.setattr(Phases, "_from_disk", gather_later)
    monkeypatch.setattr(Phases, "_new_rows", second_time)
    store = embed(model, graph, tmp_path / "some.vectors", states="disk", **ROOMY)
    assert (refused.count("rows"), refused.count("states")) == (4, 2)
    assert farthest(store, model, graph) <= 1e-5


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("Triton Error [CUDA]: out of memory", True),
        ("CUDA error: an illegal memory access was encountered", False),
    ],
)
def test_what_is_called_says_in_other_words_that_memory_is_full(
    error: str, is_full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, graph, center_vectors = make_model(), some_graph(), phases.center_vectors

    def short(network: Any, batch: Any, states: torch.Tensor) -> torch.Tensor:
        if len(batch.index.rows_BK) > 10:
            raise RuntimeError(error)
        return center_vectors(network, batch, states)

    monkeypatch.setattr(phases, "center_vectors", short)
    if is_full:
        assert (
            farthest(embed(model, graph, tmp_path / "some.vectors", **ROOMY), model, graph) <= 1e-5
        )
    else:
        with pytest.raises(RuntimeError, match="illegal memory access"):
            embed(model, graph, tmp_path / "some.vectors", **ROOMY)


def test_nobody_keeps_a_batch_that_was_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its pieces are read, it would take the room that they need; nor are whole ones made
    from then on.
    """
    model, graph = make_model(), some_graph()
    whole: list[Any] = []
    prepared, text_states = Phases._prepared, phases.text_states

    def watched(self: Phases, *arguments: Any) -> Any:
        prepare = prepared(self, *arguments)

        def made(parcel: Any) -> Any:
            batch = prepare(parcel)
            if threading.current_thread().name.startswith("ahead"):
                whole.append(weakref.ref(batch))
            return batch

        return made

    def short(network: Any, batch: Any) -> torch.Tensor:
        if batch.num_nodes > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        assert whole[0]() is None
        return text_states(network, batch)

    monkeypatch.setattr(Phases, "_prepared", watched)
    monkeypatch.setattr(phases, "text_states", short)
    store = embed(
        model,
        graph,
        tmp_path / "some.vectors",
        states_precision="float32",
        shard_size=10,
        batch_tokens=10_000,
    )
    assert len(whole) <= 4  # of six shards in each phase: those that had been begun
    assert farthest(store, model, graph) <= 1e-5


def test_memory_for_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, graph = make_model(), some_graph()
    short_of_memory(monkeypatch, phases, 0)
    with pytest.raises(GraphFormersError, match="too small even for one node at a time"):
        embed(model, graph, tmp_path / "some.vectors")

    def refuse(*arguments: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Phases, "_new_rows", refuse)
    with pytest.raises(GraphFormersError, match="smaller ones: force=True, shard_size="):
        embed(model, graph, tmp_path / "some.vectors", states="disk")


@pytest.mark.parametrize("name", MODELS)
def test_half_precision_states_hardly_turn_a_vector(name: str, tmp_path: Path) -> None:
    model, graph = make_model(**MODELS[name]), some_graph()
    ids, scratch = graph.ids.to_pylist(), model.encode_nodes(graph)
    for precision, least in (("float32", 0.9999), ("float16", 0.9999), ("int8", 0.999)):
        vectors = embed(model, graph, tmp_path / precision, precision=precision).vectors(ids)
        lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(scratch, axis=1)
        assert ((vectors * scratch).sum(1) / lengths).min() >= least


def test_batches_are_hardly_wider_than_their_neighborhoods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of the file, these would be 1.45 times as wide."""
    seen = []
    packed = TwoPass.pack_centers

    def watched(self: TwoPass, *arguments: Any) -> Any:
        batch = packed(self, *arguments)
        seen.append(batch.index.exists_BK)
        return batch

    monkeypatch.setattr(TwoPass, "pack_centers", watched)
    embed(make_model(), some_graph(), tmp_path / "some.vectors", num_neighbors=50, batch_tokens=40)
    assert sum(exists_BK.numel() for exists_BK in seen) <= 1.2 * sum(
        int(exists_BK.sum()) for exists_BK in seen
    )


def test_a_wrong_setting_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(GraphFormersError, match="num_neighbors=-1 given, expected 0 or more"):
        embed(make_model(), some_graph(), tmp_path / "some.vectors", num_neighbors=-1)
    assert not list(tmp_path.iterdir())


def test_states_are_those_of_texts_read_alone(tmp_path: Path) -> None:
    model, graph = make_model(), some_graph()
    store = embed(model, graph, tmp_path / "some.vectors", **EXACT)
    states = store.states
    assert isinstance(states, LayerStates)
    states.check(graph)
    tokens = job.graph_tokens(graph, model.tokenizer)
    everyone = np.arange(graph.num_nodes)
    with model.inference() as network:
        alone = network.neighbor_states(model.packer().pack(tokens, everyone))
    assert np.abs(states.take(everyone) - torch.stack(alone, 1).numpy()).max() <= 1e-5
    with pytest.raises(GraphFormersError, match="were made from other texts"):
        states.check(some_graph(1))


def test_without_states_only_vectors_are_kept(tmp_path: Path) -> None:
    model, graph = make_model(), some_graph()
    for states in ("disk", "memory"):
        store = embed(model, graph, tmp_path / states, keep_states=False, states=states, **EXACT)
        assert store.states is None
        assert not list((tmp_path / states).glob("states*"))
        assert farthest(store, model, graph) <= 1e-5


@pytest.mark.parametrize("count", [1, 2, 17])
def test_nodes_without_neighbours_and_very_small_graphs(count: int, tmp_path: Path) -> None:
    table = pa.table({"id": [f"n{i}" for i in range(count)], "text": ["graph"] * count})
    graph = build_graph(table)
    for name in ("graphformers", "max", "gat", "bidirectional"):
        model = make_model(**MODELS[name])
        assert farthest(embed(model, graph, tmp_path / name, **EXACT), model, graph) <= 1e-5


def test_a_graph_without_nodes_has_no_vectors(tmp_path: Path) -> None:
    graph = build_graph(pa.table({"id": ["a"], "text": ["graph"]}))
    none = np.zeros(0, dtype=np.int32)
    empty = type(graph)(
        graph.table.slice(0, 0),
        graph.id_hashes[:0],
        np.zeros(1, dtype=np.int64),
        none,
        np.zeros((2, 0), np.int32),
    )
    store = embed(make_model(), empty, tmp_path / "none.vectors")
    assert len(store) == 0
    assert list(store.blocks()) == []
    assert "a" not in store


def test_finished_shards_are_not_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, graph = make_model(), some_graph()
    whole = embed(model, graph, tmp_path / "whole.vectors", **EXACT)
    computed: list[tuple[int, list[int]]] = []
    run = Phases._run

    def fail_late(self: Phases, phase: int, shards: Any, *others: Any) -> None:
        computed.append((phase, list(shards)))
        if phase == 2 and len(computed) == 2:
            run(self, phase, shards[:2], *others)
            raise KeyboardInterrupt
        run(self, phase, shards, *others)

    monkeypatch.setattr(Phases, "_run", fail_late)
    with pytest.raises(KeyboardInterrupt):
        embed(model, graph, tmp_path / "some.vectors", **EXACT)
    shard = tmp_path / "some.vectors.embedding" / "folder" / FIRST_BASE / "states" / "00001.npy"
    flip(shard, 300)  # noticed, and made again
    embed(model, graph, tmp_path / "some.vectors", **EXACT)
    assert computed == [(1, [0, 1, 2]), (2, [0, 1, 2]), (1, [1]), (2, [2])]
    assert bytes_of(tmp_path / "some.vectors") == bytes_of(whole.path)


@pytest.mark.parametrize("harm", ["flipped", "missing"])
def test_states_that_were_damaged_after_all_was_computed_are_made_again(
    harm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full at the very end, perhaps."""
    model, graph = make_model(), some_graph()
    whole = embed(model, graph, tmp_path / "whole.vectors", **EXACT)

    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(job, "publish_artifact", fail)
        with pytest.raises(GraphFormersError, match="the disk is full"):
            embed(model, graph, tmp_path / "some.vectors", **EXACT)
    shard = tmp_path / "some.vectors.embedding" / "folder" / FIRST_BASE / "states" / "00001.npy"
    flip(shard, 300) if harm == "flipped" else shard.unlink()
    embed(model, graph, tmp_path / "some.vectors", **EXACT)
    assert bytes_of(tmp_path / "some.vectors") == bytes_of(whole.path)


def test_a_graph_that_was_replaced_after_it_was_loaded(tmp_path: Path) -> None:
    """Its folder is another's now: the vectors would get the other's ids, and the other the tokens
    of this one.
    """
    model = make_model()
    some_graph().save(tmp_path / "some.graph")
    old = TextGraph.load(tmp_path / "some.graph")
    some_graph(1).save(tmp_path / "some.graph", force=True)
    with pytest.raises(
        GraphFormersError,
        match=r"some.graph: another graph was put there since this one was loaded",
    ):
        embed(model, old, tmp_path / "some.vectors")
    assert not (tmp_path / "some.vectors.embedding").exists()  # nothing was begun
    assert np.abs(model.encode_nodes(old) - model.encode_nodes(some_graph())).max() <= 1e-5
    assert not (tmp_path / "some.graph" / "tokens").exists()
    new = TextGraph.load(tmp_path / "some.graph")
    assert farthest(embed(model, new, tmp_path / "some.vectors", **EXACT), model, new) <= 1e-5


@pytest.mark.parametrize("older", [False, True])
def test_a_damaged_graph_in_unfinished_work_is_not_published(
    older: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Sealed with the checksum that it then has, it would be what was meant, and the work be
    gone.
    """
    model, graph, place = (
        make_model(),
        some_graph().save(tmp_path / "some.graph"),
        tmp_path / "some.vectors",
    )
    whole = embed(model, graph, tmp_path / "whole.vectors", **EXACT)
    before = bytes_of(embed(model, some_graph(1), place, **EXACT).path) if older else {}
    inside = tmp_path / "some.vectors.embedding" / "folder" / FIRST_BASE / "graph" / "nodes.arrow"

    def elsewhere(*_: object) -> None:
        raise OSError(errno.EXDEV, "another disk")

    def killed(*_: object) -> None:
        raise KilledError

    monkeypatch.setattr(job.os, "link", elsewhere)  # so the graph is copied
    encode_centers = Phases.encode_centers
    with monkeypatch.context() as patch:
        patch.setattr(Phases, "encode_centers", killed)
        with pytest.raises(KilledError):
            embed(model, graph, place, force=older, **EXACT)
    flip(inside, 700)
    with monkeypatch.context() as patch:

        def harmed(*given: Any) -> None:
            encode_centers(*given)
            assert "damaged, its checksum" in caplog.text
            caplog.clear()
            flip(inside, 700)

        patch.setattr(Phases, "encode_centers", harmed)
        with pytest.raises(GraphFormersError, match=r"nodes.arrow: damaged"):
            embed(model, graph, place, force=older, **EXACT)
    assert bytes_of(place) == before if older else not place.exists()
    assert "finished shards are kept there" in caplog.text
    assert bytes_of(embed(model, graph, place, force=older, **EXACT).path) == bytes_of(whole.path)


def test_work_is_not_removed_from_under_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its plan and its first shard, and while it removes the folder that it replaced."""
    model, place = make_model(), tmp_path / "some.vectors"
    embed(model, some_graph(), place, **EXACT)
    monkeypatch.setattr(shards, "LOCK_TRIES", 2)
    refused = []

    def meanwhile() -> None:
        with pytest.raises(GraphFormersError, match="exists already"):
            embed(model, some_graph(3), place, **EXACT)
        refused.append(1)

    check_space, rmtree = job.Workplace.check_space, shutil.rmtree

    def check_later(*given: Any, **named: Any) -> None:
        meanwhile()
        check_space(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(job.Workplace, "check_space", check_later)
        embed(model, some_graph(1), place, force=True, **EXACT)

    def remove_later(path: Path, *given: Any, **named: Any) -> None:
        if Path(path).name == "folder" and len(refused) == 1:
            meanwhile()
        rmtree(path, *given, **named)

    monkeypatch.setattr(job.shutil, "rmtree", remove_later)
    store = embed(model, some_graph(2), place, force=True, **EXACT)
    assert len(refused) == 2
    assert farthest(store, model, some_graph(2)) <= 1e-5
    assert [entry.name for entry in tmp_path.iterdir()] == ["some.vectors"]


def test_whoever_waited_for_another_does_not_work_in_a_folder_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, graph, out = make_model(), some_graph(), tmp_path / "some.vectors"
    lock, others = shards.lock_folder, []

    def finish_first(handle: int) -> bool:
        if not others:
            others.append(handle)
            embed(model, graph, out, **EXACT)
        return lock(handle)

    monkeypatch.setattr(shards, "lock_folder", finish_first)
    with pytest.raises(GraphFormersError, match="exists already"):
        embed(model, graph, out, **EXACT)
    assert farthest(VectorStore.load(out), model, graph) <= 1e-5


def test_too_many_neighbours_for_a_bidirectional_model_are_said_at_once(
    tmp_path: Path,
) -> None:
    model, graph = make_model(direction="bidirectional"), some_graph()
    model.limits = BatchLimits(joint_neighbors=4)
    with pytest.raises(
        GraphFormersError, match="a node with 7 neighbours; a bidirectional model encodes at most 4"
    ):
        embed(model, graph, tmp_path / "some.vectors", num_neighbors=10)
    assert not list(tmp_path.iterdir())
    embed(model, graph, tmp_path / "some.vectors", num_neighbors=4)


@pytest.mark.parametrize("name", [".", "/", "..", "some/.."])
def test_places_without_a_name_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some").mkdir()
    monkeypatch.chdir(tmp_path / "some")
    with pytest.raises(GraphFormersError, match="expected the name of one to be made"):
        embed(make_model(), some_graph(), name)


def test_settings_and_changes_of_them(tmp_path: Path) -> None:
    store = embed(
        make_model(),
        some_graph(),
        tmp_path / "some.vectors",
        EmbedSettings(keep_states=False),
        precision="int8",
    )
    assert (store.precision, store.states) == ("int8", None)


def test_numbers_that_float16_does_not_hold_are_said(tmp_path: Path) -> None:
    model = make_model(method="plm")
    with torch.no_grad():
        for parameter in list(model.network.parameters())[-2:]:
            parameter.mul_(1e6)
    assert np.isfinite(np.asarray(embed(model, some_graph(), tmp_path / "some.vectors"))).all()
    with pytest.raises(
        GraphFormersError, match="do not fit into float16; precision='float32' or int8 hold them"
    ):
        embed(model, some_graph(), tmp_path / "half.vectors", precision="float16")


def test_something_else_does_not_continue_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, graph, out = make_model(), some_graph(), tmp_path / "some.vectors"

    def stop(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Phases, "encode_centers", stop)
        with pytest.raises(KeyboardInterrupt):
            embed(model, graph, out, **EXACT)
    with pytest.raises(
        GraphFormersError,
        match=r"an unfinished embedding of something else \(model \w{12}, now \w{12}\)",
    ):
        embed(make_model(seed=1), graph, out, **EXACT)
    with pytest.raises(GraphFormersError, match=r"precision float32, now int8"):
        embed(model, graph, out, precision="int8", **EXACT)
    other = make_model(seed=1)
    assert farthest(embed(other, graph, out, force=True, **EXACT), other, graph) <= 1e-5
    with pytest.raises(GraphFormersError, match="exists already"):
        embed(other, graph, out, **EXACT)


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    model, graph, out = make_model(), some_graph(), tmp_path / "some.vectors"
    work = job.Workplace(job.work_path(out), job.Plan.of(model, graph, EmbedSettings(**EXACT)))
    with (
        work.opened(force=False),
        pytest.raises(GraphFormersError, match="another process is embedding here"),
    ):
        embed(model, graph, out, **EXACT)


@pytest.mark.parametrize("kind", ["vectors", "states"])
def test_a_flipped_byte_is_refused(kind: str, tmp_path: Path) -> None:
    store = embed(make_model(), some_graph(), tmp_path / "some.vectors", **EXACT)
    flip(store.path / FIRST_BASE / kind / "00002.npy", 500)
    with pytest.raises(
        GraphFormersError,
        match=rf"{kind}/00002.npy: damaged, its checksum is not the one in manifest.json",
    ):
        VectorStore.load(store.path)
    with pytest.raises(GraphFormersError, match="damaged"):
        open_artifact(store.path, "vectors", 2).verify()


def test_weights_that_are_no_numbers_are_said(tmp_path: Path) -> None:
    model = make_model()
    with torch.no_grad():
        next(model.network.text.layers.parameters()).fill_(float("nan"))
    with pytest.raises(GraphFormersError, match="vectors that are no numbers"):
        embed(model, some_graph(), tmp_path / "some.vectors")


def test_packing_in_processes_changes_nothing(tmp_path: Path) -> None:
    model, graph = make_model(), some_graph()
    stores = [
        embed(model, graph, tmp_path / f"{workers}.vectors", workers=workers, **EXACT)
        for workers in (0, 2)
    ]
    assert bytes_of(stores[0].path) == bytes_of(stores[1].path)


def test_a_full_disk_leaves_what_is_finished(tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path / "start.model")
    some_graph().save(tmp_path / "some.graph")
    arguments = [
        "graphformers",
        "embed",
        str(tmp_path / "start.model"),
        str(tmp_path / "some.graph"),
        "--device",
        "cpu",
    ]
    arguments += ["-o", str(tmp_path / "some.vectors"), "--shard-size", "30"]
    script = (
        "import resource, sys\n"
        "from graphformers.cli import main\n"
        f"sys.argv = {arguments!r}\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (MOST, MOST))\n"
        "main()\n"
    )

    def run(limit: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", script.replace("MOST", str(limit))]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    full = run(4000)  # a shard of states has 30 * 3 * 24 * 2 bytes and a head
    assert full.returncode == 1, full.stderr
    assert "the disk is full; what was there before is unchanged" in full.stderr
    assert not (tmp_path / "some.vectors").exists()
    done = run(1 << 30)
    assert done.returncode == 0, done.stderr
    assert "60 vectors of 24 numbers" in done.stdout
    VectorStore.load(tmp_path / "some.vectors").artifact.verify()


def test_too_little_space_is_said_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 1000

    monkeypatch.setattr(job.shutil, "disk_usage", lambda path: Usage)
    model, graph, out = make_model(), some_graph(), tmp_path / "some.vectors"
    with pytest.raises(
        GraphFormersError,
        match=r"14.4 kB are needed, 1.0 kB are free; keep_states=False needs less$",
    ):
        embed(model, graph, out, states="memory")
    # nothing was begun that differs
    with pytest.raises(GraphFormersError, match=r"5.8 kB are needed, 1.0 kB are free$"):
        embed(model, graph, out, states="memory", keep_states=False)
    for kept in (True, False):  # between the two passes they lie on disk in any case
        with pytest.raises(GraphFormersError, match=r"14.4 kB are needed, 1.0 kB are free$"):
            embed(model, graph, out, states="disk", keep_states=kept)


@pytest.mark.parametrize("name", MODELS)
def test_a_forecast_writes_nothing(name: str, tmp_path: Path) -> None:
    graph = some_graph().save(tmp_path / "some.graph")
    before = bytes_of(tmp_path)
    found = forecast(make_model(**MODELS[name]), graph, EmbedSettings())
    assert found.nodes == 60
    assert found.seconds > 0
    assert found.vectors_gb * 1e9 == 60 * 24 * 4
    assert bytes_of(tmp_path) == before


@pytest.mark.parametrize("name", MODELS)
def test_a_forecast_with_little_memory_tries_fewer_nodes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    short_of_memory(monkeypatch, forecast_module, 9)
    # of 60, 30, 15
    assert forecast(make_model(**MODELS[name]), some_graph(), EmbedSettings()).nodes_tried == 7
    short_of_memory(monkeypatch, forecast_module, 0)
    with pytest.raises(GraphFormersError, match="too small even for one node"):
        forecast(make_model(**MODELS[name]), some_graph(), EmbedSettings())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"precision": "float8"},
            "precision='float8' given, expected one of: float32, float16, int8",
        ),
        (
            {"states_precision": "int8"},
            "states_precision='int8' given, expected float16 or float32",
        ),
        ({"states": "cloud"}, "states='cloud' given, expected one of: auto, memory, disk"),
        ({"shard_size": 0}, "shard_size=0 given, expected at least 1"),
    ],
)
def test_settings_that_cannot_be_are_said(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphFormersError, match=message):
        EmbedSettings(**changes)


def test_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_model(direction="bidirectional").save_pretrained(tmp_path / "some.model")
    graph = some_graph().save(tmp_path / "some.graph")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("signal.signal", lambda *arguments: None)

    def run(*words: str) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["graphformers", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        found = capsys.readouterr()
        return found.out, found.err

    embedding = ["embed", "some.model", "some.graph", "-o", "some.vectors", "--device", "cpu"]
    assert json.loads(run(*embedding, "--dry-run", "--json")[0])["nodes"] == 60
    assert "60 in 1 shards" in run(*embedding, "--dry-run")[0]
    out, err = run(*embedding)
    assert "60 vectors of 24 numbers, float32, no states" in out
    assert "6 forwards instead of 2" in err
    (tmp_path / "new.csv").write_text("id,title\nx,a graph of nodes\n")
    (tmp_path / "links.csv").write_text(f"source,target\nx,{graph.ids[0]}\n")
    (tmp_path / "gone.txt").write_text(f"{graph.ids[5]}\n\nnobody\n")
    changes = [
        "update",
        "some.vectors",
        "--nodes",
        "new.csv",
        "--edges",
        "links.csv",
        "--remove",
        "gone.txt",
    ]
    report = json.loads(run(*changes, "--json", "--device", "cpu")[0])
    assert (
        report["new_nodes"],
        report["removed_nodes"],
        report["new_links"],
        report["already_so"],
    ) == (1, 1, 1, 1)
    assert report["nodes"] == 60
    assert "0 forwards" in run(*changes, "--device", "cpu")[0]
    assert json.loads(run("info", "some.vectors", "--json", "--verify")[0])["vectors"] == 60
    assert (
        "of edits since then, which are compacted automatically at 67.1 MB"
        in run("info", "some.vectors")[0]
    )
    assert "60 vectors" in run("export", "some.vectors", "-o", "some.parquet")[0]


def test_a_fingerprint_is_of_what_decides_a_vector() -> None:
    one, loud, mean = make_model(), make_model(graph_token_scale=2.0), make_model(pooling="mean")
    for other in (loud, mean):
        other.network.load_state_dict(one.network.state_dict())
    assert model_fingerprint(loud) == model_fingerprint(one)
    assert model_fingerprint(mean) != model_fingerprint(one)


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_of_somebody_else_is_left_alone(exists: bool, tmp_path: Path) -> None:
    model, output, other = (
        make_model(),
        tmp_path / "some.vectors",
        tmp_path / "some.vectors.embedding",
    )
    if exists:
        embed(model, some_graph(), output, **EXACT)
    other.mkdir()
    (other / "mine.txt").write_text("precious")
    with pytest.raises(
        GraphFormersError, match=r"exists already|holds 'mine.txt' and no embedding of ours"
    ):
        embed(model, some_graph(), output, **EXACT)
    with pytest.raises(GraphFormersError, match=r"holds 'mine.txt' and no embedding of ours"):
        embed(model, some_graph(), output, force=True, **EXACT)
    assert (other / "mine.txt").read_text() == "precious"


def test_the_work_lies_beside_what_a_link_points_to(tmp_path: Path) -> None:
    """There is room for it, and it can be put in place by a rename."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "link.vectors").symlink_to(tmp_path / "disk" / "some.vectors")
    assert job.work_path(tmp_path / "link.vectors") == tmp_path / "disk" / "some.vectors.embedding"
    store = embed(make_model(), some_graph(), tmp_path / "link.vectors", **EXACT)
    assert len(store) == 60
    assert (tmp_path / "link.vectors").is_symlink()
    assert (tmp_path / "disk" / "some.vectors" / "manifest.json").is_file()


@pytest.mark.parametrize("left", [["plan.json"], ["plan.json", "notes"]])
def test_what_a_kill_leaves_of_a_finished_embedding_is_removed(
    left: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark goes last, so that the rest is never taken for somebody else's."""
    removed: list[str] = []
    remove = job.shutil.rmtree

    def watch(path: Path, **options: Any) -> None:
        removed.append(Path(path).name)
        assert (tmp_path / "some.vectors.embedding" / "plan.json").is_file()
        remove(path, **options)

    monkeypatch.setattr(job.shutil, "rmtree", watch)
    embed(make_model(), some_graph(), tmp_path / "some.vectors", **EXACT)
    assert removed[-1] == "some.vectors.embedding"
    monkeypatch.undo()
    for name in left:
        place = tmp_path / "some.vectors.embedding" / name
        place.mkdir(parents=True) if name == "notes" else write_whole(place, b"{}")
    with pytest.raises(GraphFormersError, match="exists already"):
        embed(make_model(), some_graph(), tmp_path / "some.vectors", **EXACT)
    assert [entry.name for entry in tmp_path.iterdir()] == ["some.vectors"]


class KilledError(BaseException):
    """What a kill is to the code that it meets."""


@pytest.mark.parametrize("removed", [False, True])
def test_a_kill_after_an_older_result_was_replaced_mixes_nothing(
    removed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exchange puts the older folder where the work was: it is no unfinished work of the same
    plan.
    """
    model, old, new = make_model(), some_graph(), make_graph(80, 160, seed=1)
    place = tmp_path / "some.vectors"
    before = embed(model, old, place)
    update(before, nodes={"new": "a text"}, model=model)
    with monkeypatch.context() as patch:

        def killed(*_: object) -> None:
            raise KilledError

        patch.setattr(job, "remove_work", killed)
        with pytest.raises(KilledError):
            embed(model, new, place, force=True)
    assert len(VectorStore.load(place)) == 80
    if removed:  # a part of it
        (tmp_path / "some.vectors.embedding" / "folder" / "manifest.json").unlink()
    with pytest.raises(GraphFormersError, match="exists"):
        embed(model, new, place)
    assert not (tmp_path / "some.vectors.embedding").exists()
    assert farthest(embed(model, new, place, force=True), model, new) < 1e-2
    assert not (tmp_path / "some.vectors.embedding").exists()


def test_vectors_of_another_number_than_nodes_are_refused(tmp_path: Path) -> None:
    store = embed(make_model(), some_graph(), tmp_path / "some.vectors")
    shutil.rmtree(store.path / FIRST_BASE / "graph")
    make_graph(61, 100).save(tmp_path / "other.graph")
    (tmp_path / "other.graph").rename(store.path / FIRST_BASE / "graph")
    with pytest.raises(GraphFormersError, match="60 vectors, but 61 nodes"):
        VectorStore(store.artifact)


def test_finished_shards_are_not_thrown_away_for_a_plan_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(
            Phases, "encode_centers", lambda *_: (_ for _ in ()).throw(RuntimeError("stopped"))
        )
        with pytest.raises(RuntimeError):
            embed(make_model(), some_graph(), tmp_path / "some.vectors")
    work = tmp_path / "some.vectors.embedding"
    kept = bytes_of(work / "folder" / FIRST_BASE / "states")
    (work / "plan.json").write_text("{")
    with pytest.raises(GraphFormersError, match=r"plan\.json: cannot be read .*; force=True"):
        embed(make_model(), some_graph(), tmp_path / "some.vectors")
    assert bytes_of(work / "folder" / FIRST_BASE / "states") == kept
    embed(make_model(), some_graph(), tmp_path / "some.vectors", force=True)


def test_a_continued_embedding_has_the_columns_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def graph(year: int) -> TextGraph:
        return build_graph(
            [{"id": "a", "text": "x", "year": year}, {"id": "b", "text": "y", "year": year}],
            [("a", "b")],
        )

    with monkeypatch.context() as patch:
        patch.setattr(
            Phases, "encode_centers", lambda *_: (_ for _ in ()).throw(RuntimeError("stopped"))
        )
        with pytest.raises(RuntimeError):
            embed(make_model(), graph(1990), tmp_path / "some.vectors")
    store = embed(make_model(), graph(2000), tmp_path / "some.vectors")
    assert store.graph.freeze().column("year").to_pylist() == [2000, 2000]
