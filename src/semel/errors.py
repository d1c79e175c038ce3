"""Every error that Semel raises, in one tree.

    SemelError
    ├── ConfigError             a setting is wrong: fix the file or the command line
    │   └── PathSyntaxError     a delivery path does not parse
    ├── InputError              a value handed to Semel is malformed
    │   ├── LimitExceeded       a value is well formed but too large, or too many
    │   ├── MessageRefused      no handler knows a message, or it does not fit the handler: a dead letter
    │   └── WrongIsolation      a transaction has one view for all its statements, where each must see what is new
    ├── AuthError               who are you?
    ├── Forbidden               you may not do this
    ├── HandlerError            the user's own code failed
    │   ├── HandlerCutOff       the process ended before it did: it is handled again
    │   └── TransactionEnded    it has committed by itself: it is not tried again
    ├── DuplicateMessage        only raised by APIs that ask for it; elsewhere a duplicate is a result
    ├── StoreError
    │   ├── StoreUnavailable    cannot be reached or opened
    │   │   ├── StoreInRecovery the database is a standby, or not done with its recovery
    │   │   └── StoreBroken     this process can use it no longer, after an I/O error: restart it
    │   │       └── StoreGone   its files were removed or replaced
    │   ├── StoreBusy           someone else holds the lock; try again
    │   ├── StoreFull           no space left
    │   ├── StoreReadOnly       the folder or file may not be written
    │   ├── NotAStore           the file or database is something else
    │   ├── SchemaTooNew        written by a newer Semel
    │   ├── EpochChanged        the position belongs to a history that this store does not have
    │   ├── StaleFence          a newer owner has taken over
    │   ├── StoreRefused        the engine refused the data of one commit (the guilty one is found by bisection)
    │   └── CommitInDoubt       the connection broke inside COMMIT; nobody may act before it is resolved
    ├── ProtocolError
    │   ├── LocalProtocolError  we would have broken the protocol
    │   ├── RemoteProtocolError the peer broke it
    │   │   └── FrameError      it sent a frame on a WebSocket that cannot be taken
    │   └── SessionGone         the peer no longer knows this session
    ├── PeerUnavailable         the other side does not answer
    ├── RequestInDoubt          it was sent and no answer came: nobody knows whether it was done
    ├── StreamBroken            a client stream is over and not whole
    └── Suspended               delivery stopped after its retries; an operator may resume it

Each error says in `fix` what to do next, in `fault` whose it is, and in `retryable` whether the same call may
succeed later without anybody changing anything.
"""

from __future__ import annotations

from typing import ClassVar, Literal

Fault = Literal["local", "remote", "store", "config"]

EXIT_HOLDS = 0
EXIT_CLAIM_FALSE = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_NO_DATA = 4
EXIT_IN_DOUBT = 5


class SemelError(Exception):
    """Root of the tree. `code` is stable and meant for machines, the text and `fix` are meant for people."""

    code: ClassVar[str] = "semel"
    fault: ClassVar[Fault] = "local"
    retryable: ClassVar[bool] = False
    exit_code: ClassVar[int] = EXIT_USAGE

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}\n  fix: {self.fix}" if self.fix else self.message

    def as_dict(self) -> dict[str, str]:
        return {"code": self.code, "message": self.message, "fix": self.fix}


class ConfigError(SemelError):
    code = "config"
    fault = "config"


class PathSyntaxError(ConfigError):
    code = "path-syntax"


class InputError(SemelError):
    code = "input"


class LimitExceeded(InputError):
    code = "limit"


class MessageRefused(InputError):
    code = "message-refused"


class WrongIsolation(InputError):
    code = "wrong-isolation"


class AuthError(SemelError):
    code = "auth"
    fault = "remote"


class Forbidden(SemelError):
    code = "forbidden"
    fault = "remote"


class HandlerError(SemelError):
    code = "handler"


class HandlerCutOff(HandlerError):
    """The process ended before the handler did. The message is handled again, and the attempt does not count."""

    code = "handler-cut-off"


class TransactionEnded(HandlerError):
    """A handler has committed or rolled back the transaction that it was given. Its effect may be there without the
    mark, so it is not tried again."""

    code = "transaction-ended"


class DuplicateMessage(SemelError):
    code = "duplicate"
    fault = "remote"


class StoreError(SemelError):
    code = "store"
    fault: ClassVar[Fault] = "store"
    exit_code = EXIT_UNREACHABLE


class StoreUnavailable(StoreError):
    code = "store-unavailable"
    retryable = True


class StoreInRecovery(StoreUnavailable):
    code = "store-in-recovery"


class StoreBroken(StoreUnavailable):
    code = "store-broken"
    retryable = False


class StoreGone(StoreBroken):
    code = "store-gone"


class StoreBusy(StoreError):
    code = "store-busy"
    retryable = True


class StoreFull(StoreError):
    code = "store-full"
    retryable = True


class StoreReadOnly(StoreError):
    code = "store-read-only"


class NotAStore(StoreError):
    code = "not-a-store"


class SchemaTooNew(StoreError):
    code = "schema-too-new"


class EpochChanged(StoreError):
    """`current` is the epoch that the store is in now; the caller chooses where to begin again."""

    code = "epoch-changed"

    def __init__(self, message: str, *, current: int, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.current = current


class StaleFence(StoreError):
    code = "stale-fence"


class StoreRefused(StoreError):
    code = "store-refused"
    fault = "local"


class CommitInDoubt(StoreError):
    """`marker` names the transaction; `Store.resolve(marker)` answers whether it happened."""

    code = "commit-in-doubt"
    exit_code = EXIT_IN_DOUBT

    def __init__(self, message: str, *, marker: str, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.marker = marker


class ProtocolError(SemelError):
    code = "protocol"


class LocalProtocolError(ProtocolError):
    code = "protocol-local"


class RemoteProtocolError(ProtocolError):
    code = "protocol-remote"
    fault = "remote"


class FrameError(RemoteProtocolError):
    """`close_code` and `reason` are what to close the WebSocket with. 1007: not what was agreed upon."""

    code = "frame"
    REASON_BYTES_MAX: ClassVar[int] = 123  # a close frame has room for no more

    def __init__(self, message: str, *, close_code: int = 1007, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.close_code = close_code

    @property
    def reason(self) -> str:
        """The message, as much of it as a close frame can carry."""
        return self.message.encode(errors="replace")[: self.REASON_BYTES_MAX].decode(errors="ignore")


class SessionGone(ProtocolError):
    code = "session-gone"
    fault = "remote"


class PeerUnavailable(SemelError):
    code = "peer-unavailable"
    fault = "remote"
    retryable = True
    exit_code = EXIT_UNREACHABLE


class RequestInDoubt(SemelError):
    code = "request-in-doubt"
    fault = "remote"
    exit_code = EXIT_UNREACHABLE


class StreamBroken(SemelError):
    """`name` says why: a word of the server (`IdleTimeout`, `Forbidden`, `StreamNotFound`, `Cancelled`, or `UserError`
    with the sender's `user_code`), or `SessionGone`, `PartsMissing`, `GroupLeft`, `Stopped`. `parts`: up to which part
    the hub surely has it, or, for a receiver, up to which it came."""

    code = "stream-broken"
    fault = "remote"

    def __init__(self, message: str, *, name: str, parts: int = 0, user_code: str | None = None, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.name, self.parts, self.user_code = name, parts, user_code


class Suspended(SemelError):
    code = "suspended"
    fault = "remote"
