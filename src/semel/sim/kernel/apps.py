"""The applications at the two ends, and what they know for certain: the truth that checkers compare stores with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from semel.kernel.effects import Commit, CommitFailed, Committed, CommitUnknown, Effect, Event
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Event as LedgerEvent
from semel.kernel.ledger import Kind
from semel.kernel.ops import Append

TRY_AGAIN_S = 0.4


@dataclass(slots=True)
class Item:
    """One thing that a producer wants done once. Its key travels in the body, its id is only how it is sent.

    `in_doubt` when some attempt to append it may have happened unknown to it: from then on the id must stay.
    """

    key: str
    session: str | None
    index: int | None
    due_s: float
    poison: str | None = None
    ids: list[str] = field(default_factory=list)
    tried: bool = False
    in_doubt: bool = False
    acked: bool = False

    @property
    def id(self) -> str:
        return self.ids[-1]

    def envelope(self) -> Envelope:
        return Envelope(id=self.id, data=self.key.encode(), session=self.session, index=self.index, subject=self.poison)


class Producer:
    """The application on a producer's node: appends its items to the outbox, in order, and tries again until done.

    The items outlive the process, as a user's own database would. What was under way in a life that ended is in doubt.
    """

    def __init__(self, name: str, stream: str, hop: str, items: list[Item], *, depth: int, mints: bool) -> None:
        self.name = name
        self._stream = stream
        self._sent = LedgerEvent(Kind.SENT, hop)
        self._items = items
        self._depth = depth
        self._mints = mints
        self._token = 0
        self._pending: dict[int, Item] = {}
        self._wait_until = 0.0
        for item in items:
            item.in_doubt = item.in_doubt or (item.tried and not item.acked)

    def start(self, now: float) -> Sequence[Effect]:
        return self._offer(now)

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        match event:
            case Committed(token=token):
                self._pending.pop(token).acked = True
            case CommitFailed(token=token):
                self._failed(self._pending.pop(token), now)
            case CommitUnknown(token=token):
                self._unknown(self._pending.pop(token), now)
            case _:
                return ()
        return self._offer(now)

    def next_deadline(self) -> float | None:
        item = self._next_item()
        return max(item.due_s, self._wait_until) if item is not None else None

    def on_timer(self, now: float) -> Sequence[Effect]:
        return self._offer(now)

    def _next_item(self) -> Item | None:
        """After a failure nothing new goes out before everything under way is settled: the order would be lost."""
        if len(self._pending) >= self._depth or (self._pending and self._wait_until):
            return None
        under_way = {id(item) for item in self._pending.values()}
        return next((item for item in self._items if not item.acked and id(item) not in under_way), None)

    def _offer(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        while (item := self._next_item()) is not None and now >= item.due_s and now >= self._wait_until:
            self._wait_until = 0.0
            effects.append(self._append(item))
        return effects

    def _append(self, item: Item) -> Commit:
        self._token += 1
        self._pending[self._token] = item
        item.tried = True
        append = Append(self._stream, item.envelope(), identity=item.id, on_fresh=self._sent)
        return Commit((append,), self._token, chain="app")

    def _failed(self, item: Item, now: float) -> None:
        """It did not happen, says the store. A producer may then start again, with another id."""
        self._wait_until = now + TRY_AGAIN_S
        if item.in_doubt:
            return
        item.tried = False
        if self._mints:
            item.ids.append(f"{item.ids[0]}.{len(item.ids)}")

    def _unknown(self, item: Item, now: float) -> None:
        self._wait_until = now + TRY_AGAIN_S
        item.in_doubt = True
