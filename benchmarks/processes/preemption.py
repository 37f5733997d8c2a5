"""Being told to go: by SIGTERM, which a scheduler sends some seconds before it kills, or by Ctrl-C (SIGINT)."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

log = logging.getLogger(__name__)
SIGNALS = (signal.SIGTERM, signal.SIGINT)
EXIT_CODE = os.EX_TEMPFAIL  # 75: nothing is wrong, try again (as the workflow does)


class Preempted(SystemExit):
    """Ends the process with :data:`EXIT_CODE`, once everything is on disk."""

    def __init__(self) -> None:
        super().__init__(EXIT_CODE)


@contextmanager
def noting(told: Callable[[], None]) -> Iterator[None]:
    """Inside, ``told`` is called instead of obeying SIGTERM or Ctrl-C. A second Ctrl-C is obeyed; one that this process
    was started to ignore (as in the background of a shell) still is."""

    def note(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            log.warning("told to go: what is under way is saved first; Ctrl-C again ends it at once")
            signal.signal(number, signal.default_int_handler)
        told()

    before: dict[signal.Signals, Any] = {number: signal.getsignal(number) for number in SIGNALS}
    noted = [number for number in SIGNALS if before[number] != signal.SIG_IGN]
    for number in noted:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number in noted:
            signal.signal(number, before[number])


@contextmanager
def shielded() -> Iterator[None]:
    """Processes that are started inside do not get SIGTERM, and their children do not, until they :func:`unshield`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unshield() -> None:
    """Get SIGTERM again in a process that was started shielded from it."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


class Notice:
    """Of being told to go, for whoever looks at ``given`` between two steps: :func:`noting` calls :meth:`note`."""

    def __init__(self) -> None:
        self.given = self._at_once = False

    def note(self) -> None:
        self.given = True
        if self._at_once:
            self._leave()

    @contextmanager
    def obeyed(self) -> Iterator[None]:
        """For long work that would be done again in any case: inside, it ends the process at once."""
        self._at_once = True
        try:
            if self.given:
                self._leave()
            yield
        finally:
            self._at_once = False

    def _leave(self) -> NoReturn:
        log.warning("told to go; the run goes on from its last checkpoint")
        raise Preempted
