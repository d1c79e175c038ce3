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
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Unpack

import msgspec

from semel.auth.keys import parse_connection_string
from semel.errors import ConfigError, InputError, MessageRefused, StaleFence, StoreBusy, StoreError, TransactionEnded
from semel.inbox.cron import Schedule
from semel.inbox.endpoint import EndpointMode, EndpointOptions, StylePolicy, is_seconds, keep_warning
from semel.inbox.failure import FailureRule, FailureRules, check_rules, on
from semel.inbox.following import FollowedStream
from semel.inbox.identity import Identity, IdentityMode, first_envelope, identify, inbox_hop
from semel.inbox.inline import KEEPING_S
from semel.inbox.messages import Attributes, check_envelope, envelope_of, in_us, type_name
from semel.inbox.outbox import HUB_KEEP_S, Destination, DestinationKind, check_broker, outbox_queue, parse_destination
from semel.inbox.reservation import as_message
from semel.inbox.sources import check_broker_url
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
from semel.runtime.inbox.call_sweeper import CallSweeper
from semel.runtime.inbox.endpoint import InboxEndpoint, ReadyHandler, key_of, key_text
from semel.runtime.inbox.forks import forget_in_children
from semel.runtime.inbox.gate import EndpointGate
from semel.runtime.inbox.handling import HandlerContext
from semel.runtime.inbox.late_marks import LateMarks
from semel.runtime.inbox.outbox import Outbox, apply_outbox, apply_outbox_async
from semel.runtime.inbox.providers import Provider, given_provider, own_providers
from semel.runtime.inbox.relay import Sender
from semel.runtime.inbox.settings import check_not_the_servers, needed_store, read_settings
from semel.runtime.inbox.telemetry import InboxTelemetry, opentelemetry_spans
from semel.runtime.transactions import bind
from semel.stores.open import open_store
from semel.stores.points import reach

log = logging.getLogger(__name__)

UNREADABLE_TYPE = "unreadable"
NEVER_AGAIN = on(MessageRefused, TransactionEnded).dead_letter()


class Verdict(StrEnum):
    """What became of a message that was received. It may be acknowledged: it is stored, or its endpoint is one that
    keeps messages in memory."""

    STORED = "stored"
    DUPLICATE = "duplicate"
    BUFFERED = "buffered"


@dataclass(slots=True)
class First:
    """The answer of `app.first`: true for the first one. `result` is what the first one left for its duplicates."""

    is_first: bool
    result: bytes = b""
    _mark: FirstMark | None = field(default=None, repr=False, compare=False)

    def __bool__(self) -> bool:
        return self.is_first

    def keep(self, result: bytes) -> None:
        """Leave a result for the duplicates, in the same transaction as the mark: at most 4,096 bytes."""
        mark = self._own_mark()
        kept = mark.tx.keep_result(mark.scope, mark.identity, result)
        if asyncio.iscoroutine(kept):
            kept.close()
            raise InputError("the calls of this connection are awaited", fix="use `await first.keep_async(...)`")
        self._check_kept(kept, result)

    async def keep_async(self, result: bytes) -> None:
        """`keep` for the answer of `first_async`."""
        mark = self._own_mark()
        self._check_kept(await mark.tx.keep_result(mark.scope, mark.identity, result), result)

    def _own_mark(self) -> FirstMark:
        if self._mark is None:
            raise InputError("a duplicate has its result already", fix="keep one only `if first:`")
        return self._mark

    def _check_kept(self, is_kept: bool, result: bytes) -> None:
        if not is_kept:
            raise InputError(
                "the transaction of the mark has ended",
                fix="keep the result before the commit, or after another first()",
            )
        self.result = result


@dataclass(frozen=True, slots=True)
class FirstMark:
    """What the first one has written, and in which transaction."""

    tx: Any
    scope: str
    identity: str


