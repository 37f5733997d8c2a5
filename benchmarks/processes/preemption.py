"""Preemption: requests to stop, by SIGTERM, which a scheduler sends some seconds before it kills, or by Ctrl-C
(SIGINT)."""

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
EXIT_CODE = os.EX_TEMPFAIL  # 75: nothing is wrong with the run, try again (as the workflow does)


class Preempted(SystemExit):
    """Ends the process with :data:`EXIT_CODE`, once everything is on disk."""

    def __init__(self) -> None:
        super().__init__(EXIT_CODE)


@contextmanager
def defer_signals(on_request: Callable[[], None]) -> Iterator[None]:
    """Inside the block, call ``on_request`` instead of obeying SIGTERM or Ctrl-C. A second Ctrl-C is obeyed. A signal
    that this process was started to ignore (as in the background of a shell) is still ignored."""

    def note(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            log.warning("told to stop: saving first; press Ctrl-C again to end at once without saving")
            signal.signal(number, signal.default_int_handler)
        on_request()

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
def block_sigterm() -> Iterator[None]:
    """Shield processes that are started inside the block, and their children, from SIGTERM until they call
    :func:`unblock_sigterm`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock_sigterm() -> None:
    """Receive SIGTERM again in a process that was started :func:`block_sigterm` from it."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


class StopRequest:
    """A flag that records a request to stop: :func:`defer_signals` calls :meth:`note`, and the work checks
    ``requested`` between two steps."""

    def __init__(self) -> None:
        self.requested = self._at_once = False

    def note(self) -> None:
        self.requested = True
        if self._at_once:
            self._leave()

    @contextmanager
    def immediate(self) -> Iterator[None]:
        """Inside the block, a request to stop ends the process at once. This is for long work that would have to be
        repeated in any case."""
        self._at_once = True
        try:
            if self.requested:
                self._leave()
            yield
        finally:
            self._at_once = False

    def _leave(self) -> NoReturn:
        log.warning("told to stop; the next attempt resumes from the last checkpoint")
        raise Preempted
