"""How an endpoint takes messages, and which handlers may go with it.

    mode       the broker's delivery is acked      a crash                     duplicates are found
    durable    when the message is stored          loses nothing               always
    buffered   when it arrives                     loses what is in memory     on request
    inline     when the handler is done            loses nothing               on request

    style      the mark that a message is handled
    eager      first statement of the handler's transaction: a duplicate never reaches the handler
    optimistic last statement of it: a duplicate runs, and is rolled back
    reserved   a claim is committed first, then comes the effect, then the mark
    none       there is none

A durable endpoint has stored the message before its handler runs, so the mark is only ever the last statement: on
SQLite the write lock then begins with the user's own first write. An effect outside the transaction cannot be rolled
back, so such a handler is always reserved, and `on_crash` says what an expired claim means.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, StrEnum

from semel.errors import ConfigError
from semel.inbox.breaker import BreakerOptions
from semel.inbox.identity import inbox_hop, inbox_queue
from semel.kernel.ops import KEEP_S

SHARE_MAX = 50
"""PostgreSQL keeps up to 64 savepoints of a transaction where others can see them cheaply."""


class EndpointMode(StrEnum):
    DURABLE = "durable"
    BUFFERED = "buffered"
    INLINE = "inline"


class Style(StrEnum):
    """When the mark is written that a message is handled."""

    EAGER = "eager"
    OPTIMISTIC = "optimistic"
    RESERVED = "reserved"
    NONE = "none"


class OnCrash(StrEnum):
    """What an expired claim of a reserved handler means: its effect may or may not have happened."""

    RETRY = "retry"
    """It runs again: at least once."""
    DROP = "drop"
    """It counts as handled: at most once."""
    PARK = "park"
    """It waits for a human."""


class FailedHead(StrEnum):
    """What a message that failed for good does to those of its key behind it."""

    BLOCKS = "blocks"
    PASSES = "passes"


class HandlerKind(Enum):
    """What a handler does, as far as it decides which styles it may have."""

    TRANSACTION = "all in its transaction"
    OUTSIDE_TOO = "with a transaction and effects outside it"
    PLAIN = "without a transaction"


@dataclass(frozen=True, slots=True)
class HandlerFacts:
    """What a handler's signature and its decorator say. `style` None leaves it to the endpoint."""

    name: str
    has_transaction: bool
    outside: bool = False
    style: Style | None = None

    def __post_init__(self) -> None:
        if self.style is not None:
            object.__setattr__(self, "style", _word(f"style of handler {self.name!r}", self.style, Style))

    @property
    def kind(self) -> HandlerKind:
        if not self.has_transaction:
            return HandlerKind.PLAIN
        return HandlerKind.OUTSIDE_TOO if self.outside else HandlerKind.TRANSACTION


