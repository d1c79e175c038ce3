"""JSON Web Tokens, signed with HMAC-SHA256 under one of the server's keys; nothing else is read.

A token is meant for an *audience*, the address it is used at. Addresses are compared without what proxies change on
the way and libraries write in different ways: http, https, ws and wss are one, so are capitals and small letters, what
is written with % and without, and a query, a slash at the end or the usual port count for nothing. Behind a reverse
proxy a token carries the address that its maker knows: give that as one more endpoint.

Tokens of servers and operators are here; a part that has tokens of its own makes them with `sign_token` and reads them
with `read_token`. No message here shows a token or a key.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

import jwt
import msgspec

from semel.auth.keys import AccessKeys
from semel.errors import AuthError, InputError
from semel.kernel.text import check_text

TOKEN_CHARS_MAX = 32_768
AUDIENCE_CHARS_SHOWN = 200
USER_CHARS_MAX = 1024
ROLE_CHARS_MAX = 2048
ITEMS_MAX = 4000
SKEW_S = 300
SERVICE_LIFETIME_S = 60
NAME_CLAIM = "http://schemas.xmlsoap.org/ws/2005/05/identity/claims/name"

_ALGORITHM = "HS256"
_USUAL_PORTS = {"http": ":80", "ws": ":80", "https": ":443", "wss": ":443"}


class ServiceClaims(msgspec.Struct, frozen=True):
    """What the token of a server or an operator says. `roles` None: it names none, as those of Microsoft's
    libraries do not."""

    user: str | None = None
    roles: tuple[str, ...] | None = None


# -- making them


def service_token(
    keys: AccessKeys,
    audience: str,
    *,
    now: float,
    lifetime_s: float = SERVICE_LIFETIME_S,
    user: str | None = None,
    roles: Sequence[str] = (),
) -> str:
    """A token for one address of the REST API. Without roles it may do there whatever can be done."""
    check_subject(user, roles)
    claims: dict[str, Any] = {NAME_CLAIM: user, "role": list(roles)}
    return sign_token(keys, audience, now, lifetime_s, {name: value for name, value in claims.items() if value})


def check_subject(user: str | None, roles: Sequence[str]) -> None:
    check_text("the user", user or "", chars_max=USER_CHARS_MAX, empty=True)
    for role in roles:
        check_text("a role", role, chars_max=ROLE_CHARS_MAX)


def sign_token(keys: AccessKeys, audience: str, now: float, lifetime_s: float, payload: Mapping[str, Any]) -> str:
    """A token with these claims beside those of time and audience."""
    if not 0 < lifetime_s < math.inf:
        raise InputError(f"a token cannot live for {lifetime_s} s", fix="give it a minute or more")
    whole = {"aud": audience, "iat": int(now), "exp": math.ceil(now + lifetime_s), **payload}
    token = jwt.encode(whole, keys.primary, algorithm=_ALGORITHM)
    if len(token) > TOKEN_CHARS_MAX:
        raise InputError(
            f"the token has {len(token):,} characters, the limit is {TOKEN_CHARS_MAX:,}",
            fix="allow many groups by one pattern: webpubsub.sendToGroups.<pattern>",
        )
    return token


# -- whom they are for


def service_audiences(url: str, endpoints: Iterable[str] = ()) -> tuple[str, ...]:
    """For whom the token of a request to `url` may be: that address, or the same path at one of the endpoints."""
    parts = _split(url)
    path = parts[1] if parts else ""
    return (url, *(f"{endpoint.rstrip('/')}{path}" for endpoint in endpoints))


def _split(url: str) -> tuple[str, str] | None:
    """Host with port, and path, of an address of the web; None when it is something else."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    scheme = parts.scheme.lower()
    if scheme not in _USUAL_PORTS or not parts.netloc:
        return None
    return parts.netloc.lower().removesuffix(_USUAL_PORTS[scheme]), parts.path


def _forms(audience: str) -> set[tuple[str, ...]]:
    """Two audiences are the same when they have a form in common: as written, or without %."""
    if (parts := _split(audience)) is None:
        return {(audience.lower(),)}
    host, path = parts
    return {(host, form.lower().rstrip("/")) for form in (path, unquote(path))}


# -- reading them


def read_service_token(token: str, keys: AccessKeys, audiences: Iterable[str], now: float) -> ServiceClaims:
    """What the token says, or an `AuthError`. `audiences` come from `service_audiences`.

    Whatever is added to them must never be an audience of clients too, or each client is an operator.
    """
    payload = read_token(token, keys, audiences, now)
    # a claim that is there restricts, whatever is in it: nobody writes it to allow everything
    roles = claim_items(payload, "role", ROLE_CHARS_MAX) if "role" in payload else None
    return ServiceClaims(claim_name(payload, NAME_CLAIM), roles)


