"""Whether the maker of a request may do what it asks for: by a token under one of the access keys, for this address."""

from __future__ import annotations

from collections.abc import Iterable

from semel.auth.keys import AccessKeys
from semel.auth.tokens import ROLE_OPERATE, ROLE_READ, read_service_token, service_audiences
from semel.errors import AuthError
from semel.http import HttpError, HttpRequest, bearer_of, origin_of


def authorize(
    request: HttpRequest, keys: AccessKeys, endpoints: Iterable[str], now: float, *, only_reads: bool
) -> None:
    """Raises `HttpError` if not. Microsoft's libraries name no roles: whoever holds a key may do everything. A token
    that names roles may do what they allow and no more, so one whose roles mean nothing here may do nothing."""
    try:
        token = bearer_of(request)
        if token is None:
            raise AuthError("there is no token", fix="send one as Authorization: Bearer <token>")
        audiences = service_audiences(f"{origin_of(request)}{request.path}", endpoints)
        claims = read_service_token(token, keys, audiences, now)
    except AuthError as error:
        raise _unauthorized(error) from None
    if claims.roles is None or ROLE_OPERATE in claims.roles:
        return
    if not only_reads or ROLE_READ not in claims.roles:
        role = ROLE_READ if only_reads else ROLE_OPERATE
        raise HttpError(403, "Error.Forbidden", "the token does not allow this", fix=f"make one with the role {role}")


def _unauthorized(error: AuthError) -> HttpError:
    challenge = (("www-authenticate", "Bearer"),)
    return HttpError(401, "Error.Unauthorized", error.message, fix=error.fix, target="Authorization", headers=challenge)
