"""What may be said about a point, a hop or a pipe, and how a value is written.

Text, TOML and Python all come through `read_option`, so that one value means one thing everywhere: `0.1`, `"0.1"` and
`"10%"` are the same probability, `2`, `"2s"` and `"2000ms"` the same time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from difflib import get_close_matches
from enum import Enum

from semel.errors import ConfigError

LINK_OPTIONS = ("loss", "duplicate", "confirm_loss", "delay", "repeats")
"""What only a hop has: it is said of the link that the hop goes over, and a pipe has no link of its own."""

TIME_MIN_S = 0.001
TIME_MAX_S = 366 * 86400.0
"""The limits of a timeout, a delay and a memory: nobody can mean a shorter or a longer time."""

BACKOFF_MAX = 1000
BACKOFF_WAIT_MAX_S = 60.0
"""A wait grows up to this, unless it begins longer."""


class DedupBy(Enum):
    """How a receiving end tells new from old. INDEX never goes back, STRICT lets every index pass once and in order.

    Both go by the hop's own index. SESSION goes by the producer's: every index of its session passes once and in
    order, also when what lies between starts again and numbers again. It takes a durable receiver.
    """

    NONE = "none"
    ID = "id"
    INDEX = "index"
    STRICT = "strict"
    SESSION = "session"


class ConfirmOn(Enum):
    """When a receiving end confirms: on arrival, after its handler, or when its own onward way has confirmed."""

    RECEIPT = "receipt"
    PROCESSING = "processing"
    CASCADE = "cascade"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a hop or a pipe. `retries` None: one send and no confirms; `math.inf`: until confirmed.

    The wait for a confirm begins at `timeout` and grows by the factor `backoff` with each attempt, up to
    `longest_wait`; `jitter` takes up to this share off each wait.
    """

    loss: float = 0.0
    duplicate: float = 0.0
    confirm_loss: float = 0.0
    retries: float | None = None
    repeats: int = 0
    timeout: float = 1.0
    backoff: float = 1.0
    jitter: float = 0.0
    delay: float = 0.0
    window: int = 1
    dedup: DedupBy = DedupBy.NONE
    keep: float | None = None
    size: int | None = None
    confirm: ConfirmOn = ConfirmOn.RECEIPT
    durable: bool = False

    def __post_init__(self) -> None:
        for name in ("loss", "duplicate", "confirm_loss", "jitter"):
            check_probability(name, getattr(self, name))
        _check_retries(self.retries)
        if not _is_whole(self.repeats) or self.repeats < 0 or (self.repeats and self.retries is not None):
            raise ConfigError(
                f"repeats is {self.repeats}" + (" beside retries" if self.retries is not None else ""),
                fix="use retries (resend until confirmed) or repeats (blind copies, 0 or more), not both",
            )
        for name in ("timeout", "keep"):
            _check_time(name, getattr(self, name), TIME_MIN_S)
        _check_time("delay", self.delay, 0.0)
        for name in ("window", "size"):
            _check_count(name, getattr(self, name))
        if not 1 <= self.backoff <= BACKOFF_MAX:
            raise ConfigError(f"backoff is {self.backoff}", fix=f"use a factor from 1 (a fixed wait) to {BACKOFF_MAX}")
        if (self.keep is not None or self.size is not None) and self.dedup is not DedupBy.ID:
            raise ConfigError("keep and size bound the memory of ids", fix="add dedup=id, or leave them out")
        if self.confirm is not ConfirmOn.RECEIPT and self.retries is None:
            raise ConfigError(f"confirm={self.confirm.value} without retries", fix="add retries=n or retries=inf")

    @property
    def resends(self) -> bool:
        return self.retries is not None

    @property
    def attempts(self) -> int | None:
        """How often one message is sent at most; None when there is no end."""
        if self.retries is None:
            return 1
        return None if math.isinf(self.retries) else int(self.retries) + 1

    @property
    def longest_wait(self) -> float:
        """Where `backoff` stops to grow, in seconds."""
        return max(self.timeout, BACKOFF_WAIT_MAX_S)

    def stated(self) -> dict[str, object]:
        """What differs from the defaults."""
        default = type(self)()
        named = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: value for name, value in named if value != getattr(default, name)}


