"""Tells an application what changes in the groups that it watches, one call after the other."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping

from semel.pubsub.client.data import GroupStateChange
from semel.pubsub.client.states import Changes
from semel.pubsub.protocol.messages import GroupStateItem

log = logging.getLogger("semel.client")

GroupStateHandler = Callable[[GroupStateChange], Awaitable[None] | None]


class StateReporter:
    """`look` gives all states of a group. What changes during a call is reported together in the next."""

    def __init__(self, look: Callable[[str], Mapping[str, GroupStateItem]]) -> None:
        self._look = look
        self._changes = Changes()
        self._handler: GroupStateHandler | None = None
        self._task: asyncio.Task[None] | None = None

    def set(self, handler: GroupStateHandler) -> None:
        self._handler = handler

    def report(self, group: str, changed: tuple[GroupStateItem, ...]) -> None:
        if self._handler is None:
            return
        self._changes.add(group, changed)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._report_all(self._handler))

    async def _report_all(self, handler: GroupStateHandler) -> None:
        try:
            while (found := self._changes.take()) is not None:
                group, changed = found
                await self._report_one(handler, GroupStateChange(group, changed, dict(self._look(group))))
        finally:
            self._task = None

    async def _report_one(self, handler: GroupStateHandler, change: GroupStateChange) -> None:
        try:
            waiting = handler(change)
            if inspect.isawaitable(waiting):
                await waiting
        except Exception:
            log.exception("the handler of group states failed")

    async def stop(self, caller: asyncio.Task[object] | None) -> None:
        task = self._task
        if task is not None and task is not caller:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
