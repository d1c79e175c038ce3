"""What an operator asks of an application's inbox: counts, pauses, dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from semel.errors import InputError, StoreBusy
from semel.inbox.endpoint import FailedHead
from semel.inbox.identity import identify_id
from semel.inbox.outbox import outbox_hop, outbox_queue
from semel.kernel.envelope import rfc3339
from semel.kernel.ledger import Kind, message_event
from semel.kernel.ops import Attempts, Finish, Log, Op, Put, Refused, WorkRow, WorkState
from semel.runtime.host.lease_holder import commit_unit
from semel.runtime.inbox.definition import Application, breaker_key, now_us
from semel.runtime.inbox.own_schema import check_schema, schema_prologue
from semel.stores.points import reach
from semel.stores.queries import load_migrations, postgres_record_sql, sqlite_record_sql

LETTERS = (WorkState.DEAD, WorkState.PARKED)
"""Both wait for a human: given up after its last attempt, or put aside."""
LETTERS_MAX = 1000
BLOCKED_LOOK_MAX = 10_000


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that was given up or put aside. `identity` names it in commands."""

    identity: str
    message: str
    type: str
    attempts: int
    cause: str
    state: str
    body: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class QueueStatus:
    queue: str
    paused: bool
    counts: dict[str, int]
    breaker: str = ""
    """Until when the breaker of a process is open."""
    blocked: int = 0
    """How many open messages wait behind a dead or parked one of their key, among the first 10,000."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def queue_status(app: Application) -> list[QueueStatus]:
    """One line for each endpoint, and one for the outbox."""
    paused, now = paused_endpoints(app), now_us()
    rows = [(each.options.queue, name in paused, open_until(app, name, now)) for name, each in app.endpoints.items()]
    passing = {each.options.queue for each in app.endpoints.values() if each.options.failed_head is FailedHead.PASSES}
    found = []
    for queue, is_paused, breaker in [*rows, (outbox_queue(app.name), False, "")]:
        counts = app.store.work_counts(queue).get(queue, {})
        by_name = {state.name.lower(): count for state, count in counts.items()}
        has_letters = any(counts.get(state) for state in LETTERS) and queue not in passing
        blocked = count_blocked(app, queue) if has_letters else 0
        found.append(QueueStatus(queue, is_paused, by_name, breaker, blocked))
    return found


def count_blocked(app: Application, queue: str) -> int:
    letters = app.store.work_rows(queue, LETTERS, limit=LETTERS_MAX)
    keys = {row.key for row in letters} - {None}
    if not keys:
        return 0
    behind = app.store.work_rows(queue, (WorkState.READY, WorkState.SCHEDULED), limit=BLOCKED_LOOK_MAX)
    return sum(row.key in keys for row in behind)


def open_until(app: Application, endpoint: str, now: int) -> str:
    """What the process whose breaker opened last has left; one that died says it no longer than it was to last."""
    state = app.store.state(breaker_key(app.name, endpoint))
    until = int(state.value) if state is not None and state.value else 0
    return rfc3339(until) if until > now else ""


# -- pausing

PAUSED_PREFIX = "inbox/paused/"


def paused_endpoints(app: Application) -> set[str]:
    """As an operator has set it, for all processes."""
    prefix = _paused_key(app, "")
    return {key.removeprefix(prefix) for key, _ in app.store.states(prefix)}


def set_paused(app: Application, endpoint: str, paused: bool) -> None:
    app.check_endpoint(endpoint)
    commit_unit(app.store, (Put(_paused_key(app, endpoint), b"1" if paused else None),))


def _paused_key(app: Application, endpoint: str) -> str:
    return f"{PAUSED_PREFIX}{app.name}/{endpoint}"


# -- dead letters


@dataclass(frozen=True, slots=True)
class _Place:
    queue: str
    hop: str
    keep_s: float


def _place(app: Application, name: str) -> _Place:
    """An endpoint, or the outbox, which is named as `semel inbox status` shows it."""
    if name == outbox_queue(app.name) and name not in app.endpoints:
        return _Place(name, outbox_hop(app.name), app.keep_s)
    options = app.check_endpoint(name).options
    return _Place(options.queue, options.hop, options.keep_s)


def dead_letters(app: Application, endpoint: str, limit: int = LETTERS_MAX) -> list[DeadLetter]:
    queue = _place(app, endpoint).queue
    return [letter_of(row) for row in app.store.work_rows(queue, LETTERS, limit=limit)]


def count_letters(app: Application, endpoint: str) -> int:
    """All of them, however many `dead_letters` shows."""
    queue = _place(app, endpoint).queue
    counts = app.store.work_counts(queue).get(queue, {})
    return sum(counts.get(state, 0) for state in LETTERS)


def letters_like(app: Application, endpoint: str, cause: str = "") -> list[str]:
    """The identities of all dead letters whose cause has that text in it, the oldest first."""
    queue = _place(app, endpoint).queue
    return [row.identity for row in _letters(app, queue) if cause in (row.cause or "")]


def _letters(app: Application, queue: str) -> Iterator[WorkRow]:
    after = 0
    while rows := app.store.work_rows(queue, LETTERS, after, LETTERS_MAX):
        yield from rows
        after = rows[-1].seq


def move_many(move: Callable[[str], None], identities: Iterable[str]) -> list[str]:
    """Those that were moved: what somebody else has moved meanwhile is left alone."""
    moved = []
    for identity in identities:
        with suppress(InputError, StoreBusy):
            move(identity)
            moved.append(identity)
    return moved


def letter_of(row: WorkRow) -> DeadLetter:
    envelope = row.envelope
    body = envelope.data.decode(errors="replace")
    return DeadLetter(
        row.identity, envelope.id, envelope.type, row.attempts, row.cause or "", row.state.name.lower(), body
    )


def letter_history(app: Application, endpoint: str, identity: str) -> tuple[DeadLetter, list[dict[str, Any]]]:
    row = _letter(app, endpoint, identity)
    history = [
        {"at": rfc3339(entry.at), "node": entry.node, "hop": entry.event.hop, "kind": entry.event.kind.name.lower(),
         "attempt": entry.event.attempt, "cause": entry.event.cause}
        for entry in app.store.history(row.envelope.id)
    ]  # fmt: skip
    return letter_of(row), history


def replay(app: Application, endpoint: str, identity: str) -> None:
    """Its attempts are counted from the beginning. It takes a turn of its own among its key."""
    row = _letter(app, endpoint, identity)
    finish = Finish(row.queue, row.identity, WorkState.READY, attempts=Attempts.RESET, was=row.state)
    # what was put aside has not ended: counted as replayed, it would be there twice
    _move(app, row, endpoint, finish, Kind.RESUMED if row.state is WorkState.PARKED else Kind.REPLAYED)


def discard(app: Application, endpoint: str, identity: str) -> None:
    """The identity is remembered as long as that of any handled message."""
    row = _letter(app, endpoint, identity)
    keep_s = _place(app, endpoint).keep_s
    # a dead letter has ended; it is discarded after it was taken up again
    finish = Finish(row.queue, row.identity, WorkState.DONE, keep_s=keep_s, was=row.state)
    _move(app, row, endpoint, finish, Kind.DISCARDED)


def _move(app: Application, row: WorkRow, endpoint: str, finish: Finish, kind: Kind) -> None:
    hop = _place(app, endpoint).hop
    kinds: Sequence[Kind] = (kind,)
    if kind is Kind.DISCARDED and row.state is WorkState.DEAD:
        kinds = (Kind.REPLAYED, Kind.DISCARDED)
    logs: list[Op] = [Log(message_event(each, hop, "", row.envelope, attempt=row.attempts)) for each in kinds]
    if isinstance(commit_unit(app.store, (finish, *logs)), Refused):
        raise StoreBusy(f"somebody else has just moved {row.identity!r}", fix="look again: dead-letters list")
    reach("letter.moved")


def _letter(app: Application, endpoint: str, identity: str) -> WorkRow:
    """By its identity, or by the id of its message, which is what logs and senders say."""
    queue = _place(app, endpoint).queue
    row = app.store.work(queue, identity)
    if row is None:
        row = _letter_of_message(app, queue, endpoint, identity)
    if row is None or row.state not in LETTERS:
        state = "is not known" if row is None else f"is {row.state.name.lower()}"
        raise InputError(
            f"{identity!r} at {endpoint!r} {state}: it is no dead letter", fix="see: semel inbox dead-letters list"
        )
    return row


def _letter_of_message(app: Application, queue: str, endpoint: str, id: str) -> WorkRow | None:
    by_id = app.store.work(queue, identify_id(app.name, endpoint, id, app.mode).identity)
    if by_id is not None:
        return by_id
    found = [row for row in _letters(app, queue) if row.envelope.id == id]
    if len(found) > 1:
        names = ", ".join(repr(row.identity) for row in found[:5])
        raise InputError(f"{len(found)} dead letters at {endpoint!r} have the id {id!r}", fix=f"name one: {names}")
    return found[0] if found else None


def schema_sql(app: Application, schema: str | None = None) -> str:
    """The statements that create the tables, for somebody who has the right to run them. The last one records what the
    tables are, as a migration would: without it they are nobody's store."""
    is_sqlite = app.url.startswith("sqlite:")
    steps = load_migrations("sqlite" if is_sqlite else "postgres")
    record = sqlite_record_sql(steps[-1][0]) if is_sqlite else postgres_record_sql(steps[-1][0])
    prologue = [] if schema is None else [schema_prologue(check_schema(app.url, schema))]
    return "\n".join([*prologue, *(sql for _, sql in steps), record])
