"""A test that breaks the Spark session does not take the others along."""

from __future__ import annotations

import threading

import pytest
from tests.spark.shared_session import SharedSession
from tests.tools import renewing


def test_after_a_test_that_ran_into_its_limit_there_is_a_new_session(shared_spark: SharedSession) -> None:
    """As it ends: the main thread waits for the JVM, and is let go because the JVM is killed."""
    broken = shared_spark.get()
    assert shared_spark.is_well()
    threading.Timer(0.5, shared_spark.cut_off).start()
    with pytest.raises(Exception, match=r"."):
        broken.range(1).rdd.map(lambda row: __import__("time").sleep(600)).count()
    assert not renewing.is_well(shared_spark.is_well)
    shared_spark.renew()
    assert shared_spark.get() is not broken
    assert shared_spark.get().range(3).count() == 3