@dataclass(frozen=True, slots=True)
class StylePolicy:
    """The styles of handlers at buffered and inline endpoints where neither handler nor endpoint says one."""

    with_transaction: Style = Style.NONE
    without: Style = Style.NONE

    def __post_init__(self) -> None:
        for name in ("with_transaction", "without"):
            object.__setattr__(self, name, _word(f"{name} of the policy", getattr(self, name), Style))
        if self.without not in (Style.RESERVED, Style.NONE):
            raise ConfigError(
                f"the policy makes handlers without a transaction {self.without}, which takes a transaction",
                fix="use 'reserved' or 'none' for them",
            )

    def style_of(self, kind: HandlerKind) -> Style:
        """Effects outside a transaction make it reserved: the policy asks that duplicates are found, not how."""
        if kind is HandlerKind.PLAIN:
            return self.without
        if kind is HandlerKind.OUTSIDE_TOO and self.with_transaction is not Style.NONE:
            return Style.RESERVED
        return self.with_transaction


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """`buffer_high` messages in memory stop the listener, `buffer_low` let it go on. `expire_s` after the time of a
    message it is not handled any more. `parallel` messages are with handlers at a time. Up to `share_commit` handlers
    run one after the other in one transaction. With a `breaker` nothing is taken for a while when too much fails. The
    transport may deliver a message again for `redelivery_s`: see `keep_warning`. `id_field` is where the body of a
    CloudEvent has the application's own id, such as `order.id`. With `log` what is accepted is also a record of the
    stream `log_stream`, in the same commit."""

    name: str
    mode: EndpointMode = EndpointMode.DURABLE
    style: Style | None = None
    on_crash: OnCrash = OnCrash.RETRY
    failed_head: FailedHead = FailedHead.BLOCKS
    parallel: int = 1
    buffer_high: int = 1000
    buffer_low: int = 500
    lease_s: float = 30.0
    keep_s: float = KEEP_S
    expire_s: float | None = None
    breaker: BreakerOptions | None = None
    share_commit: int = 1
    redelivery_s: float | None = None
    id_field: str | None = None
    log: bool = False

    def __post_init__(self) -> None:
        inbox_queue(self.name)  # a name that no queue can have is refused here
        self._check_words()
        self._check_numbers()
        if self.style is not None and not ALLOWED[self.mode, self.style]:
            raise _refusal(self, self.style, f"endpoint {self.name!r}")
        if self.on_crash is not OnCrash.RETRY and self.style not in (None, Style.RESERVED):
            raise ConfigError(
                f"endpoint {self.name!r} has on_crash {self.on_crash!r} and style {self.style!r}",
                fix="leave on_crash out, or use style 'reserved': other crashes roll back and leave no doubt",
            )

    @property
    def queue(self) -> str:
        return inbox_queue(self.name)

    @property
    def log_stream(self) -> str | None:
        """Where what was accepted can be read, by a pipeline say. None: nowhere."""
        return f"{self.queue}/log" if self.log else None

    @property
    def hop(self) -> str:
        return inbox_hop(self.name)

    def is_expired(self, time: int | None, now: int) -> bool:
        """Whether a message of that time came too late; both in microseconds."""
        return self.expire_s is not None and time is not None and now > time + self.expire_s * 1_000_000

    def _check_words(self) -> None:
        """Words come from files and keyword arguments: take the text as well as the enum."""
        for name, words in (
            ("mode", EndpointMode), ("style", Style), ("on_crash", OnCrash), ("failed_head", FailedHead),
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None or name != "style":
                object.__setattr__(self, name, _word(f"{name} of endpoint {self.name!r}", value, words))

    def _check_numbers(self) -> None:
        for name in ("parallel", "buffer_high", "buffer_low", "share_commit"):
            value = getattr(self, name)
            is_count = isinstance(value, int) and not isinstance(value, bool)
            _check(is_count, f"{name} is {value!r}", "use a whole number")
        for name in ("lease_s", "keep_s", "expire_s", "redelivery_s"):
            value = getattr(self, name)
            may_be_none = name in ("expire_s", "redelivery_s")
            _check((value is None and may_be_none) or is_seconds(value), f"{name} is {value!r}", "use seconds")
        _check(self.parallel >= 1, f"parallel is {self.parallel}", "use 1 or more")
        _check(
            0 < self.buffer_low <= self.buffer_high,
            f"the buffer stops at {self.buffer_high} and goes on at {self.buffer_low}",
            "use 0 < buffer_low <= buffer_high",
        )
        _check(self.lease_s > 0, f"lease_s is {self.lease_s}", "use seconds above 0")
        _check(self.keep_s > 0, f"keep_s is {self.keep_s}", "use seconds above 0: an identity is kept for a time")
        _check(
            1 <= self.share_commit <= SHARE_MAX,
            f"share_commit is {self.share_commit}",
            f"use 1 to {SHARE_MAX}: so many handlers run in one transaction",
        )
        _check(
            self.share_commit == 1 or self.mode is EndpointMode.DURABLE,
            f"endpoint {self.name!r} is {self.mode} and has share_commit",
            "make it durable, or leave share_commit out: only stored messages can share a commit",
        )
        _check(
            not self.log or self.mode is EndpointMode.DURABLE,
            f"endpoint {self.name!r} is {self.mode} and has a log",
            "make it durable, or leave log out: what is accepted elsewhere is not stored",
        )
        for name, seconds in (("expire_s", self.expire_s), ("redelivery_s", self.redelivery_s)):
            _check(seconds is None or seconds > 0, f"{name} is {seconds}", "use seconds above 0, or leave it out")
        _check(
            self.id_field is None or all(self.id_field.split(".")),
            f"id_field of endpoint {self.name!r} is {self.id_field!r}",
            "name a field of the body, such as 'order_id' or 'order.id'",
        )
        _check(
            self.breaker is None or isinstance(self.breaker, BreakerOptions),
            f"the breaker of endpoint {self.name!r} is {self.breaker!r}",
            "give breaker=BreakerOptions(...), or leave it out",
        )


def is_seconds(value: object) -> bool:
    """A number of seconds that can be counted to: no text, no NaN, not for ever."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check(holds: bool, problem: str, fix: str) -> None:
    if not holds:
        raise ConfigError(problem, fix=fix)


def _word(what: str, value: str, words: type[StrEnum]) -> StrEnum:
    try:
        return words(value)
    except ValueError:
        choices = ", ".join(repr(str(each)) for each in words)
        raise ConfigError(f"{what} is {value!r}", fix=f"use one of {choices}") from None


# -- which styles go together with which modes and handlers

_M, _S, _K = EndpointMode, Style, HandlerKind
_NOBODY: frozenset[HandlerKind] = frozenset()
_TRANSACTION_ONLY = frozenset({_K.TRANSACTION})
_EVERYBODY = frozenset(_K)

ALLOWED: dict[tuple[EndpointMode, Style], frozenset[HandlerKind]] = {
    (_M.DURABLE, _S.EAGER): _NOBODY,
    (_M.DURABLE, _S.OPTIMISTIC): _TRANSACTION_ONLY,
    (_M.DURABLE, _S.RESERVED): _EVERYBODY,
    (_M.DURABLE, _S.NONE): _NOBODY,
    (_M.BUFFERED, _S.EAGER): _TRANSACTION_ONLY,
    (_M.BUFFERED, _S.OPTIMISTIC): _TRANSACTION_ONLY,
    (_M.BUFFERED, _S.RESERVED): _EVERYBODY,
    (_M.BUFFERED, _S.NONE): _EVERYBODY,
    (_M.INLINE, _S.EAGER): _TRANSACTION_ONLY,
    (_M.INLINE, _S.OPTIMISTIC): _TRANSACTION_ONLY,
    (_M.INLINE, _S.RESERVED): _EVERYBODY,
    (_M.INLINE, _S.NONE): _EVERYBODY,
}
"""Which handlers may have which style at which endpoint."""

_FIXES: dict[tuple[EndpointMode, Style], str] = {
    (_M.DURABLE, _S.EAGER): "leave style out: a durable endpoint has stored the message before its handler runs",
    (_M.DURABLE, _S.NONE): "leave style out, or make the endpoint inline: a durable one always finds duplicates",
}


def style_for(
    options: EndpointOptions, handler: HandlerFacts, policy: StylePolicy | None = None, *, has_store: bool = True
) -> Style:
    """The style that a handler has at an endpoint: its own word, else the endpoint's, else the policy's. Called when
    the application starts, so that what cannot work is refused before the first message."""
    style = handler.style or options.style
    if style is None:
        style = _default_style(options, handler, policy or StylePolicy())
    if handler.kind not in ALLOWED[options.mode, style]:
        raise _refusal(options, style, f"handler {handler.name!r}", handler.kind)
    if not has_store and (options.mode is EndpointMode.DURABLE or style is not Style.NONE):
        raise ConfigError(
            f"handler {handler.name!r} at endpoint {options.name!r} ({options.mode}, {style}) needs a store",
            fix="give the App a store, or make the endpoint inline with style 'none'",
        )
    return style


def _default_style(options: EndpointOptions, handler: HandlerFacts, policy: StylePolicy) -> Style:
    if options.mode is not EndpointMode.DURABLE:
        return policy.style_of(handler.kind)
    return Style.OPTIMISTIC if handler.kind is HandlerKind.TRANSACTION else Style.RESERVED


def _refusal(options: EndpointOptions, style: Style, who: str, kind: HandlerKind | None = None) -> ConfigError:
    """What is wrong with a style, and what to do."""
    at = f"a {options.mode} endpoint ({options.name!r})"
    if fix := _FIXES.get((options.mode, style)):
        return ConfigError(f"{who}: style {style.value!r} is not for {at}", fix=fix)
    assert kind is not None, "what is refused for one handler and not for all"
    if kind is HandlerKind.OUTSIDE_TOO:
        fix = "use style 'reserved', or move the outside effect into a handler of its own"
    else:
        fix = "use style 'reserved', or let the handler ask for its transaction"
    return ConfigError(f"{who}: style {style.value!r} at {at} is not for a handler {kind.value}", fix=fix)


def keep_warning(options: EndpointOptions) -> str | None:
    """What to tell a user whose transport may deliver again after the identity is forgotten. None: it may not."""
    redelivery_s = options.redelivery_s
    if redelivery_s is None or redelivery_s <= options.keep_s:
        return None
    return (
        f"endpoint {options.name!r} remembers a message for {options.keep_s:g} s and its transport may deliver it again"
        f" for {redelivery_s:g} s: a late one would be handled twice; set keep_s to {redelivery_s:g} or more"
    )
