"""Settings of the server."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from graphformers.embedding.settings import CompactionSettings
from graphformers.errors import GraphFormersError
from graphformers.settings import Settings, setting

# Characters of a token; a shorter secret can be guessed.
LEAST_TOKEN = 16


@dataclass(frozen=True)
class Limits(Settings):
    """Limits of one request, of one client and of all clients together."""

    body_bytes: int = setting(1 << 20, "Bytes of a request body.", at_least=1)
    text_letters: int = setting(10_000, "Characters of a text.", at_least=1)
    id_letters: int = setting(1_000, "Characters of an id.", at_least=1)
    texts: int = setting(256, "Texts of a request for embeddings.", at_least=1)
    neighbors: int = setting(64, "Neighbours given with a text.", at_least=1)
    edges: int = setting(1_000, "Edges of a request.", at_least=1)
    columns: int = setting(32, "Columns of a node.", at_least=1)
    k: int = setting(1_000, "Results of a search.", at_least=1)
    filters: int = setting(8, "Filters of a search.", at_least=1)
    rate: float = setting(
        0.0,
        "Requests a second from one address; 0 for any number.",
        at_least=0,
        option="--rate NUMBER",
    )
    open_requests: int = setting(
        512, "Requests answered at the same time; others are asked to try again.", at_least=1
    )
    seconds: float = setting(30.0, "Seconds for an answer, and for the arrival of a body.", above=0)
    write_seconds: float = setting(
        120.0, "Seconds for a change, which may have to wait for a compaction.", above=0
    )
    map_points: int = setting(50_000, "Nodes on the map.", at_least=1)
    max_columns: int = setting(
        256,
        "Columns of all nodes together, up to which changes may add new ones.",
        at_least=0,
        option="--max-columns NUMBER",
    )
    connections: int = setting(
        4096, "Connections; with more, those that wait longest for their client end.", at_least=1
    )
    head_bytes: int = setting(64 << 10, "Bytes of the headers, and of the trailers.", at_least=1)
    num_headers: int = setting(200, "Number of headers, and of trailers.", at_least=1)
    partial_heads: int = setting(
        256, "Connections whose headers or trailers have begun and not ended.", at_least=1
    )
    held_bytes: int = setting(
        256 << 20,
        "Bytes of all bodies that arrive and of all answers that are not read yet; with more, the "
        "connections that make the least progress end.",
        at_least=1,
    )
    head_seconds: float = setting(10.0, "Seconds in which headers must arrive.", above=0)
    idle_seconds: float = setting(
        30.0, "Seconds that a connection stays open between two requests.", above=0
    )
    stall_seconds: float = setting(
        30.0, "Seconds in which a client must read 64 KiB of an answer, or the rest.", above=0
    )


@dataclass(frozen=True)
class ServeSettings(Settings):
    """Settings of a server."""

    vectors: Path = setting(help="The folder of vectors.")
    model: Path | None = setting(
        None, "The model folder, where it is no longer the one noted in the vectors."
    )
    host: str = setting(
        "127.0.0.1",
        "Address to listen on; 0.0.0.0 lets other machines in.",
        option="--host ADDRESS",
    )
    port: int = setting(
        8000,
        "Port to listen on; 0 takes any free one.",
        at_least=0,
        at_most=65535,
        option="--port NUMBER",
    )
    write_token: str | None = setting(None, "Token that writing needs.")
    read_token: str | None = setting(
        None, "Token that reading needs; without one anybody who reaches the port may read."
    )
    device: str | None = setting(None, "Device of the model; by default the best there is.")
    is_logged: bool = setting(
        False,
        "Log a line for every request: time, address, request, status, milliseconds.",
        option="--log",
    )
    names: tuple[str, ...] = setting(
        (),
        "Host names under which a proxy on this machine passes requests on.",
        option="--name HOST...",
    )
    limits: Limits = setting(Limits(), "Limits of requests.")
    compaction: CompactionSettings = setting(
        CompactionSettings(), "When the log of changes is compacted."
    )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def allows_writes(self) -> bool:
        """Whether anybody may change the store.

        With a token for writing, whoever has it. Without any token, requests from this machine,
        unless a proxy passed them on. With a token for reading alone, nobody.
        """
        if self.write_token is not None:
            return True
        return self.read_token is None and self.is_loopback and not self.names

    @property
    def why_read_only(self) -> str:
        """The error message for changes that a read-only server refuses."""
        if self.read_token is not None:
            reason = "with a token for reading and none for writing"
        else:
            reason = "for other machines to reach, without a token for writing"
        advice = "--token-file (or GRAPHFORMERS_TOKEN) gives it one"
        return f"this server is read-only: it was started {reason}; {advice}"


def read_token(file: Path | None, value: str | None, purpose: str) -> str | None:
    """A token from a file or else from the environment (`value`); None if there is neither.

    Raises:
        GraphFormersError: If the file cannot be read, or the token is short or holds blanks.
    """
    if file is not None:
        try:
            value = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise GraphFormersError(
                f"{file}: cannot be read as the {purpose} token: {error}"
            ) from error
    if value is None or (file is None and not value.strip()):
        return None
    token = value.strip()
    if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        where = file or "the environment"
        raise GraphFormersError(
            f"{where}: a {purpose} token of {len(token)} characters given, expected at least "
            f"{LEAST_TOKEN} without blanks, such as the output of `openssl rand -hex 24`"
        )
    return token
