"""Load test of a server with 64 clients: searches by id and by text, also during writes.

    python benchmarks/serve.py --seconds 60 --folder work --json results/serve.json

The clients run in a separate process on loopback, each on one connection, and send the next request
when the last one is answered. After the writes, every acknowledged one must be found, and again
after a kill -9 during further writes.
"""

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

CLIENTS, WRITERS = 64, 8
PURPOSES = ("id", "text", "mixed")


def make_folder(folder: Path, num_nodes: int) -> Path:
    """Vectors of a generated graph, by MiniLM with an untrained graph part; kept between runs."""
    import pyarrow as pa

    from graphformers.embedding.job import embed
    from graphformers.graph.interop import build_graph
    from graphformers.model.encoder import GraphFormers

    place = folder / f"bench{num_nodes}.vectors"
    if (place / "manifest.json").is_file():
        return place
    draw = random.Random(0)
    model_place = folder / "minilm.model"
    if not model_place.exists():
        GraphFormers.from_backbone("minilm", device="cpu").save_pretrained(model_place)
    ids = [f"n{i}" for i in range(num_nodes)]
    texts = [title(draw) for _ in ids]
    ends = [
        (i, min(num_nodes - 1, max(0, i + draw.randint(-200, 200))))
        for i in range(num_nodes)
        for _ in range(3)
    ]
    graph = build_graph(pa.table({"id": ids, "text": texts}), [(ids[a], ids[b]) for a, b in ends])
    graph_place = folder / f"bench{num_nodes}.graph"
    if not graph_place.exists():
        graph.save(graph_place)
    from graphformers.graph.textgraph import TextGraph

    embed(
        GraphFormers.from_pretrained(model_place, device="cpu"), TextGraph.load(graph_place), place
    )
    return place


WORDS = (
    "neural graph text deep learning model attention network language representation search "
    "retrieval citation paper node link "
    "prediction efficient scalable robust optimal convex random sparse dense quantum protein image "
    "speech translation planning "
    "control agents markets games climate energy materials cells genes galaxies stars particles "
    "fields waves fluids plasma "
    "theory methods survey analysis estimation inference sampling transport kernels manifolds "
    "groups algebra topology logic"
)


def title(draw: random.Random) -> str:
    return " ".join(draw.choices(WORDS.split(), k=draw.randint(5, 9))) + f" {draw.randint(0, 9999)}"


class Server:
    """A server process."""

    def __init__(self, place: Path) -> None:
        words = [
            sys.executable,
            "-m",
            "graphformers",
            "serve",
            str(place),
            "--port",
            "0",
            "--device",
            "cpu",
        ]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://([\d.]+):(\d+)", line)
        if found is None:
            raise SystemExit("the server did not start")
        self.host, self.port = found.group(1), int(found.group(2))

    def stop(self, *, kill: bool = False) -> None:
        self.process.kill() if kill else self.process.terminate()
        self.process.wait()


@dataclass
class Tally:
    """Times, errors and acknowledged writes of the clients."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    # the texts of acknowledged writes by id
    written: dict[str, str] = field(default_factory=dict)

    def table(self, lasted: float) -> dict[str, Any]:
        found = {}
        for kind, seconds in self.seconds.items():
            seconds.sort()
            found[kind] = {
                "requests": len(seconds),
                "requests_per_second": round(len(seconds) / lasted, 1),
                **{
                    f"p{p}_ms": round(
                        1000 * seconds[min(int(len(seconds) * p / 100), len(seconds) - 1)], 2
                    )
                    for p in (50, 99)
                },
                "max_ms": round(1000 * seconds[-1], 2),
            }
        return {
            "answers": found,
            "errors": len(self.errors),
            "first_errors": self.errors[:3],
            "written": len(self.written),
        }


class Connection:
    """A minimal HTTP/1.1 client, which leaves the CPU to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        if content:
            head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        self._writer.write(head.encode() + b"\r\n" + content)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        # This server writes header names in lower case.
        _, _, rest = answer.partition(b"content-length: ")
        return int(answer[9:12]), await self._reader.readexactly(int(rest.partition(b"\r")[0] or 0))


@asynccontextmanager
async def connected(host: str, port: int) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()


# kind, method, path, body
Request = tuple[str, str, str, Any]


