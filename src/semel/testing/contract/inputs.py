"""Malformed input: refused alike by every store, and only the guilty unit suffers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from semel.errors import InputError, LocalProtocolError, SemelError, StoreRefused
from semel.kernel.effects import CommitFailed, Committed
from semel.kernel.group import CommitQueue, Completion
from semel.kernel.lease import Guard
from semel.kernel.ledger import Event, Kind
from semel.kernel.ops import (
    RESULT_BYTES_MAX,
    Advance,
    Append,
    Attempts,
    Claim,
    Enqueue,
    Finish,
    Log,
    Op,
    Put,
    PutBlob,
    Remember,
    Renew,
    Trim,
    Unit,
    WorkState,
)
from semel.kernel.position import Position
from semel.kernel.store import BLOB_CHUNK_BYTES, Store
from semel.testing.contract.base import HOP, QUEUE, STREAM, StoreSuite, entries, message, read_ids

NUL = "a\x00b"
LONE = "a\ud800b"
LONG = "x" * 5000


def _event(**fields: Any) -> Event:
    return Event(Kind.FAILED, HOP, **{"message": "m", **fields})


def _bad_texts(bad: str) -> dict[str, Op]:
    guard = Guard(QUEUE, bad, 1)
    return {
        "append identity": Append(STREAM, message("m"), identity=bad),
        "append stream": Append(bad, message("m")),
        "append target": Append(STREAM, message("m"), target=bad),
        "append guard": Append(STREAM, message("m"), guard=guard),
        "append event": Append(STREAM, message("m"), on_fresh=_event(message=None, peer=bad)),
        "append other event": Append(STREAM, message("m"), on_duplicate=_event(cause=bad)),
        "advance cursor": Advance(bad, Position(STREAM, 1, 0)),
        "advance stream": Advance("c", Position(bad, 1, 0)),
        "put key": Put(bad, b"v"),
        "put guard": Put("k", b"v", guard=guard),
        "enqueue queue": Enqueue(bad, "w", message("m")),
        "enqueue identity": Enqueue(QUEUE, bad, message("m")),
        "enqueue key": Enqueue(QUEUE, "w", message("m"), key=bad),
        "enqueue scope": Enqueue(QUEUE, "w", message("m"), scope=bad),
        "enqueue event": Enqueue(QUEUE, "w", message("m"), on_fresh=_event(session=bad)),
        "remember queue": Remember(bad, "w"),
        "remember identity": Remember(QUEUE, bad),
        "remember scope": Remember(QUEUE, "w", scope=bad),
        "remember event": Remember(QUEUE, "w", on_duplicate=_event(session=bad)),
        "remember guard": Remember(QUEUE, "w", guard=guard),
        "claim queue": Claim(bad, "w"),
        "claim owner": Claim(QUEUE, bad),
        "claim identity": Claim(QUEUE, "w", identity=bad),
        "claim key": Claim(QUEUE, "w", key=bad),
        "renew queue": Renew(bad, "w", 1),
        "renew identity": Renew(QUEUE, bad, 1),
        "renew cause": Renew(QUEUE, "w", 1, cause=bad),
        "finish queue": Finish(bad, "w", WorkState.DONE),
        "finish identity": Finish(QUEUE, bad, WorkState.DONE),
        "finish cause": Finish(QUEUE, "w", WorkState.DEAD, cause=bad),
        "log message": Log(_event(message=bad)),
        "log delivery": Log(_event(delivery=bad)),
        "log cause": Log(_event(cause=bad)),
        "log pipeline": Log(_event(pipeline=bad)),
        "log trace": Log(_event(trace=bad)),
        "log guard": Log(_event(), guard=guard),
        "blob name": PutBlob(bad, 0, b"x"),
        "trim stream": Trim(bad, 1),
    }


_BAD_NUMBERS: dict[str, Op] = {
    "due past all time": Enqueue(QUEUE, "w", message("m"), due=2**63),
    "negative due": Enqueue(QUEUE, "w", message("m"), due=-1),
    "no rows": Claim(QUEUE, "w", limit=0),
    "negative rows": Claim(QUEUE, "w", limit=-1),
    "no rows of a key": Claim(QUEUE, "w", per_key=0),
    "endless lease": Claim(QUEUE, "w", lease_s=math.inf),
    "lease that is no number": Claim(QUEUE, "w", lease_s=math.nan),
    "negative lease": Renew(QUEUE, "w", 1, lease_s=-1.0),
    "endless keep": Finish(QUEUE, "w", WorkState.DONE, keep_s=math.inf),
    "done for ever": Finish(QUEUE, "ready", WorkState.DONE, keep_s=None),
    "endless memory": Remember(QUEUE, "w", keep_s=math.inf),
    "count of no claim": Finish(QUEUE, "ready", WorkState.READY, attempts=Attempts.RELEASE),
    "attempts that are no word for it": Finish(QUEUE, "ready", WorkState.READY, attempts=1),  # type: ignore[arg-type]
    "retry past all time": Finish(QUEUE, "w", WorkState.SCHEDULED, due=2**63),
    "part that is negative": PutBlob("blob", -1, b"x"),
    "part past 31 bits": PutBlob("blob", 2**31, b"x"),
    "trim past all offsets": Trim(STREAM, 2**63),
    "cursor past all offsets": Advance("c", Position(STREAM, 1, 2**63)),
    "index past all offsets": Log(_event(idx=2**63)),
    "attempt past 31 bits": Log(_event(attempt=2**31)),
    "fold past 64 bits": Log(Event(Kind.SENT, HOP, stream=STREAM, epoch=1, first=1, last=1, fold=2**63)),
}

_BAD_SIZES: dict[str, Op] = {
    "state too large": Put("k", b"x" * (16 * 1024 * 1024 + 1)),
    "state that is text": Put("k", "text"),  # type: ignore[arg-type]
    "result too large": Remember(QUEUE, "w", result=b"x" * (RESULT_BYTES_MAX + 1)),
    "result that is text": Remember(QUEUE, "w", result="text"),  # type: ignore[arg-type]
    "chunk too large": PutBlob("blob", 0, b"x" * (BLOB_CHUNK_BYTES + 1)),
    "chunk that is text": PutBlob("blob", 0, "text"),  # type: ignore[arg-type]
    "name that is no name": Append("Hub/UPPER", message("m")),
    "name with a hole": Append("hub//x", message("m")),
    "finish into a claim": Finish(QUEUE, "ready", WorkState.CLAIMED),
}

MALFORMED: dict[str, Op] = {
    **{f"NUL in {what}": op for what, op in _bad_texts(NUL).items()},
    **{f"lone surrogate in {what}": op for what, op in _bad_texts(LONE).items()},
    **{f"overlong {what}": op for what, op in _bad_texts(LONG).items()},
    **_BAD_NUMBERS,
    **_BAD_SIZES,
}


class InputSuite(StoreSuite):
    def test_malformed_ops_are_refused_and_nothing_else_is_lost(self, store: Store) -> None:
        """All sorts on one store: each is refused alone, and leaves its neighbours unharmed."""
        store.commit([Unit((Enqueue(QUEUE, "ready", message("ready")),))])
        for number, (what, op) in enumerate(MALFORMED.items()):
            good = [Unit((Append(STREAM, message(f"{number}{side}")),)) for side in "lr"]
            with pytest.raises((InputError, StoreRefused, LocalProtocolError)) as caught:
                store.commit([good[0], Unit((op,)), good[1]])
            assert caught.value.fix, what
            assert caught.value.fault == "local", what
            assert not caught.value.retryable, what
        assert read_ids(store.read(STREAM)) == []
        assert entries(store) == []

    def test_halving_finds_exactly_the_guilty(self, store: Store) -> None:
        store.commit([Unit((Enqueue(QUEUE, "ready", message("ready")),))])
        bad = dict(enumerate(list(MALFORMED.values())[::7], start=5))
        queue = CommitQueue()
        done: list[Completion] = []
        for token in range(len(bad) * 3):
            op = bad.get(token) or Append(STREAM, message(f"m{token}"), identity=f"m{token}")
            queue.submit((op,), None, token, done.append)
        _drive(queue, store)
        assert sorted(completion.token for completion in done if isinstance(completion, CommitFailed)) == list(bad)
        good = [completion.token for completion in done if isinstance(completion, Committed)]
        assert len(good) + len(bad) == len(done)
        assert read_ids(store.read(STREAM)) == [f"m{token}" for token in good]

    def test_the_same_input_is_refused_inside_a_unit(self, store: Store) -> None:
        store.commit([Unit((Enqueue(QUEUE, "ready", message("ready")),))])
        for op in list(MALFORMED.values())[::5]:
            with pytest.raises(SemelError):
                store.commit([Unit((Put("k", b"v"), op))])
        assert store.state("k") is None


def _drive(queue: CommitQueue, store: Store) -> None:
    """What a runtime does: commit, and halve on a refusal."""
    while (group := queue.next_group()) is not None:
        try:
            queue.committed(group, store.commit(group.units))
        except SemelError as error:
            queue.refused(group, error)
