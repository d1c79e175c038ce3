"""One silent client does not pin a hub: what it has not acknowledged for long is copied out of the stream, into rows of
its session.

Age is judged by the stream: what stood in it `backlog_age_s` ago, as far as this node had read, is old. If a session
still needs something old of the stream, all that waits for it is copied, a megabyte with each commit. The commit writes
the acks row as well, which names the copies and is the fence: a node that was replaced copies nothing. Only when the
store has done it does the floor of the session move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import takewhile

from semel.errors import StoreError
from semel.kernel.effects import LoadAll, Loaded, LoadedAll, LoadFailed
from semel.kernel.ops import Put
from semel.pubsub.hub.ack_flush import AckFlush
from semel.pubsub.hub.context import HubContext
from semel.pubsub.hub.node_lease import NodeLease
from semel.pubsub.hub.roster import Here
from semel.pubsub.hub.runs import Run
from semel.pubsub.hub.session import Session
from semel.pubsub.hub.session_phase import SessionPhase
from semel.pubsub.hub.session_rows import (
    Spilled,
    SpilledMessage,
    SpillRow,
    deletions,
    keys_of,
    messages_of,
    read_row,
    spill_prefix,
    write_row,
)
from semel.pubsub.hub.tail import Tail

ROW_BYTES = 256 * 1024
ROW_COUNT = 1000
COMMIT_BYTES = 1024 * 1024
OVERHEAD_BYTES = 200
"""About how much a message takes besides its body."""
PAGE = 8
AT_ONCE = 4
"""How many sessions are spilled at a time. Those of one group grow old together, and each takes a commit of a megabyte
after the other: with all of them at once the hub would do nothing else, and the store have them all in its queue."""
NAMED_MAX = 3


@dataclass(frozen=True, slots=True)
class _Plan:
    """One commit: the rows that the session has after it, what it writes, and how many messages of it are new there."""

    rows: tuple[SpillRow, ...]
    puts: tuple[Put, ...]
    count: int


@dataclass(slots=True)
class _Loading:
    """The rows of a session, page by page: `found` are the parts by their keys."""

    session: Session
    then: Callable[[Spilled, float], None]
    after: str = ""
    found: dict[str, bytes] = field(default_factory=dict)


class Spills:
    """`_tails`: where the stream ended, at times of this node. `_under_way`: up to where a session is being spilled.
    `_waiting`: those that will be when others are done, the one that has waited longest first."""

    def __init__(self, context: HubContext, lease: NodeLease, tail: Tail, roster: Here, acks: AckFlush) -> None:
        self._context, self._lease, self._tail, self._roster, self._acks = context, lease, tail, roster, acks
        self._tails: deque[tuple[float, int]] = deque()
        self._under_way: dict[Session, int] = {}
        self._waiting: dict[Session, None] = {}
        self._failed: list[_Loading] = []
        self._old: int | None = None
        self._at: float | None = None

    def __len__(self) -> int:
        """How many sessions are being spilled, wait for it, or wait for their rows to be read."""
        return len(self._under_way) + len(self._waiting) + len(self._failed)

    def start(self, now: float) -> None:
        self._at = now

    def next_deadline(self) -> float | None:
        return self._at

    def on_timer(self, now: float) -> None:
        if self._at is None or self._at > now:
            return
        options = self._context.options
        self._at = now + min(options.trim_s, options.backlog_age_s)
        old = self._tail_before(now - options.backlog_age_s)
        self._tails.append((now, self._tail.offset))
        if old is not None and self._lease.is_held:
            self._find_old()
            self._begin_some()

    def _tail_before(self, then: float) -> int | None:
        """Records up to this offset are at least as old as that. None if this node was not there yet."""
        while self._tails and self._tails[0][0] <= then:
            self._old = self._tails.popleft()[1]
        return self._old

    # -- out of the stream

    def _find_old(self) -> None:
        """Sessions that need something old. Those that are being spilled, or wait for it, are known."""
        known = {*self._under_way, *self._waiting}
        found = [session for session in self._roster if session not in known and self._is_old(session)]
        self._waiting.update(dict.fromkeys(found))
        new = [session.id for session in found if not session.spill.rows]
        if new:
            age_s = self._context.options.backlog_age_s
            self._context.notify("backlog-age", f"not acknowledged for {age_s:g} s by {_enumerate(new)}")

    def _is_old(self, session: Session) -> bool:
        """Whether it needs something old of the stream that can be copied now."""
        if session.phase is not SessionPhase.LIVE or not _is_open(session):
            return False
        return self._old is not None and session.floor(self._tail.offset) < self._old

    def _begin_some(self) -> None:
        """A session that has acknowledged meanwhile, or is not here any more, is passed over."""
        while self._waiting and len(self._under_way) < AT_ONCE:
            session = next(iter(self._waiting))
            del self._waiting[session]
            if self._roster.get(session.id) is session and self._is_old(session):
                # all that waits for it now, so that there is nothing more to do for as long again
                self._under_way[session] = session.backlog.queue[-1].last
                self._spill_some(session)

    def _spill_some(self, session: Session) -> None:
        """What the client has acknowledged is written down in the same commit: what is neither in the rows nor known to
        be acknowledged would be missing in the ledger after a crash."""
        gone = session.spill.take_acknowledged(session.backlog.acked)
        plan = _plan(self._context.hub, session)
        session.spill.rows = plan.rows

        def then(is_done: bool) -> None:
            """What failed is tried again when old sessions are looked for again. No other begins instead of it: the
            store may be away."""
            until = self._under_way.pop(session)
            self._context.counts.spilled += plan.count if is_done else 0
            is_here = self._roster.get(session.id) is session
            if is_done and is_here and session.spill.last < until and _is_open(session):
                self._under_way[session] = until
                self._spill_some(session)
            elif is_done:
                self._begin_some()

        deleted = deletions(self._context.hub, session.id, gone)
        self._acks.flush(session, [*deleted, *plan.puts], then)

    # -- back again

    def load(self, session: Session, now: float, then: Callable[[Spilled, float], None]) -> None:
        """`then` is called with what the rows hold, at once if they were read before."""
        found, session.spill.found = session.spill.found, None
        if found is not None:
            then(found, now)
        else:
            self._load(_Loading(session, then))

    def try_again(self) -> None:
        """After reads have failed."""
        failed, self._failed = self._failed, []
        for loading in failed:
            self._load(loading)

    def _load(self, loading: _Loading) -> None:
        prefix = spill_prefix(self._context.hub, loading.session.id)
        asked = LoadAll(prefix, loading.after, PAGE)
        self._context.load_all(asked, lambda found, now: self._loaded(loading, found, now))

    def _loaded(self, loading: _Loading, found: Loaded | LoadedAll | LoadFailed, now: float) -> None:
        if not isinstance(found, LoadedAll):
            self._failed.append(loading)
            return
        loading.found.update((key, state.value) for key, state in found.states)
        if len(found.states) == PAGE:
            loading.after = found.states[-1][0]
            self._load(loading)
            return
        loading.then(self._read(loading.session, loading.found), now)

    def _read(self, session: Session, found: dict[str, bytes]) -> Spilled:
        runs: list[Run] = []
        missing: list[SpillRow] = []
        unreadable: list[SpillRow] = []
        error: StoreError | None = None
        for row in (row for row in session.spill.rows if row.last > session.backlog.acked):
            keys = keys_of(self._context.hub, session.id, row)
            if not all(key in found for key in keys):
                missing.append(row)
                continue
            try:
                runs += read_row(self._context.stream, [found[key] for key in keys])
            except StoreError as raised:
                unreadable.append(row)
                error = raised
        return Spilled(runs, tuple(missing), tuple(unreadable), error)


def _enumerate(ids: list[str]) -> str:
    named = ", ".join(ids[:NAMED_MAX])
    return f"{named} and {len(ids) - NAMED_MAX} more" if len(ids) > NAMED_MAX else named


def _is_open(session: Session) -> bool:
    """Whether something waits for it that is in the stream only."""
    return bool(session.backlog.queue) and session.backlog.queue[-1].last > session.spill.last


def _plan(hub: str, session: Session) -> _Plan:
    """What to copy next. The last row is rewritten as long as there is room in it: else a client that is given one
    message now and then would have as many rows as messages."""
    rows, spilled = list(session.spill.rows), session.spill.last
    new = _some(messages_of(session.backlog.after(spilled)))
    first, waiting = new[0].offset, new
    if rows and rows[-1].parts == 1:
        kept = takewhile(lambda each: each.offset <= spilled, messages_of(session.backlog.after(rows[-1].first - 1)))
        if _has_room(before := list(kept)):
            first, waiting = rows.pop().first, before + new
    puts: list[Put] = []
    while waiting:
        taken = _fill(waiting)
        row, parts = write_row(hub, session.id, first, taken)
        rows.append(row)
        puts += parts
        waiting = waiting[len(taken) :]
        first = waiting[0].offset if waiting else 0
    return _Plan(tuple(rows), tuple(puts), len(new))


def _some(messages: Iterable[SpilledMessage]) -> list[SpilledMessage]:
    """As many as one commit takes. One is always taken."""
    found: list[SpilledMessage] = []
    size = 0
    for message in messages:
        found.append(message)
        size += _weigh(message)
        if size >= COMMIT_BYTES:
            break
    return found


def _fill(messages: list[SpilledMessage]) -> list[SpilledMessage]:
    """As many as one row takes. One is always taken."""
    size = 0
    for number, message in enumerate(messages[:ROW_COUNT]):
        size += _weigh(message)
        if number and size > ROW_BYTES:
            return messages[:number]
    return messages[:ROW_COUNT]


def _has_room(messages: list[SpilledMessage]) -> bool:
    return len(messages) <= ROW_COUNT // 2 and sum(map(_weigh, messages)) <= ROW_BYTES // 2


def _weigh(message: SpilledMessage) -> int:
    return OVERHEAD_BYTES + (len(message.body) if message.body is not None else len(message.envelope.data))
