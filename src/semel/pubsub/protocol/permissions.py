"""What a connection may do with groups: join and leave them, send to them.

It comes from the roles of its token or of the answer to its connect event:

    webpubsub.sendToGroup              every group
    webpubsub.sendToGroup.<group>      this group
    webpubsub.sendToGroups.<pattern>   the groups that fit: ? one character but no dot, * any run without a dot,
                                       ** any run, \\ before ? * \\ for the character itself

and the same with joinLeaveGroup. Later the server side grants and revokes, and **what is said of one group outweighs
what is said of many**: a group that is revoked stays so although a role allows every group, until it is granted again
or the permission is granted for all. Granting or revoking for all forgets all that was said before, roles included.

Roles that say nothing here are ignored, and so are patterns that do not parse and whatever goes beyond the limits: the
connection can then do less, never more.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache

import msgspec

from semel.errors import InputError, LimitExceeded

GROUP_CHARS_MAX = 1024
PATTERN_CHARS_MAX = 1024
STARS_MAX = 5
GROUPS_MAX = 1000
PATTERNS_MAX = 10
ROLES_MAX = 4000


class Permission(StrEnum):
    JOIN_LEAVE_GROUP = "joinLeaveGroup"
    SEND_TO_GROUP = "sendToGroup"


class PermissionScope(msgspec.Struct, frozen=True):
    """The groups for which one permission holds: all of them or those allowed and fitting, but never the denied."""

    everywhere: bool = False
    allowed: frozenset[str] = frozenset()
    denied: frozenset[str] = frozenset()
    patterns: tuple[str, ...] = ()

    def covers(self, group: str) -> bool:
        if group in self.denied:
            return False
        if self.everywhere or group in self.allowed:
            return True
        return _fits_any(self.patterns, group)

    def covers_all(self) -> bool:
        return self.everywhere and not self.denied

    def with_group(self, group: str) -> PermissionScope:
        scope = msgspec.structs.replace(self, denied=self.denied - {group})
        return scope if scope.covers(group) else msgspec.structs.replace(scope, allowed=scope.allowed | {group})

    def without_group(self, group: str) -> PermissionScope:
        scope = msgspec.structs.replace(self, allowed=self.allowed - {group})
        return msgspec.structs.replace(scope, denied=scope.denied | {group}) if scope.covers(group) else scope

    def within_limits(self) -> bool:
        return len(self.allowed) + len(self.denied) <= GROUPS_MAX and len(self.patterns) <= PATTERNS_MAX


_NOWHERE = PermissionScope()
_EVERYWHERE = PermissionScope(everywhere=True)


class Permissions(msgspec.Struct, frozen=True):
    """One connection's permissions. A change makes a new value."""

    join_leave: PermissionScope = _NOWHERE
    send: PermissionScope = _NOWHERE

    @classmethod
    def of_roles(cls, roles: Iterable[str]) -> Permissions:
        """What the first `ROLES_MAX` roles allow together. Their order does not matter within the limits."""
        bounded = [role for role, _ in zip(roles, range(ROLES_MAX), strict=False)]
        return cls(_scope_of(bounded, Permission.JOIN_LEAVE_GROUP), _scope_of(bounded, Permission.SEND_TO_GROUP))

    def may(self, permission: Permission, group: str) -> bool:
        return self._scope(permission).covers(group)

    def has(self, permission: Permission, target: str | None) -> bool:
        """For the group `target`; without one, whether it holds for every group and none is revoked."""
        scope = self._scope(permission)
        return scope.covers_all() if target is None else scope.covers(target)

    def granted(self, permission: Permission, target: str | None) -> Permissions:
        """With the permission for the group `target`, or for every group."""
        if target is None:
            return self._with(permission, _EVERYWHERE)
        return self._with(permission, self._scope(permission).with_group(_checked(target)))

    def revoked(self, permission: Permission, target: str | None) -> Permissions:
        """Without the permission for the group `target`, or for any group. Members stay members."""
        if target is None:
            return self._with(permission, _NOWHERE)
        return self._with(permission, self._scope(permission).without_group(_checked(target)))

    def _scope(self, permission: Permission) -> PermissionScope:
        return self.send if permission is Permission.SEND_TO_GROUP else self.join_leave

    def _with(self, permission: Permission, scope: PermissionScope) -> Permissions:
        if not scope.within_limits():
            raise LimitExceeded(
                f"a connection can be granted or revoked {permission} for at most {GROUPS_MAX} groups one by one",
                fix="grant it for all groups, or name them with a pattern in a role",
            )
        if permission is Permission.SEND_TO_GROUP:
            return msgspec.structs.replace(self, send=scope)
        return msgspec.structs.replace(self, join_leave=scope)


