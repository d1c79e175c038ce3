"""What is asked here of sessions that other nodes have.

A session belongs to one node, and only that one writes for it. So an order goes into the stream, where every node reads
it; those whom it names carry it out for the sessions that they have, and say so in the stream. Who asked hears when all
have, or that one did not answer in time: then it may have happened or not, and asking again does no harm.

Whoever gives an order may not have heard yet that a session has moved. Where the order stands in the stream that is
certain, so there it is looked at again who has to carry it out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from semel.errors import InputError
from semel.kernel.ops import Append, RecordKind, Result
from semel.pubsub.calls import Answer, CloseConnections, Grant, JoinMembers, Outcome, RemoveMembers, Revoke
from semel.pubsub.commits import Failure, hint, why
from semel.pubsub.records import order, ordered, reply
from semel.pubsub.service import Gathered

if TYPE_CHECKING:
    from semel.pubsub.hub import Hub

ANSWER_S = 10.0

Command = CloseConnections | JoinMembers | RemoveMembers | Grant | Revoke
_KINDS: dict[str, type[Command]] = {
    kind.__name__: kind for kind in (CloseConnections, JoinMembers, RemoveMembers, Grant, Revoke)
}


class _Said(msgspec.Struct, frozen=True, array_like=True):
    name: str
    command: msgspec.Raw


def encode_command(command: Command) -> bytes:
    return msgspec.msgpack.encode(_Said(type(command).__name__, msgspec.Raw(msgspec.msgpack.encode(command))))


def decode_command(body: bytes) -> Command | None:
    """None if a newer node asks for what is not known here."""
    try:
        said = msgspec.msgpack.decode(body, type=_Said)
        kind = _KINDS.get(said.name)
        command: Command | None = None if kind is None else msgspec.msgpack.decode(said.command, type=kind)
        return command
    except msgspec.MsgspecError:
        return None


@dataclass(slots=True)
class _Asked:
    """`nodes` are all that the command was given to, by this order or by those before it; `missing` those that have not
    answered to this one. `at` is how far the stream was known here when they were chosen."""

    command: Command
    nodes: frozenset[str]
    missing: set[str]
    at: int
    until: float
    answers: Gathered


class Orders:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._asked: dict[str, _Asked] = {}

    def give(
        self,
        command: Command,
        nodes: frozenset[str],
        now: float,
        answer: Callable[[Answer], None],
        given: frozenset[str] = frozenset(),
    ) -> None:
        hub = self._hub
        try:
            record = order(
                hub.stream, hub.node, sorted(nodes), encode_command(command), round(now * 1e6), hub.mint(now)
            )
        except InputError as error:
            answer(Answer(Outcome.REFUSED, error.message))
            return
        id = record.envelope.id
        answers = Gathered(len(nodes), answer)
        self._asked[id] = _Asked(command, given | nodes, set(nodes), hub.tail.offset, now + ANSWER_S, answers)

        def failed(failure: Failure, now: float) -> None:
            if self._asked.pop(id, None) is not None:
                hub.complain("hub-commit", failure)
                answer(Answer(Outcome.FAILED, hint(failure)))

        hub.commit((record,), lambda results, now: hub.take_own((record,), results, now), failed)

    def hear(self, append: Append, now: float) -> None:
        if append.kind is RecordKind.REPLY:
            self._hear_reply(append)
        elif append.envelope.source == self._hub.node:
            self._look_again(append.envelope.id, now)
        elif self._hub.node in ordered(append.envelope):
            self._obey(append, now)

    def _look_again(self, id: str, now: float) -> None:
        """Some may have moved to other nodes, or here."""
        asked, service = self._asked.get(id), self._hub.service
        if asked is None:
            return
        late = service.nodes_of(asked.command) - asked.nodes
        if late:
            asked.answers.expect_one_more()
            self.give(asked.command, late, now, asked.answers.hear, asked.nodes)
        if service.has_come(asked.command, asked.at):
            asked.answers.expect_one_more()
            service.obey(asked.command, now, asked.answers.hear)

    def _obey(self, append: Append, now: float) -> None:
        command = decode_command(append.envelope.data)
        if command is None:
            self._reply(append.envelope.id, Answer(Outcome.REFUSED, "the node does not know this order"), now)
            return
        id = append.envelope.id
        self._hub.service.obey(command, now, lambda answer: self._reply(id, answer, now))

    def _reply(self, order_id: str, answer: Answer, now: float) -> None:
        hub = self._hub
        body = msgspec.msgpack.encode((answer.outcome.value, answer.message))
        record = reply(hub.stream, hub.node, order_id, body, round(now * 1e6), hub.mint(now))

        def done(results: tuple[Result, ...], now: float) -> None:
            hub.take_own((record,), results, now)

        hub.commit((record,), done, lambda failure, now: hub.notify("order", why(failure)))

    def _hear_reply(self, append: Append) -> None:
        asked = self._asked.get(append.envelope.subject or "")
        if asked is None or append.envelope.source not in asked.missing:
            return
        asked.missing.discard(append.envelope.source)
        outcome, message = msgspec.msgpack.decode(append.envelope.data, type=tuple[str, str])
        if not asked.missing:
            del self._asked[append.envelope.subject or ""]
        asked.answers.hear(Answer(Outcome(outcome), message))

    def abandon(self, reason: str) -> None:
        """The hub begins anew, and will not hear of them."""
        asked, self._asked = self._asked, {}
        for each in asked.values():
            for _ in each.missing:
                each.answers.hear(Answer(Outcome.FAILED, reason))

    def next_deadline(self) -> float | None:
        return min((asked.until for asked in self._asked.values()), default=None)

    def on_timer(self, now: float) -> None:
        for id, asked in list(self._asked.items()):
            if asked.until <= now:
                del self._asked[id]
                for node in sorted(asked.missing):
                    self._hub.notify("order", f"the node {node} did not answer in time")
                    asked.answers.hear(Answer(Outcome.FAILED, "a node did not answer in time; ask again"))
