"""Persistent storage between two pipes: whoever writes is confirmed by the store, whoever reads comes back as it likes.

    Publisher  → Push →   StorageService   ← Pull ←  Consumer
               ← Pushed ←  a stream each    → Pulled →
                           an index per client

A chain that confirms by cascade keeps every sender waiting for the last worker. With a store in the middle the first
half ends where the message is durable, and the second half begins again at its index after whatever happened to it.

Requests may be lost, doubled and late. Each has an id that stays the same on every attempt, so an answer fits whichever
attempt it is for, and a repeated push is answered with the place of the first.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from semel.errors import ConfigError, EpochChanged, InputError, SemelError, StoreError, StoreRefused
from semel.kernel.effects import (
    Commit,
    CommitFailed,
    Committed,
    CommitUnknown,
    Effect,
    Event,
    Load,
    Loaded,
    LoadFailed,
    Read,
    ReadDone,
    ReadFailed,
    ReadTrimmed,
    Received,
    Send,
)
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX, Envelope, pack
from semel.kernel.ledger import Event as LedgerEvent
from semel.kernel.ledger import Kind
from semel.kernel.ops import Advanced, Append, Conflict, Duplicate, Fresh, Put, Result
from semel.kernel.position import OFFSET_MAX, Position
from semel.kernel.resend import ResendPolicy
from semel.kernel.retry import RetryPolicy
from semel.kernel.store import Record, State
from semel.kernel.text import check_id, check_stream, check_text, clean_cause, quote_part

WAIT_MAX_S = 3600.0
LOAD_AGAIN_S = 1.0
INDEX_KEY_CHARS_MAX = 1024

NO_STREAM, TRIMMED, EPOCH_CHANGED, FORBIDDEN, BUSY, CHUNKED = (
    "no-stream", "trimmed", "epoch-changed", "forbidden", "busy", "chunked",
)  # fmt: skip
"""Why a request was refused. Only BUSY, and NO_STREAM once it is created, pass by themselves."""


# -- the wire


class Create(msgspec.Struct, frozen=True, tag="storage-create"):
    """Let there be such a stream. To create one that is there is success."""

    request: str
    stream: str


class Created(msgspec.Struct, frozen=True, tag="storage-created"):
    request: str
    stream: str


class Push(msgspec.Struct, frozen=True, tag="storage-push"):
    request: str
    stream: str
    envelope: Envelope


class Pushed(msgspec.Struct, frozen=True, tag="storage-pushed"):
    """It is durable, at this offset; or `error` says why the store will never take it."""

    request: str
    epoch: int = 0
    offset: int | None = None
    error: str | None = None


class Pull(msgspec.Struct, frozen=True, tag="storage-pull"):
    """What comes after an offset; 0 is the start, in whichever epoch. Waits up to `wait_s` for something to come."""

    request: str
    stream: str
    after: int = 0
    epoch: int = 0
    limit: int = 10
    wait_s: float = 0.0

    def __post_init__(self) -> None:
        _check_number("after", self.after)
        _check_number("limit", self.limit)
        if not 0 <= self.wait_s < math.inf:
            raise InputError(f"wait_s is {self.wait_s}", fix="give 0 or more seconds")


class Pulled(msgspec.Struct, frozen=True, tag="storage-pulled"):
    """Offsets with their messages, in order. `end`: there was nothing more when the store looked."""

    request: str
    epoch: int
    entries: tuple[tuple[int, Envelope], ...]
    end: bool


class SaveIndex(msgspec.Struct, frozen=True, tag="storage-save-index"):
    """Remember how far a client has come. An index never goes back, unless `reset` says that it is meant."""

    request: str
    client: str
    stream: str
    epoch: int
    index: int
    reset: bool = False

    def __post_init__(self) -> None:
        _check_number("index", self.index)


class GetIndex(msgspec.Struct, frozen=True, tag="storage-get-index"):
    request: str
    client: str
    stream: str


class IndexIs(msgspec.Struct, frozen=True, tag="storage-index-is"):
    """Where the index stands now, durably. 0 when nobody has saved one."""

    request: str
    epoch: int
    index: int


class StorageRefused(msgspec.Struct, frozen=True, tag="storage-refused"):
    """`first` is the first offset that is left of a trimmed stream; `epoch` the one that the store is in."""

    request: str
    reason: str
    epoch: int = 0
    first: int | None = None


STORAGE_TYPES = (Create, Created, Push, Pushed, Pull, Pulled, SaveIndex, GetIndex, IndexIs, StorageRefused)
StorageWire = Create | Created | Push | Pushed | Pull | Pulled | SaveIndex | GetIndex | IndexIs | StorageRefused
Request = Create | Push | Pull | SaveIndex | GetIndex


def _check_number(what: str, value: int) -> None:
    if not 0 <= value <= OFFSET_MAX:
        raise InputError(f"{what} is {value}", fix="give a number from 0 to 2^53-1")


class ReadPlace(msgspec.Struct, frozen=True, order=True):
    """How far somebody has come. A later epoch comes after every place of an earlier one."""

    epoch: int = 0
    offset: int = 0

    def encode(self) -> bytes:
        return f"{self.epoch}:{self.offset}".encode()


def decode_place(state: State | None) -> ReadPlace:
    if state is None:
        return ReadPlace()
    epoch, _, offset = state.value.decode().partition(":")
    return ReadPlace(int(epoch), int(offset))


# -- the service


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """`prefix` is all that strangers may reach: streams below it. Everything that waits is bounded: `pull_max` records
    and `pull_bytes_max` bytes in one answer, `waiting_max` reads in all and `waiting_per_peer` of one peer,
    `pushes_max` pushes on their way into the store, `indexing_max` questions about one index."""

    name: str
    prefix: str
    hop: str = ""
    pipeline: str = ""
    streams_max: int = 1000
    pull_max: int = 100
    pull_bytes_max: int = DATA_INLINE_BYTES_MAX
    wait_min_s: float = 0.05
    wait_max_s: float = 30.0
    waiting_max: int = 1000
    waiting_per_peer: int = 20
    pushes_max: int = 1000
    indexing_max: int = 100

    def __post_init__(self) -> None:
        check_id("storage service", self.name)
        if not self.prefix.endswith("/"):
            raise ConfigError(f"prefix {self.prefix!r} is no folder of streams", fix="end it in /, as in pipe/orders/")
        if not 0 < self.wait_min_s <= self.wait_max_s <= WAIT_MAX_S:
            raise ConfigError(
                f"pulls wait {self.wait_min_s}..{self.wait_max_s} s", fix=f"use 0 < min <= max <= {WAIT_MAX_S:.0f}"
            )

    @property
    def key(self) -> str:
        return f"storage/{self.name}"


Key = tuple[str, Position | None]
"""A stream, and the place in it after which is read."""


@dataclass(slots=True, eq=False)
class _Reading:
    """A read under way. It counts for the peer that began it until the store has something to say, whether or not
    anybody still waits: an empty read cannot be called back, only joined."""

    owner: str
    waiting: dict[tuple[str, str], Pull] = field(default_factory=dict)


class StorageService:
    """The store S. It answers from completions only: `Pushed` from `Committed`, `Pulled` from a read."""

    def __init__(self, config: StorageConfig) -> None:
        self.name = config.name
        self.config = config
        self._token = 0
        self._streams: set[str] | None = None
        self._version = 0
        self._early: deque[Received] = deque(maxlen=config.pushes_max)
        self._load_at: float | None = None
        self._wanted: dict[str, list[tuple[str, str]]] = {}
        self._creating: tuple[int, set[str]] | None = None
        self._pushing: dict[int, tuple[str, Push]] = {}
        self._undecided: set[tuple[str, str]] = set()
        self._readings: dict[Key, _Reading] = {}
        self._reads_of: Counter[str] = Counter()
        self._pulls: dict[tuple[str, str], tuple[float, Key]] = {}
        self._pulls_of: Counter[str] = Counter()
        self._ends: list[tuple[float, tuple[str, str]]] = []
        self._indexing: dict[str, deque[tuple[str, SaveIndex | GetIndex]]] = {}
        self._saving: dict[int, tuple[str, ReadPlace]] = {}

    def start(self, now: float) -> Sequence[Effect]:
        return [Load(self.config.key)]

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        match event:
            case Received(peer=peer, message=Create() | Push() | Pull() | SaveIndex() | GetIndex() as request):
                if self._streams is None:
                    self._early.append(event)
                    return ()
                return self._asked(peer, request, now)
            case Committed(token=token, results=results):
                return self._committed(token, results)
            case CommitFailed(token=token, results=results, error=error):
                return self._not_committed(token, results, error, now)
            case CommitUnknown(token=token):
                return self._not_committed(token, (), None, now)
            case ReadDone(stream=stream, records=records, after=after):
                return self._found((stream, after), records)
            case ReadTrimmed(stream=stream, first=first, after=after):
                return self._refuse_all((stream, after), TRIMMED, first.epoch, first.offset)
            case ReadFailed(stream=stream, error=EpochChanged(current=current), after=after):
                return self._refuse_all((stream, after), EPOCH_CHANGED, current)
            case ReadFailed(stream=stream, after=after):
                return self._refuse_all((stream, after), BUSY)
            case Loaded(key=key, state=state) if key == self.config.key:
                return self._knows(state, now)
            case Loaded(key=key, state=state):
                return self._go_on(key, decode_place(state), state.version if state is not None else 0)
            case LoadFailed(key=key) if key == self.config.key:
                self._load_at = now + LOAD_AGAIN_S
            case LoadFailed(key=key):
                self._indexing.pop(key, None)
        return ()

    def next_deadline(self) -> float | None:
        while self._ends and self._pulls.get(self._ends[0][1], (None,))[0] != self._ends[0][0]:
            heapq.heappop(self._ends)
        deadlines = (self._ends[0][0] if self._ends else None, self._load_at)
        return min((at for at in deadlines if at is not None), default=None)

    def on_timer(self, now: float) -> Sequence[Effect]:
        """A pull that has waited long enough is answered with nothing; the read goes on for the next one."""
        effects: list[Effect] = []
        if self._load_at is not None and now >= self._load_at:
            self._load_at = None
            effects.append(Load(self.config.key))
        while self.next_deadline() is not None and self._ends and self._ends[0][0] <= now:
            peer, request = heapq.heappop(self._ends)[1]
            pull = self._forget_pull(peer, request)
            effects.append(Send(peer, Pulled(request, pull.epoch, (), end=True)))
        return effects

    # -- requests

    def _asked(self, peer: str, request: Request, now: float) -> Sequence[Effect]:
        assert self._streams is not None
        if not self._may_reach(request):
            return [Send(peer, StorageRefused(request.request, FORBIDDEN))]
        if isinstance(request, Create):
            return self._create(peer, request)
        if request.stream not in self._streams:
            return [Send(peer, StorageRefused(request.request, NO_STREAM))]
        match request:
            case Push():
                return self._push(peer, request)
            case Pull():
                return self._pull(peer, request, now)
        return self._index(peer, request)

    def _may_reach(self, request: Request) -> bool:
        """Names that a ledger and a store would refuse are refused here, where that harms nobody else."""
        try:
            check_id("request", request.request)
            check_id("stream", check_stream(request.stream))
            if isinstance(request, SaveIndex | GetIndex):
                check_text("index", self._index_key(request), chars_max=INDEX_KEY_CHARS_MAX)
        except InputError:
            return False
        return request.stream.startswith(self.config.prefix)

    def _next_token(self) -> int:
        self._token += 1
        return self._token

    # -- streams

    def _create(self, peer: str, request: Create) -> list[Effect]:
        assert self._streams is not None
        if request.stream in self._streams:
            return [Send(peer, Created(request.request, request.stream))]
        if request.stream not in self._wanted and len(self._streams | set(self._wanted)) >= self.config.streams_max:
            return [Send(peer, StorageRefused(request.request, FORBIDDEN))]
        asking = self._wanted.setdefault(request.stream, [])
        if (peer, request.request) not in asking and len(asking) < self.config.waiting_max:
            asking.append((peer, request.request))
        return self._create_wanted()

    def _create_wanted(self) -> list[Effect]:
        if self._creating is not None or not self._wanted or self._streams is None:
            return []
        streams = self._streams | set(self._wanted)
        self._creating = self._next_token(), streams
        put = Put(self.config.key, "\n".join(sorted(streams)).encode(), expected=self._version)
        return [Commit((put,), self._creating[0], chain=None)]

    def _created(self, results: Sequence[Result]) -> list[Effect]:
        assert self._creating is not None
        assert isinstance(results[0], Advanced)
        self._streams, self._creating = self._creating[1], None
        self._version = results[0].version or 0
        return [*self._answer_created(), *self._create_wanted()]

    def _answer_created(self) -> list[Effect]:
        assert self._streams is not None
        there = [stream for stream in self._wanted if stream in self._streams]
        return [Send(peer, Created(request, stream)) for stream in there for peer, request in self._wanted.pop(stream)]

    def _knows(self, state: State | None, now: float) -> list[Effect]:
        """What the store holds. A second service on it may have created streams that this one does not know."""
        if self._creating is not None:
            return []
        self._streams = set(state.value.decode().split("\n")) if state is not None else set()
        self._version = state.version if state is not None else 0
        effects = [*self._answer_created(), *self._create_wanted()]
        while self._early:
            early = self._early.popleft()
            effects += self._asked(early.peer, early.message, now)
        return effects

    # -- pushes

    def _push(self, peer: str, push: Push) -> list[Effect]:
        """A second copy of an undecided push is dropped: the first one's completion will answer it."""
        if (peer, push.request) in self._undecided or len(self._pushing) >= self.config.pushes_max:
            return []
        if push.envelope.blob is not None:
            return [Send(peer, Pushed(push.request, error="its body is kept in chunks, which cannot cross a hop"))]
        token = self._next_token()
        self._pushing[token] = peer, push
        self._undecided.add((peer, push.request))
        # in one chain per peer, so that after a failure nothing of it lands out of turn
        return [Commit((self._append(push),), token, chain=f"{peer}/{push.stream}")]

    def _append(self, push: Push) -> Append:
        envelope, hop = push.envelope, self.config.hop or f"{self.name}>{push.stream}"
        duplicate = LedgerEvent(
            Kind.DUPLICATE,
            hop,
            self.config.pipeline,
            message=envelope.id,
            delivery=push.request,
            session=envelope.session,
            idx=envelope.index,
        )
        accepted = LedgerEvent(Kind.ACCEPTED, hop, self.config.pipeline)
        return Append(push.stream, envelope, identity=envelope.id, on_fresh=accepted, on_duplicate=duplicate)

    def _forget_push(self, token: int) -> tuple[str, Push]:
        peer, push = self._pushing.pop(token)
        self._undecided.discard((peer, push.request))
        return peer, push

    def _committed(self, token: int, results: Sequence[Result]) -> list[Effect]:
        if token in self._saving:
            key, place = self._saving.pop(token)
            assert isinstance(results[0], Advanced)
            return self._go_on(key, place, results[0].version or 0)
        if self._creating is not None and token == self._creating[0]:
            return self._created(results)
        peer, push = self._forget_push(token)
        assert isinstance(results[0], Fresh | Duplicate)
        position = results[0].position
        return [Send(peer, Pushed(push.request, position.epoch, position.offset))]

    def _not_committed(
        self, token: int, results: Sequence[Result], error: SemelError | None, now: float
    ) -> list[Effect]:
        """Silence, so that the request comes again; only what the store will never take is answered."""
        if token in self._saving:
            key, _ = self._saving.pop(token)
            if any(isinstance(result, Conflict) for result in results):
                return [Load(key)]
            self._indexing.pop(key, None)
            return []
        if self._creating is not None and token == self._creating[0]:
            self._creating = None
            self._load_at = now if any(isinstance(result, Conflict) for result in results) else now + LOAD_AGAIN_S
            return []
        peer, push = self._forget_push(token)
        return [Send(peer, Pushed(push.request, error=clean_cause(str(error))))] if is_refusal(error) else []

    # -- pulls

    def _pull(self, peer: str, pull: Pull, now: float) -> list[Effect]:
        if (peer, pull.request) in self._pulls:
            return []
        after = Position(pull.stream, pull.epoch, pull.after) if pull.after else None
        key = pull.stream, after
        reading = self._readings.get(key)
        if self._pulls_of[peer] >= self.config.waiting_per_peer or (reading is None and not self._may_read(peer)):
            return [Send(peer, StorageRefused(pull.request, BUSY))]
        effects: list[Effect] = []
        if reading is None:
            reading = self._readings[key] = _Reading(peer)
            self._reads_of[peer] += 1
            effects.append(Read(pull.stream, after, self.config.pull_max))
        reading.waiting[peer, pull.request] = pull
        self._pulls_of[peer] += 1
        end = now + min(max(pull.wait_s, self.config.wait_min_s), self.config.wait_max_s)
        self._pulls[peer, pull.request] = end, key
        heapq.heappush(self._ends, (end, (peer, pull.request)))
        return effects

    def _may_read(self, peer: str) -> bool:
        mine = self._reads_of[peer]
        return mine < self.config.waiting_per_peer and len(self._readings) < self.config.waiting_max

    def _forget_pull(self, peer: str, request: str) -> Pull:
        _, key = self._pulls.pop((peer, request))
        _less(self._pulls_of, peer)
        return self._readings[key].waiting.pop((peer, request))

    def _waiting(self, key: Key) -> list[tuple[str, Pull]]:
        """Those who wait for this read, which is over."""
        reading = self._readings.get(key)
        if reading is None:
            return []
        pulls = [(peer, self._forget_pull(peer, request)) for peer, request in list(reading.waiting)]
        del self._readings[key]
        _less(self._reads_of, reading.owner)
        return pulls

    def _found(self, key: Key, records: Sequence[Record]) -> list[Effect]:
        return [Send(peer, self._pulled(pull, records)) for peer, pull in self._waiting(key)]

    def _pulled(self, pull: Pull, records: Sequence[Record]) -> Pulled | StorageRefused:
        """As much as fits, and at least one. A body in chunks cannot cross a hop: nothing after it goes before it."""
        entries: list[tuple[int, Envelope]] = []
        room = self.config.pull_bytes_max
        for record in records[: max(1, pull.limit)]:
            room -= len(pack(record.envelope))
            if record.envelope.blob is not None or (entries and room < 0):
                break
            entries.append((record.position.offset, record.envelope))
        epoch = records[0].position.epoch
        if not entries:
            return StorageRefused(pull.request, CHUNKED, epoch, records[0].position.offset)
        end = len(entries) == len(records) < self.config.pull_max
        return Pulled(pull.request, epoch, tuple(entries), end)

    def _refuse_all(self, key: Key, reason: str, epoch: int = 0, first: int | None = None) -> list[Effect]:
        return [Send(peer, StorageRefused(pull.request, reason, epoch, first)) for peer, pull in self._waiting(key)]

    # -- the index of each client

    def _index(self, peer: str, request: SaveIndex | GetIndex) -> list[Effect]:
        """One after the other for each client and stream, so that what is compared is what is written over."""
        key = self._index_key(request)
        queue = self._indexing.setdefault(key, deque())
        if len(queue) >= self.config.indexing_max or (peer, request) in queue:
            return []
        queue.append((peer, request))
        return [Load(key)] if len(queue) == 1 else []

    def _index_key(self, request: SaveIndex | GetIndex) -> str:
        return f"{self.config.key}/index/{quote_part(request.client)}/{request.stream}"

    def _go_on(self, key: str, stands: ReadPlace, version: int) -> list[Effect]:
        """Answer who waits, until somebody wants the index moved."""
        queue = self._indexing.get(key, deque())
        effects: list[Effect] = []
        while queue:
            peer, request = queue[0]
            if isinstance(request, SaveIndex) and _moves(request, stands):
                return [*effects, self._save(key, ReadPlace(request.epoch, request.index), version)]
            queue.popleft()
            effects.append(Send(peer, IndexIs(request.request, stands.epoch, stands.offset)))
        self._indexing.pop(key, None)
        return effects

    def _save(self, key: str, place: ReadPlace, version: int) -> Commit:
        token = self._next_token()
        self._saving[token] = key, place
        return Commit((Put(key, place.encode(), expected=version),), token, chain=None)


def until_answered(timeout_s: float) -> ResendPolicy:
    """How a client asks: one question at a time, again and again."""
    retry = RetryPolicy(interval_s=timeout_s, factor=1.5, interval_max_s=max(60.0, timeout_s))
    return ResendPolicy(1, timeout_s, retry)


def is_refusal(error: SemelError | None) -> bool:
    """Whether the data is at fault rather than the store: trying again gives the same answer."""
    return isinstance(error, StoreRefused) or (error is not None and not isinstance(error, StoreError))


def _less(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]


def _moves(request: SaveIndex, stands: ReadPlace) -> bool:
    wanted = ReadPlace(request.epoch, request.index)
    return wanted != stands if request.reset else wanted > stands
