"""The suites, put together."""

from __future__ import annotations

from semel.testing.contract.binding import BindSuite
from semel.testing.contract.bodies import BodySuite, SweepSuite
from semel.testing.contract.durable import DurableSuite
from semel.testing.contract.identities import BareSuite, OperatorSuite, RememberSuite
from semel.testing.contract.inputs import InputSuite
from semel.testing.contract.ledger import IndexSuite, LedgerSuite
from semel.testing.contract.model import ModelSuite
from semel.testing.contract.streams import (
    AppendSuite,
    EpochSuite,
    ReadSuite,
    SharedStreamSuite,
    TrimSuite,
)
from semel.testing.contract.threads import SharedThreadSuite, ThreadSuite
from semel.testing.contract.units import ChainSuite, CursorSuite, GuardSuite, StateSuite, UnitSuite
from semel.testing.contract.work import (
    ClaimSuite,
    DueSuite,
    EnqueueSuite,
    FinishSuite,
    KeySuite,
    PassSuite,
    ReplaceSuite,
)


class StoreContract(
    AppendSuite,
    ReadSuite,
    TrimSuite,
    EpochSuite,
    UnitSuite,
    ChainSuite,
    StateSuite,
    CursorSuite,
    GuardSuite,
    EnqueueSuite,
    ClaimSuite,
    FinishSuite,
    KeySuite,
    PassSuite,
    DueSuite,
    ReplaceSuite,
    RememberSuite,
    BareSuite,
    OperatorSuite,
    BodySuite,
    SweepSuite,
    LedgerSuite,
    IndexSuite,
    BindSuite,
    InputSuite,
    ThreadSuite,
    ModelSuite,
):
    """What every store promises."""


class DurableContract(DurableSuite):
    """What a store promises that outlives its process."""


class SharedContract(SharedStreamSuite, SharedThreadSuite):
    """What a store promises that several processes may use at once."""
