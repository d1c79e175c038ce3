"""Clients of a hub that do what the protocol asks, and remember what they were promised; and what its store was seen to
take."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from semel.kernel.ledger import START, Event
from semel.kernel.ops import Append
from semel.pubsub.hub import records
from semel.pubsub.hub.records import RecordKind
from semel.pubsub.hub.session_rows import SessionRow, read_session, session_key
from semel.pubsub.hub.sockets import ClosePeer
from semel.pubsub.protocol.messages import Ack, Connected, ErrorName, GroupMessage, JoinGroup, LeaveGroup, SendToGroup
from semel.sim.hub.node import HUB, text
from semel.stores.memory import MemoryStore
from semel.websocket import CloseCode

if TYPE_CHECKING:
    from semel.sim.hub.storm import HubStorm, StormNode

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


GROUPS = ("red", "blue")
LARGE = " " * 300_000

Asked = JoinGroup | LeaveGroup | SendToGroup


class Stay:
    """What is written after `since` and before `until` is promised. After `out` nothing may come, up to `again`."""

    def __init__(self, group: str, since: float) -> None:
        self.group, self.since = group, since
        self.until = self.out = self.again = math.inf


class StormClient:
    """Sends again under the same ackId, drops what it has, acknowledges what it got."""

    def __init__(self, storm: HubStorm, name: str) -> None:
        self.storm, self.name, self.connection = storm, name, ""
        self.node: StormNode | None = None
        self.socket = ""
        self.is_connected = False
        self.last = self.last_on_socket = 0
        self.got: list[tuple[int, str]] = []
        self.unacked: dict[int, Asked] = {}
        self.stays: list[Stay] = []
        self.refusals: list[str] = []
        self._ack_id = 0
        for group in GROUPS:
            self._ask(lambda id, group=group: JoinGroup(group, id))  # type: ignore[misc]

    def _ask(self, make: Callable[[int], Asked]) -> None:
        self._ack_id += 1
        request = self.unacked[self._ack_id] = make(self._ack_id)
        if self.node is not None and self.is_connected:
            self.node.send(self.socket, request)

    def publish(self, group: str, is_large: bool = False, no_echo: bool = False) -> None:
        body = f"{self.name} {self._ack_id + 1}{' quiet' if no_echo else ''}"
        self._ask(lambda id: SendToGroup(group, text(body + LARGE * is_large), id, no_echo))

    def is_own_quiet(self, body: str) -> bool:
        """Published by itself, and not to come back."""
        return body.startswith(f"{self.name} ") and body.endswith(" quiet")

    def change_group(self, group: str) -> None:
        """Leave it, or come in again. One change at a time."""
        if any(isinstance(ask, JoinGroup | LeaveGroup) and ask.group == group for ask in self.unacked.values()):
            return
        stay = self._stay(group)
        if stay is not None and stay.until == math.inf:
            stay.until = self.storm.books.last_offset
            self._ask(lambda id: LeaveGroup(group, id))
        elif stay is not None:
            stay.again = self.storm.books.last_offset
            self._ask(lambda id: JoinGroup(group, id))

    def _stay(self, group: str) -> Stay | None:
        return next((stay for stay in reversed(self.stays) if stay.group == group), None)

    def connect(self, node: StormNode) -> None:
        self.node, self.socket, self.last_on_socket = node, self.storm.fresh_socket(self), 0
        if not self.is_connected:
            # who never got a session has no token for it
            self.connection = f"session of {self.socket}"
            node.open(self.socket, self.connection)
            return
        node.resume(self.socket, self.connection)
        self.send_again()

    def send_again(self) -> None:
        if self.node is not None and self.is_connected:
            for request in list(self.unacked.values()):
                self.node.send(self.socket, request)

    def drop(self) -> None:
        if self.node is not None and self.node in self.node.nodes:
            self.node.drop(self.socket)
        self.node = None

    def receive(self) -> None:
        if self.node is None:
            return
        for response in self.node.take(self.socket):
            match response:
                case Connected():
                    self.is_connected = True
                    self.send_again()
                case Ack(ack_id=id, error=error):
                    if error is None or error.name == ErrorName.DUPLICATE:
                        self._acked(self.unacked.pop(id, None))
                case GroupMessage(sequence_id=offset, data=data):
                    assert offset is not None
                    assert data is not None
                    self._message(offset, data.body.decode().rstrip())
                case ClosePeer(code=code, reason=reason):
                    if code is CloseCode.POLICY:
                        self.refusals.append(reason)
                    self.node = None
                    return

    def _acked(self, request: Asked | None) -> None:
        if isinstance(request, JoinGroup):
            self.stays.append(Stay(request.group, self.storm.books.last_offset))
        elif isinstance(request, LeaveGroup):
            stay = self._stay(request.group)
            assert stay is not None
            stay.out = self.storm.books.last_offset

    def _message(self, offset: int, body: str) -> None:
        if offset <= self.last_on_socket:
            self.storm.world.violated(f"{self.name}: {offset} came after {self.last_on_socket} on one socket")
        self.last_on_socket = offset
        if offset > self.last:
            self.last = offset
            self.got.append((offset, body))
            self.storm.world.clock.note(f"{self.name} got {offset}")

    def acknowledge(self) -> None:
        if self.node is not None and self.last:
            self.node.ack(self.socket, self.last)
