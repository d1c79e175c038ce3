"""Who owns an endpoint, in the store: see `semel.inbox.owner`."""

from __future__ import annotations

from collections.abc import Iterable

from semel.errors import StoreBusy
from semel.inbox.owner import EndpointOwner, claim_ownership, hand_over, owner_key, read_owner
from semel.kernel.ops import Applied, Put
from semel.kernel.store import Store
from semel.runtime.host.lease_holder import commit_unit

TRIES_MAX = 5


def claim_endpoints(store: Store, app: str, endpoints: Iterable[str]) -> dict[str, str]:
    """Make the endpoints this application's, unless they are, and return the scope of the identities of each. Raises
    ConfigError for one that is another's."""
    names = list(endpoints)
    for _ in range(TRIES_MAX):
        found = owners_of(store, names)
        puts = claim_ownership(app, found)
        if not puts or isinstance(commit_unit(store, puts), Applied):
            return {name: owner.scope if owner is not None else app for name, owner in found.items()}
    raise StoreBusy("others take the same endpoints at this moment", fix="start the application again")


def claim_beside(store: Store, app: str, endpoint: str) -> tuple[str, tuple[Put, ...]]:
    """The same for a call in a user's transaction: the scope, and what that transaction has to write. That is nothing,
    if the store knows the owner already.

    Where there is one writer at a time a commit of our own would wait for the caller's, which waits for us. Elsewhere
    it is a commit of our own, so that nobody waits for a user's transaction."""
    owner = owners_of(store, [endpoint])[endpoint]
    puts = claim_ownership(app, {endpoint: owner})
    if puts and _has_many_writers(store):
        return claim_endpoints(store, app, [endpoint])[endpoint], ()
    return owner.scope if owner is not None else app, puts


def adopt_endpoint(store: Store, app: str, endpoint: str) -> str | None:
    """Take an endpoint over, whoever has it. Returns who had it. Messages, dead letters and what was handled stay."""
    state = store.state(owner_key(endpoint))
    owner = read_owner(state.value) if state is not None else None
    put = hand_over(app, endpoint, owner, state.version if state is not None else 0)
    if not isinstance(commit_unit(store, (put,)), Applied):
        raise StoreBusy(f"somebody else has just taken {endpoint!r} over", fix="look who has it, and try again")
    return owner.app if owner is not None else None


def lost_endpoints(store: Store, app: str, endpoints: Iterable[str]) -> set[str]:
    """Those that another application has taken over meanwhile."""
    return {name for name, owner in owners_of(store, endpoints).items() if owner is not None and owner.app != app}


def owners_of(store: Store, endpoints: Iterable[str]) -> dict[str, EndpointOwner | None]:
    found: dict[str, EndpointOwner | None] = {}
    for name in endpoints:
        state = store.state(owner_key(name))
        found[name] = read_owner(state.value) if state is not None else None
    return found


def _has_many_writers(store: Store) -> bool:
    return store.url.startswith(("postgresql:", "postgres:"))
