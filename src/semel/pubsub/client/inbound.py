"""The receiving of client streams: which parts belong together, where a stream begins and where it ends, well or not.

Parts of several streams come mixed, each stream's in order. The sender's connection is not named, so a stream is known
by its group, its sender's user and its id. What does not follow the part before it is another stream, or a piece of
one: whoever reads the first learns that parts are missing, and never gets a whole that is none.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from semel.errors import SemelError
from semel.pubsub.client.errors import broken
from semel.pubsub.protocol.messages import Fault, GroupMessage, StreamPart


class StreamBegan(msgspec.Struct, frozen=True):
    """A stream whose first part is `message`, or whose end if it has none. `number` is ours. `is_whole`: it is here
    from its first part on."""

    number: int
    message: GroupMessage
    is_whole: bool


class PartReceived(msgspec.Struct, frozen=True):
    """The message is the next part."""

    number: int


class Ended(msgspec.Struct, frozen=True):
    """`error` None: it is whole, as far as it was from its beginning on."""

    number: int
    error: SemelError | None = None


Step = StreamBegan | PartReceived | Ended
_Key = tuple[str, str | None, str]


class _Open(msgspec.Struct):
    number: int
    expected: int


class Inbound:
    def __init__(self) -> None:
        self._open: dict[_Key, _Open] = {}
        self._count = 0

    def take(self, message: GroupMessage) -> list[Step]:
        """What a part of a stream means. Nothing if it is the end of one of which nothing else came."""
        part = message.stream
        assert part is not None
        key = (message.group, message.from_user, part.stream_id)
        steps: list[Step] = []
        known = self._open.get(key)
        if known is not None and known.expected != part.sequence_id:
            text = f"after part {known.expected - 1} came part {part.sequence_id}"
            steps.append(self._break(key, Fault("PartsMissing", text)))
            known = None
        if known is None:
            if part.is_end and part.sequence_id > 1:
                return steps
            known = self._begin(key, part)
            steps.append(StreamBegan(known.number, message, is_whole=part.sequence_id == 1))
        if part.is_end:
            steps.append(self._end(key, part))
        else:
            known.expected += 1
            steps.append(PartReceived(known.number))
        return steps

    def _begin(self, key: _Key, part: StreamPart) -> _Open:
        self._count += 1
        opened = self._open[key] = _Open(self._count, part.sequence_id)
        return opened

    def _end(self, key: _Key, part: StreamPart) -> Ended:
        return self._break(key, part.error) if part.error is not None else Ended(self._open.pop(key).number)

    def _break(self, key: _Key, fault: Fault) -> Ended:
        known = self._open.pop(key)
        return Ended(known.number, broken(fault, known.expected - 1))

    # -- when no more of it comes

    def on_session_lost(self, error: SemelError) -> list[Ended]:
        return self._break_all(lambda group: True, Fault("SessionGone", error.message))

    def leave(self, group: str) -> list[Ended]:
        return self._break_all(lambda name: name == group, Fault("GroupLeft", f"we have left the group {group!r}"))

    def stop(self) -> list[Ended]:
        return self._break_all(lambda group: True, Fault("Stopped", "the client was stopped"))

    def _break_all(self, is_meant: Callable[[str], bool], fault: Fault) -> list[Ended]:
        return [self._break(key, fault) for key in list(self._open) if is_meant(key[0])]


class Handled:
    """Messages that are handled side by side: up to which one all are."""

    def __init__(self) -> None:
        self._all_to = 0
        self._beyond: set[int] = set()

    def add(self, number: int) -> int | None:
        """The number of the last one before which none is missing, if that is news."""
        if number <= self._all_to:
            return None
        self._beyond.add(number)
        before = self._all_to
        while self._all_to + 1 in self._beyond:
            self._all_to += 1
            self._beyond.remove(self._all_to)
        return self._all_to if self._all_to > before else None
