"""Running a server: it listens at once, is ready when everything is loaded, and stops when it has
finished what it accepted.
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

import uvicorn

from graphformers.errors import GraphFormersError
from graphformers.serve.app import State, make_app
from graphformers.serve.connection import Connection, most_connections
from graphformers.serve.engine import Engine
from graphformers.serve.settings import ServeSettings

logger = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 130  # longer than any accepted request may take
# until a thread that computes lets the one that talks to clients have a turn; 0.005 is usual
SWITCH_SECONDS = 0.0005
IDLE_SECONDS = 30  # that a connection stays open between two requests


class Server(uvicorn.Server):
    """uvicorn's, but a signal ends it with everything done and no signal raised again behind it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
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
    """Serves until a signal comes; `announce` is called with the address when the server is
    ready.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    app, state = make_app(settings)
    listener = listen(settings)
    host, port = listener.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    failure: list[BaseException] = []
    Connection.most = most_connections()
    config = uvicorn.Config(
        app,
        http=Connection,
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,  # the rate is counted by the address that is really there
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    server = Server(config)

    async def run() -> None:
        loading = asyncio.create_task(load(state, server, lambda: announce(address), failure))
        await server.serve(sockets=[listener])
        # told to stop before anything was accepted; loading cannot be interrupted, but left
        if not loading.done():
            os._exit(0)
        if state.is_ready:
            await asyncio.to_thread(state.engine.close)

    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(run())
    if failure:
        raise failure[0]


async def load(
    state: State, server: Server, announce: Callable[[], None], failure: list[BaseException]
) -> None:
    """Loads the engine beside the running server. What goes wrong ends the server and is raised by
    `serve`.
    """
    try:
        engine = await asyncio.to_thread(Engine, state.settings)
    except BaseException as error:
        failure.append(error)
        server.should_exit = True
        return
    state.open(engine)
    gc.collect()
    # what is loaded stays; looking through all of it again and again would stop every answer for
    # 100 ms
    gc.freeze()
    announce()


def listen(settings: ServeSettings) -> socket.socket:
    """The socket, bound; an error that says what to do where that fails."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
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
