"""Named places where a process may die. Tests kill real processes at each; in production `reach` does nothing."""

from __future__ import annotations

from collections.abc import Callable

POINTS: dict[str, str] = {
    "commit.begin": "the transaction is open, nothing is written",
    "commit.applied": "everything is written, nothing is committed",
    "commit.committed": "committed, not yet reported to anybody",
    "perform.completed": "the machines have their completions, their sends are not out",
    "sweep.deleted": "a batch is deleted, not committed",
    "blob.chunk": "some chunks of a body are stored, the envelope that names it is not",
    "migrate.step": "a migration step is done, its version is not recorded",
    "epoch.raised": "a new epoch is written, not committed",
    "member.joined": "a member is written down, not committed",
    "switch.vouched": "a member has written that all is there, not committed",
    "switch.kept": "the switch is written down as one that lost nothing, not committed",
    "export.planned": "the range to export is recorded, the file is not begun",
    "export.written": "the file is written under its temporary name",
    "export.renamed": "the file has its final name, the range is not marked done",
    "export.listed": "the manifest names the file, the range is not marked done",
    "inbox.stored": "messages are stored at their endpoint, not yet acknowledged to their transport",
    "inbox.claimed": "a worker has claimed a message, its handler has not begun",
    "inbox.reserved": "the claim of a reserved handler is committed, its effect has not begun",
    "inbox.returned": "the handler has returned, mark and outbox are not written",
    "inbox.marked": "effect, mark and outbox are written, not committed",
    "inbox.committed": "effect, mark and outbox are committed, not yet reported to anybody",
    "inbox.settled": "all is committed, the delivery is not yet settled with its transport",
    "letter.stored": "the body of a message that is given up is stored, its end is not",
    "letter.moved": "a dead letter is replayed or discarded, not yet reported to anybody",
    "follow.begun": "the source's store keeps a stream for a follower, which has no cursor yet",
    "follow.read": "records of a stream are read, nothing of them is stored",
    "follow.stored": "the rows of records and the cursor after them are committed, not yet reported to anybody",
    "follow.pinned": "the source's store knows how far its stream was taken",
    "relay.sent": "the other side has a message, the outbox does not know it",
}

_hook: Callable[[str], None] | None = None


def reach(point: str) -> None:
    if _hook is not None:
        _hook(point)


def on_reach(hook: Callable[[str], None] | None) -> None:
    """Call `hook` with the name of every point reached from now on; None stops it."""
    global _hook
    _hook = hook
