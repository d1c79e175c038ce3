"""Lists in pages: what a request for one says, and the link to the next.

A continuation token says after which connection the next page begins. It holds for the list it was made for and for no
other, as long as one of the keys does; a connection that has gone meanwhile does no harm.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from urllib.parse import urlencode

import msgspec

from semel.auth.keys import AccessKeys
from semel.http import INT_MAX, HttpError, Query, bad_request
from semel.pubsub.hub.calls import Answer

PAGE_MAX = 200

_PROOF_BYTES = 16


class Page(msgspec.Struct, frozen=True):
    """`top` is how many are wanted over all pages from this one on."""

    size: int = PAGE_MAX
    top: int | None = None
    after: str = ""

    @property
    def limit(self) -> int:
        return self.size if self.top is None else min(self.size, self.top)


def asked_page(query: Query, keys: AccessKeys, hub: str, group: str) -> Page:
    token = query.one("continuationToken")
    return Page(
        query.number("maxpagesize", 1, PAGE_MAX) or PAGE_MAX,
        query.number("top", 1, INT_MAX),
        "" if token is None else read_token(token, keys, hub, group),
    )


def page_body(page: Page, answer: Answer, address: str, version: str, keys: AccessKeys, hub: str, group: str) -> bytes:
    """`address` is the list's own, without a query."""
    value = [
        {"connectionId": member.connection} | ({} if member.user is None else {"userId": member.user})
        for member in answer.members
    ]
    body: dict[str, object] = {"value": value}
    left = None if page.top is None else page.top - len(value)
    if answer.more and value and left != 0:
        fields: dict[str, object] = {"api-version": version, "maxpagesize": page.size}
        if left is not None:
            fields["top"] = left
        fields["continuationToken"] = page_token(keys, hub, group, answer.members[-1].connection)
        body["nextLink"] = f"{address}?{urlencode(fields)}"
    return msgspec.json.encode(body)


def page_token(keys: AccessKeys, hub: str, group: str, after: str) -> str:
    whole = _proof(keys.primary, hub, group, after) + after.encode()
    return base64.urlsafe_b64encode(whole).decode().rstrip("=")


def read_token(token: str, keys: AccessKeys, hub: str, group: str) -> str:
    try:
        whole = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        after = whole[_PROOF_BYTES:].decode()
    except (binascii.Error, ValueError):
        raise _refused() from None
    proofs = [hmac.compare_digest(whole[:_PROOF_BYTES], _proof(key, hub, group, after)) for key in keys.all]
    if not any(proofs):
        raise _refused()
    return after


def _refused() -> HttpError:
    name = "continuationToken"
    return bad_request(f"the {name} is not one of this list", fix="follow nextLink, or begin without it", target=name)


def _proof(key: str, hub: str, group: str, after: str) -> bytes:
    """The first line keeps it apart from everything else that is signed with the same key."""
    names = json.dumps([hub, group, after]).encode()
    return hmac.digest(key.encode(), b"semel page\n" + names, hashlib.sha256)[:_PROOF_BYTES]
