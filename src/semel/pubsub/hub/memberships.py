"""In which groups a session is: asked for, durable, and applied by the stream, which with several nodes takes a moment
longer."""

from __future__ import annotations

from collections.abc import Iterable

from semel.pubsub.hub.session_rows import SessionRow

GROUPS_MAX = 10_000
GROUPS_CHARS_MAX = 512 * 1024
"""For all names together: they are in one row, which is written with every change."""
TOO_MANY_GROUPS = (
    f"a connection can be in {GROUPS_MAX:,} groups, with {GROUPS_CHARS_MAX:,} characters in all their names; those that"
    " it has left count until it has acknowledged what came from them"
)

Stay = tuple[str, int, int]
"""A group, and the offsets between which the session was in it."""


class Memberships:
    """`wanted`: as soon as it is asked for. `decided`: when it is durable from which record on. `applied`: when this
    node has applied that record; messages go by this one. `left` are stays that have ended, of which the client may not
    have everything."""

    __slots__ = ("applied", "decided", "left", "wanted")

    def __init__(self, row: SessionRow) -> None:
        self.applied = dict(row.groups)
        self.decided = dict(row.groups)
        self.wanted = set(row.groups)
        self.left: list[Stay] = list(row.left)

    def is_settled(self, group: str, is_in: bool) -> bool:
        """Whether it is in the group, or out of it, with nothing on its way that could change that."""
        return (group in self.wanted) == (group in self.decided) == is_in

    def has_room_for(self, groups: Iterable[str], served: int) -> bool:
        """Whether it may join these as well. Groups that it has left count for as long as it is owed something of its
        time there."""
        self.forget_stays(served)
        names = [*self.wanted.union(groups), *(group for group, _, _ in self.left)]
        return len(names) <= GROUPS_MAX and sum(map(len, names)) <= GROUPS_CHARS_MAX

    def join(self, group: str, offset: int) -> None:
        """The record that says so is durable, at this offset."""
        self.decided.setdefault(group, offset)

    def leave(self, group: str, offset: int, served: int) -> None:
        """A stay that ends is remembered while something of it may be missing."""
        since = self.decided.pop(group, None)
        self.forget_stays(served)
        if since is not None and served < offset:
            assert since < offset, "a stay ends after it began"
            self.left.append((group, since, offset))

    def forget_stays(self, served: int) -> None:
        """Nothing up to this offset is missing any more."""
        self.left = [stay for stay in self.left if stay[2] > served]

    def fall_back(self) -> None:
        """Nothing that was on its way will be stored."""
        self.wanted = set(self.decided)
