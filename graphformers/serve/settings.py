"""What a server can be told: where it listens, who may do what, and where its limits are."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from graphformers.errors import GraphFormersError

LEAST_TOKEN = 16  # letters: a shorter secret can be guessed


@dataclass(frozen=True)
class Limits:
    """What one request, one client and all of them together may ask for."""

    body_bytes: int = 1 << 20
    text_letters: int = 10_000  # of one text; models read a few hundred tokens of it at most
    id_letters: int = 1_000
    texts: int = 256  # of a request for embeddings
    neighbors: int = 64  # given with a text
    edges: int = 1_000  # of a request
    columns: int = 32  # of a node
    k: int = 1_000
    filters: int = 8
    rate: float = 0.0  # requests a second from one address; 0 for any number
    open_requests: int = 512  # at work at once; more are told to come back
    seconds: float = 30.0  # for an answer, and for the arrival of a body
    write_seconds: float = 120.0  # for a change, which may have to wait for a compaction
    map_points: int = 50_000


@dataclass(frozen=True)
class ServeSettings:
    """A server."""

    vectors: Path
    model: Path | None = None  # where it is no longer where it was when the vectors were made
    host: str = "127.0.0.1"
    port: int = 8000  # 0 takes a free one
    write_token: str | None = None
    read_token: str | None = None  # None: anybody who reaches the port may read
    device: str | None = None
    is_logged: bool = False  # a line for every request
    names: tuple[str, ...] = ()  # under which a proxy on this machine passes requests on
    limits: Limits = Limits()

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
        """With a token for writing, whoever has it; without any token, people on this machine.

        Not those whom a proxy lets in; and where readers need a token, nobody writes without one.
        """
        if self.write_token is not None:
            return True
        return self.read_token is None and self.is_loopback and not self.names

    @property
    def why_read_only(self) -> str:
        """What to tell somebody who wants to write where that is not allowed."""
        if self.read_token is not None:
            reason = "with a token for reading and none for writing"
        else:
            reason = "for other machines to reach, without a token for writing"
        advice = "--token-file (or GRAPHFORMERS_TOKEN) gives it one"
        return f"this server is read-only: it was started {reason}; {advice}"


def read_token(file: Path | None, value: str | None, purpose: str) -> str | None:
    """A token from a file or, where none is given, from the environment; None where there is
    neither.
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
            f"{where}: a {purpose} token of {len(token)} letters given, expected at least "
            f"{LEAST_TOKEN} without blanks, as "
            "`openssl rand -hex 24` makes them"
        )
    return token
