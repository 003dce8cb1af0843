"""Metrics for Prometheus: how many requests, how fast, how large the batches are, how much is
waiting.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from graphformers.serve.engine import Engine

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The numbers of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "graphformers_requests",
            "Requests answered.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "graphformers_request_seconds",
            "Seconds until the answer.",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._sizes = Histogram(
            "graphformers_batch_size",
            "Jobs of a batch.",
            ["thread"],
            buckets=SIZES,
            registry=self.registry,
        )
        # found by labels
        self._known: dict[
            tuple[str, str, int], tuple[Callable[[], None], Callable[[float], None]]
        ] = {}
        self._nodes = Gauge("graphformers_nodes", "Nodes that are served.", registry=self.registry)
        self._edits = Gauge(
            "graphformers_edit_bytes",
            "Bytes of edits since the last compaction.",
            registry=self.registry,
        )
        self._waiting = Gauge(
            "graphformers_waiting",
            "Jobs that wait for a thread.",
            ["thread"],
            registry=self.registry,
        )

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Counts an answer. `route` is the pattern, not the path, so that there are few of them."""
        key = (method if method in METHODS else "other", route, status)
        if key not in self._known:
            self._known[key] = self._requests.labels(*key).inc, self._seconds.labels(route).observe
        count, observe = self._known[key]
        count()
        observe(seconds)

    def watch(self, engine: "Engine") -> None:
        """Takes what changes with every moment from the engine when it is asked for."""
        self._nodes.set_function(lambda: len(engine.view.store))
        self._edits.set_function(lambda: engine.view.store.commit.bytes)
        for batcher in (engine.texts, engine.searches, engine.writes):
            waiting = self._waiting.labels(batcher.name)
            waiting.set_function(partial(getattr, batcher, "num_waiting"))
            batcher.sizes = self._sizes.labels(batcher.name).observe

    def text(self) -> bytes:
        return generate_latest(self.registry)


METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH")
