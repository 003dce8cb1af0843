"""StopSignal: stops a run at the end of a step, so that it can be saved."""

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

logger = logging.getLogger(__name__)

# A signal to a whole job arrives twice, from its sender and from torchrun. Only one that comes
# later than this is a second signal.
REPEAT_SECONDS = 2.0


class StopSignal:
    """Remembers Ctrl-C and SIGTERM until the step is over; a second one ends the process at once.

    Attributes:
        number: The signal that has arrived; 0 if none has.
    """

    def __init__(self) -> None:
        self.number = 0
        self._arrived_at = 0.0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """A context in which signals are caught, if it is entered in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def remember(number: int, frame: FrameType | None) -> None:
            if self.number and time.monotonic() - self._arrived_at > REPEAT_SECONDS:
                signal.signal(number, before[signal.Signals(number)] or signal.SIG_DFL)
                os.kill(os.getpid(), number)
            if not self.number:
                self.number, self._arrived_at = number, time.monotonic()
                logger.info("stopping after this step …")

        for number in before:
            signal.signal(number, remember)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler or signal.SIG_DFL)
