"""The errors of a client: what a server's fault means to the caller, and what can be said where no answer came."""

from __future__ import annotations

from semel.errors import (
    Forbidden,
    InputError,
    LocalProtocolError,
    PeerUnavailable,
    RemoteProtocolError,
    RequestInDoubt,
    SemelError,
    StreamBroken,
)
from semel.pubsub.client.events import RequestFailed
from semel.pubsub.protocol.messages import ErrorName, Fault

_FOR_A_TIME = frozenset({ErrorName.INTERNAL, ErrorName.TIMEOUT, ErrorName.TRANSIENT})


def is_for_a_time(fault: Fault) -> bool:
    """Whether the same request may succeed later."""
    return fault.name in _FOR_A_TIME


def error_of(fault: Fault) -> SemelError:
    text = f"the server answers {fault.name}: {fault.message}" if fault.message else f"the server answers {fault.name}"
    if fault.name == ErrorName.FORBIDDEN:
        return Forbidden(text, fix="ask for a token with the role that this needs")
    if fault.name == ErrorName.CONFLICT:
        return InputError(text, fix="give each message an id of its own; this one was not published")
    if fault.name in (ErrorName.BAD_REQUEST, ErrorName.NOT_FOUND):
        return InputError(text, fix="correct the request; sent again as it is, it fails again")
    if is_for_a_time(fault):
        return PeerUnavailable(text, fix="try again later")
    return RemoteProtocolError(text, fix="see what this server means by it")


def unknown(cause: SemelError) -> SemelError:
    """It was sent, and the answer never came."""
    return RequestInDoubt(
        f"it is not known whether the server has taken it: {cause.message}",
        fix="give messages an id of your own, and they are sent again and taken once; or allow at_least_once",
    )


def kept(cause: SemelError) -> SemelError:
    return PeerUnavailable(f"it waits in the outbox: {cause.message}", fix="the next client on this outbox sends it")


def not_sent(cause: SemelError) -> SemelError:
    return PeerUnavailable(f"it was never sent: {cause.message}", fix="ask again when there is a connection")


def not_taken_in_time(was_sent: bool) -> SemelError:
    if was_sent:
        return RequestInDoubt(
            "no answer came in time, and it is not known whether the server has taken it",
            fix="ask again only if doing it twice does no harm, or with the same id",
        )
    return PeerUnavailable("it could not be sent in time", fix="ask again when there is a connection")


STOPPED = LocalProtocolError("the client was stopped")


def unanswered(cause: SemelError, was_sent: bool) -> RequestFailed:
    return RequestFailed(unknown(cause) if was_sent else not_sent(cause), maybe_taken=was_sent)


# -- streams

_FIXES = {
    ErrorName.IDLE_TIMEOUT: "write sooner, keep it alive in between, or allow it a longer idle timeout",
    ErrorName.FORBIDDEN: "ask for a token with the role that this needs",
    ErrorName.USER: "its sender has ended it, and knows why",
}


def broken(fault: Fault, parts: int) -> StreamBroken:
    """A stream that is over and not whole, for whichever end."""
    text = f"{fault.name}: {fault.message}" if fault.message else fault.name
    fix = _FIXES.get(fault.name, "begin another stream")  # type: ignore[call-overload]
    return StreamBroken(
        f"the stream broke after part {parts}: {text}", name=fault.name, parts=parts, user_code=fault.user_code, fix=fix
    )


def session_lost(cause: SemelError, parts: int) -> StreamBroken:
    return broken(Fault("SessionGone", cause.message), parts)


def end_in_doubt(reason: str) -> SemelError:
    return RequestInDoubt(
        f"all parts are published, but it is not known whether the stream has ended well: {reason}",
        fix="let receivers know by the last part that it is the last",
    )
