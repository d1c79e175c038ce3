"""`semel token`: what a client or an operator needs to come in. No server is asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Annotated

import typer

from semel.cli.options import ConfigOption, bundled, option
from semel.cli.remote import ConnectionOption, DevOption, EndpointOption, KeysOption, ServerAddress, find_server
from semel.cli.terminal import CommandResult
from semel.errors import ConfigError, InputError

_CLIENT_ROLES = {
    f"{before}{name}": f"webpubsub.{name}"
    for name in ("joinLeaveGroup", "sendToGroup", "joinLeaveGroups", "sendToGroups")
    for before in ("", "webpubsub.")
}
_SERVICE_ROLES = {f"{before}{name}": f"semel.{name}" for name in ("read", "operate") for before in ("", "semel.")}
"""Roles, as they may be written and as they stand in a token. A client's may be followed by a dot and a group."""


@bundled
def token(
    context: typer.Context,
    hub: Annotated[str | None, option("--hub", "For a client of this hub.", "NAME")] = None,
    service: Annotated[str | None, option("--service", "For requests to this path, such as /metrics.", "PATH")] = None,
    user: Annotated[str | None, option("--user", "Who it is for.", "NAME")] = None,
    role: Annotated[
        list[str] | None, option("--role", "What it allows, such as sendToGroup.orders. Repeatable.", "ROLE")
    ] = None,
    group: Annotated[
        list[str] | None, option("--group", "A group that the client is in at once. Repeatable.", "NAME")
    ] = None,
    minutes: Annotated[int, option("--minutes", "How long it may be used.", "N", min=1)] = 60,
    connection_string: ConnectionOption = None,
    endpoint: EndpointOption = None,
    keys: KeysOption = None,
    dev: DevOption = False,
    config: ConfigOption = None,
) -> CommandResult:
    """Make an address with which a client may connect, or a token for services.

    \b
    Roles of clients: joinLeaveGroup, sendToGroup, also with .<group>;
    joinLeaveGroups.<pattern>, sendToGroups.<pattern>.
    Roles of services: read, operate, send:<glob>, such as send:inbox/orders.
    Without one a service may do everything.

    \b
    Examples:
      semel token --hub chat --user ann --role joinLeaveGroup --role sendToGroup
      semel token --hub chat --group news --minutes 5 --dev
      semel token --service /metrics --role read --minutes 525600
    """
    if (hub is None) == (service is None):
        raise ConfigError("a token is either for a client or for a service", fix="give --hub or --service")
    place = find_server(connection_string, endpoint, keys, dev=dev, config=config)
    try:
        if hub is not None:
            roles = [_client_role(name, context.obj.note) for name in role or ()]
            return _for_client(place, hub, user, roles, group or [], minutes)
        if group:
            raise ConfigError("a service is in no group", fix="leave out --group, or give --hub")
        return _for_service(place, service or "", user, [_service_role(name) for name in role or ()], minutes)
    except InputError as error:
        raise ConfigError(error.message, fix=error.fix) from None


def _client_role(name: str, note: Callable[[str], None]) -> str:
    for written, role in _CLIENT_ROLES.items():
        if name == written or name.startswith(f"{written}."):
            return role + name.removeprefix(written)
    note(f"{name[:80]!r} is no role that allows a client something here: {_known(_CLIENT_ROLES)}")
    return name


def _service_role(name: str) -> str:
    """A role that means nothing would allow everything."""
    from semel.auth.authority import RECEIVE, SEND

    whole = name if name.startswith("semel.") else f"semel.{name}"
    if any(whole.startswith(verb) and len(whole) > len(verb) for verb in (SEND, RECEIVE)):
        return whole
    if name not in _SERVICE_ROLES:
        known = f"{_known(_SERVICE_ROLES)}, send:<glob>, receive:<glob>"
        raise ConfigError(f"{name[:80]!r} is no role of a service", fix=f"use one of them: {known}")
    return _SERVICE_ROLES[name]


def _known(roles: Mapping[str, str]) -> str:
    return ", ".join(name for name in roles if "." not in name)


def _for_client(
    place: ServerAddress, hub: str, user: str | None, roles: list[str], groups: list[str], minutes: int
) -> CommandResult:
    from semel.pubsub.protocol.client_tokens import CLIENT_PATH, client_token
    from semel.pubsub.protocol.names import check_hub

    now = time.time()
    address = f"{place.endpoint}{CLIENT_PATH}{check_hub(hub)}"
    made = client_token(
        place.keys, address, now=now, lifetime_s=60 * minutes, user_id=user, roles=roles, groups=groups
    )  # fmt: skip
    url = f"ws{address.removeprefix('http')}?access_token={made}"
    return CommandResult({"url": url, "token": made, "expires": int(now) + 60 * minutes}, [url])


def _for_service(place: ServerAddress, path: str, user: str | None, roles: list[str], minutes: int) -> CommandResult:
    from semel.auth.tokens import service_token

    if not path.startswith("/"):
        raise ConfigError(f"{path!r} is no path of the server", fix="begin with a slash, as in /metrics")
    now = time.time()
    url = f"{place.endpoint}{path}"
    made = service_token(place.keys, url, now=now, lifetime_s=60 * minutes, user=user, roles=roles)
    return CommandResult({"url": url, "token": made, "expires": int(now) + 60 * minutes}, [made])
