"""What roles, grants and revocations allow together."""

from __future__ import annotations

import re
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import InputError, LimitExceeded
from semel.pubsub.protocol.permissions import (
    GROUP_CHARS_MAX,
    GROUPS_MAX,
    PATTERN_CHARS_MAX,
    PATTERNS_MAX,
    ROLES_MAX,
    Permission,
    Permissions,
    is_group,
)
from semel.testing.limits import scaled

JOIN, SEND = Permission.JOIN_LEAVE_GROUP, Permission.SEND_TO_GROUP
BOTH = pytest.mark.parametrize("permission", [JOIN, SEND])
OTHER = {JOIN: SEND, SEND: JOIN}


def patterned(pattern: str) -> Permissions:
    return Permissions.of_roles([f"webpubsub.sendToGroups.{pattern}"])


# -- roles


@BOTH
def test_without_roles_nothing_is_allowed(permission: Permission) -> None:
    nothing = Permissions.of_roles([])
    assert nothing == Permissions()
    assert not nothing.may(permission, "room")
    assert not nothing.has(permission, None)


@BOTH
def test_a_role_for_all_groups(permission: Permission) -> None:
    permissions = Permissions.of_roles([f"webpubsub.{permission}"])
    assert permissions.may(permission, "room")
    assert permissions.may(permission, "a.b")
    assert permissions.has(permission, None)
    assert not permissions.may(OTHER[permission], "room")


@BOTH
def test_a_role_for_one_group_is_taken_to_the_letter(permission: Permission) -> None:
    permissions = Permissions.of_roles([f"webpubsub.{permission}.room.*"])
    assert permissions.may(permission, "room.*")
    assert not permissions.may(permission, "room.1")
    assert not permissions.may(permission, "Room.*")
    assert not permissions.has(permission, None)
    assert not permissions.may(OTHER[permission], "room.*")


@BOTH
def test_a_role_with_a_pattern(permission: Permission) -> None:
    permissions = Permissions.of_roles([f"webpubsub.{permission}s.room-*"])
    assert permissions.may(permission, "room-1")
    assert not permissions.may(permission, "hall-1")
    assert not permissions.may(OTHER[permission], "room-1")


def test_roles_add_up_in_any_order() -> None:
    roles = ["webpubsub.sendToGroup.a", "webpubsub.sendToGroups.b*", "webpubsub.joinLeaveGroup", "admin", ""]
    for order in (roles, roles[::-1]):
        permissions = Permissions.of_roles(order)
        assert [permissions.may(SEND, group) for group in ("a", "b1", "c")] == [True, True, False]
        assert permissions.may(JOIN, "c")


@pytest.mark.parametrize(
    "role",
    [
        "webpubsub.sendToGroupX",
        "webpubsub.sendToGroup.",
        "webpubsub.sendToGroup. \t",
        "webpubsub.sendToGroup." + "g" * (GROUP_CHARS_MAX + 1),
        "webpubsub.sendToGroups",
        "webpubsub.sendToGroups.",
        "webpubsub.sendToGroups." + "?" * (PATTERN_CHARS_MAX + 1),
        "webpubsub.sendtogroup",
        "Webpubsub.sendToGroup",
        " webpubsub.sendToGroup",
        "sendToGroup",
    ],
)
def test_what_is_no_role_gives_nothing(role: str) -> None:
    assert Permissions.of_roles([role]) == Permissions()


def test_roles_beyond_the_limits_are_ignored() -> None:
    groups = Permissions.of_roles(f"webpubsub.sendToGroup.g{n}" for n in range(GROUPS_MAX + 1))
    assert groups.may(SEND, f"g{GROUPS_MAX - 1}")
    assert not groups.may(SEND, f"g{GROUPS_MAX}")
    patterns = Permissions.of_roles(f"webpubsub.sendToGroups.g{n}.*" for n in range(PATTERNS_MAX + 1))
    assert patterns.may(SEND, f"g{PATTERNS_MAX - 1}.x")
    assert not patterns.may(SEND, f"g{PATTERNS_MAX}.x")
    assert Permissions.of_roles(["x"] * ROLES_MAX + ["webpubsub.sendToGroup"]) == Permissions()


def test_a_repeated_role_counts_once() -> None:
    roles = [f"webpubsub.sendToGroup{kind}" for kind in (".a", "s.p*")] * GROUPS_MAX
    permissions = Permissions.of_roles([*roles, "webpubsub.sendToGroup.b", "webpubsub.sendToGroups.q*"])
    assert permissions.may(SEND, "b")
    assert permissions.may(SEND, "q1")


