"""Whether the maker of a request may do what it asks for: by a token under one of the access keys, for this address.

The maker of an operator's token may allow:

    semel.read              to look at everything
    semel.operate           to do everything
    semel.send:<glob>       to send to what the glob matches, such as inbox/orders
    semel.receive:<glob>    to take from what the glob matches

What a request needs is written as the one role that allows just that: `semel.send:inbox/orders`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from semel.auth.keys import AccessKeys
from semel.auth.tokens import read_service_token, service_audiences
from semel.errors import AuthError
from semel.http import HttpError, HttpRequest, bearer_of, origin_of

READ = "semel.read"
OPERATE = "semel.operate"
SEND = "semel.send:"
RECEIVE = "semel.receive:"


def allows(roles: Iterable[str], needed: str) -> bool:
    """Whether one of the roles allows what is needed."""
    return any(role in (needed, OPERATE) or _matches(role, needed) for role in roles)


def _matches(role: str, needed: str) -> bool:
    """`*` stands for any text, a slash included."""
    for verb in (SEND, RECEIVE):
        if needed.startswith(verb):
            return role.startswith(verb) and fnmatchcase(needed.removeprefix(verb), role.removeprefix(verb))
    return False


@dataclass(frozen=True, slots=True)
class Authority:
    """`endpoints` are other addresses of this server, for which tokens may be."""

    keys: AccessKeys
    endpoints: tuple[str, ...] = ()

    def check(self, request: HttpRequest, needed: str, now: float, *, also_for: Iterable[str] = ()) -> None:
        """Raises `HttpError` unless the token of the request allows the role that is `needed`. `also_for` are other
        audiences that it may be for.

        Microsoft's libraries name no roles: whoever holds a key may do everything. A token that names roles may do what
        they allow and no more, so one whose roles mean nothing here may do nothing.
        """
        try:
            token = bearer_of(request)
            if token is None:
                raise AuthError("there is no token", fix="send one as Authorization: Bearer <token>")
            audiences = service_audiences(f"{origin_of(request)}{request.path}", self.endpoints)
            claims = read_service_token(token, self.keys, (*audiences, *also_for), now)
        except AuthError as error:
            raise _unauthorized(error) from None
        if claims.roles is not None and not allows(claims.roles, needed):
            fix = f"make one with the role {needed}"
            raise HttpError(403, "Error.Forbidden", "the token does not allow this", fix=fix)


def _unauthorized(error: AuthError) -> HttpError:
    challenge = (("www-authenticate", "Bearer"),)
    return HttpError(401, "Error.Unauthorized", error.message, fix=error.fix, target="Authorization", headers=challenge)
