"""What the store of a hub was seen to take: every record in the order of its offset, also those that are trimmed."""

from __future__ import annotations

import msgspec

from semel.kernel.ledger import START, Event
from semel.kernel.ops import Append
from semel.pubsub.hub import records
from semel.pubsub.hub.record_kinds import RecordKind
from semel.pubsub.hub.session_rows import SessionRow, read_session, session_key
from semel.sim.hub.node import HUB
from semel.stores.memory import MemoryStore

EXTRA = "by service"
"""A group that only services put clients into."""


class HubBooks:
    """`offsets` says where a body stands, `targets` for which group it is, `ids` what is the id of the message there.

    Of sessions: `opened` is where their first record stands, `begins` where what is due to them begins and in which
    groups they came, `ends` where it ends, `left` where they were last put out of the group of the services.
    """

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.offsets: dict[str, list[int]] = {}
        self.targets: dict[str, str] = {}
        self.ids: dict[int, str] = {}
        self.last_offset = 0
        self.opened: dict[str, int] = {}
        self.begins: dict[str, tuple[int, list[str]]] = {}
        self.ends: dict[str, int] = {}
        self.left: dict[str, int] = {}

    def record(self, op: Append, offset: int) -> None:
        source = op.envelope.source
        if op.kind == RecordKind.MESSAGE:
            self._message(op, offset)
        elif op.kind == RecordKind.OPEN:
            self.opened.setdefault(source, offset)
            groups = msgspec.json.decode(op.envelope.headers.get(records.GROUPS, "[]"), type=list[str])
            self.begins.setdefault(source, (int(op.envelope.headers[records.START]), groups))
        elif op.kind == RecordKind.CLOSE:
            self.ends[source] = int(op.envelope.headers[records.END])
        elif op.kind == RecordKind.LEAVE and op.target == records.group_target(EXTRA):
            self.left[source] = offset

    def _message(self, op: Append, offset: int) -> None:
        envelope = op.envelope
        data = envelope.data if envelope.blob is None else b"".join(self.store.body(envelope.blob.name))
        body = data.decode().rstrip()
        self.last_offset = offset
        self.offsets.setdefault(body, []).append(offset)
        self.targets[body] = op.target[2:]
        self.ids[offset] = envelope.id

    def written(self) -> list[tuple[int, str]]:
        return sorted((offset, body) for body, offsets in self.offsets.items() for offset in offsets)

    # -- what the store holds now

    def row_of(self, connection: str) -> SessionRow | None:
        state = self.store.state(session_key(HUB, connection))
        return read_session(state.value) if state is not None else None

    def sessions(self) -> set[str]:
        prefix = session_key(HUB, "")
        return {key.removeprefix(prefix) for key, _ in self.store.states(prefix, "", 10_000)}

    def ledger(self) -> list[Event]:
        events, mark = [], START
        while found := self.store.ledger(mark):
            events += [entry.event for entry in found]
            mark = found[-1].mark
        return events
