"""The commands and the Python of docs/howto-import.md print what the page says.

`python -m tests.test_howto` writes what they print into the page.
"""

import contextlib
import io
import logging
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from graphformers.cli import main
from tests.papers import ROOT, environment

PAGE = ROOT / "docs" / "howto-import.md"
BLOCK = re.compile(
    r"(?:^File `(?P<name>[^`]+)`(?: \((?P<encoding>[^)]+)\))?:\n\n)?"
    r"^```(?P<kind>\w+)\n(?P<text>.*?)^```\n",
    re.DOTALL | re.MULTILINE,
)
ENCODINGS = {
    None: ("utf-8", "\n"),
    "UTF-8 with a byte order mark, lines end in CRLF": ("utf-8-sig", "\r\n"),
    "Windows-1252": ("cp1252", "\n"),
    "UTF-16": ("utf-16", "\n"),
}


def shown(page: str) -> Iterator[str]:
    """The page with what its commands print, block after block, in the current folder."""
    end, printed = 0, ""
    for block in BLOCK.finditer(page):
        yield page[end : block.start()]
        end, whole, text = block.end(), block[0], block["text"]
        if block["name"]:
            encoding, line_end = ENCODINGS[block["encoding"]]
            Path(block["name"]).parent.mkdir(exist_ok=True)
            Path(block["name"]).write_bytes(text.replace("\n", line_end).encode(encoding))
            yield whole
        elif block["kind"] == "console":
            commands = [line for line in text.splitlines() if line.startswith("$ ")]
            yield (
                "```console\n" + "".join(f"{line}\n{run(line[2:])}" for line in commands) + "```\n"
            )
        elif block["kind"] == "python":
            printed = run_python(text)
            yield whole
        elif block["kind"] == "text":
            yield f"```text\n{printed}```\n"
        else:
            yield whole
    yield page[end:]


def run(command: str) -> str:
    """What a command prints on stdout and stderr. Those of ours run in this process."""
    if command.startswith("graphformers ") and "|" not in command:
        printed, logger = io.StringIO(), logging.getLogger("graphformers")
        with (
            mock.patch.object(logger, "handlers", []),
            mock.patch.object(logger, "level", logger.level),
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
            contextlib.suppress(SystemExit),
            mock.patch.object(sys, "argv", shlex.split(command)),
        ):
            main()
        return printed.getvalue()
    script = f'graphformers() {{ "{sys.executable}" -m graphformers "$@"; }}; {command}'
    done = subprocess.run(
        ["bash", "-c", script],
        env=environment(ROOT),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.stdout


def run_python(code: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(PAGE), "exec"), {"__name__": "__main__"})
    return printed.getvalue()


def test_the_page_shows_what_its_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text(encoding="utf-8")
    assert page.count("```console") > 10
    assert "".join(shown(page)) == page, "the page has drifted: python -m tests.test_howto"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        filled = "".join(shown(PAGE.read_text(encoding="utf-8")))
    PAGE.write_text(filled, encoding="utf-8")
