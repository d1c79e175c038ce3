"""Group states as a client knows them: what it says of itself, and what others say in the groups that it watches.

A watched group is reported by snapshots and updates. Neither is sent again, but a new socket, and a new session, begin
with a snapshot of all there is; so what has changed meanwhile is known by comparing, also what was taken back. An item
that is not newer than the known one is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from semel.errors import SemelError
from semel.pubsub.client.events import Acked, Changing, RequestAccepted, RequestFailed, Result
from semel.pubsub.protocol.messages import (
    GroupStateItem,
    GroupStateSnapshot,
    GroupStateUpdate,
    LeaveGroup,
    SetGroupState,
    SubscribeGroupState,
    UnsubscribeGroupState,
)


class WatchedGroup:
    """One group that is watched. `items` are all who have a state there, by connection id. `is_taken`: the server has
    said that it is watched; `has_snapshot`: there was a snapshot."""

    def __init__(self) -> None:
        self.items: dict[str, GroupStateItem] = {}
        self.is_taken = self.has_snapshot = False

    def take_snapshot(self, items: tuple[GroupStateItem, ...]) -> list[GroupStateItem]:
        """What is new by it. Who is not in it has nothing to say any more."""
        self.has_snapshot = True
        there = {item.connection_id for item in items if item.state is not None}
        gone = [msgspec.structs.replace(item, state=None) for id, item in self.items.items() if id not in there]
        for item in gone:
            del self.items[item.connection_id]
        return gone + self.take_update(tuple(item for item in items if item.state is not None))

    def take_update(self, items: tuple[GroupStateItem, ...]) -> list[GroupStateItem]:
        return [item for item in items if self._take(item)]

    def _take(self, item: GroupStateItem) -> bool:
        known = self.items.get(item.connection_id)
        if known is not None and known.updated_at >= item.updated_at:
            return False
        if item.state is not None:
            self.items[item.connection_id] = item
            return True
        return self.items.pop(item.connection_id, None) is not None


class ClientGroupStates:
    """`own` is what this client has surely said, by group, and says again in a new session. `settle` says what became
    of a token, `on_change` what has changed in a group."""

    def __init__(
        self,
        settle: Callable[[int | None, Result], None],
        on_change: Callable[[str, tuple[GroupStateItem, ...]], None],
    ) -> None:
        self._settle, self._on_change = settle, on_change
        self.own: dict[str, dict[str, str]] = {}
        self.views: dict[str, WatchedGroup] = {}
        self._waiting: dict[int, str] = {}

    def __len__(self) -> int:
        """How many wait for a first snapshot."""
        return len(self._waiting)

    def restored(self) -> Iterator[Changing]:
        """What a new session has to be asked for."""
        for group, view in self.views.items():
            if view.is_taken:
                yield SubscribeGroupState(group)
        for group, state in self.own.items():
            yield SetGroupState(group, state=state)

    # -- what becomes of requests

    def sent(self, request: Acked) -> None:
        """The snapshot may come before the answer, if that is lost."""
        if isinstance(request, SubscribeGroupState):
            self.views.setdefault(request.group, WatchedGroup())

    def taken(self, request: Acked) -> None:
        """The server has done it."""
        match request:
            case SetGroupState(group=group, state=None) | LeaveGroup(group=group):
                self.own.pop(group, None)
            case SetGroupState(group=group, state=state):
                self.own[group] = dict(state or {})
            case SubscribeGroupState(group=group):
                self.views.setdefault(group, WatchedGroup()).is_taken = True
            case UnsubscribeGroupState(group=group):
                self._drop(group, RequestAccepted())

    def watched(self, token: int | None, group: str) -> None:
        """Whoever asked for it waits until there is something to look at."""
        if token is not None and not self.views[group].has_snapshot:
            self._waiting[token] = group
        else:
            self._settle(token, RequestAccepted())

    def refused(self, request: Acked, error: SemelError, *, restores: bool) -> None:
        match request:
            case SetGroupState(group=group) if restores:
                self.own.pop(group, None)
            case SubscribeGroupState(group=group) if restores or not self._is_taken(group):
                self._drop(group, RequestFailed(error))

    def _is_taken(self, group: str) -> bool:
        view = self.views.get(group)
        return view is not None and view.is_taken

    def _drop(self, group: str, result: Result) -> None:
        self.views.pop(group, None)
        self._settle_waiting(group, result)

    def _settle_waiting(self, group: str, result: Result) -> None:
        tokens = [token for token, waits_for in self._waiting.items() if waits_for == group]
        for token in tokens:
            del self._waiting[token]
            self._settle(token, result)

    # -- what the server says

    def handle(self, response: GroupStateSnapshot | GroupStateUpdate) -> None:
        view = self.views.get(response.group)
        if view is None:
            return
        if isinstance(response, GroupStateSnapshot):
            changed = view.take_snapshot(response.items)
        else:
            changed = view.take_update(response.items)
        if changed:
            self._on_change(response.group, tuple(changed))
        if view.has_snapshot and view.is_taken:
            self._settle_waiting(response.group, RequestAccepted())

    # -- the end

    def is_token(self, token: int) -> bool:
        return token in self._waiting

    def give_up(self, token: int, error: SemelError) -> None:
        """It is watched all the same."""
        del self._waiting[token]
        self._settle(token, RequestFailed(error, maybe_taken=True))

    def finish(self, error: SemelError) -> None:
        for token in list(self._waiting):
            self.give_up(token, error)


class Changes:
    """What has changed and is not reported yet: of each connection only the last, so however slow the application is,
    there is never more than one for each."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, GroupStateItem]] = {}

    def add(self, group: str, items: Iterable[GroupStateItem]) -> None:
        changed = self._groups.setdefault(group, {})
        for item in items:
            changed.pop(item.connection_id, None)
            changed[item.connection_id] = item

    def take(self) -> tuple[str, tuple[GroupStateItem, ...]] | None:
        """Those of one group, the one that waits longest."""
        if not self._groups:
            return None
        group = next(iter(self._groups))
        return group, tuple(self._groups.pop(group).values())