# -- patterns


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("ab*", ["ab", "abcd"], ["ab.cd", "bcd", "a", ""]),
        ("*", ["", "x", "xyz"], [".", "a.b"]),
        ("a*c", ["ac", "a123c", "acc"], ["a123cd", "a1.3c"]),
        ("ab**", ["ab", "ab.cd.ef"], ["a"]),
        ("**ab", ["ab", "cd.ef.ab"], ["cd.ef.abc"]),
        ("a?c", ["abc", "a?c", "a\N{GRINNING FACE}c"], ["a.c", "ac", "abbc"]),
        ("a.**.b", ["a..b", "a.x.y.b"], ["a.b"]),
        ("a*.**.*b", ["ab.cd.ef.ab", "a...b"], ["b.cd.ef.b", "a.b"]),
        ("**a*b", ["a.ab", "a.a.axxb"], ["a.b", "ab."]),
        (r"a\*.***b", ["a*.ab", "a*.b"], ["aa.ab"]),
        (r"a\\.**b", [r"a\.ab"], ["aa.ab"]),
        (r"a\?*", ["a?bc"], ["abc"]),
        (r"room\*", ["room*"], ["room1", r"room\*"]),
        ("Room*", ["Room1"], ["room1", "ROOM1"]),
        ("*.*.*.*.*", ["a.b.c.d.e", "...."], ["a.b.c.d"]),
        ("a[bc](d)+", ["a[bc](d)+"], ["abd", "ab"]),
        ("a\nb?", ["a\nb\n"], ["a\nb"]),
    ],
)
def test_what_fits_a_pattern(pattern: str, fitting: list[str], others: list[str]) -> None:
    permissions = patterned(pattern)
    assert [group for group in fitting if not permissions.may(SEND, group)] == []
    assert [group for group in others if permissions.may(SEND, group)] == []


@pytest.mark.parametrize("pattern", ["*.*.*.*.*.*", "******", "a\\", r"a\b", r"\.", ""])
def test_what_is_no_pattern_gives_nothing(pattern: str) -> None:
    assert patterned(pattern) == Permissions()


@pytest.mark.parametrize("pattern", ["**", "***", "*****"])
def test_the_pattern_for_everything_is_the_role_for_all_groups(pattern: str) -> None:
    assert patterned(pattern) == Permissions.of_roles(["webpubsub.sendToGroup"])
    assert patterned(pattern).has(SEND, None)


def as_regex(pattern: str) -> re.Pattern[str]:
    """The same pattern for a machine that tries one way after the other."""
    wild = {"?": "[^.]", "*": "[^.]*", "**": ".*"}
    found = re.findall(r"\\.|\*+|.", pattern, re.DOTALL)
    return re.compile(
        "".join(wild.get(part[:2], re.escape(part[-1])) for part in found),
        re.DOTALL,
    )


@given(
    st.lists(st.sampled_from(["a", "b", ".", "?", "*", "**", r"\*", r"\\"]), min_size=1, max_size=8),
    st.text("ab.*\\", max_size=10),
)
def test_a_pattern_fits_what_the_regular_expression_fits(parts: list[str], group: str) -> None:
    pattern = "".join(parts)
    if sum(len(part) for part in parts if part in ("*", "**")) > 5:
        assert patterned(pattern) == Permissions()
    else:
        assert patterned(pattern).may(SEND, group) == bool(as_regex(pattern).fullmatch(group))


@pytest.mark.parametrize("pattern", ["*a*a*a*a*b", "**a?**?a*b", "*" + "a" * 1000 + "**?a"])
def test_a_hostile_pattern_takes_no_longer_than_another(pattern: str) -> None:
    permissions = patterned(pattern)
    assert permissions != Permissions()
    began = time.perf_counter()
    assert not permissions.may(SEND, "a" * GROUP_CHARS_MAX + "c")
    assert time.perf_counter() - began < scaled(5), "it tries every way to split the name"


@given(st.lists(st.text()), st.text())
def test_no_role_and_no_group_raises(roles: list[str], group: str) -> None:
    named = [f"webpubsub.sendToGroup{role}" for role in roles] + [f"webpubsub.sendToGroups.{role}" for role in roles]
    assert Permissions.of_roles(roles + named).may(SEND, group) in (True, False)


# -- granting and revoking


@BOTH
def test_granting_and_revoking_one_group(permission: Permission) -> None:
    granted = Permissions().granted(permission, "room")
    assert granted.may(permission, "room")
    assert granted.has(permission, "room")
    assert not granted.may(permission, "hall")
    assert not granted.has(permission, None)
    assert not granted.may(OTHER[permission], "room")
    assert granted.granted(permission, "room") == granted
    assert granted.revoked(permission, "room") == Permissions()
    assert Permissions().revoked(permission, "room") == Permissions()


