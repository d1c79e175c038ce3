"""What became of a commit, for those who asked for it."""

from __future__ import annotations

from collections.abc import Callable

from semel.errors import SemelError, StoreFull, StoreReadOnly, StoreRefused
from semel.kernel.effects import CommitFailed, CommitUnknown
from semel.kernel.ops import Conflict, Result

Failure = CommitFailed | CommitUnknown
Done = Callable[[tuple[Result, ...], float], None]
Failed = Callable[[Failure, float], None]


def why(failure: Failure) -> str:
    """For those who run the server: it goes into the log, and never out of the server."""
    error = failure.error if isinstance(failure, CommitFailed) else None
    return error.message if error is not None else "the store could not take it"


def hint(failure: Failure) -> str:
    """For clients and services."""
    return public_message(failure.error if isinstance(failure, CommitFailed) else None)


def public_message(error: SemelError | None) -> str:
    """All that goes out of the server about an error of the store. Where the store is, what it is called and who
    may use it stands in the error itself, and is for the log alone."""
    if isinstance(error, StoreFull):
        return "the store has no room left; ask again later"
    if isinstance(error, StoreReadOnly | StoreRefused):
        return "the store refuses it"
    return "the store could not take it; ask again"


def is_conflict(failure: Failure) -> bool:
    """Somebody else has written meanwhile."""
    return isinstance(failure, CommitFailed) and any(isinstance(each, Conflict) for each in failure.results)


def is_trouble(failure: Failure) -> bool:
    """The store itself did not do it, whatever was asked."""
    error = failure.error if isinstance(failure, CommitFailed) else None
    return not is_conflict(failure) and not isinstance(error, StoreRefused)


def is_gone(failure: Failure) -> bool:
    """What was to be written or deleted is not there any more."""
    conflicts = [each for each in getattr(failure, "results", ()) if isinstance(each, Conflict)]
    return bool(conflicts) and not any(each.version for each in conflicts)


def nothing_more(results: tuple[Result, ...], now: float) -> None:
    """It is done, and nobody waits for it."""
