"""How the client without asyncio calls the one with it: what that one can do, it can do, on the loop, and waits for it.

A method is taken over with its parameters, their types and its documentation, which stand in one place:

    class SyncClient(Waiting[Client]):
        join_group = waiting(Client.join_group)
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")


class Call(Protocol):
    """Has something done on the loop, and waits for it."""

    def __call__(self, asked: Coroutine[Any, Any, R]) -> R: ...


class Waiting(Generic[A]):
    """Stands for something asynchronous, and has a way to wait for what that does."""

    _async: A
    _call: Call


def waiting(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Waiting[A], P], R]:
    """The method of the asynchronous one, for the one that waits."""

    @wraps(method)
    def wait(self: Waiting[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._call(method(self._async, *args, **kwargs))

    return wait


def looking(method: Callable[Concatenate[A, P], R]) -> Callable[Concatenate[Waiting[A], P], R]:
    """One that does not wait, but reads what only the loop's own thread may read."""

    @wraps(method)
    async def look(of: A, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(of, *args, **kwargs)

    return waiting(look)
