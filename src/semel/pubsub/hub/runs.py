"""Messages on their way to subscribers, as runs: those that stand one after the other in the stream and go to the same
ones. A run is shared by all who get it, and becomes frames once for each protocol.

What a thousand subscribers get, wait for and acknowledge costs each of them something per run, not per message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, groupby, repeat
from operator import attrgetter

from semel.kernel.envelope import Envelope
from semel.kernel.ledger import fold_ids
from semel.kernel.ops import Append
from semel.pubsub.hub.records import NO_TERMS, TO_GROUP, DeliveryTerms, data_of, kind_of, terms_of
from semel.pubsub.protocol.codecs import codec_for
from semel.pubsub.protocol.frames import RELIABLE, subprotocol_of
from semel.pubsub.protocol.messages import Data, DataType, GroupMessage, Response, ServerMessage
from semel.websocket import frame

NOTHING = Data(DataType.BINARY, b"")


class Run:
    """`first` and `last` are offsets. A message with terms, or with a large `body` besides its row, is a run of its
    own."""

    __slots__ = (
        "_appends", "_body", "_fold", "_frames", "count", "expires", "first", "last", "size", "target", "terms",
    )  # fmt: skip

    def __init__(self, first: int, appends: Sequence[Append], body: bytes | None = None) -> None:
        self.first, self.count = first, len(appends)
        self.last = first + self.count - 1
        self.target = appends[0].target
        self.size = sum([len(append.envelope.data) for append in appends]) if body is None else len(body)
        headers = appends[0].envelope.headers
        self.terms: DeliveryTerms = terms_of(appends[0].envelope) if headers else NO_TERMS
        self.expires = self.terms.expires
        self._appends, self._body = appends, body
        self._fold: int | None = None
        self._frames: dict[str, bytes] = {}

    @property
    def source(self) -> str:
        """Who has sent it, for a run of one message."""
        return self._appends[0].envelope.source

    @property
    def fold(self) -> int:
        """The fold of the ids, as the ledger holds it."""
        if self._fold is None:
            self._fold = fold_ids([append.envelope.id for append in self._appends])
        return self._fold

    def is_expired(self, now: float) -> bool:
        return self.expires is not None and self.expires <= now * 1e6

    def after(self, offset: int) -> Run:
        return self.between(offset, self.last)

    def between(self, after: int, until: int) -> Run:
        """The part after `after` and up to `until`, which must not be empty."""
        if after < self.first and until >= self.last:
            return self
        first = max(self.first, after + 1)
        return Run(first, self._appends[first - self.first : until + 1 - self.first])

    def messages(self) -> Iterator[tuple[int, Append, bytes | None]]:
        """Each with its offset, and its large body if it has one."""
        return ((offset, append, self._body) for offset, append in enumerate(self._appends, self.first))

    def frames(self, subprotocol: str) -> bytes:
        made = self._frames.get(subprotocol)
        if made is None:
            made = self._frames[subprotocol] = self._make(subprotocol)
        return made

    def _make(self, subprotocol: str) -> bytes:
        codec = codec_for(subprotocol)
        first = self.first if subprotocol_of(subprotocol) in RELIABLE else None
        envelopes = [append.envelope for append in self._appends]
        if self.terms is NO_TERMS and self._body is None and self.target.startswith(TO_GROUP):
            messages = [(envelope.subject, kind_of(envelope), envelope.data) for envelope in envelopes]
            return codec.group_frames(self.target.removeprefix(TO_GROUP), messages, first)
        numbers = repeat(None) if first is None else count(first)
        made = [codec.encode(self._response(*each)) for each in zip(envelopes, numbers, strict=False)]
        return b"".join([frame(encoded) for encoded in made if encoded is not None])

    def _response(self, envelope: Envelope, number: int | None) -> Response:
        terms, body = self.terms, envelope.data if self._body is None else self._body
        data = data_of(envelope, body)
        if data is None and (terms.stream is None or not terms.stream.is_end):
            data = NOTHING
        if self.target.startswith(TO_GROUP):
            group = self.target.removeprefix(TO_GROUP)
            return GroupMessage(group, data, envelope.subject, number, terms.metadata, terms.stream)
        return ServerMessage(data or NOTHING, number, terms.metadata)


def runs_of(first: int, appends: Sequence[Append]) -> Iterator[Run]:
    """New messages, the first of which stands at `first`. Their bodies are in the rows."""
    for _, same in groupby(appends, attrgetter("target")):
        alike = list(same)
        if any(append.envelope.headers for append in alike):
            yield from (Run(first + at, (append,)) for at, append in enumerate(alike))
        else:
            yield Run(first, alike)
        first += len(alike)
