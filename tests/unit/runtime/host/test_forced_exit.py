"""A process that hangs ends, and one that does not is left alone."""

from __future__ import annotations

import subprocess
import sys
import threading

from semel.runtime.host.forced_exit import ForcedExit
from semel.testing.limits import scaled

HANGS = """
import threading
from semel.runtime.host.forced_exit import ForcedExit
threading.Thread(target=threading.Event().wait).start()
ForcedExit(3).within(0.1)
"""


def test_what_hangs_is_not_waited_for() -> None:
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=scaled(300))
    assert done.returncode == 3
    assert "still hangs" in done.stderr


def test_the_last_word_says_what_to_exit_with() -> None:
    hangs = HANGS.replace("ForcedExit(3).within(0.1)", "ForcedExit(3).within(0.1, 5)")
    assert subprocess.run([sys.executable, "-c", hangs], capture_output=True, timeout=scaled(300)).returncode == 5


def test_what_ends_in_order_is_left_alone() -> None:
    before = threading.active_count()
    with ForcedExit(3) as forced_exit:
        forced_exit.within(3600.0)
        forced_exit.within(3600.0)
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join(scaled(60))
    assert threading.active_count() <= before
