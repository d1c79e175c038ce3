"""Ops that no store takes. The contract suite holds every store to this list; here is what must pass."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from semel.errors import InputError, LocalProtocolError
from semel.kernel.envelope import Envelope
from semel.kernel.lease import Guard
from semel.kernel.ledger import Event, Kind
from semel.kernel.ops import (
    Advance,
    Append,
    Claim,
    Enqueue,
    Finish,
    Log,
    Op,
    Put,
    PutBlob,
    Renew,
    Trim,
    Unit,
    WorkState,
)
from semel.kernel.position import OFFSET_MAX, Position
from semel.kernel.store import BLOB_CHUNK_BYTES
from semel.stores.checks import STATE_BYTES_MAX, check_units
from semel.testing.contract.inputs import MALFORMED

ODD = "ü 🙂\n" * 50
EVENT = Event(Kind.FAILED, "a>b", ODD[:100], ODD, ODD, ODD, OFFSET_MAX, ODD, attempt=2**31 - 1, cause=ODD, trace=ODD)
SPAN = Event(Kind.SENT, "a>b", stream="hub/a", epoch=1, first=0, last=OFFSET_MAX, n=2**31 - 1, fold=-(2**63))

GOOD: list[Op] = [
    Append("hub/a", Envelope(id="m"), ODD, target=ODD, on_fresh=EVENT, guard=Guard("inbox/a", ODD, 1)),
    Append("hub/a", Envelope(id="m"), on_duplicate=SPAN),
    Append("hub/%C3%BC", Envelope(id="m")),
    Advance(ODD, Position("hub/a", 1, OFFSET_MAX)),
    Put("x" * 1024, b"v" * STATE_BYTES_MAX),
    Put(ODD, None),
    Enqueue("inbox/a", "x" * 255, Envelope(id="m"), key=ODD, due=0, scope=ODD),
    Claim("inbox/a", ODD, limit=10_000, lease_s=0.0, per_key=100, identity=ODD, key=ODD),
    Renew("inbox/a", ODD, 5, lease_s=1e9),
    Finish("inbox/a", ODD, WorkState.DEAD, cause="", keep_s=0.0, due=0),
    Log(EVENT),
    Log(SPAN),
    PutBlob(ODD, 2**31 - 1, b"x" * BLOB_CHUNK_BYTES),
    PutBlob("b", 0, b""),
    Trim("hub/a", 0),
    Trim("hub/a", OFFSET_MAX + 1),
]


@pytest.mark.parametrize("op", GOOD, ids=lambda op: type(op).__name__)
def test_what_is_unusual_but_well_formed_passes(op: Op) -> None:
    check_units([Unit((op,))])


# whether a row may be finished into a claim is decided with the rows in hand
_NOT_A_MATTER_OF_FORM = {"finish into a claim"}


@pytest.mark.parametrize("what", sorted(set(MALFORMED) - _NOT_A_MATTER_OF_FORM))
def test_what_is_malformed_is_refused_wherever_it_stands(what: str) -> None:
    with pytest.raises((InputError, LocalProtocolError)) as caught:
        check_units([Unit((GOOD[0],)), Unit((GOOD[1], MALFORMED[what]))])
    assert caught.value.fix


PLAIN = Append("hub/a", Envelope(id="m"), "m")


@pytest.mark.parametrize(
    "change",
    [
        {"stream": "Hub/a"},
        {"identity": "\x00"},
        {"identity": "x" * 256},
        {"target": "\x00"},
        {"on_fresh": Event(Kind.SENT, "a>b", cause="\x00")},
        {"on_duplicate": Event(Kind.SENT, "a>b", cause="\x00")},
        {"guard": Guard("inbox/a", "\x00", 1)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_an_append_that_differs_from_the_ones_before_it_is_looked_at(change: dict[str, Any]) -> None:
    """Appends alike are checked once, and each way of being unlike ends that."""
    bad = msgspec.structs.replace(PLAIN, **change)
    with pytest.raises(InputError):
        check_units([Unit((PLAIN,)), Unit((PLAIN,)), Unit((bad,)), Unit((PLAIN,))])


@pytest.mark.parametrize("field", ["message", "delivery", "session", "peer", "pipeline", "stream", "cause", "trace"])
@pytest.mark.parametrize("bad", ["\x00", "\ud800", "x" * 2000, 5])
def test_every_text_of_a_ledger_event_is_looked_at(field: str, bad: str) -> None:
    event = Event(Kind.FAILED, "a>b", **{"message": "m", field: bad})
    with pytest.raises(InputError, match=field):
        check_units([Unit((Log(event),))])


@pytest.mark.parametrize("field", ["idx", "epoch", "first", "last", "n", "attempt", "fold"])
@pytest.mark.parametrize("bad", [2**64, -(2**64), "5", 1.5])
def test_every_number_of_a_ledger_event_is_looked_at(field: str, bad: int) -> None:
    event = Event(Kind.SENT, "a>b", **{"stream": "hub/a", "epoch": 1, "first": 1, "last": 2, field: bad})
    with pytest.raises(InputError, match=field):
        check_units([Unit((Log(event),))])
