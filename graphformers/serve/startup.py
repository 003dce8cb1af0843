"""Server start-up and shutdown.

The server listens at once, is ready when everything is loaded, and stops when it has finished all
accepted requests.
"""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from functools import partial

import uvicorn

from graphformers.errors import GraphFormersError
from graphformers.serve.app import make_app
from graphformers.serve.connection import Connection, Connections
from graphformers.serve.engine import Engine
from graphformers.serve.settings import ServeSettings
from graphformers.serve.state import State

logger = logging.getLogger(__name__)

# Longer than any accepted request may take.
SHUTDOWN_SECONDS = 130
# Seconds until a computing thread yields to the one that talks to clients; the default is 0.005.
SWITCH_SECONDS = 0.0005
# Bytes of answers in the kernel for each connection.
SEND_BYTES = 256 << 10
# Longer than any connection waits: `Connection` has its own timers, because uvicorn's is ended by
# any byte, such as a line break.
NEVER = 1 << 30


class Server(uvicorn.Server):
    """uvicorn's server; a signal ends it gracefully and is not raised again afterwards."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handles SIGINT and SIGTERM for a `with` block."""
        before = {
            signum: signal.signal(signum, self.handle_exit)
            for signum in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)


def serve(settings: ServeSettings, announce: Callable[[str], None]) -> None:
    """Serves until a signal comes.

    Args:
        settings: Settings of the server.
        announce: Called with the address when the server is ready.

    Raises:
        GraphFormersError: If it cannot listen or load.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    app, state = make_app(settings)
    listener = listen(settings)
    host, port = listener.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    config = uvicorn.Config(
        app,
        http=partial(Connection, Connections(settings.limits)),  # type: ignore[arg-type]
        ws="none",
        # Warnings are about what clients send; each has its answer.
        log_level="error",
        access_log=False,
        lifespan="off",
        server_header=False,
        # The rate limit counts the address of the connection.
        proxy_headers=False,
        timeout_keep_alive=NEVER,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    server = Server(config)

    async def run() -> None:
        loading = asyncio.create_task(load(state, server, lambda: announce(address)))
        await server.serve(sockets=[listener])
        # Stopped before anything was accepted; loading cannot be interrupted.
        if not loading.done():
            os._exit(0)
        await loading
        await asyncio.to_thread(state.engine.close)

    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(run())


async def load(state: State, server: Server, announce: Callable[[], None]) -> None:
    """Loads the engine while the server runs. An error ends the server and is raised by `serve`."""
    try:
        engine = await asyncio.to_thread(Engine, state.settings)
    except BaseException:
        server.should_exit = True
        raise
    state.open(engine)
    gc.collect()
    # What is loaded stays; collecting it again and again would stop all responses for 100 ms.
    gc.freeze()
    announce()


def listen(settings: ServeSettings) -> socket.socket:
    """Binds the socket.

    Raises:
        GraphFormersError: If the address is not available.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        # The kernel would keep megabytes for a client that does not read.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        listener.bind((settings.host, settings.port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise GraphFormersError(
            f"{settings.host}:{settings.port}: cannot listen there ({error}); give another --host "
            f"or --port, 0 for any free one"
        ) from error
    if not settings.is_loopback and settings.read_token is None:
        logger.warning(
            "reachable from other machines, and readable by all who reach it: --read-token-file "
            "asks for a token"
        )
    if settings.read_token is not None and not settings.allows_writes:
        logger.info(settings.why_read_only)
    return listener
