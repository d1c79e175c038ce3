"""What the server side asks of a hub: sending, closing, groups, permissions, and who is there.

REST, event handlers, commands and our own Python calls all become these. A hub answers each with one `Answer`, when
what was asked is durable and not before.
"""

from __future__ import annotations

from enum import Enum, StrEnum

import msgspec

from semel.pubsub.protocol.messages import Data, Metadata
from semel.pubsub.protocol.permissions import Permission

# whom a call is for; the tags stand in orders in the stream, and never change


class Everybody(msgspec.Struct, frozen=True, tag="Everybody"):
    """All connections of the hub."""


class Group(msgspec.Struct, frozen=True, tag="Group"):
    name: str


class User(msgspec.Struct, frozen=True, tag="User"):
    name: str


class Connection(msgspec.Struct, frozen=True, tag="Connection"):
    name: str


Receivers = Everybody | Group | User | Connection


class Publish(msgspec.Struct, frozen=True):
    """`ttl_s` None or 0: it does not expire. `key` makes it idempotent: a second call with the same key and the same
    content sends nothing, and one with other content is refused with `CONFLICT`. `id` is the application's own."""

    to: Receivers
    data: Data
    excluded: tuple[str, ...] = ()
    filter: str | None = None
    ttl_s: int | None = None
    metadata: Metadata | None = None
    key: str | None = None
    id: str | None = None


class CloseConnections(msgspec.Struct, frozen=True):
    to: Receivers
    excluded: tuple[str, ...] = ()
    reason: str = ""


class Find(msgspec.Struct, frozen=True):
    """Is anybody there? `NOT_FOUND` if not."""

    who: Group | User | Connection


class JoinMembers(msgspec.Struct, frozen=True):
    """A connection, all connections of a user, or all that a filter chooses become members. `NOT_FOUND` where a
    connection or user that is named has no connection."""

    who: Connection | User | Everybody
    groups: tuple[str, ...]
    filter: str | None = None


class RemoveMembers(msgspec.Struct, frozen=True):
    """`groups` None: from all that they are in."""

    who: Connection | User | Everybody
    groups: tuple[str, ...] | None
    filter: str | None = None


class ListMembers(msgspec.Struct, frozen=True):
    """Members of a group after the connection `after`, in the order of their ids."""

    group: str
    after: str = ""
    limit: int = 200


class Grant(msgspec.Struct, frozen=True):
    """`group` None: for all groups."""

    connection: str
    permission: Permission
    group: str | None = None


class Revoke(msgspec.Struct, frozen=True):
    connection: str
    permission: Permission
    group: str | None = None


class Check(msgspec.Struct, frozen=True):
    """`NOT_FOUND` if the connection has not got it."""

    connection: str
    permission: Permission
    group: str | None = None


# -- for operators


class Summarize(msgspec.Struct, frozen=True):
    """How much there is of everything: one `HubInfo`."""


class ListConnections(msgspec.Struct, frozen=True):
    """Connections after the one named `after`, in the order of their ids."""

    of: Everybody | Group | User = Everybody()
    after: str = ""
    limit: int = 200


class ListGroups(msgspec.Struct, frozen=True):
    """Groups with a member, after the one named `after`, in the order of their names."""

    after: str = ""
    limit: int = 200


Look = Summarize | ListConnections | ListGroups

Call = Publish | CloseConnections | Find | JoinMembers | RemoveMembers | ListMembers | Grant | Revoke | Check | Look


class Outcome(Enum):
    DONE = "done"
    NOT_FOUND = "not found"
    CONFLICT = "conflict"
    REFUSED = "refused"
    """The call makes no sense: `message` says why."""
    FAILED = "failed"
    """The store could not do it, and nothing has happened. Trying again may help."""


class Member(msgspec.Struct, frozen=True):
    connection: str
    user: str | None = None


class HubInfo(msgspec.Struct, frozen=True):
    connected: int
    waiting: int
    elsewhere: int
    groups: int


class Attendance(StrEnum):
    CONNECTED = "connected"
    WAITING = "waiting"
    """It has lost its socket, and its session waits for the client."""
    ELSEWHERE = "elsewhere"
    """It belongs to another node, which knows more."""


class ConnectionInfo(msgspec.Struct, frozen=True, rename="camel"):
    """`begin` is where the stream stood when it came, `acked` how far the client has acknowledged. `waiting_since` in
    seconds since 1970. The backlog is what was sent, or waits to be, and is not acknowledged. None: only the node that
    has it knows."""

    connection_id: str
    state: Attendance
    node: str
    groups: tuple[str, ...]
    user_id: str | None = None
    protocol: str | None = None
    begin: int | None = None
    acked: int | None = None
    backlog: int | None = None
    backlog_bytes: int | None = None
    waiting_since: float | None = None


class GroupInfo(msgspec.Struct, frozen=True):
    name: str
    members: int


class Answer(msgspec.Struct, frozen=True):
    """`more`: there is more after the last member of the list."""

    outcome: Outcome = Outcome.DONE
    message: str = ""
    members: tuple[Member, ...] = ()
    more: bool = False
    rows: tuple[HubInfo | ConnectionInfo | GroupInfo, ...] = ()
    """What a `Look` has found."""
    repeated: bool = False
    """It was done before, under the same key, and not again."""
