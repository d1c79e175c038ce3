"""What is asked here of sessions that other nodes have.

A session belongs to one node, and only that one writes for it. So an order goes into the stream, where every node reads
it. Its offset decides whom it is for: sessions that opened before it, on whichever node they are. Each node carries it
out for the sessions that it has, and replies in the stream. If no other node has one of them, no order is needed: then
it is for those that had opened up to where the stream was read.

A session may move before the node that had it comes to the order, or that node may be dead. Whoever gave the order
follows the sessions that it is for: one that opens elsewhere is ordered for again, one that has ended is not waited
for. The caller is answered when it is done for all, or when a node did not reply in time: then it may have happened or
not, and asking again does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from functools import partial

import msgspec

from semel.errors import InputError
from semel.kernel.ops import Append, Result
from semel.pubsub.hub.answers import DONE, MOVING, NOT_FOUND, Gathered, Reply, summed_up
from semel.pubsub.hub.calls import Answer, CloseConnections, Grant, JoinMembers, Outcome, RemoveMembers, Revoke
from semel.pubsub.hub.commands import Command, Commands, Scope, scope_at
from semel.pubsub.hub.commits import Failure, hint
from semel.pubsub.hub.context import HubContext
from semel.pubsub.hub.read_barrier import ReadBarrier
from semel.pubsub.hub.records import RecordKind, order, ordered, reply
from semel.pubsub.hub.roster import SOMEWHERE
from semel.pubsub.hub.tail import Tail

ANSWER_S = 20.0
"""Longer than it takes to notice that a node is dead, and to take its sessions over."""
AGAIN_S = 0.25
"""Between two attempts to reach those who have moved. The first comes at once: mostly it is known by then where they
are."""
ONLY_MAX = 500
"""So many names of sessions fit into one order, however long they are."""

_KINDS: dict[str, type[Command]] = {
    kind.__name__: kind for kind in (CloseConnections, JoinMembers, RemoveMembers, Grant, Revoke)
}


class _Order(msgspec.Struct, frozen=True, array_like=True):
    """`only`: the sessions to which the command applies, out of those that it addresses: the ones that existed when it
    was given. None: all that it addresses."""

    name: str
    command: msgspec.Raw
    only: frozenset[str] | None = None


def encode_command(command: Command, only: frozenset[str] | None = None) -> bytes:
    return msgspec.msgpack.encode(_Order(type(command).__name__, msgspec.Raw(msgspec.msgpack.encode(command)), only))


def decode_command(body: bytes) -> tuple[Command, frozenset[str] | None] | None:
    """None if a newer node asks for what is not known here."""
    try:
        found = msgspec.msgpack.decode(body, type=_Order)
        kind = _KINDS.get(found.name)
        return None if kind is None else (msgspec.msgpack.decode(found.command, type=kind), found.only)
    except msgspec.MsgspecError:
        return None


def _split(only: frozenset[str]) -> list[frozenset[str]]:
    names = sorted(only)
    return [frozenset(names[at : at + ONLY_MAX]) for at in range(0, len(names), ONLY_MAX)]


@dataclass(slots=True, eq=False)
class _Run:
    """A command from its beginning to its answer. `again_at`: not before then for those who have moved."""

    command: Command
    until: float
    answer: Reply
    answers: Gathered = field(init=False)
    again_at: float = 0.0


@dataclass(slots=True, eq=False)
class _Part:
    """One attempt, for all sessions or for some that moved in the one before. `had` are the sessions of each node that
    has to answer, `moved` those for which it has to be tried again."""

    run: _Run
    only: frozenset[str] | None
    answers: Gathered = field(init=False)
    had: dict[str, set[str]] = field(default_factory=dict)
    moved: set[str] = field(default_factory=set)


class NodeCommands:
    def __init__(self, context: HubContext, tail: Tail, current: ReadBarrier, commands: Commands) -> None:
        self._context, self._tail, self._current, self._commands = context, tail, current, commands
        self._runs: dict[_Run, None] = {}
        self._given: dict[str, _Part] = {}
        self._again: dict[_Run, set[str]] = {}

    def __len__(self) -> int:
        return len(self._runs) + len(self._given) + len(self._again)

    # -- giving orders

    def carry_out(self, command: Command, now: float, answer: Reply) -> None:
        """This node is current. One that is alone has all sessions."""
        if not self._context.options.is_shared:
            self._commands.carry_out(command, Scope(), now, lambda done, moved: answer(summed_up(done, moved)))
            return
        run = _Run(command, now + ANSWER_S, answer)
        run.answers = Gathered(1, partial(self._finish, run))
        self._runs[run] = None
        self._begin(run, None, now)

    def _finish(self, run: _Run, answer: Answer) -> None:
        if run in self._runs:
            del self._runs[run]
            run.answer(answer)

    def _begin(self, run: _Run, only: frozenset[str] | None, now: float) -> None:
        """For a session that is `SOMEWHERE` no node can be named yet: it is tried here, and then again."""
        nodes = {each.node for each in self._commands.elsewhere_of(run.command, only)} - {SOMEWHERE}
        if not nodes:
            self._do_here(self._part(run, only), self._tail.offset + 1, now)
            return
        parts = [None] if only is None else _split(only)
        for _ in parts[1:]:
            run.answers.expect_one_more()
        for some in parts:
            self._give(self._part(run, some), nodes, now)

    def _part(self, run: _Run, only: frozenset[str] | None) -> _Part:
        part = _Part(run, only)
        part.answers = Gathered(1, partial(self._has_ended, part))
        return part

    def _has_ended(self, part: _Part, answer: Answer) -> None:
        run = part.run
        if part.moved and answer.outcome is not Outcome.FAILED:
            if run not in self._again:
                run.answers.expect_one_more()
            self._again.setdefault(run, set()).update(part.moved)
        run.answers.add(answer)

    def try_moved_again(self, now: float) -> None:
        """Order again for sessions that have moved, as soon as it is known where they are, until the time is over."""
        for run in [run for run in self._again if run.again_at <= now]:
            only = frozenset(self._again.pop(run))
            run.again_at = now + AGAIN_S
            if run in self._runs:
                self._current.when(partial(self._begin, run, only), partial(self._cannot, run), now)

    def _cannot(self, run: _Run, why: str) -> None:
        run.answers.add(Answer(Outcome.FAILED, why))

    def _do_here(self, part: _Part, before: int, now: float) -> None:
        scope = scope_at(part.run.command, before, part.only)
        self._commands.carry_out(part.run.command, scope, now, partial(self._done_here, part))

    def _done_here(self, part: _Part, answer: Answer, moved: Set[str]) -> None:
        part.moved |= moved
        part.answers.add(answer)

    def _give(self, part: _Part, nodes: Iterable[str], now: float) -> None:
        context = self._context
        try:
            body = encode_command(part.run.command, part.only)
            record = order(context.stream, context.node, sorted(nodes), body, round(now * 1e6), context.mint(now))
        except InputError as error:
            part.answers.add(Answer(Outcome.REFUSED, error.message))
            return
        id = record.envelope.id
        self._given[id] = part

        def failed(failure: Failure, now: float) -> None:
            if self._given.pop(id, None) is not None:
                context.report_once("hub-commit", failure)
                part.answers.add(Answer(Outcome.FAILED, hint(failure)))

        context.commit((record,), lambda results, now: self._tail.take_own((record,), results, now), failed)

    def _stands(self, id: str, offset: int, now: float) -> None:
        """Up to its place it is known here who has which session."""
        part = self._given.get(id)
        if part is None:
            return
        for each in self._commands.elsewhere_of(part.run.command, part.only):
            if each.node != SOMEWHERE:
                part.had.setdefault(each.node, set()).add(each.id)
        for _ in part.had:
            part.answers.expect_one_more()
        self._do_here(part, offset, now)
        self._forget_done()

    # -- what becomes of them

    def has_moved(self, connection: str, node: str) -> None:
        """The stream says that this node has it from now on. The one before may never read the order."""
        for part in self._parts_with(connection):
            if connection not in part.had.get(node, ()):
                part.moved.add(connection)
                self._gone(part, connection, NOT_FOUND)

    def has_ended(self, connection: str) -> None:
        """Nothing can be done for it any more: that it is closed, by whomever, is all that may have been asked for."""
        for part in self._parts_with(connection):
            self._gone(part, connection, DONE if isinstance(part.run.command, CloseConnections) else NOT_FOUND)

    def _parts_with(self, connection: str) -> list[_Part]:
        return [part for part in self._given.values() if any(connection in had for had in part.had.values())]

    def _gone(self, part: _Part, connection: str, answer: Answer) -> None:
        for node, had in list(part.had.items()):
            had.discard(connection)
            if not had:
                self._answered(part, node, answer)

    def _answered(self, part: _Part, node: str, answer: Answer) -> None:
        had = part.had.pop(node)
        if answer == MOVING:
            part.moved |= had
            answer = NOT_FOUND
        part.answers.add(answer)
        self._forget_done()

    def _forget_done(self) -> None:
        """Orders for which nobody has to answer any more, and those that were given up."""
        for id, part in list(self._given.items()):
            if part.answers.is_over or part.run not in self._runs:
                del self._given[id]

    def _receive_reply(self, append: Append) -> None:
        part = self._given.get(append.envelope.subject or "")
        if part is not None and append.envelope.source in part.had:
            outcome, message = msgspec.msgpack.decode(append.envelope.data, type=tuple[str, str])
            self._answered(part, append.envelope.source, Answer(Outcome(outcome), message))

    def abandon(self, reason: str) -> None:
        """The hub is loaded again, and gets no answers to them."""
        for run in list(self._runs):
            self._finish(run, Answer(Outcome.FAILED, reason))
        self._given.clear()
        self._again.clear()

    def next_deadline(self) -> float | None:
        times = [run.until for run in self._runs] + [run.again_at for run in self._again]
        return min(times, default=None)

    def on_timer(self, now: float) -> None:
        for run in [run for run in self._runs if run.until <= now]:
            silent = sorted({node for part in self._given.values() if part.run is run for node in part.had})
            for node in silent:
                self._context.notify("order", f"the node {node} did not answer in time")
            why = "a node did not answer in time" if silent else "it could not be done in time"
            self._finish(run, Answer(Outcome.FAILED, f"{why}; ask again"))
        self._forget_done()

    # -- carrying out orders of other nodes

    def on_record(self, append: Append, offset: int, now: float) -> None:
        if append.kind == RecordKind.REPLY:
            self._receive_reply(append)
        elif append.envelope.source == self._context.node:
            self._stands(append.envelope.id, offset, now)
        elif offset > self._context.head:  # before this node began it had nobody
            self._carry_out_order(append, offset, now)

    def _carry_out_order(self, append: Append, offset: int, now: float) -> None:
        """The node that ordered waits for those that it names. One that is not named may have got a session since."""
        decoded, is_named = decode_command(append.envelope.data), self._context.node in ordered(append.envelope)
        if decoded is None:
            if is_named:
                self._reply(append.envelope.id, Answer(Outcome.REFUSED, "the node does not know this order"), now)
            return
        command, only = decoded
        if is_named or self._commands.may_have(command, only):
            id = append.envelope.id
            scope = scope_at(command, offset, only)
            self._commands.carry_out(
                command, scope, now, lambda answer, moved: self._reply(id, summed_up(answer, moved), now)
            )

    def _reply(self, order_id: str, answer: Answer, now: float) -> None:
        context = self._context
        body = msgspec.msgpack.encode((answer.outcome.value, answer.message))
        record = reply(context.stream, context.node, order_id, body, round(now * 1e6), context.mint(now))

        def done(results: tuple[Result, ...], now: float) -> None:
            self._tail.take_own((record,), results, now)

        context.commit((record,), done, lambda failure, now: context.report("order", failure))