def is_group(name: str) -> bool:
    """Whether a group may have this name: 1 to 1024 characters, and not only blanks."""
    return len(name) <= GROUP_CHARS_MAX and bool(name.strip())


def _checked(group: str) -> str:
    if not is_group(group):
        raise InputError(
            f"a group's name has 1 to {GROUP_CHARS_MAX} characters and not only blanks, this one has {len(group)}",
            fix="name the group, or leave the target out for all groups",
        )
    return group


def _scope_of(roles: list[str], permission: Permission) -> PermissionScope:
    everywhere = f"webpubsub.{permission}"
    of_group, of_pattern = f"{everywhere}.", f"{everywhere}s."
    if everywhere in roles:
        return _EVERYWHERE
    groups = [role.removeprefix(of_group) for role in roles if role.startswith(of_group)]
    patterns: dict[str, None] = {}
    for role in roles:
        if role.startswith(of_pattern) and (pattern := _parse(role.removeprefix(of_pattern))) is not None:
            if pattern.everything:
                return _EVERYWHERE
            patterns[pattern.text] = None
    allowed = dict.fromkeys(group for group in groups if is_group(group))
    return PermissionScope(allowed=frozenset([*allowed][:GROUPS_MAX]), patterns=tuple([*patterns][:PATTERNS_MAX]))


# -- patterns


class _Pattern:
    """A pattern as the bits of a machine that follows every possible way through it at once.

    Bit i stands for "the first i parts have been matched". Each character of a group moves all bits in a few steps, so
    a match takes time in proportion to the group's length whatever the pattern: nothing is tried twice.
    """

    __slots__ = ("_any", "_exact", "_last", "_one", "_run", "_stars", "everything", "text")

    def __init__(self, text: str, parts: list[str | None], stars: dict[int, bool]) -> None:
        """`parts` are single characters, or None for `?` and stars; `stars` tells whether the one there passes dots."""
        self.text = text
        self._exact: dict[str, int] = {}
        self._one = self._run = self._any = 0
        for at, part in enumerate(parts):
            if part is not None:
                self._exact[part] = self._exact.get(part, 0) | 1 << at
            elif at not in stars:
                self._one |= 1 << at
            elif stars[at]:
                self._any |= 1 << at
            else:
                self._run |= 1 << at
        self._stars = self._run | self._any
        self._last = 1 << len(parts)
        self.everything = len(parts) == 1 and self._any == 1

    def fits(self, group: str) -> bool:
        here = 1 | (1 & self._stars) << 1
        for character in group:
            step, stay = self._exact.get(character, 0), self._any
            if character != ".":
                step |= self._one
                stay |= self._run
            here = (here & step) << 1 | here & stay
            here |= (here & self._stars) << 1
            if not here:
                return False
        return bool(here & self._last)


@lru_cache(maxsize=1024)
def _parse(text: str) -> _Pattern | None:
    """None when it is no pattern: empty, too long, with too many stars, or with a `\\` before anything else."""
    if not 0 < len(text) <= PATTERN_CHARS_MAX:
        return None
    parts: list[str | None] = []
    stars: dict[int, bool] = {}
    count, at = 0, 0
    while at < len(text):
        character = text[at]
        at += 1
        if character == "\\":
            if at == len(text) or text[at] not in "*?\\":
                return None
            parts.append(text[at])
            at += 1
        elif character == "*":
            run = len(text) - at + 1 - len(text[at:].lstrip("*"))
            stars[len(parts)] = run > 1
            parts.append(None)
            count += run
            at += run - 1
        else:
            parts.append(None if character == "?" else character)
    return _Pattern(text, parts, stars) if count <= STARS_MAX else None


@lru_cache(maxsize=4096)
def _fits_any(patterns: tuple[str, ...], group: str) -> bool:
    return any(machine.fits(group) for machine in map(_parse, patterns) if machine is not None)
