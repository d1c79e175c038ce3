"""What a role allows."""

from __future__ import annotations

import pytest

from semel.auth.authority import OPERATE, READ, RECEIVE, SEND, allows


@pytest.mark.parametrize(
    ("role", "needed", "allowed"),
    [
        ("semel.send:inbox/orders", f"{SEND}inbox/orders", True),
        ("semel.send:inbox/*", f"{SEND}inbox/orders", True),
        ("semel.send:*", f"{SEND}queue/a/b", True),
        ("semel.send:inbox/*", f"{SEND}queue/orders", False),
        ("semel.send:inbox/order?", f"{SEND}inbox/orders", True),
        ("semel.send:INBOX/*", f"{SEND}inbox/orders", False),
        ("semel.send:inbox/*", f"{RECEIVE}inbox/orders", False),
        ("semel.receive:queue/*", f"{RECEIVE}queue/a", True),
        ("semel.send:*", READ, False),
        ("semel.send:*", OPERATE, False),
        (READ, f"{SEND}inbox/orders", False),
        (OPERATE, f"{SEND}inbox/orders", True),
        (OPERATE, READ, True),
        (READ, OPERATE, False),
        ("", f"{SEND}inbox/orders", False),
        ("semel.*", READ, False),
    ],
)
def test_a_role_allows_what_it_says_and_no_more(role: str, needed: str, allowed: bool) -> None:
    assert allows([role], needed) is allowed
    assert allows(["other", role], needed) is allowed


def test_no_roles_allow_nothing() -> None:
    assert not allows([], READ)
