"""Processes forked from one that has imported torch already.

They are real ones, to be signalled, killed and waited for, but begin at once: a new interpreter
imports for seconds.
"""

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.reduction import DupFd
from typing import Any

from graphformers.cli import main

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["torch._dynamo", "graphformers.training.trainer", "graphformers.serve.startup"]
)


class Descriptor:
    """A file descriptor that a new process is given as its own."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (DupFd(self.number),)


def _received(sent: Any) -> int:
    return int(sent.detach())


class Forked:
    """A function in a process of its own, handled like a `subprocess.Popen` with its output as
    text.
    """

    def __init__(
        self,
        target: Callable[..., object],
        *arguments: Any,
        environment: dict[str, str] | None = None,
    ) -> None:
        reading, writing = os.pipe()
        with tempfile.TemporaryFile() as file:
            self._errors = os.dup(file.fileno())
        given = (
            Descriptor(writing),
            Descriptor(self._errors),
            {**os.environ, **(environment or {})},
            target,
            arguments,
        )
        self._process = CONTEXT.Process(target=_run, args=given)
        self._process.start()
        os.close(writing)
        self.stdout = os.fdopen(reading)

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            assert self._process.pid is not None
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it said on stdout and on stderr, when it has ended."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(str(self._process), timeout or 0)
        with self.stdout, os.fdopen(self._errors, "rb") as errors:
            errors.seek(0)
            return self.stdout.read(), errors.read().decode()


def _run(
    out: int,
    errors: int,
    environment: dict[str, str],
    target: Callable[..., object],
    arguments: tuple[Any, ...],
) -> None:
    os.dup2(out, 1)
    os.dup2(errors, 2)
    os.close(out)
    os.environ.clear()
    os.environ.update(environment)
    target(*arguments)


def command(*words: str, largest_file: int | None = None) -> None:
    """`graphformers WORDS`, which may write no file larger than so many bytes."""
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    sys.argv = ["graphformers", *words]
    main()


def run(
    target: Callable[..., object], *arguments: Any, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Waits for it, like `subprocess.run`."""
    process = Forked(target, *arguments)
    try:
        out, errors = process.communicate(timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess(arguments, process.returncode or 0, out, errors)
