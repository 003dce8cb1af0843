"""StopSignal: stops a run at the end of a step, or within a validation, so that it can be saved."""

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


class InterruptedWork(BaseException):
    """A signal has interrupted work that can be repeated.

    Not an Exception, so that no code in between takes it for a failure.
    """


class StopSignal:
    """Remembers Ctrl-C and SIGTERM until the step is over; a second one ends the process at once.

    Attributes:
        number: The signal that has arrived; 0 if none has.
    """

    def __init__(self) -> None:
        self.number = 0
        self._arrived_at = 0.0
        self._is_interruptible = False

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
                when = "" if self._is_interruptible else " after this step"
                logger.info(
                    f"stopping{when} …; a second Ctrl-C ends the run at once, and only the last "
                    f"checkpoint is kept"
                )
                self.check()

        for number in before:
            signal.signal(number, remember)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler or signal.SIG_DFL)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """A context that a signal leaves at once, for work that changes nothing.

        Call `check` first in it, for a signal that has arrived before.
        """
        self._is_interruptible = True
        try:
            yield
        except InterruptedWork:
            pass
        finally:
            self._is_interruptible = False

    def check(self) -> None:
        """Leaves `interrupting` if a signal has arrived."""
        if self._is_interruptible and self.number:
            raise InterruptedWork
