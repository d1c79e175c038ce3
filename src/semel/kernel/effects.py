"""What a machine asks for, and what is reported back to it.

A machine never acts. It returns effects; the interpreter performs them and feeds the completions back. A confirm can
therefore only be written where it is true: in the answer to `Committed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Protocol

import msgspec

from semel.errors import SemelError
from semel.kernel.ops import Op, Result, WorkRow
from semel.kernel.position import Position
from semel.kernel.store import Record, State, Store


class Commit(msgspec.Struct, frozen=True, gc=False):
    """Apply these ops in one transaction.

    Commits of one `chain` of a machine stand or fall in order: after a failure the later ones fail too. None is for a
    commit that no other depends on.
    """

    ops: tuple[Op, ...]
    token: int
    chain: str | None = ""


class Read(msgspec.Struct, frozen=True):
    """Hand over records after a position, now or as soon as there are any; without `wait` now, even if it is none.
    With `bodies` those in chunks are put together."""

    stream: str
    after: Position | None
    limit: int
    wait: bool = True
    bodies: bool = False


class Load(msgspec.Struct, frozen=True):
    """Hand over the state stored under a key."""

    key: str

    def of(self, store: Store) -> State | None:
        return store.state(self.key)


class LoadAll(msgspec.Struct, frozen=True):
    """Hand over what is stored under the keys that begin with a prefix and come after the key `after`, as they stood at
    one moment."""

    prefix: str
    after: str = ""
    limit: int = 1000

    def of(self, store: Store) -> Sequence[tuple[str, State]]:
        return store.states(self.prefix, self.after, self.limit)


class LoadHead(msgspec.Struct, frozen=True):
    """Hand over where a stream ends."""

    stream: str

    def of(self, store: Store) -> Position:
        return store.head(self.stream)


class LookForWork(msgspec.Struct, frozen=True):
    """Say whether a claim on a queue may find something. A look costs a small read, a claim a commit."""

    queue: str

    def of(self, store: Store) -> bool:
        return store.due(self.queue)


Loading = Load | LoadAll | LoadHead | LookForWork
"""Effects that are a question to the store: `effect.of(store)` is its answer."""


class Send(msgspec.Struct, frozen=True, gc=False):
    """Put a message on the wire to `peer`. Nothing is promised about its arrival."""

    peer: str
    message: Any


class SetTimer(msgspec.Struct, frozen=True):
    name: str
    at: float


class CancelTimer(msgspec.Struct, frozen=True):
    name: str


class Deliver(msgspec.Struct, frozen=True):
    """Hand a message to the application's own code. `attempt` counts from 1."""

    item: WorkRow | Record
    token: int
    attempt: int = 1


class Notify(msgspec.Struct, frozen=True):
    """Tell people: something happened that the protocol cannot fix by itself. `is_store`: the store did not do what it
    was asked to, and that is all there is to it."""

    topic: str
    detail: str
    message: str | None = None
    is_store: bool = False


class Close(msgspec.Struct, frozen=True):
    """The machine is finished. With the reason "reload" its host starts a fresh one from what the store holds."""

    reason: str = ""


Effect = (
    Commit | Read | Load | LoadAll | LoadHead | LookForWork | Send | SetTimer | CancelTimer | Deliver | Notify | Close
)


class OwnTransaction(Enum):
    """What the application's code answers instead of ops when it ends work rows in transactions of its own: FINISHED,
    or LOST when that transaction met a fence that is no longer the row's. UNTOUCHED: nobody has begun with it."""

    FINISHED = "finished"
    LOST = "lost"
    UNTOUCHED = "untouched"


class Committed(msgspec.Struct, frozen=True, gc=False):
    token: int
    results: tuple[Result, ...]


class CommitFailed(msgspec.Struct, frozen=True, gc=False):
    """None of the commit happened. `results` shows the refusal, or `error` says what the store could not do."""

    token: int
    results: tuple[Result, ...] = ()
    error: SemelError | None = None


class CommitUnknown(msgspec.Struct, frozen=True):
    """Nobody can say whether it happened. Nothing may be confirmed; a resend will find out."""

    token: int


class ReadDone(msgspec.Struct, frozen=True):
    """`after` and `limit` are the read's own, here and below: they tell two reads of one stream apart."""

    stream: str
    records: tuple[Record, ...]
    after: Position | None = None
    limit: int = 0


