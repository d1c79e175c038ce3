"""Whether the maker of a request may do what it asks for."""

from __future__ import annotations

import pytest
from tests.unit.pubsub.rest.rest_values import HOST, KEYS, NOW, request

from semel.auth.authority import OPERATE, READ, RECEIVE, SEND, Authority, allows
from semel.auth.keys import AccessKeys
from semel.auth.tokens import service_token
from semel.http import HttpError, HttpRequest


@pytest.mark.parametrize(
    ("roles", "reads", "changes"),
    [
        ((), True, True),
        (("semel.operate",), True, True),
        (("semel.read",), True, False),
        (("semel.read", "semel.operate"), True, True),
        (("semel.receive:x",), False, False),
        (("SEMEL.READ",), False, False),
        (("read",), False, False),
        (("anything else",), False, False),
        (("webpubsub.sendToGroup",), False, False),
        (("anything else", "semel.read"), True, False),
    ],
)
def test_what_a_role_allows(roles: tuple[str, ...], reads: bool, changes: bool) -> None:
    for needed, allowed in ((READ, reads), (OPERATE, changes)):
        asked = request("GET", "/x", roles=roles)
        if allowed:
            Authority(KEYS).check(asked, needed, NOW)
            continue
        with pytest.raises(HttpError) as caught:
            Authority(KEYS).check(asked, needed, NOW)
        assert caught.value.status == 403
        assert caught.value.fix.endswith(needed)


def test_who_has_no_key_is_told_so() -> None:
    strange = service_token(AccessKeys("o" * 32), f"http://{HOST}/x", now=NOW)
    late = service_token(KEYS, f"http://{HOST}/x", now=NOW - 1000)
    elsewhere = service_token(KEYS, f"http://{HOST}/y", now=NOW)
    for header in ("", "Basic x", f"Bearer {strange}", f"Bearer {late}", f"Bearer {elsewhere}"):
        with pytest.raises(HttpError) as caught:
            Authority(KEYS).check(HttpRequest("GET", "/x", headers={"authorization": header}, host=HOST), READ, NOW)
        assert (caught.value.status, caught.value.headers) == (401, (("www-authenticate", "Bearer"),))


def test_a_host_with_a_path_in_it_opens_nothing() -> None:
    """The token of a client would be one for operators."""
    with pytest.raises(HttpError) as caught:
        Authority(KEYS).check(request("GET", "/x", host=f"{HOST}/client/hubs"), READ, NOW)
    assert caught.value.status == 400


# -- what a role allows


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
