"""Calls with an idempotency key. The first counts, another like it is done already, one with other content is refused.

A key is a row of the store, written in the commit of the message that it stands for, so two calls at once on two nodes
cannot both be the first. It is forgotten after a day, long after the message itself may be.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

import msgspec

from semel.kernel.effects import LoadAll, Loaded, LoadedAll, LoadFailed
from semel.kernel.ledger import Event, Kind
from semel.kernel.ops import Log, Put
from semel.pubsub.hub.calls import Answer, Outcome, Publish
from semel.pubsub.hub.commits import Failure, nothing_more
from semel.pubsub.hub.context import HubContext

KEEP_S = 24 * 3600.0
CLEAN_S = 600.0
PAGE = 1000


class KeyRow(msgspec.Struct, frozen=True, array_like=True):
    """`digest` of the call that came with the key, `id` of its message, `at` in seconds."""

    digest: bytes
    id: str
    at: float


def terms_of(call: Publish) -> tuple[object, ...]:
    """What of a call is compared, besides to whom and what."""
    return sorted(call.excluded), call.filter, call.ttl_s, sorted((call.metadata or {}).items())


class Keys:
    def __init__(self, context: HubContext) -> None:
        self._context = context
        self._prefix = f"hub/{context.hub}/key/"
        self._at: float | None = None

    def start(self, now: float) -> None:
        """Keys from before a restart are forgotten in time as well."""
        self._at = now + CLEAN_S

    def put(self, key: str, digest: bytes, id: str, now: float) -> Put:
        """Has to be committed with the message, and is refused if the key was used before."""
        return Put(self._name(key), msgspec.msgpack.encode(KeyRow(digest, id, now)), 0)

    def compare(self, key: str, digest: bytes, answer: Callable[[Answer], None]) -> None:
        """Answer a call whose key was used before: was it the same call?"""
        self._context.load(self._name(key), lambda found, now: answer(self._compared(found, digest)))

    def _name(self, key: str) -> str:
        return f"{self._prefix}{sha256(key.encode()).hexdigest()}"

    def _compared(self, found: Loaded | LoadedAll | LoadFailed, digest: bytes) -> Answer:
        if not isinstance(found, Loaded) or found.state is None:
            return Answer(Outcome.FAILED, "the key cannot be looked up now; ask again")
        row = msgspec.msgpack.decode(found.state.value, type=KeyRow)
        if row.digest != digest:
            return Answer(Outcome.CONFLICT, "this key was used for another message; give each message its own")
        duplicate = Event(Kind.DUPLICATE, self._context.repeated.hop, message=row.id)
        self._context.commit((Log(duplicate),), nothing_more, self._not_written)
        return Answer(repeated=True)

    def _not_written(self, failure: Failure, now: float) -> None:
        self._context.report("hub-key", failure)

    # -- forgetting

    def next_deadline(self) -> float | None:
        return self._at

    def on_timer(self, now: float) -> None:
        if self._at is not None and self._at <= now:
            self._at = now + CLEAN_S
            self._clean("")

    def _clean(self, after: str) -> None:
        self._context.load_all(LoadAll(self._prefix, after, PAGE), self._forget)

    def _forget(self, found: Loaded | LoadedAll | LoadFailed, now: float) -> None:
        if not isinstance(found, LoadedAll):
            return
        old = [
            Put(key, None, state.version)
            for key, state in found.states
            if msgspec.msgpack.decode(state.value, type=KeyRow).at + KEEP_S <= now
        ]
        for put in old:
            self._context.commit((put,), nothing_more, lambda failure, now: None)
        if len(found.states) == PAGE:
            self._clean(found.states[-1][0])
