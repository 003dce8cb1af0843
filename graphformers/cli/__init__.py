"""The command line: each command parses its arguments, calls a public function, prints the result.

Results go to stdout, progress and log messages to stderr. Exit codes:

- 0: success;
- 1: a failure;
- 2: wrong usage;
- 3: training that did not improve the model, so that `train` kept the starting weights;
- 130 and 143: Ctrl-C and SIGTERM. A training run was saved, and the same command continues it.

Heavy imports are inside the commands, so that --help is fast.
"""

import logging
import os
import signal
import sys
from typing import Any, NoReturn

# imported because they register their commands
from graphformers.cli import demo, graphs, models, vectors  # noqa: F401
from graphformers.cli.command import app
from graphformers.errors import GraphFormersError, StoppedError


class Interrupted(BaseException):
    """Ctrl-C. Not an Exception, so that only cleanup code runs before the process ends."""


class StderrHandler(logging.Handler):
    """Prints messages to the current sys.stderr, which progress bars and tests replace."""

    def emit(self, record: logging.LogRecord) -> None:
        """Prints the message of a record."""
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


def show_messages() -> None:
    """Prints the library's log messages to stderr."""
    logger = logging.getLogger("graphformers")
    if not any(isinstance(handler, StderrHandler) for handler in logger.handlers):
        logger.addHandler(StderrHandler())
        logger.setLevel(logging.INFO)


def main() -> None:
    """Runs the command line. An error that the user can fix is printed without a traceback."""
    # Read when torch is imported. Threads that wait for each other by spinning slow every process
    # of a machine that computes something else, too.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    show_messages()
    signal.signal(signal.SIGINT, _interrupt)
    try:
        for word in sys.argv[1:]:
            # Bytes that are not UTF-8 arrive as lone surrogates, which cannot be written anywhere.
            if any("\udc80" <= letter <= "\udcff" for letter in word):
                raise GraphFormersError(f"{word!r} given, expected text in UTF-8")
        app()
    except StoppedError as error:
        _end(str(error), 128 + error.signum)
    except GraphFormersError as error:
        _end(f"error: {error}")
    except OSError as error:
        _end(f"error: {error.filename or 'input or output'}: {error.strerror or error}")
    except MemoryError:
        _end("error: out of memory; end other programs, or give smaller inputs")
    except RuntimeError as error:
        # imported here, because it imports torch, which --help does not need
        from graphformers.memory import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        _end(
            f"error: the GPU is out of memory; end other processes that use it, or compute with "
            f"--device cpu. {error}"
        )
    except Interrupted:
        _end("interrupted; no incomplete output was left behind", 130)


def _interrupt(signum: int, frame: Any) -> None:
    raise Interrupted


def _end(message: str, code: int = 1) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(code)
