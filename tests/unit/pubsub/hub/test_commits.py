from __future__ import annotations

from semel.errors import StoreFull, StoreReadOnly, StoreUnavailable
from semel.kernel.effects import CommitFailed, CommitUnknown
from semel.kernel.ops import Conflict
from semel.pubsub.hub.commits import hint, is_conflict, is_gone, is_trouble, why

SECRET = "no route to db.internal as admin"


def test_what_goes_out_names_neither_hosts_nor_users() -> None:
    failure = CommitFailed(1, error=StoreUnavailable(SECRET))
    assert why(failure) == SECRET
    assert hint(failure) == "the store could not take it; ask again"
    assert hint(CommitFailed(1, error=StoreFull(SECRET))) == "the store has no room left; ask again later"
    assert hint(CommitFailed(1, error=StoreReadOnly(SECRET))) == "the store refuses it"
    assert hint(CommitUnknown(1)) == "the store could not take it; ask again"


def test_a_conflict_says_that_somebody_else_has_written() -> None:
    changed, gone = CommitFailed(1, (Conflict(3), Conflict(0))), CommitFailed(1, (Conflict(0),))
    assert (is_conflict(changed), is_gone(changed), is_trouble(changed)) == (True, False, False)
    assert (is_conflict(gone), is_gone(gone), is_trouble(gone)) == (True, True, False)
    assert (is_conflict(CommitUnknown(1)), is_gone(CommitUnknown(1)), is_trouble(CommitUnknown(1))) == (
        False, False, True,
    )  # fmt: skip
