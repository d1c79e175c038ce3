"""What an application is made of, and how messages get into it. `app.App` adds how it runs."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Unpack

import msgspec

from semel.auth.keys import parse_connection_string
from semel.errors import ConfigError, InputError, MessageRefused, StaleFence, StoreBusy, StoreError
from semel.inbox.cron import Schedule
from semel.inbox.endpoint import EndpointMode, EndpointOptions, StylePolicy, keep_warning
from semel.inbox.failure import FailureRule, FailureRules, on
from semel.inbox.following import FollowedStream
from semel.inbox.identity import Identity, IdentityMode, identify, identify_id, inbox_hop
from semel.inbox.inline import KEEPING_S
from semel.inbox.messages import Attributes, envelope_of, type_name
from semel.inbox.outbox import outbox_queue, parse_destination
from semel.inbox.reservation import as_message
from semel.kernel.envelope import Envelope, mint_id
from semel.kernel.ledger import Event, Kind, message_event
from semel.kernel.ops import (
    KEEP_S,
    Applied,
    Duplicate,
    Enqueue,
    Finish,
    Fresh,
    Log,
    Op,
    Put,
    Remember,
    Result,
    WorkState,
)
from semel.kernel.store import Store
from semel.kernel.text import clean_cause
from semel.runtime.host.lease_holder import commit_unit
from semel.runtime.host.performer import steady_clock
from semel.runtime.inbox import owners
from semel.runtime.inbox.endpoint import InboxEndpoint, ReadyHandler, key_of
from semel.runtime.inbox.gate import EndpointGate
from semel.runtime.inbox.handling import HandlerContext
from semel.runtime.inbox.late_marks import LateMarks
from semel.runtime.inbox.outbox import Outbox, apply_outbox, apply_outbox_async
from semel.runtime.inbox.providers import Provider, given_provider, own_providers
from semel.runtime.inbox.relay import Sender
from semel.runtime.inbox.settings import needed_store, read_settings
from semel.runtime.transactions import bind
from semel.stores.open import open_store
from semel.stores.points import reach

log = logging.getLogger(__name__)

UNREADABLE_TYPE = "unreadable"
UNREADABLE = on(MessageRefused).dead_letter()
SWEEP_EVERY_S = 60.0
SWEEP_ROWS = 200


class Verdict(StrEnum):
    """What became of a message that was received. It may be acknowledged: it is stored, or its endpoint is one that
    keeps messages in memory."""

    STORED = "stored"
    DUPLICATE = "duplicate"
    BUFFERED = "buffered"


@dataclass(frozen=True, slots=True)
class First:
    """The answer of `app.first`: true for the first one. `result` is what the first one left for its duplicates."""

    is_first: bool
    result: bytes = b""

    def __bool__(self) -> bool:
        return self.is_first


class Application:
    """What an application is made of: endpoints with their handlers, rules, routes, and the store it is kept in.

    `identity` says what makes two messages the same: "id", whichever endpoint they come to, or "id+endpoint". `keep_s`
    is how long a handled message is remembered. `styles` is for handlers at buffered and inline endpoints. `hub` is the
    connection string of the server whose hubs are sent to. What is left out comes from [inbox] of semel.toml, or of the
    file `config`.
    """

    def __init__(
        self,
        store: str | Store | None = None,
        *,
        name: str = "app",
        identity: str = "id",
        keep_s: float | None = None,
        styles: StylePolicy | None = None,
        node: str = "local",
        hub: str | None = None,
        config: str | Path | None = None,
    ) -> None:
        self.settings = read_settings(config)
        store = store if store is not None else needed_store(self.settings)
        hub = hub if hub is not None else self.settings.hub
        self.name = name
        self.mode = _mode(identity)
        self.keep_s = keep_s or self.settings.keep_s or KEEP_S
        self.styles = styles or StylePolicy()
        self.endpoints: dict[str, InboxEndpoint] = {}
        self.rules: tuple[FailureRule, ...] = ()
        self.routes: dict[str, str] = {}
        self.senders: dict[str, Sender] = {}
        self.periodic: list[Periodic] = []
        self.follows: list[FollowedStream] = []
        self._set_up: set[tuple[str, str]] = set()
        self.hub = parse_connection_string(hub) if hub is not None else None
        self.clock = steady_clock()
        self.buffers: dict[str, Any] = {}
        self._gates: dict[str, EndpointGate] = {}
        self.url = store if isinstance(store, str) else store.url
        self._node = node
        self._store: Store | None = None if isinstance(store, str) else store
        self._owns_store = isinstance(store, str)
        self._given: list[Provider] = []
        self._own: list[Provider] | None = None
        self._handlers: dict[str, dict[str, ReadyHandler]] | None = None
        self._registered = 0
        self._scopes: dict[str, str] = {}
        self._opening = threading.Lock()
        self._later = LateMarks(lambda: self.store)
        self._swept_at = time.monotonic()
        outbox_queue(name)

    # -- what the application is made of

    def endpoint(self, name: str, *, errors: Iterable[FailureRule] = (), **options: Any) -> InboxEndpoint:
        """Where messages come in. For the options see `EndpointOptions`; [[inbox.endpoint]] of semel.toml wins."""
        if name in self.endpoints:
            raise ConfigError(f"there are two endpoints {name!r}", fix="add the handlers of both to one of them")
        options = {"keep_s": self.keep_s, **options, **self.settings.endpoints.get(name, {})}
        follows = options.pop("follow", ())
        self.endpoints[name] = InboxEndpoint(EndpointOptions(name, **options), tuple(errors))
        if (warning := keep_warning(self.endpoints[name].options)) is not None:
            log.warning("%s", warning)
        self._handlers = None
        for each in follows:
            self.follow(name, **each)
        self._set_up |= {(name, each.name) for each in self.follows if each.endpoint == name}
        return self.endpoints[name]

    def follow(
        self,
        endpoint: str,
        stream: str,
        *,
        store: str | None = None,
        group: str | Iterable[str] = (),
        start: str = "earliest",
        name: str = "",
    ) -> None:
        """Let a durable endpoint take the messages of a stream, such as hub/chat: of this store, or of the one whose
        URL is given. `start` is for the first time: "earliest" takes what is there, "latest" only what is new. Give a
        `name` if an endpoint follows two streams of one name."""
        self._durable(endpoint)
        groups = (group,) if isinstance(group, str) else tuple(group)
        options = FollowedStream(endpoint, stream, store, groups, start, name)
        if (endpoint, options.name) in self._set_up:
            return  # as for every option: who runs the application has the last word
        if any((each.endpoint, each.name) == (endpoint, options.name) for each in self.follows):
            raise ConfigError(
                f"endpoint {endpoint!r} follows {options.name!r} twice", fix="give one of them another name: name="
            )
        self.follows.append(options)

    def errors(self, *rules: FailureRule) -> None:
        """Rules for the failures of all handlers; those of a handler and of its endpoint come first."""
        self.rules += rules

    def provide(self, kind: type, begin: Any) -> None:
        """Let handlers ask for a transaction of this type. `begin` opens one: sessions.begin, engine.begin."""
        self._given.append(given_provider(kind, begin))
        self._handlers = None

    def route(self, message: type | str, *, to: str) -> None:
        """Where messages of a type go when `publish` does not say it."""
        parse_destination(to)
        self.routes[message if isinstance(message, str) else type_name(message)] = to

    def sender(self, name: str, send: Sender) -> None:
        """Who sends to a destination outside: "hub", "url", or the name of a broker."""
        self.senders[name] = send

    def every(
        self, schedule: str, message: Callable[[], object] | object, *, to: str, name: str, tz: Any = None
    ) -> None:
        """Send a message at the times of a cron schedule. However many processes run, each time sends one."""
        self.periodic.append(Periodic(Schedule(name, schedule, tz) if tz else Schedule(name, schedule), message, to))

    # -- the store

    @property
    def store(self) -> Store:
        with self._opening:
            if self._store is None:
                self._store = open_store(self.url, node=self._node)
            return self._store

    @property
    def handlers(self) -> dict[str, dict[str, ReadyHandler]]:
        """By endpoint and type of message. Raises ConfigError for the first that cannot work."""
        registered = sum(each.registered for each in self.endpoints.values())
        if self._handlers is None or self._registered != registered:
            self._registered = registered
            if self._own is None:
                self._own = own_providers(self.store)
            providers: dict[type, Provider] = {}
            for each in (*self._given, *self._own):
                providers.setdefault(each.kind, each)  # what the user brings comes before what we have
            self.claim_endpoints()
            self._handlers = {name: endpoint.ready(providers, self.styles) for name, endpoint in self.endpoints.items()}
        return self._handlers

    def claim_endpoints(self) -> None:
        """Endpoints are of one application each: raises ConfigError for the first that is another's in this store."""
        self._scopes |= owners.claim_endpoints(self.store, self.name, self.endpoints.keys() - self._scopes.keys())

    def rules_for(self, endpoint: InboxEndpoint, handler: ReadyHandler | None) -> FailureRules:
        """What nobody can read will not be readable the next time, whatever a rule for all errors says."""
        own = (UNREADABLE, *handler.errors) if handler is not None else (UNREADABLE,)
        return FailureRules(own, endpoint.errors, self.rules, failed_head=endpoint.options.failed_head)

    def gate(self, endpoint: str) -> EndpointGate:
        """What the endpoint may take in this process."""
        with self._opening:
            if endpoint not in self._gates:
                told = partial(self._tell_breaker, endpoint)
                self._gates[endpoint] = EndpointGate(endpoint, self.endpoints[endpoint].options.breaker, told)
            return self._gates[endpoint]

    def _tell_breaker(self, endpoint: str, until: float | None) -> None:
        """For `semel inbox status`, as well as it goes: whoever reports it waits for nothing."""
        value = None if until is None else str(round(until * 1_000_000)).encode()
        threading.Thread(
            target=self._put_breaker, args=(breaker_key(self.name, endpoint), value), name="semel-breaker", daemon=True
        ).start()

    def _put_breaker(self, key: str, value: bytes | None) -> None:
        with suppress(StoreError):
            commit_unit(self.store, (Put(key, value),))

    @property
    def context(self) -> HandlerContext:
        return HandlerContext(self.name, self.store, self.routes, now_us, mint, self.endpoints)

    def close(self) -> None:
        """Close what this application has opened. Marks that are still to be written get a last try."""
        self._later.close()
        for provider in self._own or ():
            provider.close()
        with self._opening:
            if self._store is not None and self._owns_store:
                self._store.close()
            self._store, self._own, self._handlers = None if self._owns_store else self._store, None, None

    # -- messages in

    def send(
        self,
        message: object,
        to: str,
        *,
        id: str | None = None,
        key: str | None = None,
        after_s: float | None = None,
        **attributes: Unpack[Attributes],
    ) -> tuple[str, Verdict]:
        """Store a message at an endpoint, in a commit of its own. Returns its id and whether it is new."""
        envelope = envelope_of(message, id if id is not None else mint(), **attributes)
        due = None if after_s is None else now_us() + round(after_s * 1_000_000)
        handler = self.handlers[self._durable(to).name].get(envelope.type)
        if handler is None:
            raise InputError(
                f"no handler at {to!r} knows messages of type {envelope.type!r}",
                fix=f"add one: @{to}.on(...), or send it to the endpoint that has it",
            )
        if isinstance(message, Envelope):
            handler.message_of(envelope)  # refused here, where its sender sees it
        return envelope.id, self._commit([self.enqueue(to, envelope, key=key, due=due)])[0]

    def receive(self, endpoint: str, envelopes: Sequence[Envelope]) -> list[Verdict]:
        """Store what a transport has brought: one commit for all, then it may acknowledge each of them.

        A message of an unknown type is stored like any other and becomes a dead letter: nothing is lost.
        """
        self._durable(endpoint)
        verdicts = self._commit([self.enqueue(endpoint, envelope) for envelope in envelopes])
        reach("inbox.stored")
        return verdicts

    def keep_unreadable(self, endpoint: str, data: bytes, why: str, **attributes: Unpack[Attributes]) -> str:
        """Keep what a transport has brought and nobody can make a message of: without an id, or not to be decoded. It
        is a dead letter before this returns, so it may be acknowledged. Its id follows from its bytes: brought again,
        it is kept once."""
        attributes.setdefault("type", UNREADABLE_TYPE)
        envelope = Envelope(f"unreadable-{sha256(data).hexdigest()}", data=data, **attributes)
        enqueue = self.enqueue(endpoint, envelope, due=now_us() + round(KEEPING_S * 1_000_000))
        [first] = self._commit_one((enqueue,))
        if isinstance(first, Fresh):
            cause, hop = clean_cause(why), self.check_endpoint(endpoint).options.hop
            dead = Finish(
                enqueue.queue, enqueue.identity, WorkState.DEAD, keep_s=None, cause=cause, was=WorkState.SCHEDULED
            )
            self._commit_one((dead, Log(message_event(Kind.DEAD_LETTERED, hop, "", envelope, cause=cause))))
        return envelope.id

    def mark_later(self, ops: tuple[Op, ...]) -> None:
        """Write a mark once the store is back. Should this process end first, the claim runs out and is ambiguous."""
        self._later.write(ops)

    def enqueue(self, endpoint: str, envelope: Envelope, *, key: str | None = None, due: int | None = None) -> Enqueue:
        """The write that stores a message at an endpoint, if it is new."""
        options, envelope = self.check_endpoint(endpoint).options, as_message(envelope)
        if options.expire_s is not None and envelope.time is None:
            envelope = msgspec.structs.replace(envelope, time=due if due is not None else now_us())
        who = self.identity_of(endpoint, envelope)
        return Enqueue(
            who.queue,
            who.identity,
            envelope,
            key=key if key is not None else self._key(endpoint, envelope),
            due=due,
            scope=who.scope if who.scope != who.queue else None,
            on_fresh=message_event(Kind.ACCEPTED, options.hop, "", envelope),
            on_duplicate=message_event(Kind.DUPLICATE, options.hop, "", envelope),
            log=options.log_stream,
        )

    def identity_of(self, endpoint: str, envelope: Envelope) -> Identity:
        if endpoint not in self._scopes:
            _ = self.handlers  # the store says under whose name its messages are known
        return identify(self._scopes.get(endpoint, self.name), endpoint, envelope, self.mode)

    def _key(self, endpoint: str, envelope: Envelope) -> str | None:
        """A message that cannot be read has no key: it is on its way to the dead letters, and holds nobody up."""
        handler = self.handlers[endpoint].get(envelope.type)
        try:
            return key_of(handler, envelope) if handler is not None else envelope.session
        except Exception:
            return None

    def check_endpoint(self, endpoint: str) -> InboxEndpoint:
        if endpoint not in self.endpoints:
            known = ", ".join(sorted(self.endpoints)) or "none"
            raise InputError(
                f"there is no endpoint {endpoint!r}", fix=f"add it with app.endpoint(); there are: {known}"
            )
        return self.endpoints[endpoint]

    def _durable(self, endpoint: str) -> InboxEndpoint:
        """What is sent to an endpoint is stored; the others take what a transport delivers."""
        found = self.check_endpoint(endpoint)
        if found.options.mode is not EndpointMode.DURABLE:
            raise InputError(
                f"endpoint {endpoint!r} is {found.options.mode} and stores nothing", fix="hand it over by app.deliver()"
            )
        return found

    def _commit_one(self, ops: tuple[Op, ...]) -> tuple[Result, ...]:
        outcome = commit_unit(self.store, ops)
        if not isinstance(outcome, Applied):
            raise StoreBusy("another process has the message just now", fix="bring it again in a moment")
        return outcome.results

    def _commit(self, ops: Sequence[Op]) -> list[Verdict]:
        outcome = commit_unit(self.store, tuple(ops))
        assert isinstance(outcome, Applied), "an enqueue without a guard is never refused"
        return [_verdict(result) for result in outcome.results]

    # -- in transactions of the user

    def first(
        self, connection: Any, endpoint: str, id: str, *, result: bytes = b"", keep_s: float | None = None
    ) -> First:
        """Whether this is the first time that a message is handled, by the user's own open transaction.

        The mark is written with whatever the user writes, and gone with it when that is rolled back. Raises StoreBusy
        when another transaction is handling the same message just now: give it back, or try again later.
        """
        self._sweep_sometimes()
        tx: Any = bind(self.store, connection)
        if inspect.iscoroutinefunction(tx.apply):
            raise InputError(
                f"calls of a {type(connection).__name__} are awaited", fix="use `await app.first_async(...)`"
            )
        if puts := self._owning(endpoint):
            try:
                tx.apply(puts)
            except StaleFence:
                self._owning(endpoint)  # refuses another's; else this transaction itself has written it before
        op = self._remember(endpoint, id, result, keep_s)
        return _first(tx.apply([op], wait=False)[0])

    async def first_async(
        self, connection: Any, endpoint: str, id: str, *, result: bytes = b"", keep_s: float | None = None
    ) -> First:
        """`first` for a connection whose calls are awaited."""
        self._sweep_sometimes()
        tx: Any = bind(self.store, connection)
        if puts := await asyncio.to_thread(self._owning, endpoint):
            try:
                await tx.apply(puts)
            except StaleFence:
                await asyncio.to_thread(self._owning, endpoint)
        op = self._remember(endpoint, id, result, keep_s)
        return _first((await tx.apply([op], wait=False))[0])

    def _owning(self, endpoint: str) -> tuple[Put, ...]:
        """An endpoint without handlers is owned by whoever asks first. What the caller's transaction has to write for
        that may be rolled back with it: it counts when the store has it."""
        if endpoint in self._scopes:
            return ()
        scope, puts = owners.claim_beside(self.store, self.name, endpoint)
        if not puts:
            self._scopes[endpoint] = scope
        return puts

    def _remember(self, endpoint: str, id: str, result: bytes, keep_s: float | None) -> Remember:
        """The endpoint need not have handlers: who calls `first` is one."""
        known = self.endpoints.get(endpoint)
        keep = keep_s if keep_s is not None else known.options.keep_s if known is not None else self.keep_s
        who = identify_id(self._scopes.get(endpoint, self.name), endpoint, id, self.mode)
        hop = inbox_hop(endpoint)
        return Remember(
            who.queue,
            who.identity,
            scope=who.scope if who.scope != who.queue else None,
            keep_s=keep,
            result=result,
            on_fresh=(Event(Kind.ACCEPTED, hop, message=id), Event(Kind.HANDLED, hop, message=id)),
            on_duplicate=Event(Kind.DUPLICATE, hop, message=id),
        )

    @contextmanager
    def outbox(self, connection: Any) -> Iterator[Outbox]:
        """An outbox in the user's own open transaction. What is published in the block is stored at its end, and leaves
        when the user commits."""
        outbox = self.context.outbox("", None)
        tx: Any = bind(self.store, connection)
        if inspect.iscoroutinefunction(tx.apply):
            raise InputError(
                f"calls of a {type(connection).__name__} are awaited", fix="use `async with app.outbox_async(...)`"
            )
        yield outbox
        apply_outbox(tx, outbox)

    @asynccontextmanager
    async def outbox_async(self, connection: Any) -> AsyncIterator[Outbox]:
        """`outbox` for a connection whose calls are awaited."""
        outbox = self.context.outbox("", None)
        yield outbox
        tx: Any = bind(self.store, connection)
        await apply_outbox_async(tx, outbox)

    def _sweep_sometimes(self) -> None:
        """Without a runner nobody else forgets what is past its time. On a thread: the caller's transaction may hold
        the lock that a sweep waits for."""
        now = time.monotonic()
        if now - self._swept_at >= SWEEP_EVERY_S:
            self._swept_at = now
            threading.Thread(target=self._sweep, name="semel-inbox-sweep", daemon=True).start()

    def _sweep(self) -> None:
        try:
            self.store.sweep(now_us(), SWEEP_ROWS)
        except StoreBusy:
            return


@dataclass(frozen=True, slots=True)
class Periodic:
    """A message at the times of a schedule. `message` may be a function, asked each time."""

    schedule: Schedule
    message: Any
    to: str

    def make(self) -> object:
        return self.message() if callable(self.message) and not isinstance(self.message, type) else self.message


def _mode(text: str) -> IdentityMode:
    try:
        return IdentityMode(text)
    except ValueError:
        raise ConfigError(f"identity is {text!r}", fix="use 'id' or 'id+endpoint'") from None


def _verdict(result: Result) -> Verdict:
    assert isinstance(result, Fresh | Duplicate), "an enqueue is new or it is not"
    return Verdict.STORED if isinstance(result, Fresh) else Verdict.DUPLICATE


def _first(result: Result) -> First:
    assert isinstance(result, Fresh | Duplicate), "an identity is new or it is not"
    return First(True) if isinstance(result, Fresh) else First(False, result.result or b"")


def breaker_key(app: str, endpoint: str) -> str:
    """Under which the store has until when a breaker is open."""
    return f"inbox/breaker/{app}/{endpoint}"


def now_us() -> int:
    return time.time_ns() // 1000


def mint() -> str:
    return mint_id(time.time(), os.urandom(10))
