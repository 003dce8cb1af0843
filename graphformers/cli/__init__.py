"""The command line: each command parses, calls one public function and prints.

Results go to stdout, progress and messages to stderr; exit 0 done, 1 failed, 2 misuse. Heavy
imports happen inside the commands, so that --help answers at once.
"""

import signal
import sys
from typing import Any

from graphformers.cli import demo, graphs, models, vectors  # noqa: F401  (they register their commands)
from graphformers.cli.options import app
from graphformers.errors import GraphFormersError, StoppedError


class Interrupted(BaseException):
    """Ctrl-C: nothing on the way catches it, so that drafts are removed and the last word is
    ours.
    """


def _interrupt(signum: int, frame: Any) -> None:
    raise Interrupted


def main() -> None:
    """Runs the command line; an error the user can mend is one message, not a traceback."""
    signal.signal(signal.SIGINT, _interrupt)
    try:
        # bytes that are no UTF-8 come as half characters, which nothing below can write
        strange = next(
            (
                word
                for word in sys.argv[1:]
                if any("\udc80" <= letter <= "\udcff" for letter in word)
            ),
            None,
        )
        if strange is not None:
            raise GraphFormersError(f"{strange!r} given, which is no text in UTF-8")
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
            f"error: the GPU's memory is full; end what else uses it, or compute with --device "
            f"cpu. {error}",
            file=sys.stderr,
        )
        sys.exit(1)
    except Interrupted:
        print("interrupted; nothing half-written was left behind", file=sys.stderr)
        sys.exit(130)
