"""What tests of single parts of a hub are made of: a context, sessions and runs, without a store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count

from semel.kernel.effects import Commit, CommitFailed, Committed, Effect, Load, LoadAll, Loaded, LoadedAll, Notify, Send
from semel.kernel.envelope import Envelope
from semel.kernel.ops import Advanced, Append, Conflict, Fresh, Log, Op, Put, Result
from semel.kernel.position import Position
from semel.kernel.store import State
from semel.pubsub.hub.context import HubContext, HubOptions
from semel.pubsub.hub.records import DeliveryTerms, message
from semel.pubsub.hub.runs import Run
from semel.pubsub.hub.session import Session
from semel.pubsub.hub.session_phase import SessionChange
from semel.pubsub.hub.session_rows import AcksRow, SessionRow
from semel.pubsub.hub.tail import Tail
from semel.pubsub.protocol.frames import Subprotocol
from semel.pubsub.protocol.messages import Data, DataType
from semel.pubsub.protocol.permissions import Permissions

HUB, STREAM = "chat", "hub/chat"
NOW = 1_800_000_000.0
EVERYTHING = Permissions.of_roles(("webpubsub.joinLeaveGroup", "webpubsub.sendToGroup"))


class Bench:
    """A context, and what is asked of it. `offset` is where the next record comes to stand."""

    def __init__(self, *, head: int = 0, **options: object) -> None:
        numbers = count(1)
        self.context = HubContext(
            HUB, "node", Position(STREAM, 1, head), lambda size: next(numbers).to_bytes(size),
            HubOptions(**options),  # type: ignore[arg-type]
        )  # fmt: skip
        self.tail = Tail(Position(STREAM, 1, head), self.context.effects.append)
        self.offset = head + 1

    @property
    def effects(self) -> list[Effect]:
        return self.context.effects

    def commits(self) -> list[Commit]:
        return [effect for effect in self.effects if isinstance(effect, Commit)]

    def ops(self) -> list[Op]:
        return [op for commit in self.commits() for op in commit.ops]

    def logged(self) -> list[tuple[str, int | None, int | None, int | None]]:
        """Kind, first, last and count of the events in the ledger."""
        events = [op.event for op in self.ops() if isinstance(op, Log)]
        return [(event.kind.name.lower(), event.first, event.last, event.n) for event in events]

    def sent(self) -> list[tuple[str, object]]:
        return [(effect.peer, effect.message) for effect in self.effects if isinstance(effect, Send)]

    def notes(self) -> list[str]:
        return [effect.topic for effect in self.effects if isinstance(effect, Notify)]

    def complete(self, now: float = NOW) -> None:
        """All commits that were asked for are made, in order."""
        for commit in self._take():
            self.context.committed(Committed(commit.token, tuple(map(self._result, commit.ops))), now)

    def fail(self, *, conflict: bool = False, version: int = 9, now: float = NOW) -> None:
        """None of them is made: somebody else has written, or the store does not say why."""
        for commit in self._take():
            results = (Conflict(version),) if conflict else ()
            self.context.commit_failed(CommitFailed(commit.token, results), now)

    def _take(self) -> list[Commit]:
        commits = self.commits()
        self.effects[:] = [effect for effect in self.effects if not isinstance(effect, Commit)]
        return commits

    def _result(self, op: Op) -> Result:
        if isinstance(op, Append):
            self.offset += 1
            return Fresh(Position(STREAM, 1, self.offset - 1))
        version = (op.expected or 0) + 1 if isinstance(op, Put) else 0
        return Advanced(version=version)

    def load(self, key: str, value: bytes | None, version: int = 1, now: float = NOW) -> None:
        """The store answers a load."""
        self.effects.remove(Load(key))
        self.context.loaded(Loaded(key, State(value, version) if value is not None else None), now)

    def load_all(self, states: Sequence[tuple[str, State]], now: float = NOW) -> LoadAll:
        [asked] = [effect for effect in self.effects if isinstance(effect, LoadAll)]
        self.effects.remove(asked)
        self.context.loaded(LoadedAll(asked, states), now)
        return asked


def session(
    id: str = "alice",
    *,
    user: str | None = None,
    groups: Iterable[str] = (),
    since: int = 0,
    is_reliable: bool = True,
    permissions: Permissions = EVERYTHING,
    acks: AcksRow | None = None,
) -> Session:
    """As its rows describe it: not served yet."""
    protocol = Subprotocol.JSON_RELIABLE if is_reliable else Subprotocol.JSON
    row = SessionRow(user, protocol, "node", since, permissions, dict.fromkeys(groups, since), epoch=1)
    return Session(id, row, acks or AcksRow(since, ()), 1, 1)


def live(id: str = "alice", peer: str | None = None, **fields: object) -> Session:
    """With a socket, unless `peer` is empty."""
    made = session(id, **fields)  # type: ignore[arg-type]
    made.change(SessionChange.OPEN)
    made.change(SessionChange.OPENED)
    if peer != "":
        made.attach(peer or f"socket of {id}", in_order=False)
    return made


def append(id: str, target: str = "g/g", terms: DeliveryTerms | None = None, sender: str = "rest") -> Append:
    if terms is None:
        return Append(STREAM, Envelope(id, sender, data=b"x"), target=target)
    data = Data(DataType.TEXT, b"x")
    on_fresh = Bench().context.accepted
    return message(STREAM, id, target, data, at=0, sender=sender, user=None, terms=terms, on_fresh=on_fresh)


def run(first: int, n: int = 1, target: str = "g/g", terms: DeliveryTerms | None = None) -> Run:
    return Run(first, [append(f"m{first + at}", target, terms) for at in range(n)])