class Application:
    """What an application is made of: endpoints with their handlers, rules, routes, and the store it is kept in.

    `identity` says what makes two messages the same: "id", whichever endpoint they come to, or "id+endpoint". `keep_s`
    is how long a handled message is remembered. `styles` is for handlers at buffered and inline endpoints. `hub` is the
    connection string of the server whose hubs are sent to, `nats` and `amqp` are the URLs of brokers. What is left out
    comes from [inbox] of semel.toml, or of the file `config`.
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
        nats: str | None = None,
        amqp: str | None = None,
        config: str | Path | None = None,
    ) -> None:
        self.settings = read_settings(config)
        store = store if store is not None else needed_store(self.settings)
        hub = hub if hub is not None else self.settings.hub
        self.name = name
        self.mode = _mode(identity)
        self.keep_s = check_keep(next(each for each in (keep_s, self.settings.keep_s, KEEP_S) if each is not None))
        self.styles = _policy(styles)
        self.endpoints: dict[str, InboxEndpoint] = {}
        self.rules: tuple[FailureRule, ...] = ()
        self.routes: dict[str, str] = {}
        self.senders: dict[str, Sender] = {}
        self.memories: dict[str, float] = {}
        self.periodic: list[Periodic] = []
        self.follows: list[FollowedStream] = []
        self._set_up: set[tuple[str, str]] = set()
        self.hub = parse_connection_string(hub) if hub is not None else None
        given = {kind: url for kind, url in (("nats", nats), ("amqp", amqp)) if url is not None}
        self.brokers = {kind: check_broker_url(kind, url) for kind, url in (self.settings.brokers | given).items()}
        self.listens: dict[str, Any] = {}
        self.clock = steady_clock()
        self.telemetry = InboxTelemetry()
        self.url = store if isinstance(store, str) else store.url
        check_not_the_servers(self.settings, self.url)
        self._node = node
        self._store: Store | None = None if isinstance(store, str) else store
        self._owns_store = isinstance(store, str)
        self._given: list[Provider] = []
        self._own: list[Provider] | None = None
        self._handlers: dict[str, dict[str, ReadyHandler]] | None = None
        self._registered = 0
        self._scopes: dict[str, str] = {}
        self._is_forked = False
        self._begin_process()
        outbox_queue(name)
        forget_in_children(self)
        if self.settings.tracing:
            self.trace()

    def _begin_process(self) -> None:
        """What belongs to this process and to no other."""
        self.buffers: dict[str, Any] = {}
        self._gates: dict[str, EndpointGate] = {}
        self._opening = threading.Lock()
        self._later = LateMarks(lambda: self.store)
        self._sweeper = CallSweeper(lambda: self.store)

    def forget_parent(self) -> object:
        """For `forks`: in a child, everything that is open is its parent's."""
        left = (self._store, self._own, self._handlers, self._later, self._sweeper, self.buffers)
        self._own = self._handlers = None
        if self._owns_store:
            self._store = None
        else:
            self._is_forked = True
        self._begin_process()
        return left

    # -- what the application is made of

    def endpoint(self, name: str, *, errors: Iterable[FailureRule] = (), **options: Any) -> InboxEndpoint:
        """Where messages come in. For the options see `EndpointOptions`; [[inbox.endpoint]] of semel.toml wins."""
        if name in self.endpoints:
            raise ConfigError(f"there are two endpoints {name!r}", fix="add the handlers of both to one of them")
        options = {"keep_s": self.keep_s, **options, **self.settings.endpoints.get(name, {})}
        follows = options.pop("follow", ())
        self.endpoints[name] = InboxEndpoint(EndpointOptions(name, **options), check_rules(errors))
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
        self.rules += check_rules(rules)

    def provide(self, kind: type, begin: Any) -> None:
        """Let handlers ask for a transaction of this type. `begin` opens one: sessions.begin, engine.begin."""
        self._given.append(given_provider(kind, begin))
        self._handlers = None

    def route(self, message: type | str, *, to: str) -> None:
        """Where messages of a type go when `publish` does not say it."""
        parse_destination(to)
        self.routes[message if isinstance(message, str) else type_name(message)] = to

    def sender(self, name: str, send: Sender) -> None:
        """Who sends to a destination outside: "hub", "url", or a name of your own: "kafka" gets what goes to
        kafka:orders."""
        if not callable(send):
            raise ConfigError(f"{send!r} sends nothing", fix="pass a coroutine function of destination and envelope")
        self.senders[check_broker(name)] = send

    def receiver(self, to: str, *, keep_s: float) -> None:
        """For how long a receiver knows an id again: one destination, or all of "hub", "url" or a broker. A message
        that may have been sent longer ago is not sent again but put aside. Unless said it is a day for a hub, and
        7 days for all others."""
        if not keep_s > 0:
            raise ConfigError(f"keep_s is {keep_s!r}", fix="use seconds above 0")
        self.memories[to] = keep_s

    def memory_of(self, destination: Destination) -> float:
        kind = destination.name if destination.kind is DestinationKind.BROKER else destination.kind.value
        known_s = HUB_KEEP_S if destination.kind is DestinationKind.HUB else KEEP_S
        return self.memories.get(str(destination), self.memories.get(kind, known_s))

    def every(
        self,
        schedule: str,
        message: Callable[[], object] | object,
        *,
        to: str,
        name: str,
        tz: Any = None,
        **attributes: Unpack[Attributes],
    ) -> None:
        """Send a message at the times of a cron schedule. However many processes run, each time sends one."""
        parse_destination(to)
        times = Schedule(name, schedule, tz) if tz else Schedule(name, schedule)
        periodic = Periodic(times, message, to, attributes)
        if not periodic.is_made_each_time:
            envelope_of(message, name, **attributes)  # refused here, not when its time has come
        self.periodic.append(periodic)

    def trace(self, provider: Any = None) -> None:
        """Tell OpenTelemetry of every message, as spans. Without a provider it is the one that the process has set."""
        self.telemetry.spans = opentelemetry_spans(provider)

    # -- the store

    @property
    def store(self) -> Store:
        with self._opening:
            if self._store is None:
                self._store = open_store(self.url, node=self._node, ledger_keep_s=self.settings.ledger_keep_s)
            if self._is_forked and not self.url.startswith("memory"):
                raise ConfigError(
                    "the store was opened before this process was forked, and belongs to its parent",
                    fix='give the application an address instead of an open store: App("sqlite:///shop.db")',
                )
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
        """What nobody can read will not be readable the next time, and what has committed without its mark would have
        its effect again, whatever a rule for all errors says."""
        own = (NEVER_AGAIN, *handler.errors) if handler is not None else (NEVER_AGAIN,)
        return FailureRules(own, endpoint.errors, self.rules, failed_head=endpoint.options.failed_head)

    def gate(self, endpoint: str) -> EndpointGate:
        """What the endpoint may take in this process."""
        with self._opening:
            if endpoint not in self._gates:
                options, on_run = self.endpoints[endpoint].options, self.telemetry.of(endpoint).ran
                on_change = partial(self._report_breaker, endpoint)
                self._gates[endpoint] = EndpointGate(endpoint, options.breaker, on_change, on_run)
            return self._gates[endpoint]

    def _report_breaker(self, endpoint: str, until: float | None) -> None:
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
        return HandlerContext(self.name, self.store, self.routes, now_us, mint, self.endpoints, self.senders)

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
        key: str | int | None = None,
        after_s: float | None = None,
        **attributes: Unpack[Attributes],
    ) -> tuple[str, Verdict]:
        """Store a message at an endpoint, in a commit of its own. Returns its id and whether it is new."""
        envelope = envelope_of(message, id if id is not None else mint(), **attributes)
        due = None if after_s is None else now_us() + in_us(after_s)
        handler = self.handlers[self._durable(to).name].get(envelope.type)
        if handler is None:
            raise InputError(
                f"no handler at {to!r} knows messages of type {envelope.type!r}",
                fix=f"add one: @{to}.on(...), or send it to the endpoint that has it",
            )
        if isinstance(message, Envelope):
            _check_readable(handler, envelope)
        return envelope.id, self._commit([self.enqueue(to, envelope, key=key, due=due)])[0]

    def receive(self, endpoint: str, envelopes: Sequence[Envelope]) -> list[Verdict]:
        """Store what a transport has brought: one commit for all, then it may acknowledge each of them.

        A message of an unknown type is stored like any other and becomes a dead letter: nothing is lost.
        """
        self._durable(endpoint)
        enqueues, refused = [], []
        for envelope in [check_envelope(each) for each in envelopes]:
            try:
                enqueues.append(self.enqueue(endpoint, envelope))
            except InputError as error:
                # whoever brought it can do nothing about it, and without its key it would lose its turn in silence
                enqueues.append(self._to_be_refused(endpoint, envelope))
                refused.append((len(enqueues) - 1, clean_cause(str(error))))
        verdicts = self._commit(enqueues)
        reach("inbox.stored")
        for at, cause in refused:
            if verdicts[at] is Verdict.STORED:
                self._refuse(endpoint, enqueues[at], cause)
        return verdicts

    def _to_be_refused(self, endpoint: str, envelope: Envelope) -> Enqueue:
        """Not due before it is a dead letter. Should we die in between, it is handled then, and out of turn."""
        return self.enqueue(endpoint, envelope, due=now_us() + round(KEEPING_S * 1_000_000), keyed=False)

    def _refuse(self, endpoint: str, enqueue: Enqueue, cause: str) -> None:
        dead = Finish(
            enqueue.queue, enqueue.identity, WorkState.DEAD, keep_s=None, cause=cause, was=WorkState.SCHEDULED
        )
        hop = self.check_endpoint(endpoint).options.hop
        self._commit_one((dead, Log(message_event(Kind.DEAD_LETTERED, hop, "", enqueue.envelope, cause=cause))))

    def keep_unreadable(self, endpoint: str, data: bytes, why: str, **attributes: Unpack[Attributes]) -> str:
        """Keep what a transport has brought and nobody can make a message of: without an id, or not to be decoded. It
        is a dead letter before this returns, so it may be acknowledged. Its id follows from its bytes: brought again,
        it is kept once."""
        attributes.setdefault("type", UNREADABLE_TYPE)
        envelope = Envelope(f"unreadable-{sha256(data).hexdigest()}", data=data, **attributes)
        enqueue = self._to_be_refused(endpoint, envelope)
        [first] = self._commit_one((enqueue,))
        if isinstance(first, Fresh):
            self._refuse(endpoint, enqueue, clean_cause(why))
        return envelope.id

    def mark_later(self, ops: tuple[Op, ...]) -> None:
        """Write a mark once the store is back. Should this process end first, the claim runs out and is ambiguous."""
        self._later.write(ops)

    def enqueue(
        self,
        endpoint: str,
        envelope: Envelope,
        *,
        key: str | int | None = None,
        due: int | None = None,
        keyed: bool = True,
    ) -> Enqueue:
        """The write that stores a message at an endpoint, if it is new. Raises InputError for a key that is none."""
        options, envelope = self.check_endpoint(endpoint).options, as_message(envelope)
        if options.expire_s is not None and envelope.time is None:
            envelope = msgspec.structs.replace(envelope, time=due if due is not None else now_us())
        who = self.identity_of(endpoint, envelope)
        return Enqueue(
            who.queue,
            who.identity,
            envelope,
            key=None if not keyed else key_text(key, envelope) if key is not None else self._key(endpoint, envelope),
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
        except MessageRefused:
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
        self,
        connection: Any,
        endpoint: str,
        id: str | Envelope,
        *,
        source: str | None = None,
        deduplication_id: str | None = None,
        result: bytes = b"",
        keep_s: float | None = None,
    ) -> First:
        """Whether this is the first time that a message is handled, by the user's own open transaction.

        The mark is written with whatever the user writes, and gone with it when that is rolled back. Raises StoreBusy
        when another transaction is handling the same message just now: give it back, or try again later. `id` may be
        the envelope; of an event, `source` and `deduplication_id` say what its envelope would.
        """
        self._sweeper.called()
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
        op = self._remember(endpoint, id, source, deduplication_id, result, keep_s)
        return _first(tx.apply([op], wait=False)[0], tx, op)

    async def first_async(
        self,
        connection: Any,
        endpoint: str,
        id: str | Envelope,
        *,
        source: str | None = None,
        deduplication_id: str | None = None,
        result: bytes = b"",
        keep_s: float | None = None,
    ) -> First:
        """`first` for a connection whose calls are awaited."""
        self._sweeper.called()
        tx: Any = bind(self.store, connection)
        if puts := await asyncio.to_thread(self._owning, endpoint):
            try:
                await tx.apply(puts)
            except StaleFence:
                await asyncio.to_thread(self._owning, endpoint)
        op = self._remember(endpoint, id, source, deduplication_id, result, keep_s)
        return _first((await tx.apply([op], wait=False))[0], tx, op)

    def _owning(self, endpoint: str) -> tuple[Put, ...]:
        """An endpoint without handlers is owned by whoever asks first. What the caller's transaction has to write for
        that may be rolled back with it: it counts when the store has it."""
        if endpoint in self._scopes:
            return ()
        scope, puts = owners.claim_beside(self.store, self.name, endpoint)
        if not puts:
            self._scopes[endpoint] = scope
        return puts

    def _remember(
        self,
        endpoint: str,
        id: str | Envelope,
        source: str | None,
        deduplication_id: str | None,
        result: bytes,
        keep_s: float | None,
    ) -> Remember:
        """The endpoint need not have handlers: who calls `first` is one."""
        known = self.endpoints.get(endpoint)
        keep = keep_s if keep_s is not None else known.options.keep_s if known is not None else self.keep_s
        envelope, hop = first_envelope(id, source, deduplication_id), inbox_hop(endpoint)
        # not by identity_of, which may ask the store: the caller's transaction may hold the lock that it waits for
        who = identify(self._scopes.get(endpoint, self.name), endpoint, envelope, self.mode)
        return Remember(
            who.queue,
            who.identity,
            scope=who.scope if who.scope != who.queue else None,
            keep_s=check_keep(keep),
            result=result,
            on_fresh=(Event(Kind.ACCEPTED, hop, message=envelope.id), Event(Kind.HANDLED, hop, message=envelope.id)),
            on_duplicate=Event(Kind.DUPLICATE, hop, message=envelope.id),
        )

    @contextmanager
    def outbox(self, connection: Any) -> Iterator[Outbox]:
        """An outbox in the user's own open transaction. What is published in the block is stored at its end, and leaves
        when the user commits."""
        outbox = self.context.outbox("", None, self.telemetry.spans.carried)
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
        outbox = self.context.outbox("", None, self.telemetry.spans.carried)
        yield outbox
        tx: Any = bind(self.store, connection)
        await apply_outbox_async(tx, outbox)