class ReadTrimmed(msgspec.Struct, frozen=True):
    """The read began below the trim mark; the first record left is at `first`."""

    stream: str
    first: Position
    after: Position | None = None
    limit: int = 0


class ReadFailed(msgspec.Struct, frozen=True):
    stream: str
    error: SemelError
    after: Position | None = None
    limit: int = 0


class Loaded(msgspec.Struct, frozen=True):
    key: str
    state: State | None


class LoadedAll(msgspec.Struct, frozen=True):
    """`asked` is the effect that this answers."""

    asked: LoadAll
    states: Sequence[tuple[str, State]]


class LoadedHead(msgspec.Struct, frozen=True):
    head: Position


class WorkFound(msgspec.Struct, frozen=True):
    """Whether there may be work in the queue. Somebody else may be faster, so a claim can still find nothing."""

    queue: str
    is_due: bool


class LoadFailed(msgspec.Struct, frozen=True):
    """`key` is that of a `Load`, the prefix of a `LoadAll`, the stream of a `LoadHead`, or the queue of a
    `LookForWork`."""

    key: str
    error: SemelError


class Received(msgspec.Struct, frozen=True):
    """A message came off the wire."""

    peer: str
    message: Any


class PeerConnected(msgspec.Struct, frozen=True):
    peer: str


class PeerDisconnected(msgspec.Struct, frozen=True):
    peer: str


class Sent(msgspec.Struct, frozen=True):
    peer: str


class SendFailed(msgspec.Struct, frozen=True):
    peer: str
    error: SemelError


class TimerFired(msgspec.Struct, frozen=True):
    name: str


class Delivered(msgspec.Struct, frozen=True):
    """The application's code returned. `ops` are its own writes, to be committed together with the completion.
    `finished`: it has completed the work row in a transaction of its own, and nothing is left to be written."""

    token: int
    ops: tuple[Op, ...] = ()
    finished: bool = False


class DeliverFailed(msgspec.Struct, frozen=True):
    """The application's code raised `error`; `types` are the names of its class, see `retry.type_names`."""

    token: int
    error: str
    types: tuple[str, ...] = ()


class DeliverLost(msgspec.Struct, frozen=True):
    """The application wanted to complete the work row in a transaction of its own and was refused because the row is no
    longer ours. Its writes were rolled back; whoever has the row now does them."""

    token: int


class DeliverUntouched(msgspec.Struct, frozen=True):
    """The application has not begun with the work row and will not: it is to be given back."""

    token: int


def delivered(token: int, answer: tuple[Op, ...] | OwnTransaction) -> Delivered | DeliverLost | DeliverUntouched:
    """The event for what the application's code returned."""
    if answer is OwnTransaction.LOST:
        return DeliverLost(token)
    if answer is OwnTransaction.UNTOUCHED:
        return DeliverUntouched(token)
    return Delivered(token, finished=True) if isinstance(answer, OwnTransaction) else Delivered(token, answer)


class Wake(msgspec.Struct, frozen=True):
    """Something was committed somewhere: look again if you were waiting for work. `is_own`: by a machine of this very
    interpreter, which knows of it."""

    is_own: bool = False


class Pause(msgspec.Struct, frozen=True):
    """An operator or a circuit breaker stops a worker: it takes nothing new before `until`, or before a `Resume`. What
    the application has goes on."""

    until: float | None = None


class Resume(msgspec.Struct, frozen=True):
    """An operator lets a suspended or paused machine go on."""


class Drain(msgspec.Struct, frozen=True):
    """The process is closing: give back what has not been begun. Only machines with `wants_rest` get it."""


Event = (
    Committed
    | CommitFailed
    | CommitUnknown
    | ReadDone
    | ReadTrimmed
    | ReadFailed
    | Loaded
    | LoadedAll
    | LoadedHead
    | WorkFound
    | LoadFailed
    | Received
    | PeerConnected
    | PeerDisconnected
    | Sent
    | SendFailed
    | TimerFired
    | Delivered
    | DeliverFailed
    | DeliverLost
    | DeliverUntouched
    | Wake
    | Pause
    | Resume
    | Drain
)


class Machine(Protocol):
    """A protocol as plain data. The same events at the same times give the same effects, always."""

    name: str

    def start(self, now: float) -> Sequence[Effect]: ...

    def receive(self, event: Event, now: float) -> Sequence[Effect]: ...

    def next_deadline(self) -> float | None: ...

    def on_timer(self, now: float) -> Sequence[Effect]: ...
