"""Ends the process when nothing else does.

A store that does not answer can keep threads for ever, and Python waits for threads at its end. Nothing is lost by not
waiting: what was committed is committed, and what was not was never answered.
"""

from __future__ import annotations

import logging
import os
import threading
from types import TracebackType

log = logging.getLogger(__name__)


class ForcedExit:
    """From `within` on there is so much time left. Leaving the block says that all has ended in order."""

    def __init__(self, exit_code: int) -> None:
        self._exit_code = exit_code
        self._timer: threading.Timer | None = None

    def within(self, seconds: float, exit_code: int | None = None) -> None:
        """The last word counts, also on what to exit with."""
        self._stop()
        if exit_code is not None:
            self._exit_code = exit_code
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def __enter__(self) -> ForcedExit:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()

    def _end(self) -> None:
        log.error("something still hangs: this process ends without it")
        logging.shutdown()
        os._exit(self._exit_code)