@dataclass(frozen=True, slots=True)
class Periodic:
    """A message at the times of a schedule. `message` may be a function, asked each time."""

    schedule: Schedule
    message: Any
    to: str
    attributes: Attributes = field(default_factory=Attributes)

    @property
    def is_made_each_time(self) -> bool:
        return callable(self.message) and not isinstance(self.message, type)

    def make(self) -> object:
        return self.message() if self.is_made_each_time else self.message


def _check_readable(handler: ReadyHandler, envelope: Envelope) -> None:
    """Refused where its sender sees it. There is no dead letter to replay: nothing was stored."""
    try:
        handler.message_of(envelope)
    except MessageRefused as error:
        raise MessageRefused(
            error.message, fix="send a body with the fields that the handler reads; nothing was stored"
        ) from None


def check_keep(keep_s: float) -> float:
    if not is_seconds(keep_s) or keep_s <= 0:
        raise ConfigError(f"keep_s is {keep_s!r}", fix="use seconds above 0: an identity is kept for a time")
    return keep_s


def _policy(styles: StylePolicy | None) -> StylePolicy:
    if styles is not None and not isinstance(styles, StylePolicy):
        raise ConfigError(f"styles is {styles!r}", fix="give a policy: styles=StylePolicy(with_transaction='eager')")
    return styles or StylePolicy()


def _mode(text: str) -> IdentityMode:
    try:
        return IdentityMode(text)
    except ValueError:
        raise ConfigError(f"identity is {text!r}", fix="use 'id' or 'id+endpoint'") from None


def _verdict(result: Result) -> Verdict:
    assert isinstance(result, Fresh | Duplicate), "an enqueue is new or it is not"
    return Verdict.STORED if isinstance(result, Fresh) else Verdict.DUPLICATE


def _first(result: Result, tx: Any, op: Remember) -> First:
    assert isinstance(result, Fresh | Duplicate), "an identity is new or it is not"
    if isinstance(result, Duplicate):
        return First(False, result.result or b"")
    return First(True, op.result, FirstMark(tx, op.scope or op.queue, op.identity))


def breaker_key(app: str, endpoint: str) -> str:
    """Under which the store has until when a breaker is open."""
    return f"inbox/breaker/{app}/{endpoint}"


def now_us() -> int:
    return time.time_ns() // 1000


def mint() -> str:
    return mint_id(time.time(), os.urandom(10))
