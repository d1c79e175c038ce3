from __future__ import annotations
import pytest
from semel.stores.memory import MemoryStore
from semel.testing.contract.base import ManualClock
from semel.testing.contract.streams import *
from semel.testing.contract.units import *
from semel.testing.contract.work import *
from semel.testing.contract.bodies import *

class TestMemory(AppendSuite, ReadSuite, TrimSuite, EpochSuite, UnitSuite, ChainSuite, StateSuite, CursorSuite, GuardSuite,EnqueueSuite, ClaimSuite, FinishSuite, KeySuite, ReplaceSuite, BodySuite, SweepSuite):
    @pytest.fixture
    def clock(self): return ManualClock()
    @pytest.fixture
    def make_store(self, clock): return lambda: MemoryStore(clock=clock)
