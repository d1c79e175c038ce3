"""The end of a hub's stream, as one node follows it: every record once, in the order of the offsets.

its own     what this node has committed itself need not be read again, if nothing of another stands before it
ahead       what it has committed itself and cannot be told yet, because something of another stands before it
bodies      large ones, from their commit or their reading until they are told
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from semel.kernel.effects import Read, ReadDone, ReadFailed, ReadTrimmed
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX, Blob
from semel.kernel.ops import Append, Fresh, PutBlob, Result
from semel.kernel.position import Position
from semel.kernel.store import Record
from semel.pubsub.hub.asking import Asking
from semel.pubsub.hub.record_kinds import RecordKind
from semel.pubsub.hub.records import chunks_of, of_record

READ_ROWS = 2000
AHEAD_MAX = 20_000
"""How many records of our own may wait for others before them. Beyond that they are read again."""

Tell = Callable[[int, Append, bytes | None, float], None]
"""Offset, record, large body (None if it has none, or if it is gone) and the time."""

TellAll = Callable[[int, Sequence[Append], float], None]
"""Messages that follow one on the other, from this offset on."""


def _in_a_row(numbered: tuple[int, Record]) -> tuple[bool, int]:
    """The same for messages that can be told together: with their bodies in the rows, and no gap between them."""
    number, record = numbered
    return record.kind == RecordKind.MESSAGE and record.envelope.blob is None, record.position.offset - number


Found = tuple[Record, ...] | ReadTrimmed | ReadFailed

AtEnd = Callable[[int | None, float], None]
"""Hears which read has come to the end of the stream, and the time. 0: none yet, there is more. None: it cannot be read
now."""


def nobody_asks(number: int | None, now: float) -> None:
    """Whoever follows a stream only to hand it on."""


Skip = Callable[[int, bool], None]
"""Before this record something is gone that was not told; and whether nothing was told before that."""


class Tail:
    """`offset` is the last record that was told; after `_begin` they are told without a gap. So many rows are read at
    once. The reads are numbered: `_reads` is the last that has begun."""

    def __init__(
        self,
        at: Position,
        tell: Tell,
        tell_all: TellAll,
        skip: Skip,
        ask: Callable[[Read], None],
        rows: int = READ_ROWS,
        at_end: AtEnd = nobody_asks,
    ) -> None:
        self.stream, self.epoch, self.offset, self.rows = at.stream, at.epoch, at.offset, rows
        self._tell, self._tell_all, self._skip, self._ask = tell, tell_all, skip, ask
        self._begin = at.offset
        self._ahead: dict[int, Append] = {}
        self._bodies: dict[str, bytes] = {}
        self._asked = Asking[tuple[int, int], Callable[[Found, float], None]](lambda asked: self._ask_after(*asked))
        self._is_reading = self._reads_again = False
        self._reads, self._at_end = 0, at_end

    # -- what this node commits

    def take_own(self, appends: Sequence[Append], results: Sequence[Result], now: float) -> None:
        """Records of our own: told in their turn."""
        if self._is_run(appends, results):
            self._tell_run(self.offset + 1, appends, now)
            return
        for append, result in zip(appends, results, strict=False):
            if type(result) is not Fresh:
                self.drop_bodies((append,))
                continue
            offset = result.position.offset
            if offset == self.offset + 1:
                self._tell_one(offset, append, now)
            elif offset > self.offset:
                self._ahead[offset] = append
        if self._ahead:
            self._tell_ahead(now)

    def is_of_another_epoch(self, results: Iterable[Result]) -> bool:
        return any(type(result) is Fresh and result.position.epoch != self.epoch for result in results)

    def _is_run(self, appends: Sequence[Append], results: Sequence[Result]) -> bool:
        """Whether all of them are new messages that follow on what was told, with their bodies in the rows."""
        first, last = results[0], results[len(appends) - 1]
        if type(first) is not Fresh or first.position.offset != self.offset + 1:
            return False
        if type(last) is not Fresh or last.position.offset != self.offset + len(appends):
            return False
        return all(append.kind == RecordKind.MESSAGE and append.envelope.blob is None for append in appends)

    def _tell_run(self, first: int, appends: Sequence[Append], now: float) -> None:
        self.offset = first + len(appends) - 1
        self._tell_all(first, appends, now)
        if self._ahead:
            self._tell_ahead(now)

    def keep_body(self, body: bytes, name: Callable[[], str]) -> tuple[Blob | None, list[PutBlob]]:
        """What stands in the row for a body that is too large for it, and its chunks. It is kept until it is told."""
        if len(body) <= DATA_INLINE_BYTES_MAX:
            return None, []
        blob = Blob(f"{self.stream}/{name()}", len(body))
        self._bodies[blob.name] = body
        return blob, chunks_of(blob, body)

    def drop_bodies(self, appends: Iterable[Append]) -> None:
        """They will not be told."""
        for append in appends:
            if append.envelope.blob is not None:
                self._bodies.pop(append.envelope.blob.name, None)

    @property
    def bodies(self) -> int:
        return len(self._bodies)

    # -- what others commit

    def read_on(self) -> None:
        """Once more after the read that is under way, which may have looked too early."""
        if self._is_reading:
            self._reads_again = True
            return
        self._is_reading, self._reads_again = True, False
        self._reads += 1
        self.read_after(self.offset, self._read)

    def read_to_end(self) -> int:
        """Everything that stands in the stream now is told when this read, or a later one, has come to its end. One
        that is under way may have looked too early for that; all who ask meanwhile share the one after it."""
        number = self._reads + 1
        self.read_on()
        return number

    def _read(self, found: Found, now: float) -> None:
        self._is_reading = False
        if isinstance(found, ReadTrimmed):
            if found.first.offset - 1 > self.offset:
                is_first = self.offset == self._begin
                self._begin = self.offset = found.first.offset - 1
                self._skip(found.first.offset, is_first)
            self.read_on()
        elif isinstance(found, ReadFailed):
            self._at_end(None, now)
        else:
            self._tell_to_end(found, now)

    def _tell_to_end(self, records: Sequence[Record], now: float) -> None:
        """Who asks while they are told waits for another read, which begins then."""
        number = self._reads
        self._tell_records(records, now)
        self._at_end(number if len(records) < self.rows else 0, now)

    def _tell_records(self, records: Sequence[Record], now: float) -> None:
        """What a read gives follows on what is known, also where a new epoch has left a gap in the numbers."""
        new = [record for record in records if record.position.offset > self.offset]
        for (is_plain, _), found in groupby(enumerate(new), _in_a_row):
            alike = [record for _, record in found]
            if is_plain:
                self.offset = alike[-1].position.offset
                self._tell_all(alike[0].position.offset, list(map(of_record, alike)), now)
                continue
            for record in alike:
                if record.body is not None and record.envelope.blob is not None:
                    self._bodies[record.envelope.blob.name] = record.body
                self._tell_one(record.position.offset, of_record(record), now)
        self._tell_ahead(now)
        if len(records) == self.rows or self._reads_again:
            self.read_on()

    def _tell_ahead(self, now: float) -> None:
        while (following := self._ahead.get(self.offset + 1)) is not None:
            self._tell_one(self.offset + 1, following, now)
        self._ahead = {offset: append for offset, append in self._ahead.items() if offset > self.offset}
        if self._ahead:
            if len(self._ahead) > AHEAD_MAX:
                self._ahead = {}
            self.read_on()

    def _tell_one(self, offset: int, append: Append, now: float) -> None:
        self.offset = offset
        blob = append.envelope.blob
        self._tell(offset, append, self._bodies.pop(blob.name, None) if blob is not None else None, now)

    # -- reads

    def read_after(self, offset: int, found: Callable[[Found, float], None], limit: int | None = None) -> None:
        self._asked.ask((offset, limit or self.rows), found)

    def _ask_after(self, offset: int, limit: int) -> None:
        self._ask(Read(self.stream, Position(self.stream, self.epoch, offset), limit, wait=False, bodies=True))

    def heard(self, answer: ReadDone | ReadTrimmed | ReadFailed, now: float) -> None:
        assert answer.after is not None
        found: Found = answer.records if isinstance(answer, ReadDone) else answer
        for tell in self._asked.answered((answer.after.offset, answer.limit)):
            tell(found, now)
