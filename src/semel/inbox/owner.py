"""An endpoint belongs to one application of a store.

Its queue is named after the endpoint alone, so two applications that used one name would get each other's messages. The
first that uses an endpoint writes its name under `owner_key`, if nobody has; every other one is refused.

One that is handed over keeps the scope of its identities: what its former application has handled stays handled.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from semel.errors import ConfigError
from semel.kernel.ops import Put
from semel.kernel.text import quote_part

OWNER_PREFIX = "inbox/owner/"


class EndpointOwner(msgspec.Struct, frozen=True):
    """`scope` is the application under whose name the endpoint's messages are known: its first one."""

    app: str
    scope: str


def owner_key(endpoint: str) -> str:
    return f"{OWNER_PREFIX}{quote_part(endpoint)}"


def read_owner(value: bytes) -> EndpointOwner:
    return msgspec.json.decode(value, type=EndpointOwner)


def claim_ownership(app: str, found: Mapping[str, EndpointOwner | None]) -> tuple[Put, ...]:
    """The writes that make those endpoints this application's that are nobody's yet: compare-and-set, so that of two
    that begin at once one is refused. `found` has the owner of each. Raises ConfigError where that is another."""
    for endpoint, owner in found.items():
        if owner is not None and owner.app != app:
            raise _taken(app, endpoint, owner.app)
    value = msgspec.json.encode(EndpointOwner(app, app))
    return tuple(Put(owner_key(each), value, expected=0) for each, owner in found.items() if owner is None)


def hand_over(app: str, endpoint: str, owner: EndpointOwner | None, version: int) -> Put:
    """Make an endpoint this application's, whoever has it; refused if that has changed since it was looked at."""
    value = msgspec.json.encode(EndpointOwner(app, owner.scope if owner is not None else app))
    return Put(owner_key(endpoint), value, expected=version)


def _taken(app: str, endpoint: str, other: str) -> ConfigError:
    return ConfigError(
        f"endpoint {endpoint!r} of this store belongs to the application {other!r}, not to {app!r}",
        fix="give the endpoint another name, or the application another store; if it is to change hands, stop "
        f"{other!r} and take it over: semel inbox adopt MODULE:APP {endpoint}",
    )