def read_token(token: str, keys: AccessKeys, audiences: Iterable[str], now: float) -> dict[str, Any]:
    """The claims of a token that holds now, under one of the keys and for one of the audiences, or an `AuthError`."""
    payload = _payload(token, keys)
    _check_times(payload, now)
    _check_audience(payload, audiences)
    return payload


def _payload(token: str, keys: AccessKeys) -> dict[str, Any]:
    if not token:
        raise AuthError("there is no token", fix="send one as access_token in the query or as Authorization: Bearer")
    if len(token) > TOKEN_CHARS_MAX:
        raise AuthError(
            f"the token has {len(token):,} characters, the limit is {TOKEN_CHARS_MAX:,}",
            fix="allow many groups by one pattern: webpubsub.sendToGroups.<pattern>",
        )
    if not token.isascii():
        raise _malformed("is no JSON Web Token")
    for key in keys.all:
        try:
            return _decoded(token, key)
        except jwt.InvalidSignatureError:
            continue
    raise AuthError("the token is signed with another key", fix="use the access key of this server; was it replaced?")


def _decoded(token: str, key: str) -> dict[str, Any]:
    try:
        # the clock is the caller's, so times are checked in `_check_times`; so is the audience, which has many forms
        return jwt.decode(token, key, algorithms=[_ALGORITHM], options=_SIGNATURE_ONLY)
    except jwt.InvalidSignatureError:
        raise
    except jwt.InvalidAlgorithmError:
        raise AuthError("the token is not signed with HS256", fix="sign it with HS256 and the access key") from None
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise _malformed("is no JSON Web Token") from None


_SIGNATURE_ONLY: jwt.types.Options = {
    "verify_signature": True,
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
    "verify_iss": False,
    "verify_sub": False,
    "verify_jti": False,
}


def _check_times(payload: dict[str, Any], now: float) -> None:
    expires = _time(payload, "exp")
    if expires is None:
        raise AuthError("the token never expires", fix="give it the claim exp")
    if now >= expires + SKEW_S:
        raise AuthError("the token has expired", fix="get a new one from your server, and check both clocks")
    # not `iat`, which only tells when it was made: the service takes tokens from makers whose clock is fast
    since = _time(payload, "nbf")
    if since is not None and now < since - SKEW_S:
        raise AuthError("the token is not valid yet", fix="check the clocks of its maker and of this server")


def _time(payload: dict[str, Any], name: str) -> float | None:
    value = payload.get(name)
    if value is None:
        return None
    # JSON from Python may say NaN or Infinity, and whoever compares with those lets a token live for ever
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**53:
        raise _malformed(f"has no time in its claim {name}")
    return value


def _check_audience(payload: dict[str, Any], audiences: Iterable[str]) -> None:
    named, asked = claim_items(payload, "aud", TOKEN_CHARS_MAX), tuple(audiences)
    wanted: set[tuple[str, ...]] = set().union(*(_forms(audience) for audience in asked))
    if not any(_forms(audience) & wanted for audience in named):
        raise AuthError(
            f"the token is for another address: for {_shown(named)}, not for {_shown(asked)}",
            fix="its claim aud must be this address; behind a proxy, tell this server by which endpoint it is known",
        )


def _shown(audiences: tuple[str, ...]) -> str:
    return repr(audiences[0][:AUDIENCE_CHARS_SHOWN]) if audiences else "none"


def claim_items(payload: dict[str, Any], claim: str, chars_max: int) -> tuple[str, ...]:
    """The texts in a claim: one may stand without a list."""
    value = payload.get(claim)
    if value is None:
        return ()
    items = value if isinstance(value, list) else [value]
    if len(items) > ITEMS_MAX:
        raise _malformed(f"has {len(items):,} values in its claim {claim}, the limit is {ITEMS_MAX:,}")
    return tuple(claim_text(item, f"its claim {claim}", chars_max) for item in items)


def claim_name(payload: dict[str, Any], claim: str) -> str | None:
    """Who it is for, if it says so."""
    value = payload.get(claim)
    return None if value in (None, "") else claim_text(value, f"its claim {claim}", USER_CHARS_MAX)


def claim_text(value: object, what: str, chars_max: int = TOKEN_CHARS_MAX) -> str:
    """Text that every store can hold."""
    if not isinstance(value, str):
        raise _malformed(f"has something else than text in {what}")
    try:
        return check_text(what, value, chars_max=chars_max, empty=True)
    except InputError as error:
        raise _malformed(f"is unusable: {error.message}") from None


def claim_texts(value: object) -> tuple[str, ...]:
    """Whatever a claim says, as text."""
    return tuple(_as_text(item) for item in (value if isinstance(value, list) else [value]))


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return claim_text(value, "a claim")
    try:
        return json.dumps(value, separators=(",", ":"))
    except RecursionError:
        raise _malformed("has a claim that is nested too deep") from None


def _malformed(what: str) -> AuthError:
    return AuthError(f"the token {what}", fix="make it with Microsoft's libraries or with semel token")
