"""Being told to go: by SIGTERM, which a scheduler sends some seconds before it kills."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, NoReturn

log = logging.getLogger(__name__)
EXIT_CODE = os.EX_TEMPFAIL  # 75: nothing is wrong, try again (as the workflow does)


class Preempted(SystemExit):
    """Ends the process with :data:`EXIT_CODE`, once everything is on disk."""

    def __init__(self) -> None:
        super().__init__(EXIT_CODE)


class Notice:
    """Inside, SIGTERM is noted instead of obeyed; whoever works looks at ``given`` between two steps."""

    def __init__(self) -> None:
        self.given = self._at_once = False
        self._before: Any = signal.SIG_DFL

    def __enter__(self) -> Notice:
        self._before = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGTERM, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.given = True
        if self._at_once:
            self._leave()

    @contextmanager
    def obeyed(self) -> Iterator[None]:
        """For long work that would be done again in any case: inside, SIGTERM ends the process at once."""
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
