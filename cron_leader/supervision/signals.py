"""Caught signals, and the undoing of it in children."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # typing itself would cost a megabyte
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

STOPS = (signal.SIGTERM, signal.SIGINT)
FORWARDED = (*STOPS, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
ABORT = signal.SIGABRT
"""What systemd sends to the main process when its watchdog has heard nothing."""
CAUGHT = (*FORWARDED, ABORT, signal.SIGTSTP, signal.SIGCHLD)


class Signals:
    """Caught signals as a queue, whose arrival makes `fd` readable."""

    def __init__(self) -> None:
        self.fd, self._wake = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._wake, False)
        self._caught: list[int] = []
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in CAUGHT:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
                signal.signal(number, self._catch)

    def _catch(self, number: int, _frame: FrameType | None) -> None:
        self._caught.append(number)

    def take(self) -> Iterator[int]:
        """Signals caught so far, in order."""
        try:
            os.read(self.fd, 4096)
        except BlockingIOError:
            pass
        while self._caught:
            yield self._caught.pop(0)


def default_signals() -> None:
    """In a child: undo our handlers, and what Python ignores for itself."""
    signal.set_wakeup_fd(-1)
    for number in (*CAUGHT, signal.SIGPIPE, signal.SIGXFSZ):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
