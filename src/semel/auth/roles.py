"""What the maker of an operator's token may allow.

    semel.read              to look at everything
    semel.operate           to do everything
    semel.send:<glob>       to send to what the glob matches, such as inbox/orders
    semel.receive:<glob>    to take from what the glob matches

What a request needs is written as the one role that allows just that: `semel.send:inbox/orders`.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

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
