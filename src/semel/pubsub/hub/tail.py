"""The end of a hub's stream, as one node follows it: every record is applied once, in the order of the offsets.

own      what this node has committed is not read again, if no record of another node stands before it
ahead    what this node has committed but cannot apply yet, because a record of another node stands before it
bodies   large ones, from their commit or their read until their record is applied
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count, groupby
from typing import Generic, Protocol, TypeVar

from semel.kernel.effects import Read, ReadDone, ReadFailed, ReadTrimmed
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX, Blob
from semel.kernel.ops import MESSAGE, Append, Fresh, PutBlob, Result
from semel.kernel.position import Position
from semel.kernel.store import Record
from semel.pubsub.hub.records import chunks_of, of_record

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class PendingReads(Generic[K, T]):
    """Reads of the store that are under way. `ask` sends one. Those who wait for its answer are kept with it.

    An answer says what was asked, but not when. Whoever asks the same while an answer is on its way may want what was
    not there yet when the store was read: so it is read for them once more, after that answer.
    """

    def __init__(self, ask: Callable[[K], None]) -> None:
        self._ask = ask
        self._asked: dict[K, list[T]] = {}
        self._next: dict[K, list[T]] = {}

    def __len__(self) -> int:
        return len(self._asked)

    def __iter__(self) -> Iterator[K]:
        return iter(tuple(self._asked))

    def ask(self, key: K, who: T) -> None:
        if key in self._asked:
            self._next.setdefault(key, []).append(who)
        else:
            self._asked[key] = [who]
            self._ask(key)

    def answered(self, key: K) -> Sequence[T]:
        """The answer is there: who it is for."""
        waiting = self._asked.pop(key, [])
        if key in self._next:
            self._asked[key] = self._next.pop(key)
            self._ask(key)
        return waiting


READ_ROWS = 2000
IN_ORDER = "records are applied in order, each once"
AHEAD_MAX = 20_000
"""How many own records may wait for others before them. Beyond that they are read again."""

Found = tuple[Record, ...] | ReadTrimmed | ReadFailed


OnMessages = Callable[[int, Sequence[Append], float], None]
"""Gets messages with consecutive offsets, of which it gets the first, and with their bodies in the rows."""


class RecordListener(Protocol):
    """Who applies the records, except for `OnMessages`."""

    def on_record(self, offset: int, append: Append, body: bytes | None, now: float) -> None:
        """`body` is a large one; None if there is none, or if it is gone."""

    def on_gap(self, offset: int, is_first: bool) -> None:
        """Records before this one are trimmed and were not applied. `is_first`: nothing was applied before the gap."""

    def on_end(self, number: int | None, now: float) -> None:
        """The read with this number has come to the end of the stream. 0: not yet, there is more to read. None: the
        stream cannot be read now."""

    def on_epoch_changed(self) -> None:
        """A commit landed in another epoch than the one that is followed."""


def _in_a_row(numbered: tuple[int, Record]) -> tuple[bool, int]:
    """The same key for messages that are applied together: with their bodies in the rows, and no gap between them."""
    number, record = numbered
    return record.kind == MESSAGE and record.envelope.blob is None, record.position.offset - number


class Tail:
    """`offset` is the last record that was applied; after `_begin` there was no gap. `rows` are read at once. Reads are
    numbered: `_reads` is the last that has begun. `on_messages` and `listener` have to be set before anything is read
    or committed."""

    on_messages: OnMessages
    listener: RecordListener

    def __init__(self, at: Position, ask: Callable[[Read], None], rows: int = READ_ROWS) -> None:
        self.stream, self.epoch, self.offset, self.rows = at.stream, at.epoch, at.offset, rows
        self._ask = ask
        self._begin = at.offset
        self._ahead: dict[int, Append] = {}
        self._bodies: dict[str, bytes] = {}
        self._asked = PendingReads[tuple[int, int], Callable[[Found, float], None]](
            lambda asked: self._ask_after(*asked)
        )
        self._is_reading = self._reads_again = False
        self._reads = 0
        self._numbers = count()
        self._at_offset: list[tuple[int, int, Callable[[], None]]] = []

    def __len__(self) -> int:
        """How many reads, records, bodies and calls wait for something."""
        return len(self._asked) + len(self._ahead) + len(self._bodies) + len(self._at_offset)

    def when_applied(self, offset: int, call: Callable[[], None]) -> None:
        """Call as soon as the record at this offset has been applied."""
        if offset <= self.offset:
            call()
        else:
            heappush(self._at_offset, (offset, next(self._numbers), call))

    def _call_those_at(self, offset: int) -> None:
        while self._at_offset and self._at_offset[0][0] <= offset:
            heappop(self._at_offset)[2]()

    # -- what this node commits

    def take_own(self, appends: Sequence[Append], results: Sequence[Result], now: float) -> None:
        """Own records are committed: apply each when its turn comes."""
        if self._is_of_another_epoch(results[: len(appends)]):
            self.listener.on_epoch_changed()
            return
        if self._is_run(appends, results):
            self._apply_run(self.offset + 1, appends, now)
            return
        for append, result in zip(appends, results, strict=False):
            if type(result) is not Fresh:
                self.drop_bodies((append,))
                continue
            offset = result.position.offset
            if offset == self.offset + 1:
                self._apply_one(offset, append, now)
            elif offset > self.offset:
                self._ahead[offset] = append
        if self._ahead:
            self._apply_ahead(now)

    def _is_of_another_epoch(self, results: Iterable[Result]) -> bool:
        return any(type(result) is Fresh and result.position.epoch != self.epoch for result in results)

    def _is_run(self, appends: Sequence[Append], results: Sequence[Result]) -> bool:
        """Whether all of them are new messages that follow on what was applied, with their bodies in the rows."""
        first, last = results[0], results[len(appends) - 1]
        if type(first) is not Fresh or first.position.offset != self.offset + 1:
            return False
        if type(last) is not Fresh or last.position.offset != self.offset + len(appends):
            return False
        return all(append.kind == MESSAGE and append.envelope.blob is None for append in appends)

    def _apply_run(self, first: int, appends: Sequence[Append], now: float) -> None:
        assert first > self.offset, IN_ORDER
        self.offset = first + len(appends) - 1
        self.on_messages(first, appends, now)
        if self._at_offset:
            self._call_those_at(first + len(appends) - 1)
        if self._ahead:
            self._apply_ahead(now)

    def keep_body(self, body: bytes, mint: Callable[[float], str], now: float) -> tuple[Blob | None, list[PutBlob]]:
        """What stands in the row for a body that is too large for it, and its chunks. The body is kept until its record
        is applied, or `drop_bodies` says that it will not be."""
        if len(body) <= DATA_INLINE_BYTES_MAX:
            return None, []
        blob = Blob(f"{self.stream}/{mint(now)}", len(body))
        self._bodies[blob.name] = body
        return blob, chunks_of(blob, body)

    def drop_bodies(self, appends: Iterable[Append]) -> None:
        for append in appends:
            if append.envelope.blob is not None:
                self._bodies.pop(append.envelope.blob.name, None)

    @property
    def bodies(self) -> int:
        return len(self._bodies)

    # -- what others commit

    def read_on(self) -> None:
        """Read what is new. A read that is under way may have looked too early, so there is another one after it."""
        if self._is_reading:
            self._reads_again = True
            return
        self._is_reading, self._reads_again = True, False
        self._reads += 1
        self.read_after(self.offset, self._read)

    def read_to_end(self) -> int:
        """The number of a read: all that stands in the stream now is applied when this read, or a later one, has come
        to its end. One that is under way may have looked too early; all who ask meanwhile share the one after it."""
        number = self._reads + 1
        self.read_on()
        return number

    def _read(self, found: Found, now: float) -> None:
        assert self._is_reading
        self._is_reading = False
        if isinstance(found, ReadTrimmed):
            if found.first.offset - 1 > self.offset:
                is_first = self.offset == self._begin
                self._begin = self.offset = found.first.offset - 1
                self.listener.on_gap(found.first.offset, is_first)
            self.read_on()
        elif isinstance(found, ReadFailed):
            self.listener.on_end(None, now)
        else:
            self._apply_to_end(found, now)

    def _apply_to_end(self, records: Sequence[Record], now: float) -> None:
        # taken before the records are applied: who asks meanwhile needs another read, which begins then
        number = self._reads
        self._apply_records(records, now)
        self.listener.on_end(number if len(records) < self.rows else 0, now)

    def _apply_records(self, records: Sequence[Record], now: float) -> None:
        """A read continues where this node stands, also where a new epoch has left a gap in the numbers."""
        new = [record for record in records if record.position.offset > self.offset]
        for (is_plain, _), found in groupby(enumerate(new), _in_a_row):
            alike = [record for _, record in found]
            if is_plain:
                assert alike[0].position.offset > self.offset, IN_ORDER
                self.offset = alike[-1].position.offset
                self.on_messages(alike[0].position.offset, list(map(of_record, alike)), now)
                self._call_those_at(self.offset)
                continue
            for record in alike:
                if record.body is not None and record.envelope.blob is not None:
                    self._bodies[record.envelope.blob.name] = record.body
                self._apply_one(record.position.offset, of_record(record), now)
        self._apply_ahead(now)
        if len(records) == self.rows or self._reads_again:
            self.read_on()

    def _apply_ahead(self, now: float) -> None:
        while (following := self._ahead.get(self.offset + 1)) is not None:
            self._apply_one(self.offset + 1, following, now)
        self._ahead = {offset: append for offset, append in self._ahead.items() if offset > self.offset}
        if self._ahead:
            if len(self._ahead) > AHEAD_MAX:
                self._ahead = {}
            self.read_on()

    def _apply_one(self, offset: int, append: Append, now: float) -> None:
        assert offset > self.offset, IN_ORDER
        self.offset = offset
        blob = append.envelope.blob
        self.listener.on_record(offset, append, self._bodies.pop(blob.name, None) if blob is not None else None, now)
        self._call_those_at(offset)

    # -- reads

    def read_after(self, offset: int, found: Callable[[Found, float], None], limit: int | None = None) -> None:
        self._asked.ask((offset, limit or self.rows), found)

    def _ask_after(self, offset: int, limit: int) -> None:
        self._ask(Read(self.stream, Position(self.stream, self.epoch, offset), limit, wait=False, bodies=True))

    def receive_read(self, answer: ReadDone | ReadTrimmed | ReadFailed, now: float) -> None:
        assert answer.after is not None
        found: Found = answer.records if isinstance(answer, ReadDone) else answer
        for then in self._asked.answered((answer.after.offset, answer.limit)):
            then(found, now)
