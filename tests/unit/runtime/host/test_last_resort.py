"""A process that hangs ends, and one that does not is left alone."""

from __future__ import annotations

import subprocess
import sys
import threading

from semel.runtime.host.last_resort import LastResort

HANGS = """
import threading
from semel.runtime.host.last_resort import LastResort
threading.Thread(target=threading.Event().wait).start()
LastResort(3).within(0.1)
"""


def test_what_hangs_is_not_waited_for() -> None:
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=300)
    assert done.returncode == 3
    assert "still hangs" in done.stderr


def test_what_ends_in_order_is_left_alone() -> None:
    before = threading.active_count()
    with LastResort(3) as last_resort:
        last_resort.within(3600.0)
        last_resort.within(3600.0)
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join(60)
    assert threading.active_count() <= before
