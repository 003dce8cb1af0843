"""The command line: each command parses its arguments, calls one public function and prints.

Results go to stdout, progress and log messages to stderr. The exit code is 0 for success, 1 for a
failure and 2 for wrong usage. Heavy imports happen inside the commands, so that --help is fast.
"""

import logging
import signal
import sys
from typing import Any

from graphformers.cli import demo, graphs, models, vectors  # noqa: F401  (they register their commands)
from graphformers.cli.options import app
from graphformers.errors import GraphFormersError, StoppedError


class Interrupted(BaseException):
    """Ctrl-C. Not an Exception, so that no handler on the way catches it and drafts are removed."""


class StderrHandler(logging.Handler):
    """Prints messages to stderr as it is at that moment: progress bars and tests replace it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Prints the message of a record."""
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


def show_messages() -> None:
    """Lets the library's log messages appear on stderr."""
    logger = logging.getLogger("graphformers")
    if not any(isinstance(handler, StderrHandler) for handler in logger.handlers):
        logger.addHandler(StderrHandler())
        logger.setLevel(logging.INFO)


def _interrupt(signum: int, frame: Any) -> None:
    raise Interrupted


def main() -> None:
    """Runs the command line. An error that the user can fix prints a message, no traceback."""
    show_messages()
    signal.signal(signal.SIGINT, _interrupt)
    try:
        # Bytes that are not UTF-8 arrive as lone surrogates, which cannot be written anywhere.
        strange = next(
            (
                word
                for word in sys.argv[1:]
                if any("\udc80" <= letter <= "\udcff" for letter in word)
            ),
            None,
        )
        if strange is not None:
            raise GraphFormersError(f"{strange!r} given, expected text in UTF-8")
        app()
    except StoppedError as error:
        print(error, file=sys.stderr)
        sys.exit(128 + error.signum)
    except GraphFormersError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        print(
            f"error: {error.filename or 'input or output'}: {error.strerror or error}",
            file=sys.stderr,
        )
        sys.exit(1)
    except RuntimeError as error:
        # imported here: it needs torch, which --help does without
        from graphformers.memory import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        print(
            f"error: the GPU is out of memory; end other processes that use it, or compute with "
            f"--device cpu. {error}",
            file=sys.stderr,
        )
        sys.exit(1)
    except Interrupted:
        print("interrupted; nothing half-written was left behind", file=sys.stderr)
        sys.exit(130)
