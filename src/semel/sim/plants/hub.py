"""Known mistakes of a hub with several nodes: most were made, the others could be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from semel.kernel.ledger import Kind
from semel.kernel.ops import Append, Op, Put, Result
from semel.pubsub.hub import ack_flush, spills
from semel.pubsub.hub.ack_flush import AckFlush
from semel.pubsub.hub.answers import NOT_FOUND
from semel.pubsub.hub.backlog import Backlog
from semel.pubsub.hub.clients import Publishing
from semel.pubsub.hub.commands import Scope, _is_among
from semel.pubsub.hub.endings import Endings, Then
from semel.pubsub.hub.floors import Floors
from semel.pubsub.hub.orders import NodeCommands
from semel.pubsub.hub.read_barrier import ReadBarrier
from semel.pubsub.hub.session import RowVersions, Session
from semel.pubsub.hub.session_rows import SessionRow, Spilled
from semel.pubsub.hub.tail import Tail
from semel.sim.plants.registry import plant as any_plant

plant = partial(any_plant, caught_by="hub")

# -- sessions and what their rows say


@plant(
    "hub-row-of-what-was-read",
    "a row says in which groups the session is by the part of the stream that has been read here",
    (Session, "row"),
)
def _row_of_what_was_read(right: Callable[..., SessionRow], session: Session) -> SessionRow:
    session.memberships.decided = dict(session.groups)
    return right(session)


@plant(
    "hub-row-never-owed",
    "a join is taken for settled though the commit of its row has failed",
    (RowVersions, "owes_row"),
)
def _row_never_owed(right: Any, versions: RowVersions) -> bool:
    return False


@plant(
    "hub-acks-without-fence",
    "acks are written whatever version is there, also by a node that was replaced",
    (Session, "put_acks"),
)
def _acks_without_fence(right: Callable[..., Put], session: Session, hub: str) -> Put:
    put = right(session, hub)
    return Put(put.key, put.value)


@plant(
    "hub-stay-forgotten",
    "a session that has left a group is not given what it is owed of its time there",
    (Session, "decide_group"),
)
def _stay_forgotten(right: Callable[..., None], session: Session, *args: Any) -> None:
    right(session, *args)
    session.memberships.left.clear()


@plant(
    "hub-end-not-awaited",
    "whoever asks for the end of a session is answered that it is gone as soon as nobody finds it",
    (Endings, "begin"),
)
def _end_not_awaited(
    right: Callable[..., None], endings: Endings, session: Session, kind: Kind, reason: str, then: Then | None
) -> None:
    right(endings, session, kind, reason, then)
    endings.sessions.remove(session)


# -- the stream


@plant(
    "hub-own-records-at-once",
    "what a node has committed itself is handed on before what others have put before it",
    (Tail, "take_own"),
)
def _own_records_at_once(
    right: Callable[..., None], tail: Tail, appends: Sequence[Append], results: Sequence[Result], now: float
) -> None:
    for append, result in zip(appends, results, strict=False):
        offset = result.position.offset  # type: ignore[union-attr]
        if offset > tail.offset:
            tail._apply_one(offset, append, now)


_FLOOR = "hub-floor-stays"
_FLOOR_TEXT = "the floor of a node does not fall for a session that comes, and pins nothing that others need"


@plant(_FLOOR, _FLOOR_TEXT, (Floors, "expect"))
def _floor_stays(right: Callable[..., Any], floors: Floors, connection: str, acked: int) -> Any:
    return floors.put(floors._floor)


@plant(_FLOOR, _FLOOR_TEXT, (Floors, "_needed"))
def _nothing_is_needed(right: Callable[..., list[int]], floors: Floors) -> list[int]:
    return [floors._tail.offset]


# -- answers and orders of services


@plant(
    "hub-answers-from-memory",
    "a node says what it knows, without looking what others have done since",
    (ReadBarrier, "when"),
)
def _answers_from_memory(
    right: Callable[..., None], current: ReadBarrier, then: Callable[[float], None], failed: Any, now: float
) -> None:
    then(now)


@plant(
    "hub-answers-after-earlier-read",
    "a node looks before it answers, but perhaps a moment before the question came",
    (Tail, "read_to_end"),
)
def _answers_after_earlier_read(right: Callable[..., int], tail: Tail) -> int:
    number = tail._reads if tail._is_reading else tail._reads + 1
    tail.read_on()
    return number


@plant(
    "hub-answers-at-earlier-end",
    "the end of the stream was looked for when others had asked, and counts for those who have asked since",
    (ReadBarrier, "_found_end"),
)
def _answers_at_earlier_end(right: Callable[..., None], current: ReadBarrier, offset: int | None, now: float) -> None:
    current._looking_for = current._count
    right(current, offset, now)


@plant(
    "hub-orders-do-not-follow",
    "a session that moves while an order is on its way to it is taken for gone",
    (NodeCommands, "try_moved_again"),
)
def _orders_do_not_follow(right: Callable[..., None], orders: NodeCommands, now: float) -> None:
    again, orders._again = orders._again, {}
    for run in again:
        run.answers.add(NOT_FOUND)


@plant(
    "hub-orders-for-latecomers",
    "who is let in while nodes come to an order counts for one of them, and not for the other",
    (Scope, "covers"),
)
def _orders_for_latecomers(right: Callable[..., bool], scope: Scope, session: Session) -> bool:
    return _is_among(session.id, scope.only)


# -- what is not acknowledged for long


@plant(
    "hub-spilled-not-read",
    "whoever takes a session over reads the stream, and not the rows of what has left it",
    (spills.Spills, "load"),
)
def _spilled_not_read(
    right: Callable[..., None], spilling: spills.Spills, session: Session, now: float, then: Callable[..., None]
) -> None:
    then(Spilled(), now)


_PASSED = "hub-acks-passed-over"
_PASSED_TEXT = "what is acknowledged and not written down is neither copied nor put into the ledger when others leave"
_passing: list[bool] = []


@plant(_PASSED, _PASSED_TEXT, (AckFlush, "flush"))
def _acks_passed_over(
    right: Callable[..., None], flushing: AckFlush, session: Session, more: Sequence[Op] = (), *args: Any
) -> None:
    _passing.append(bool(more))
    try:
        right(flushing, session, more, *args)
    finally:
        _passing.pop()


@plant(_PASSED, _PASSED_TEXT, (Backlog, "take_confirmed"))
def _nothing_confirmed(right: Callable[..., Any], backlog: Backlog) -> Any:
    return None if _passing and _passing[-1] else right(backlog)


_NAMELESS = "hub-spill-rows-nameless"
_NAMELESS_TEXT = "a commit for something else writes the acks row too, and names no rows of what has left the stream"
_nameless: list[bool] = []


@plant(_NAMELESS, _NAMELESS_TEXT, (Publishing, "commit_staged"))
def _staged_nameless(right: Callable[..., None], publishing: Publishing, session: Session) -> None:
    _nameless.append(True)
    try:
        right(publishing, session)
    finally:
        _nameless.pop()


@plant(_NAMELESS, _NAMELESS_TEXT, (Session, "put_acks"))
def _acks_nameless(right: Callable[..., Put], session: Session, hub: str) -> Put:
    if not _nameless:
        return right(session, hub)
    rows, session.spill.rows = session.spill.rows, ()
    put = right(session, hub)
    session.spill.rows = rows
    return put


@plant(
    "hub-spill-rows-stay",
    "rows of what has left the stream are not deleted when it is acknowledged",
    (ack_flush, "deletions"),
)
def _spill_rows_stay(right: Callable[..., list[Op]], hub: str, connection: str, rows: Any) -> list[Op]:
    return []
