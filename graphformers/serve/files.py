"""The files of the page, read once and compressed once. Only these are served; no path from outside
is ever opened.
"""

import gzip
import hashlib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from graphformers.errors import MissingExtraError

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
}
TYPES |= {"svg": "image/svg+xml"}
# plotly makes its shaders' code with Function(), so it is shut into a frame that can reach nothing
FRAME_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'self' 'unsafe-eval'; style-src 'self' "
    "'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)


@dataclass(frozen=True)
class File:
    """A file of the page, ready to be sent."""

    content: bytes
    compressed: bytes
    headers: dict[str, str]


def page_files() -> dict[str, File]:
    """All files by name; the page itself is index.html."""
    folder = files("graphformers.serve") / "static"
    found = {
        entry.name: _file(entry.name, entry.read_bytes())
        for entry in folder.iterdir()
        if entry.name.partition(".")[2] in TYPES
    }
    found["plotly.min.js"] = _file("plotly.min.js", _plotly().read_bytes(), "public, max-age=86400")
    return found


def _plotly() -> Path:
    try:
        import plotly
    except ImportError as error:
        raise MissingExtraError("plotly", "the page of the server", "serve") from error
    return Path(plotly.__file__).parent / "package_data" / "plotly.min.js"


def _file(name: str, content: bytes, caching: str = "no-cache") -> File:
    headers = {
        "content-type": TYPES[name.rpartition(".")[2]],
        "cache-control": caching,
        "etag": f'"{hashlib.sha256(content).hexdigest()[:20]}"',
        "vary": "Accept-Encoding",
    }
    if name == "map.html":
        headers["content-security-policy"] = FRAME_POLICY
    # asked for by the frame, which has no origin
    if name in ("map.js", "map.css", "plotly.min.js"):
        headers["cross-origin-resource-policy"] = "cross-origin"
    return File(content, gzip.compress(content, 6, mtime=0), headers)