HOP_OPTIONS = tuple(each.name for each in fields(Options))
PIPE_OPTIONS = tuple(name for name in HOP_OPTIONS if name not in LINK_OPTIONS)
POINT_OPTIONS = ("crash", "durable")

WHOLE_MAX = 10**15
"""More than anybody can mean, and still exact as a float."""

SENDS_MAX = 100_000
"""Retries and repeats. Who wants more retries wants them without end."""

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\Z", re.ASCII)
_DURATION = re.compile(r"(.*?)\s*(ms|s|m|h|d|w)?\Z", re.DOTALL)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_YES = {"yes": True, "true": True, "no": False, "false": False}


def read_option(name: str, raw: object) -> object:
    """The value of one option. `raw` is text as a person writes it, or already a value."""
    return _READERS[name](name, raw)


def show_option(name: str, value: object) -> str:
    """The value as text, such that `read_option` gives it back."""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name in ("timeout", "delay", "keep"):
        return f"{_plain(value)}s"
    return _plain(value)


def unknown_option(name: str, owner: str, known: Iterable[str]) -> ConfigError:
    """What to say about an option that `owner` ("a hop") does not have."""
    known = tuple(known)
    if owner == "a pipe" and name in LINK_OPTIONS:
        return ConfigError(f"a pipe has no {name} of its own", fix=f"put {name} on a hop inside the parentheses")
    if owner == "a hop" and name == "crash":
        return ConfigError("a hop cannot crash, a point can", fix="write it behind the point: X{crash=0.1}")
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return ConfigError(f"{owner} has no option {name!r}", fix=f"{hint}{owner} has: {', '.join(known)}")


def _plain(value: object) -> str:
    assert isinstance(value, int | float)
    if isinstance(value, float) and value.is_integer() and abs(value) < WHOLE_MAX:
        return str(int(value))
    return repr(value)


def _number(raw: object) -> float | None:
    """A finite number, or None when it is not one."""
    if isinstance(raw, bool):
        return None
    if isinstance(raw, str):
        raw = float(raw) if _NUMBER.match(raw) else None
    if not isinstance(raw, int | float):
        return None
    try:
        value = float(raw)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


def _probability(name: str, raw: object) -> float:
    percent = isinstance(raw, str) and raw.endswith("%")
    value = _number(raw[:-1].strip() if isinstance(raw, str) and percent else raw)
    if value is not None and percent:
        value /= 100
    if value is None:
        raise ConfigError(f"{name}={raw} is not a number", fix=f"write {name}=0.1 or {name}=10%")
    if not 0 <= value <= 1:
        hint = f"; {value:g} in a hundred is {name}={value:g}%" if 1 < value <= 100 and not percent else ""
        raise ConfigError(f"{name}={raw} is not a probability", fix=f"use a number from 0 to 1{hint}")
    return value


def _seconds(name: str, raw: object) -> float:
    value = _duration(raw)
    if value is None or not math.isfinite(value):
        also = ", or leave it out to remember for 24 hours" if name == "keep" else ""
        raise ConfigError(f"{name}={raw} is not a time", fix=f"write a number and a unit: 200ms 5s 2m{also}")
    if value < (0 if name == "delay" else TIME_MIN_S):
        least = "0s or more" if name == "delay" else "1ms or more"
        raise ConfigError(f"{name}={raw} is too short", fix=f"use {least}")
    if value > TIME_MAX_S:
        raise ConfigError(f"{name}={raw} is too long", fix=f"use up to {TIME_MAX_S / 86400:g}d")
    return value


