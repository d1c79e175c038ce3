"""Who is there: the sessions of a hub by id, by user and by group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from semel.pubsub.session import Session


class Roster:
    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.users: dict[str, dict[str, Session]] = {}
        self.groups: dict[str, dict[str, Session]] = {}
        self._left: dict[str, list[tuple[Session, int, int]]] = {}

    def __len__(self) -> int:
        return len(self.sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self.sessions.values())

    def get(self, connection: str) -> Session | None:
        return self.sessions.get(connection)

    def add(self, session: Session) -> None:
        """With the groups that it is in. Stays that have ended count for records of their time."""
        self.sessions[session.id] = session
        if session.user is not None:
            self.users.setdefault(session.user, {})[session.id] = session
        for group in session.groups:
            self.groups.setdefault(group, {})[session.id] = session
        for group, since, until in session.left:
            self._left.setdefault(group, []).append((session, since, until))

    def remove(self, session: Session) -> None:
        self.sessions.pop(session.id, None)
        if session.user is not None:
            _discard(self.users, session.user, session.id)
        for group in session.groups:
            _discard(self.groups, group, session.id)

    def join(self, session: Session, group: str, offset: int) -> None:
        """From this record on. Who is in already stays in since then."""
        if session.groups.setdefault(group, offset) == offset:
            self.groups.setdefault(group, {})[session.id] = session

    def leave(self, session: Session, group: str, offset: int) -> None:
        since = session.groups.get(group)
        if since is None or since > offset:
            return
        del session.groups[group]
        if session.queue:
            session.left.append((group, since, offset))
        _discard(self.groups, group, session.id)

    def forget_stays(self) -> None:
        """Nothing of the time before will be read again."""
        self._left.clear()

    def receivers(self, target: str, offset: int) -> Iterable[Session]:
        """To whom a record with this target is due, at its place in the stream."""
        if target.startswith("g/"):
            return self._members(target[2:], offset)
        if target.startswith("u/"):
            found: Iterable[Session] = self.users.get(target[2:], {}).values()
        elif target.startswith("c/"):
            session = self.sessions.get(target[2:])
            found = (session,) if session is not None else ()
        else:
            found = self.sessions.values()
        return [session for session in found if session.start < offset]

    def _members(self, group: str, offset: int) -> Iterable[Session]:
        members = self.groups.get(group, {}).values()
        found = [session for session in members if session.groups[group] < offset]
        if group in self._left:
            found += [session for session, since, until in self._left[group] if since < offset < until]
        return found


def _discard(index: dict[str, dict[str, Session]], key: str, connection: str) -> None:
    found = index.get(key)
    if found is not None:
        found.pop(connection, None)
        if not found:
            del index[key]
