"""Runs a handler for one message: in the transaction that it asked for, with its mark and what it sends in one commit.

    kind of handler          what is committed when
    with a transaction       its writes, the mark and the outbox together, by the handler's own transaction
    without one              the outbox and the mark together, after it has returned

Nothing here decides what follows a failure: an exception goes to the worker, whose policy does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from semel.errors import DuplicateMessage, StaleFence, StoreBusy
from semel.inbox.identity import Identity
from semel.inbox.outbox import OutboxCalls
from semel.inbox.rows import ENDED
from semel.kernel.effects import OwnTransaction
from semel.kernel.envelope import Envelope
from semel.kernel.ops import Duplicate, Op, Result
from semel.kernel.store import Store
from semel.runtime.host.lease_holder import commit_unit
from semel.runtime.inbox.endpoint import ReadyHandler
from semel.runtime.inbox.injection import Wanted
from semel.runtime.inbox.outbox import Outbox, apply_outbox, apply_outbox_async
from semel.runtime.inbox.own_commits import EndedItself, check_not_ended, watched
from semel.runtime.transactions import bind
from semel.stores.points import reach

Carried = Callable[[], Mapping[str, str]]
"""The trace context that is sent along."""
Answer = tuple[Op, ...] | OwnTransaction
"""As a worker takes it: what is to be committed with the end of the row, or how the row was ended already."""


@dataclass(frozen=True, slots=True)
class HandlerContext:
    """What every run of a handler needs of its application."""

    app: str
    store: Store
    routes: Mapping[str, str]
    now: Callable[[], int]
    mint: Callable[[], str]
    endpoints: Collection[str] = ()
    senders: Collection[str] = ()

    def outbox(self, handler: str, handled: Identity | None, carried: Carried = dict) -> Outbox:
        calls = OutboxCalls(self.app, handler, handled, carried, self.now)
        return Outbox(calls, self.routes, self.now, self.mint, self.endpoints, self.senders)


@dataclass(frozen=True, slots=True)
class HandlerRun:
    """One run of a handler. `mark` are the ops that end the message, for the transaction of the handler; without one
    they are left to the caller. `before` is a mark that comes first. A mark that is there already raises
    DuplicateMessage, and the transaction is rolled back."""

    context: HandlerContext
    handler: ReadyHandler
    envelope: Envelope
    identity: Identity
    mark: tuple[Op, ...] = ()
    before: tuple[Op, ...] = ()

    def in_thread(self) -> Answer:
        """For a handler that is a plain function."""
        answer, _ = self.ended_in_thread()
        if answer is OwnTransaction.FINISHED:
            self.context.store.wake()
        return answer

    def ended_in_thread(self) -> tuple[Answer, bool]:
        """The same for callers who wake others themselves; also says whether something was sent or cancelled."""
        outbox = self._outbox()
        given = self._given(outbox)
        if self.handler.provider is None:
            self._call(given)
            reach("inbox.returned")
            self._cancel(outbox)
            return outbox.ops, bool(outbox.cancels)
        try:
            with self._begin() as transaction:
                self._apply_first(transaction)
                ended = watched(transaction)
                self._call({**given, Wanted.TRANSACTION: transaction})
                check_not_ended(self.handler.signature.name, ended)
                if not self._commit_at_once(outbox, transaction):
                    self._apply(outbox, transaction)
        except StaleFence:
            return OwnTransaction.LOST, False
        reach("inbox.committed")
        return OwnTransaction.FINISHED, outbox.is_used

    def begun_in(self, transaction: Any, ended: EndedItself) -> Outbox:
        """Run in a transaction that others share; what it sends is written with theirs. `ended` is asked afterwards."""
        outbox = self._outbox()
        self._call({**self._given(outbox), Wanted.TRANSACTION: transaction})
        check_not_ended(self.handler.signature.name, ended)
        return outbox

    async def on_loop(self) -> Answer:
        """For a handler that is a coroutine function. A connection that blocks is opened and committed on a thread."""
        outbox = self._outbox()
        given = self._given(outbox)
        provider = self.handler.provider
        if provider is None:
            await self._call(given)
            reach("inbox.returned")
            await asyncio.to_thread(self._cancel, outbox)
            return outbox.ops
        try:
            if provider.is_async:
                await self._run_async(outbox, given)
            else:
                await self._run_blocking(outbox, given)
        except StaleFence:
            return OwnTransaction.LOST
        reach("inbox.committed")
        await asyncio.to_thread(self.context.store.wake)
        return OwnTransaction.FINISHED

    async def _run_async(self, outbox: Outbox, given: dict[Wanted, Any]) -> None:
        manager: Any = self._begin()
        async with manager as transaction:
            tx: Any = bind(self.context.store, transaction)
            if self.before:
                _check_new(await tx.apply(self.before, wait=False))
            ended = watched(transaction)
            await self._call({**given, Wanted.TRANSACTION: transaction})
            check_not_ended(self.handler.signature.name, ended)
            reach("inbox.returned")
            _check_new((await apply_outbox_async(tx, outbox, *self.mark))[: len(self.mark)])
            reach("inbox.marked")

    async def _run_blocking(self, outbox: Outbox, given: dict[Wanted, Any]) -> None:
        manager = self._begin()
        transaction = await asyncio.to_thread(manager.__enter__)
        try:
            await _to_its_end(self._apply_first, transaction)
            ended = watched(transaction)
            await self._call({**given, Wanted.TRANSACTION: transaction})
            check_not_ended(self.handler.signature.name, ended)
            await _to_its_end(self._apply, outbox, transaction)
        except BaseException as error:
            if not await _to_its_end(manager.__exit__, type(error), error, error.__traceback__):
                raise
        else:
            await _to_its_end(manager.__exit__, None, None, None)

    def _begin(self) -> AbstractContextManager[Any]:
        assert self.handler.provider is not None, "only a handler with a transaction gets here"
        manager: Any = self.handler.provider.begin()
        return manager

    def _apply_first(self, transaction: Any) -> None:
        if self.before:
            tx: Any = bind(self.context.store, transaction)
            _check_new(tx.apply(self.before, wait=False))

    def _commit_at_once(self, outbox: Outbox, transaction: Any) -> bool:
        """Most handlers send nothing, and have nothing to say between their mark and their commit."""
        assert self.handler.provider is not None, "only a handler with a transaction gets here"
        commit = self.handler.provider.commit
        if commit is None or outbox.is_used or self.envelope.blob is not None:
            return False
        reach("inbox.returned")
        return commit(transaction, self.mark)

    def _apply(self, outbox: Outbox, transaction: Any) -> None:
        reach("inbox.returned")
        tx: Any = bind(self.context.store, transaction)
        _check_new(apply_outbox(tx, outbox, *self.mark)[: len(self.mark)])
        reach("inbox.marked")

    def _cancel(self, outbox: Outbox) -> None:
        """Each for itself: one that comes too late is refused, and the others are not."""
        for cancel in outbox.cancels:
            commit_unit(self.context.store, cancel)

    def _outbox(self) -> Outbox:
        return self.context.outbox(self.handler.signature.name, self.identity)

    def _given(self, outbox: Outbox) -> dict[Wanted, Any]:
        """Before a transaction is begun: a message that cannot be read needs none."""
        message = self.handler.message_of(self.envelope)
        return {Wanted.MESSAGE: message, Wanted.ENVELOPE: self.envelope, Wanted.OUTBOX: outbox}

    def _call(self, given: Mapping[Wanted, Any]) -> Any:
        signature = self.handler.signature
        return signature.function(**signature.arguments(given))


async def _to_its_end(call: Callable[..., Any], *arguments: Any) -> Any:
    """On a thread. Whoever is cancelled waits for it all the same: two threads must not have one connection."""
    task = asyncio.ensure_future(asyncio.to_thread(call, *arguments))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _check_new(results: Sequence[Result]) -> None:
    """A duplicate of one that is still open must not be acknowledged: what has it may fail."""
    known = [result for result in results if isinstance(result, Duplicate)]
    if any(result.state not in ENDED for result in known):
        raise StoreBusy("another has the message just now", fix="give the delivery back")
    if known:
        raise DuplicateMessage("the message was handled before", fix="acknowledge it: its effect is there")