def _duration(raw: object) -> float | None:
    if not isinstance(raw, str):
        return _number(raw)
    found = _DURATION.match(raw)
    assert found is not None
    value = _number(found[1])
    if value is None:
        return None
    # dividing keeps 300ms equal to 0.3, multiplying by 0.001 does not
    return value / 1000 if found[2] == "ms" else value * _SECONDS[found[2] or "s"]


def _factor(name: str, raw: object) -> float:
    value = _number(raw)
    if value is None or not 1 <= value <= BACKOFF_MAX:
        raise ConfigError(f"{name}={raw} is not a factor", fix=f"use a number from 1 (a fixed wait) to {BACKOFF_MAX}")
    return value


def _whole(name: str, raw: object, least: int, most: int = WHOLE_MAX) -> int:
    value = _number(raw)
    if value is None or value != int(value) or not least <= value <= most:
        up_to = f"on up to {most:,}" if most < WHOLE_MAX else "on"
        also = f", or {name}=inf" if name == "retries" else ""
        raise ConfigError(f"{name}={raw} is not a count", fix=f"use a whole number from {least} {up_to}{also}")
    return int(value)


def _retries(name: str, raw: object) -> float | None:
    if raw is None:
        return None
    if raw in ("inf", "∞") or (isinstance(raw, float) and raw == math.inf):
        return math.inf
    return _whole(name, raw, 0, SENDS_MAX)


def _yes_no(name: str, raw: object) -> bool:
    value = raw if isinstance(raw, bool) else _YES.get(raw) if isinstance(raw, str) else None
    if value is None:
        raise ConfigError(f"{name}={raw} is neither yes nor no", fix=f"write {name}=yes or {name}=no")
    return value


def _one_of(kind: type[Enum]) -> Callable[[str, object], Enum]:
    def read(name: str, raw: object) -> Enum:
        words = [str(each.value) for each in kind]
        word = raw.value if isinstance(raw, kind) else raw
        if word not in words:
            close = get_close_matches(str(word), words, n=1)
            hint = f"did you mean {name}={close[0]}? " if close else ""
            raise ConfigError(f"{name}={word} is not known", fix=f"{hint}use one of: {', '.join(words)}")
        return kind(word)

    return read


def _unless_none(read: Callable[[str, object], object]) -> Callable[[str, object], object]:
    return lambda name, raw: None if raw is None else read(name, raw)


_READERS: dict[str, Callable[[str, object], object]] = {
    "loss": _probability,
    "duplicate": _probability,
    "confirm_loss": _probability,
    "crash": _probability,
    "retries": _retries,
    "repeats": lambda name, raw: _whole(name, raw, 0, SENDS_MAX),
    "timeout": _seconds,
    "backoff": _factor,
    "jitter": _probability,
    "delay": _seconds,
    "keep": _unless_none(_seconds),
    "window": lambda name, raw: _whole(name, raw, 1),
    "size": _unless_none(lambda name, raw: _whole(name, raw, 1)),
    "dedup": _one_of(DedupBy),
    "confirm": _one_of(ConfirmOn),
    "durable": _yes_no,
}


def check_probability(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} is {value}", fix="use a probability from 0 to 1")


def _check_retries(retries: float | None) -> None:
    if retries is not None and retries != math.inf and not (_is_whole(retries) and retries >= 0):
        raise ConfigError(f"retries is {retries}", fix="use a whole number from 0 on, or inf")


def _check_time(name: str, value: float | None, least: float) -> None:
    if value is not None and not least <= value <= TIME_MAX_S:
        raise ConfigError(f"{name} is {value} s", fix=f"use {least:g} s up to {TIME_MAX_S / 86400:g} days")


def _check_count(name: str, value: int | None) -> None:
    if value is not None and not (_is_whole(value) and value >= 1):
        raise ConfigError(f"{name} is {value}", fix="use a whole number from 1 on")


def _is_whole(value: float) -> bool:
    return math.isfinite(value) and value == int(value)
