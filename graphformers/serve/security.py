"""Who may call a route: checks of host, rate, token, origin and proxies."""

import hmac
import time
from collections import OrderedDict
from collections.abc import Mapping
from enum import Enum

from graphformers.serve.errors import RequestError
from graphformers.serve.settings import ServeSettings

MOST_ADDRESSES = 10_000
# Headers that only proxies, load balancers and tunnels add to a request.
PROXY_HEADERS = frozenset(
    b"cdn-loop client-ip forwarded front-end-https incap-client-ip proxy-client-ip true-client-ip "
    b"via wl-proxy-client-ip x-amz-cf-id x-client-ip x-cluster-client-ip x-host x-original-host "
    b"x-original-proto x-originating-ip x-proxyuser-ip x-real-ip x-real-port x-remote-addr "
    b"x-remote-ip x-scheme x-url-scheme".split()
)
# "x-forwarded" stands for itself, and for x-forwarded-for, -host, -port, -proto and all others.
PROXY_PREFIXES = tuple(
    b"ali-cdn- cf- cloudfront- eagleeye- fastly- fly- tailscale- x-appengine- x-arr- x-azure- "
    b"x-envoy- x-forwarded x-original-forwarded- x-vercel-".split()
)


class Access(Enum):
    """Who may call a route."""

    # Anybody, at any rate: nothing about the graph is in the answer.
    PUBLIC = "public"
    # With a token, if reading needs one, and within the rate.
    READ = "read"
    # With the token for writing, or from this machine if there are no tokens; within the rate.
    WRITE = "write"


class Rate:
    """A token bucket for every address.

    It holds twice the requests of a second and fills steadily.

    Args:
        rate: Requests a second; 0 for any number.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        # Content of the bucket and time of the last request by address.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def takes(self, address: str) -> bool:
        """Whether another request of this address is within the rate."""
        if not self.rate:
            return True
        now = time.monotonic()
        content, before = self._buckets.pop(address, (2 * self.rate, now))
        content = min(content + (now - before) * self.rate, max(2 * self.rate, 1.0))
        is_taken = content >= 1
        self._buckets[address] = (content - is_taken, now)
        if len(self._buckets) > MOST_ADDRESSES:
            self._buckets.popitem(last=False)
        return is_taken


class Security:
    """The checks that a request passes before its body is read."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings, self._is_loopback = settings, settings.is_loopback
        self._rate = Rate(settings.limits.rate)
        write, read = settings.write_token, settings.read_token
        self._writers = [token.encode() for token in (write,) if token]
        self._readers = [token.encode() for token in (read, write) if token] if read else []

    def check(self, access: Access, headers: Mapping[bytes, bytes], address: str) -> None:
        """Checks a request for a route.

        Args:
            access: Who may call the route.
            headers: Headers of the request, by name in lower case.
            address: The address from which it came.

        Raises:
            RequestError: If it may not be answered.
        """
        host = headers.get(b"host", b"").decode("latin-1")
        names = self._settings.names
        if self._is_loopback and not is_this_machine(host) and without_port(host) not in names:
            # Against DNS rebinding: a page whose name points to 127.0.0.1.
            words = f"the host {host!r} asked for, this server answers to 127.0.0.1 and localhost"
            raise RequestError(421, f"{words}; see --name")
        if access is Access.PUBLIC:
            return
        if not self._rate.takes(address):
            words = f"more than {self._rate.rate:g} requests a second from one address"
            raise RequestError(429, words, retry_after="1")
        if access is Access.WRITE:
            self._check_writer(headers, host)
        elif self._readers:
            check_token(headers, self._readers)

    def _check_writer(self, headers: Mapping[bytes, bytes], host: str) -> None:
        if not self._settings.allows_writes:
            raise RequestError(403, self._settings.why_read_only)
        if self._writers:
            check_token(headers, self._writers)
        elif is_from_proxy(headers):
            words = "a change passed on by a proxy; without a token they are taken from this"
            raise RequestError(403, f"{words} machine alone")
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and origin.partition("://")[2] != host:
            words = f"a change asked for by a page of {origin!r}; only this server's own page may"
            raise RequestError(403, words)


def check_token(headers: Mapping[bytes, bytes], tokens: list[bytes]) -> None:
    """Requires one of some tokens.

    Raises:
        RequestError: If none of them was sent.
    """
    scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
    # Compares all tokens, in constant time.
    right = [hmac.compare_digest(given.strip(), token) for token in tokens]
    if scheme.lower() != b"bearer" or not any(right):
        said = "a wrong token" if given else "no token"
        words = f"{said} given, expected the header 'Authorization: Bearer TOKEN'"
        raise RequestError(401, words, www_authenticate="Bearer")


def is_from_proxy(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request has a header that only proxies add."""
    return not PROXY_HEADERS.isdisjoint(headers) or any(
        name.startswith(PROXY_PREFIXES) for name in headers
    )


def is_this_machine(host: str) -> bool:
    """Whether a Host header names this machine."""
    return without_port(host).lower() in ("127.0.0.1", "localhost", "[::1]", "")


def without_port(host: str) -> str:
    """A Host header without the port."""
    return host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
