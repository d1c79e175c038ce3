"""Invocations: a question to the server and its one answer. Nobody but the server can say whether it was done, so one
that was sent is never sent again."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from semel.pubsub.protocol.frames import Codec, Frame
from semel.pubsub.protocol.messages import CancelInvocation, Invoke


class Invocation(msgspec.Struct, eq=False):
    token: int
    id: str
    frame: Frame
    is_sent: bool = False


class ClientInvocations:
    """Their ids are ours, and none is used twice in the life of a client."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._by_id: dict[str, Invocation] = {}
        self._by_token: dict[int, Invocation] = {}
        self._waiting: list[Invocation] = []
        self._last = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Invocation]:
        return iter(list(self._by_id.values()))

    def add(self, token: int, request: Invoke) -> None:
        self._last += 1
        id = str(self._last)
        frame = self._codec.encode_request(msgspec.structs.replace(request, invocation_id=id))
        invocation = Invocation(token, id, frame)
        self._by_id[id] = self._by_token[token] = invocation
        self._waiting.append(invocation)

    def fill(self) -> list[Frame]:
        """What goes out now."""
        waiting, self._waiting = self._waiting, []
        for invocation in waiting:
            invocation.is_sent = True
        return [invocation.frame for invocation in waiting]

    def by_token(self, token: int) -> Invocation | None:
        return self._by_token.get(token)

    def find(self, id: str) -> Invocation | None:
        return self._by_id.get(id)

    def remove(self, invocation: Invocation) -> None:
        del self._by_id[invocation.id]
        del self._by_token[invocation.token]
        if not invocation.is_sent:
            self._waiting.remove(invocation)

    def cancel(self, invocation: Invocation) -> Frame:
        return self._codec.encode_request(CancelInvocation(invocation.id))