def requests(purpose: str, client: int, num_nodes: int) -> Iterator[Request]:
    """Yields the requests of a client."""
    draw = random.Random(f"{purpose} {client} {time.time()}")
    while True:
        if purpose == "write" or (purpose == "mixed" and client < WRITERS):
            id = f"w/{draw.getrandbits(48):x}"
            near = [f"n{draw.randrange(num_nodes)}" for _ in range(3)]
            yield (
                "write",
                "PUT",
                f"/nodes/{quote(id, safe='')}",
                {"text": title(draw), "neighbors": near},
            )
        elif purpose == "id" or (purpose == "mixed" and client % 2):
            yield "id", "GET", f"/nodes/n{draw.randrange(num_nodes)}/similar?k=10", None
        else:
            yield "text", "POST", "/search", {"text": title(draw), "k": 10}


async def client(server: Any, tally: Tally, asked: Iterator[Request], until: float) -> None:
    async with connected(server["host"], server["port"]) as connection:
        for kind, method, path, body in asked:
            if time.perf_counter() > until:
                return
            started = time.perf_counter()
            try:
                status, answer = await connection.ask(method, path, body)
            except (OSError, EOFError) as error:
                tally.errors.append(f"{kind}: {type(error).__name__}")
                return
            tally.seconds.setdefault(kind, []).append(time.perf_counter() - started)
            if status not in (200, 201):
                tally.errors.append(f"{kind}: {status} {answer[:200]!r}")
            elif kind == "write":
                tally.written[json.loads(answer)["id"]] = body["text"]


async def drive(
    server: dict[str, Any], purpose: str, seconds: float, num_nodes: int
) -> dict[str, Any]:
    tally, started = Tally(), time.perf_counter()
    asked = [requests(purpose, i, num_nodes) for i in range(CLIENTS)]
    await asyncio.gather(*(client(server, tally, one, started + seconds) for one in asked))
    return {"told": tally.table(time.perf_counter() - started), "written": tally.written}


async def missing(server: Server, written: dict[str, str]) -> int:
    """The number of acknowledged writes that are missing or are not found by a search."""
    lost = 0
    async with connected(server.host, server.port) as connection:
        for i, (id, text) in enumerate(written.items()):
            status, answer = await connection.ask("GET", f"/nodes/{quote(id, safe='')}")
            lost += status != 200 or json.loads(answer)["text"] != text
            if i % 10 == 0:
                status, _ = await connection.ask("GET", f"/nodes/{quote(id, safe='')}/similar?k=1")
                lost += status != 200
    return lost


def driven(
    server: Server,
    purpose: str,
    seconds: float,
    num_nodes: int,
    during: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Runs the clients in a separate process; `during` is called in the middle."""
    about = json.dumps({"host": server.host, "port": server.port})
    words = [sys.executable, __file__, "--drive", about, purpose, str(seconds), str(num_nodes)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        if during is not None:
            time.sleep(seconds / 2)
            during()
        out, _ = process.communicate()
    return dict(json.loads(out))


def measure(place: Path, seconds: float, num_nodes: int, purposes: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    server = Server(place)
    try:
        for purpose in purposes:
            done = driven(server, purpose, seconds, num_nodes)
            found[purpose] = done["told"]
            if done["written"]:
                found[purpose]["missing"] = asyncio.run(missing(server, done["written"]))
            print(json.dumps({purpose: found[purpose]}), file=sys.stderr)
        if "mixed" in purposes:
            done = driven(
                server, "write", min(seconds, 20), num_nodes, lambda: server.stop(kill=True)
            )
            server = Server(place)
            found["killed"] = {
                "written": len(done["written"]),
                "missing": asyncio.run(missing(server, done["written"])),
            }
    finally:
        server.stop()
    return found


def main() -> None:
    if sys.argv[1:2] == ["--drive"]:
        about, purpose, seconds, num_nodes = sys.argv[2:]
        # uvloop is installed with the server.
        import uvloop

        found = uvloop.run(drive(json.loads(about), purpose, float(seconds), int(num_nodes)))
        # uvloop leaves stdout non-blocking: print would drop output that does not fit the pipe.
        os.set_blocking(sys.stdout.fileno(), True)
        print(json.dumps(found))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, default=Path("demo/bench"))
    parser.add_argument("--purposes", default=",".join(PURPOSES))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    place = make_folder(given.folder, given.nodes)
    found = measure(place, given.seconds, given.nodes, given.purposes.split(","))
    result = {
        "nodes": given.nodes,
        "clients": CLIENTS,
        "seconds": given.seconds,
        "cores": os.cpu_count(),
        **found,
    }
    print(json.dumps(result, indent=1))
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
