"""State: what the endpoints of one server share."""

import asyncio

from graphformers.serve.engine import Engine
from graphformers.serve.errors import NotReadyError
from graphformers.serve.files import page_files
from graphformers.serve.metrics import Metrics
from graphformers.serve.projection import Map
from graphformers.serve.settings import ServeSettings


class State:
    """What the endpoints of one server share. The engine is set once it is loaded.

    Args:
        settings: Settings of the server.
        description: The OpenAPI document.
    """

    def __init__(self, settings: ServeSettings, description: bytes) -> None:
        self.settings, self.limits, self.metrics = settings, settings.limits, Metrics()
        self.description, self.files = description, page_files()
        # One request at a time computes attention weights, since that uses the model.
        self.attention = asyncio.Lock()
        # The types of the users' columns by name. They are kept here because asking the graph costs
        # more with every column and edit. A request holds the lock while it adds some.
        self.columns: dict[str, str] = {}
        self.adding_columns = asyncio.Lock()
        self._opened: tuple[Engine, Map] | None = None

    def open(self, engine: Engine) -> None:
        """Sets the engine: from now on the server is ready."""
        self.metrics.watch(engine)
        self.add_columns(engine, engine.view.store.graph.column_names)
        self._opened = engine, Map(engine, self.limits.map_points)

    def add_columns(self, engine: Engine, names: list[str]) -> None:
        """Notes columns that nodes have."""
        graph = engine.view.store.graph
        self.columns |= {name: str(graph.column_type(name) or "null") for name in names}

    @property
    def engine(self) -> Engine:
        """The engine.

        Raises:
            NotReadyError: If it is still being loaded.
        """
        if self._opened is None:
            raise NotReadyError
        return self._opened[0]

    @property
    def map(self) -> Map:
        """The map of all nodes.

        Raises:
            NotReadyError: If the engine is still being loaded.
        """
        if self._opened is None:
            raise NotReadyError
        return self._opened[1]
