"""The building blocks of paths by name: each is a pair of stages, a sending and a receiving end.

    ends = reliable_dedup_pipe("P1", "P2", window=16)
    Stage(ends.sender, run), Stage(ends.receiver, run)

A block says what it promises as {R, UR}: the share of messages that arrive, and the share of arrivals that are not
copies. p is the chance that the link loses a message, q that it loses a confirm. Promises hold while both ends live,
unless the block is durable; what enters the sending end twice is two messages, unless the dedup is by id.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from semel.kernel.dedup import GapPolicy, OnGap
from semel.kernel.resend import ResendPolicy
from semel.kernel.retry import RetryPolicy
from semel.pipes.language.options import BACKOFF_WAIT_MAX_S, ConfirmOn, DedupBy
from semel.pipes.workers.inlet import InletConfig
from semel.pipes.workers.outlet import OutletConfig
from semel.pipes.workers.stage import StageConfig


class Ordering(Enum):
    """What may be said of the order of arrival, on one route. The value is the set of promises that it makes."""

    NONE = frozenset[str]()
    MONOTONIC = frozenset({"no going back"})
    STRICT = frozenset({"no going back", "no copies"})
    CONTINUOUS = frozenset({"no going back", "no gaps"})
    ABSOLUTE = frozenset({"no going back", "no copies", "no gaps"})


def weaken(first: Ordering, then: Ordering) -> Ordering:
    """What is left of two orderings after one another: what both of them promise. Either may break what only the other
    keeps, so monotonic then continuous is monotonic, and strict then anything not strict is not strict."""
    return Ordering(first.value & then.value)


@dataclass(frozen=True, slots=True)
class Ends:
    """Two stages that belong together. `durable`: they are to be run as `DurableStage`, on a store."""

    sender: StageConfig
    receiver: StageConfig
    order: Ordering
    durable: bool = False


def resend_pipe(
    sender: str,
    receiver: str,
    *,
    window: int = 1,
    timeout_s: float = 1.0,
    backoff: float = 1.0,
    jitter: float = 0.0,
    retries: int | None = None,
    confirm: ConfirmOn = ConfirmOn.RECEIPT,
) -> Ends:
    """Sends again until confirmed: at least once, {1, 1-q}; with n retries {1-p^(n+1), …}. Each wait is `backoff` times
    the one before it, up to a minute or `timeout_s` if that is longer, less up to `jitter` of itself.

    It does not drop copies. One at a time, order is kept but for the copies; with a wider window a resend comes late.
    """
    inlet = InletConfig(f"{sender}>{receiver}", (sender,), confirm)
    return _ends(sender, inlet, Ordering.NONE, _until_confirmed(window, timeout_s, retries, backoff, jitter))


def confirm_pipe(sender: str, receiver: str, *, timeout_s: float = 60.0) -> Ends:
    """Sends the next message when the last one is confirmed, and nothing twice: {1-p, 1} and no gaps.

    It does not get past a loss. After `timeout_s` without a confirm it stops and says so; who resumes it then sends
    that message again, and takes the copy into account.
    """
    inlet = InletConfig(f"{sender}>{receiver}", (sender,), ConfirmOn.RECEIPT)
    resend = ResendPolicy(1, timeout_s, RetryPolicy(retries=0, then="suspend"))
    return _ends(sender, inlet, Ordering.CONTINUOUS, resend)


def id_dedup(sender: str, receiver: str, *, size: int | None = None, keep_s: float | None = None) -> Ends:
    """Lets each id pass once while it is remembered: at most once, {1-p, 1}.

    It does not bring back what is lost and does not order. A copy that comes after `keep_s`, or after `size` other ids,
    passes as new.
    """
    inlet = InletConfig(f"{sender}>{receiver}", (sender,), None, DedupBy.ID, keep_s, size)
    return _ends(sender, inlet, Ordering.NONE)


def index_dedup(sender: str, receiver: str) -> Ends:
    """Lets an index pass that is above the last one: at most once and never back, {<=1-p, 1}. One number is its memory.

    It does not wait: on a link that reorders, what is overtaken is lost.
    """
    inlet = InletConfig(f"{sender}>{receiver}", (sender,), None, DedupBy.INDEX)
    return _ends(sender, inlet, Ordering.STRICT)


def strict(sender: str, receiver: str, *, patience_s: float = 1.0, buffer_max: int = 1000) -> Ends:
    """Puts back in order what the link reordered, each index once: {1-p, 1} for what comes within `patience_s`.

    It does not bring back what is lost: after `patience_s` it goes on without it and says so.
    """
    return _in_order(sender, receiver, None, GapPolicy(OnGap.SKIP, patience_s), buffer_max, Ordering.STRICT)


def continuous(sender: str, receiver: str, *, buffer_max: int = 1000) -> Ends:
    """Lets only the next index pass, each once: what has arrived has no gaps and no copies.

    It does not get past the first loss, because nobody sends again: R is the length of the first unbroken run. Put
    `ordering_pipe` in its place when it shall go on.
    """
    return _in_order(sender, receiver, None, GapPolicy(OnGap.WAIT), buffer_max, Ordering.ABSOLUTE)


def ordering_pipe(
    sender: str,
    receiver: str,
    *,
    window: int = 16,
    timeout_s: float = 1.0,
    backoff: float = 1.0,
    jitter: float = 0.0,
    confirm: ConfirmOn = ConfirmOn.RECEIPT,
) -> Ends:
    """Sends again until confirmed and lets every index pass once and in order: {1, 1}, absolute.

    A receiving end that is restarted goes on from the sender's floor, below which all is confirmed. It does not keep
    what the old one had in memory: what had passed and was not yet confirmed passes again, and what was confirmed and
    not yet handed on is lost. Make the pipe durable where that matters.
    """
    resend = _until_confirmed(window, timeout_s, None, backoff, jitter)
    return _in_order(sender, receiver, confirm, GapPolicy(OnGap.WAIT), max(1000, window), Ordering.ABSOLUTE, resend)


def reliable_dedup_pipe(
    sender: str,
    receiver: str,
    *,
    window: int = 16,
    timeout_s: float = 1.0,
    backoff: float = 1.0,
    jitter: float = 0.0,
    confirm: ConfirmOn = ConfirmOn.RECEIPT,
    size: int | None = None,
    keep_s: float | None = None,
) -> Ends:
    """Sends again until confirmed and lets each id pass once: {1, 1}.

    It does not order, unless the window is 1, and forgets ids as `id_dedup` does: keep them for longer than any copy
    can be late. A receiving end that is restarted has forgotten them all.
    """
    inlet = InletConfig(f"{sender}>{receiver}", (sender,), confirm, DedupBy.ID, keep_s, size)
    order = Ordering.ABSOLUTE if window == 1 else Ordering.NONE
    return _ends(sender, inlet, order, _until_confirmed(window, timeout_s, None, backoff, jitter))


def durable_pipe(
    sender: str,
    receiver: str,
    *,
    window: int = 16,
    timeout_s: float = 1.0,
    backoff: float = 1.0,
    jitter: float = 0.0,
    ordered: bool = True,
) -> Ends:
    """The sender's queue and the receiver's memory are in a store: {1, 1} over every crash, and absolute when ordered.

    It does not outlive the store, and is as fast as the store commits.
    """
    dedup = DedupBy.STRICT if ordered else DedupBy.ID
    inlet = InletConfig(f"{sender}>{receiver}", (sender,), ConfirmOn.RECEIPT, dedup, buffer_max=max(1000, window))
    order = Ordering.ABSOLUTE if ordered or window == 1 else Ordering.NONE
    return _ends(sender, inlet, order, _until_confirmed(window, timeout_s, None, backoff, jitter), durable=True)


def _until_confirmed(window: int, timeout_s: float, retries: int | None, backoff: float, jitter: float) -> ResendPolicy:
    longest_s = max(BACKOFF_WAIT_MAX_S, timeout_s)
    retry = RetryPolicy(retries, min(timeout_s * backoff, longest_s), backoff, longest_s, jitter, then="discard")
    return ResendPolicy(window, timeout_s, retry)


def _in_order(
    sender: str,
    receiver: str,
    confirm: ConfirmOn | None,
    gap: GapPolicy,
    buffer_max: int,
    order: Ordering,
    resend: ResendPolicy | None = None,
) -> Ends:
    hop = f"{sender}>{receiver}"
    inlet = InletConfig(hop, (sender,), confirm, DedupBy.STRICT, buffer_max=buffer_max, gap=gap)
    return _ends(sender, inlet, order, resend)


def _ends(
    sender: str, inlet: InletConfig, order: Ordering, resend: ResendPolicy | None = None, *, durable: bool = False
) -> Ends:
    receiver = inlet.hop.removeprefix(f"{sender}>")
    floors = inlet.dedup is DedupBy.STRICT and resend is not None
    outlet = OutletConfig(inlet.hop, receiver, resend, floors=floors)
    entry = InletConfig(f"app>{sender}")
    return Ends(
        StageConfig(sender, inlets=(entry,), outlets=(outlet,)),
        StageConfig(receiver, inlets=(inlet,), handles=True),
        order,
        durable,
    )