@BOTH
def test_granting_and_revoking_for_all_groups(permission: Permission) -> None:
    everywhere = Permissions().granted(permission, None)
    assert everywhere.may(permission, "room")
    assert everywhere.has(permission, None)
    assert everywhere.revoked(permission, None) == Permissions()


@pytest.mark.parametrize("role", ["webpubsub.sendToGroup", "webpubsub.sendToGroups.ro*", "webpubsub.sendToGroup.room"])
def test_a_revoked_group_stays_so_whatever_the_role_allows(role: str) -> None:
    before = Permissions.of_roles([role, "webpubsub.sendToGroup.rock"])
    revoked = before.revoked(SEND, "room")
    assert not revoked.may(SEND, "room")
    assert not revoked.has(SEND, "room")
    assert not revoked.has(SEND, None)
    assert revoked.may(SEND, "rock")
    assert revoked.revoked(SEND, "room") == revoked
    assert revoked.granted(SEND, "room") == before


def test_revoking_for_all_takes_roles_and_grants_away() -> None:
    roles = ["webpubsub.sendToGroup.a", "webpubsub.sendToGroups.b*", "webpubsub.joinLeaveGroup"]
    revoked = Permissions.of_roles(roles).granted(SEND, "c").revoked(SEND, None)
    assert not any(revoked.may(SEND, group) for group in ("a", "b1", "c"))
    assert revoked.may(JOIN, "a")
    assert revoked.granted(SEND, "b1").may(SEND, "b1")
    assert not revoked.granted(SEND, "b1").may(SEND, "b2")


def test_granting_for_all_forgets_what_was_revoked() -> None:
    permissions = Permissions.of_roles(["webpubsub.sendToGroup"]).revoked(SEND, "room").granted(SEND, None)
    assert permissions.has(SEND, None)
    assert permissions.may(SEND, "room")


def test_a_group_that_is_granted_already_takes_no_room() -> None:
    permissions = Permissions.of_roles(["webpubsub.sendToGroups.r*"])
    assert permissions.granted(SEND, "room") == permissions


def test_the_number_of_groups_named_one_by_one_is_limited() -> None:
    full = Permissions.of_roles(f"webpubsub.sendToGroup.g{n}" for n in range(GROUPS_MAX))
    with pytest.raises(LimitExceeded, match="1000 groups"):
        full.granted(SEND, "one more")
    assert full.granted(SEND, "g1") == full
    assert full.revoked(SEND, "g1").granted(SEND, "one more").may(SEND, "one more")
    assert full.granted(SEND, None).has(SEND, None)


@pytest.mark.parametrize("name", ["", " ", "\t\n", "g" * (GROUP_CHARS_MAX + 1)])
def test_a_bad_group_is_refused(name: str) -> None:
    assert not is_group(name)
    with pytest.raises(InputError, match="1 to 1024"):
        Permissions().granted(SEND, name)
    with pytest.raises(InputError, match="1 to 1024"):
        Permissions().revoked(SEND, name)


CHANGES = st.lists(st.tuples(st.booleans(), st.sampled_from([JOIN, SEND]), st.sampled_from(["a", "b", "c.d", None])))
ROLES = st.lists(
    st.sampled_from(
        [
            "webpubsub.sendToGroup",
            "webpubsub.sendToGroup.a",
            "webpubsub.sendToGroups.?",
            "webpubsub.joinLeaveGroup",
            "webpubsub.joinLeaveGroups.c**",
        ]
    )
)


@given(ROLES, CHANGES)
def test_the_last_word_about_a_group_holds(
    roles: list[str], changes: list[tuple[bool, Permission, str | None]]
) -> None:
    permissions = Permissions.of_roles(roles)
    expected = {(permission, group): permissions.may(permission, group) for permission in (JOIN, SEND)
                for group in ("a", "b", "c.d", "other")}  # fmt: skip
    for grant, permission, target in changes:
        permissions = permissions.granted(permission, target) if grant else permissions.revoked(permission, target)
        for key in expected:
            if key[0] is permission and target in (None, key[1]):
                expected[key] = grant
    assert {key: permissions.may(*key) for key in expected} == expected


@given(ROLES, CHANGES)
def test_permissions_come_back_from_where_they_are_stored(
    roles: list[str], changes: list[tuple[bool, Permission, str | None]]
) -> None:
    permissions = Permissions.of_roles(roles)
    for grant, permission, target in changes:
        permissions = permissions.granted(permission, target) if grant else permissions.revoked(permission, target)
    stored = msgspec.msgpack.encode(permissions)
    assert msgspec.msgpack.decode(stored, type=Permissions) == permissions
