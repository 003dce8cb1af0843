"""The map: a two-dimensional projection of all vectors, or of a sample.

It is computed in the background with the first request and then kept. PCA by default; PaCMAP if it
is installed. With PCA a new node has its place at once; the whole map is computed again when a
twentieth of the nodes has changed.
"""

import gzip
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from graphformers.arrays import Array
from graphformers.serve.engine import Engine, View

logger = logging.getLogger(__name__)

SAMPLE_SEED = 0
# Characters of the text that a point shows.
TEXT_LETTERS = 90
# Share of changed nodes from which on the map is computed again.
STALE = 0.05


@dataclass(frozen=True)
class Plane:
    """Coordinates of some nodes, and the axes that give those of others."""

    method: str
    ids: list[str]
    # float32: x, y, and a third axis for the colour.
    places_N3: Array
    mean_D: Array
    axes_D3: Array
    # The response, as compressed JSON.
    body: bytes
    # End of the log at that time.
    end: int
    nodes: int
    # Fingerprint of the store's base.
    base: str


def principal_axes(vectors_ND: Array) -> tuple[Array, Array]:
    """The mean, and (D, 3) the first three principal axes."""
    mean_D = vectors_ND.mean(0, dtype=np.float64)
    centered = vectors_ND - mean_D.astype(np.float32)
    spread_DD = (centered.T @ centered).astype(np.float64)
    _, axes = np.linalg.eigh(spread_DD)
    axes_D3 = axes[:, ::-1][:, :3]
    signs = np.sign(axes_D3[np.abs(axes_D3).argmax(0), np.arange(axes_D3.shape[1])])
    axes_D3 = np.pad(axes_D3 * signs, ((0, 0), (0, 3 - axes_D3.shape[1])))
    return mean_D.astype(np.float32), axes_D3.astype(np.float32)


class Map:
    """Keeps the projection of an engine's vectors."""

    def __init__(self, engine: Engine, most_points: int) -> None:
        self._engine, self._most = engine, most_points
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._plane: Plane | None = None

    def body(self) -> bytes | None:
        """The whole map as compressed JSON; None while the first one is computed.

        While a new one is computed, the old one is returned.
        """
        plane = self._plane
        if plane is None or self._is_stale(plane):
            self._begin()
        return None if plane is None else plane.body

    def places(self, ids: Sequence[str]) -> list[list[float] | None]:
        """Coordinates of nodes; None for unknown nodes and for nodes without a place yet."""
        plane, view = self._plane, self._engine.view
        if plane is None:
            self._begin()
            return [None] * len(ids)
        if plane.method != "pca":
            known = dict(zip(plane.ids, plane.places_N3.tolist(), strict=True))
            return [known.get(id) for id in ids]
        nodes = view.store.graph.find_nodes(ids)
        found = iter(
            ((view.store.compared(nodes[nodes >= 0]) - plane.mean_D) @ plane.axes_D3)
            .round(4)
            .tolist()
        )
        return [next(found) if node >= 0 else None for node in nodes.tolist()]

    def _is_stale(self, plane: Plane) -> bool:
        store = self._engine.view.store
        if store.artifact.fingerprint != plane.base:
            return True
        return store.commit.number != plane.end and len(store.changed_nodes()) > STALE * max(
            plane.nodes, 100
        )

    def _begin(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._make, name="map", daemon=True)
                self._thread.start()

    def _make(self) -> None:
        try:
            self._plane = make_plane(self._engine.view, self._most)
        # The page says that there is no map yet; the server continues.
        except Exception as error:
            logger.warning(f"the map could not be made: {type(error).__name__}: {error}")


def make_plane(view: View, most_points: int) -> Plane:
    """Chooses the points and computes their coordinates."""
    store = view.store
    everyone = nodes = store.graph.nodes
    if len(nodes) > most_points:
        nodes = np.sort(
            np.random.default_rng(SAMPLE_SEED).choice(nodes, most_points, replace=False)
        )
    vectors = store.compared(nodes)
    mean_D, axes_D3 = (
        principal_axes(vectors) if len(nodes) else (np.zeros(store.size), np.zeros((store.size, 3)))
    )
    places_N3, method = (vectors - mean_D) @ axes_D3, "pca"
    reducer = pacmap_reducer() if len(nodes) > 10 else None
    if reducer is not None:
        places_N3[:, :2], method = reducer.fit_transform(vectors), "pacmap"
    ids, texts = (
        store.graph.ids_of(nodes),
        [text[:TEXT_LETTERS] for text in store.graph.texts_of(nodes)],
    )
    rounded = places_N3.round(4)
    told = {"method": method, "nodes": len(everyone), "ids": ids, "texts": texts}
    told |= {name: rounded[:, i].tolist() for i, name in enumerate("xyz")}
    body = gzip.compress(msgspec.json.encode(told), 5, mtime=0)
    return Plane(
        method,
        ids,
        rounded,
        mean_D,
        axes_D3,
        body,
        store.commit.number,
        len(everyone),
        store.artifact.fingerprint,
    )


def pacmap_reducer() -> Any:
    """PaCMAP if it is installed, else None."""
    try:
        import pacmap
    except ImportError:
        return None
    return pacmap.PaCMAP(n_components=2, random_state=SAMPLE_SEED)
