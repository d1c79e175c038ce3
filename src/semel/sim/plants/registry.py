"""Where the plants are kept, and how one is switched on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from semel.errors import ConfigError

Patch = tuple[Any, str, Any]
"""Where, which name, and what to put there."""
CaughtBy = Literal["kernel", "pipes", "hub", "client", "inbox", "contract"]


@dataclass(frozen=True, slots=True)
class Plant:
    """`caught_by` says who must notice: one of the simulator's worlds, or the contract suite of the stores."""

    name: str
    description: str
    caught_by: CaughtBy
    patches: tuple[Patch, ...]


PLANTS: dict[str, Plant] = {}


def plant(
    name: str, description: str, *places: tuple[Any, str], caught_by: CaughtBy = "kernel"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function that stands in for `owner.attribute`. It is called with the original before its arguments."""

    def register(wrong: Callable[..., Any]) -> Callable[..., Any]:
        patches = tuple((owner, attribute, _stand_in(wrong, getattr(owner, attribute))) for owner, attribute in places)
        known = PLANTS.get(name)
        PLANTS[name] = Plant(name, description, caught_by, (*(known.patches if known else ()), *patches))
        return wrong

    return register


def _stand_in(wrong: Callable[..., Any], right: Any) -> Any:
    """A function is wrapped. A field gives the wrong value when it is read; what is written to it is lost."""
    if callable(right):
        return lambda *args, **kwargs: wrong(right, *args, **kwargs)
    return property(lambda owner: wrong(right, owner), lambda owner, value: None)


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Switch one bug on, for as long as the block lasts. None switches nothing on."""
    patches = find(name).patches if name is not None else ()
    rights = [(owner, attribute, owner.__dict__[attribute]) for owner, attribute, _ in patches]
    for owner, attribute, wrong in patches:
        setattr(owner, attribute, wrong)
    try:
        yield
    finally:
        for owner, attribute, right in rights:
            setattr(owner, attribute, right)


def find(name: str) -> Plant:
    if name not in PLANTS:
        raise ConfigError(f"there is no planted bug {name!r}", fix=f"choose one of: {', '.join(PLANTS)}")
    return PLANTS[name]
