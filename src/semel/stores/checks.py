"""What every store refuses before it locks or writes anything.

Engines differ in what they reject: PostgreSQL takes no NUL, SQLite no integer above 63 bits, memory takes it all. An op
that is malformed is refused here, alike for all of them, with an error that names the value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from semel.errors import InputError, LimitExceeded, LocalProtocolError
from semel.kernel.lease import Guard
from semel.kernel.ledger import Event
from semel.kernel.ops import (
    RESULT_BYTES_MAX,
    Advance,
    Append,
    Attempts,
    Claim,
    Enqueue,
    Finish,
    Log,
    Put,
    PutBlob,
    Remember,
    Renew,
    Trim,
    Unit,
    WorkState,
)
from semel.kernel.position import OFFSET_MAX
from semel.kernel.store import BLOB_CHUNK_BYTES
from semel.kernel.text import CAUSE_CHARS_MAX, NAME_CHARS_MAX, check_id, check_stream, check_text

KEY_CHARS_MAX = 1024
TARGET_CHARS_MAX = KEY_CHARS_MAX + 16
"""A name and what sort of receiver it is."""
DIGEST_BYTES_MAX = 64
STATE_BYTES_MAX = 16 * 1024 * 1024
SECONDS_MAX = 100 * 365 * 24 * 3600.0
COUNT_MAX = 2**31 - 1
TIME_MAX = 253_402_300_799_999_999

# names repeat from op to op, and a name once found good stays good
_check_name = lru_cache(maxsize=4096)(check_stream)


def check_units(units: Sequence[Unit]) -> None:
    """Raise InputError or LocalProtocolError for the first op that no store would take."""
    last: Append | None = None
    for unit in units:
        for op in unit.ops:
            if type(op) is not Append:
                _CHECKS[type(op)](op)
                continue
            if last is None or not _is_alike(op, last):
                _check_append(op)
                last = op
            # an envelope has checked its own id
            if op.identity is not None and op.identity is not op.envelope.id:
                check_id("identity", op.identity)
            if op.digest is not None:
                _check_digest(op)


def _is_alike(op: Append, last: Append) -> bool:
    """Whether all but the message and its identity are the very values found good in the op before. They nearly always
    are: producers share the name of the stream and the templates of its events."""
    return (
        op.stream is last.stream
        and op.on_fresh is last.on_fresh
        and op.on_duplicate is last.on_duplicate
        and op.target is last.target
        and op.guard is last.guard
    )


def _check_append(op: Append) -> None:
    """All but the identity."""
    _check_name(op.stream)
    if op.target:
        check_text("target", op.target, chars_max=TARGET_CHARS_MAX)
    _check_verdict_events(op)


def _check_digest(op: Append) -> None:
    _check_bytes("digest", op.digest, DIGEST_BYTES_MAX, "give a hash of what it says")
    if op.identity is None:
        raise InputError("a digest without an identity", fix="give an identity, under which it is compared")


def _check_enqueue(op: Enqueue) -> None:
    _check_name(op.queue)
    check_id("identity", op.identity)
    if op.key is not None:
        check_id("key", op.key)
    if op.scope is not None:
        check_text("scope", op.scope, chars_max=KEY_CHARS_MAX)
    if op.due is not None:
        _check_number("due", op.due, 0, TIME_MAX)
    if op.log is not None:
        _check_name(op.log)
    _check_verdict_events(op)


def _check_remember(op: Remember) -> None:
    _check_name(op.queue)
    check_id("identity", op.identity)
    if op.scope is not None:
        check_text("scope", op.scope, chars_max=KEY_CHARS_MAX)
    _check_seconds("keep_s", op.keep_s)
    check_result(op.result)
    _check_verdict_events(op)


def check_result(result: bytes) -> bytes:
    _check_bytes("result", result, RESULT_BYTES_MAX, "keep what is large elsewhere, and its name here")
    return result


def _check_verdict_events(op: Append | Enqueue | Remember) -> None:
    for event in op.on_fresh if isinstance(op.on_fresh, tuple) else (op.on_fresh,):
        if event is not None:
            _check_event(event)
    if op.on_duplicate is not None:
        _check_event(op.on_duplicate)
    if op.guard is not None:
        _check_guard(op.guard)


def _check_advance(op: Advance) -> None:
    check_text("cursor name", op.cursor, chars_max=KEY_CHARS_MAX)
    _check_name(op.to.stream)
    _check_number("cursor offset", op.to.offset, 0, OFFSET_MAX)
    if op.guard is not None:
        _check_guard(op.guard)


def _check_put(op: Put) -> None:
    check_text("state key", op.key, chars_max=KEY_CHARS_MAX)
    if op.value is not None:
        _check_bytes(f"state {op.key!r}", op.value, STATE_BYTES_MAX, "keep state small; put bodies in a blob")
    if op.guard is not None:
        _check_guard(op.guard)


def _check_claim(op: Claim) -> None:
    _check_name(op.queue)
    check_id("owner", op.owner)
    _check_number("limit", op.limit, 1, COUNT_MAX)
    _check_number("per_key", op.per_key, 1, COUNT_MAX)
    _check_seconds("lease_s", op.lease_s)
    if op.identity is not None:
        check_id("identity", op.identity)
    if op.key is not None:
        check_id("key", op.key)


def _check_renew(op: Renew) -> None:
    _check_name(op.queue)
    check_id("identity", op.identity)
    _check_seconds("lease_s", op.lease_s)
    _check_cause(op)


def _check_cause(op: Finish | Renew) -> None:
    if op.cause is not None:
        check_text("cause", op.cause, chars_max=CAUSE_CHARS_MAX, empty=True)


def _check_finish(op: Finish) -> None:
    _check_name(op.queue)
    check_id("identity", op.identity)
    _check_keep(op)
    _check_attempts(op)
    if op.was is not None and (op.fence is not None or not isinstance(op.was, WorkState)):
        raise InputError(f"was is {op.was!r}", fix="give a WorkState, for a row that nobody has claimed")
    if op.due is not None:
        _check_number("due", op.due, 0, TIME_MAX)
    if op.delay_s is not None:
        _check_seconds("delay_s", op.delay_s)
    _check_cause(op)
    if op.passes and op.to is not WorkState.SCHEDULED:
        raise LocalProtocolError(f"a row that is {op.to.name} does not pass", fix="passes is for SCHEDULED, a retry")


def _check_keep(op: Finish) -> None:
    if op.keep_s is not None:
        _check_seconds("keep_s", op.keep_s)
    elif op.to is WorkState.DONE:
        raise InputError("an identity that is done is not kept for ever", fix="say for how long: keep_s")


def _check_attempts(op: Finish) -> None:
    if not isinstance(op.attempts, Attempts):
        raise InputError(f"attempts is {op.attempts!r}", fix="use one of Attempts.KEEP, RESET and RELEASE")
    if op.attempts is Attempts.RELEASE and op.fence is None:
        raise InputError("only the count of a claim can be taken back", fix="give the fence of the claim")


def _check_log(op: Log) -> None:
    if op.event.is_template:
        raise LocalProtocolError(
            "a ledger event names a message or a range", fix="set message, or attach the template to an Append"
        )
    _check_event(op.event)
    if op.guard is not None:
        _check_guard(op.guard)


def _check_blob(op: PutBlob) -> None:
    check_id("blob name", op.name)
    _check_number("blob part", op.part, 0, COUNT_MAX)
    _check_bytes("blob part", op.data, BLOB_CHUNK_BYTES, "put it in smaller parts")


def _check_trim(op: Trim) -> None:
    _check_name(op.stream)
    _check_number("before", op.before, 0, OFFSET_MAX + 1)


def _check_guard(guard: Guard) -> None:
    _check_name(guard.queue)
    check_id("identity", guard.identity)


def _check_event(event: Event) -> None:
    if not _is_plain(event):
        _check_event_closely(event)


def _is_plain(event: Event) -> bool:
    """Nearly every event is: short printable texts and no large numbers. This is on the hot path."""
    texts = (event.message, event.delivery, event.session, event.peer, event.pipeline, event.cause, event.trace)
    try:
        joined = "".join([text for text in texts if text])
    except TypeError:
        return False
    no_numbers = event.idx is event.first is event.epoch is event.fold is None and event.stream is None
    return no_numbers and event.n == 1 == event.attempt and len(joined) <= NAME_CHARS_MAX and joined.isprintable()


def _check_event_closely(event: Event) -> None:
    for name, chars_max in _EVENT_TEXTS:
        value = getattr(event, name)
        if value is not None:
            check_text(f"ledger {name}", value, chars_max=chars_max, empty=True)
    for name in ("idx", "epoch", "first", "last"):
        value = getattr(event, name)
        if value is not None:
            _check_number(f"ledger {name}", value, 0, OFFSET_MAX)
    _check_number("ledger n", event.n, 0, COUNT_MAX)
    _check_number("ledger attempt", event.attempt, 0, COUNT_MAX)
    if event.fold is not None:
        _check_number("ledger fold", event.fold, -(2**63), 2**63 - 1)


_EVENT_TEXTS = (
    ("message", KEY_CHARS_MAX),
    ("delivery", KEY_CHARS_MAX),
    ("session", KEY_CHARS_MAX),
    ("peer", KEY_CHARS_MAX),
    ("pipeline", NAME_CHARS_MAX),
    ("stream", NAME_CHARS_MAX),
    ("cause", CAUSE_CHARS_MAX),
    ("trace", KEY_CHARS_MAX),
)


def _check_number(what: str, value: object, low: int, high: int) -> None:
    if not (isinstance(value, int) and low <= value <= high):
        raise InputError(f"{what} is {value!r}", fix=f"use a whole number from {low:,} to {high:,}")


def _check_seconds(what: str, value: float) -> None:
    # written so that NaN, which is smaller than nothing and larger than nothing, is refused too
    if not 0 <= value <= SECONDS_MAX:
        raise InputError(f"{what} is {value!r}", fix="use a number of seconds from 0 to a hundred years")


def _check_bytes(what: str, value: object, bytes_max: int, fix: str) -> None:
    if not isinstance(value, bytes):
        raise InputError(f"{what} must be bytes, not {type(value).__name__}", fix="encode it")
    if len(value) > bytes_max:
        raise LimitExceeded(f"{what} has {len(value):,} bytes, the limit is {bytes_max:,}", fix=fix)


_CHECKS: dict[type, Callable[[Any], None]] = {
    Advance: _check_advance,
    Put: _check_put,
    Enqueue: _check_enqueue,
    Remember: _check_remember,
    Claim: _check_claim,
    Renew: _check_renew,
    Finish: _check_finish,
    Log: _check_log,
    PutBlob: _check_blob,
    Trim: _check_trim,
}
