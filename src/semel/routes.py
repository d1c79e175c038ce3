"""From the method and the path of a request to what answers it.

A pattern such as `/v1/pubsub/hubs/{hub}/groups` has words and names in braces. At one place of a path there are either
words or a name, so no name can be taken for a word.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from semel.http import HttpError, split_path

T = TypeVar("T")


class _Place(Generic[T]):
    """What may follow at a place of a path, and what is found if the path ends there, by method."""

    __slots__ = ("found", "name", "words")

    def __init__(self) -> None:
        self.words: dict[str, _Place[T]] = {}
        self.name: _Place[T] | None = None
        self.found: dict[str, tuple[tuple[str, ...], T]] = {}


class Routes(Generic[T]):
    def __init__(self, table: Iterable[tuple[str, str, T]]) -> None:
        """`table`: for each route a method, a pattern, and what is found there."""
        self._root: _Place[T] = _Place()
        for method, pattern, what in table:
            self._add(method, pattern, what)

    def _add(self, method: str, pattern: str, what: T) -> None:
        place, names = self._root, []
        for segment in pattern[1:].split("/"):
            if segment.startswith("{"):
                names.append(segment[1:-1])
                place.name = place.name or _Place()
                following = place.name
            else:
                following = place.words.setdefault(segment, _Place())
            assert not (place.words and place.name), f"{pattern}: a word and a name at the same place"
            place = following
        assert method not in place.found, f"{method} {pattern} stands twice"
        place.found[method] = tuple(names), what

    def find(self, method: str, path: str) -> tuple[T, dict[str, str]]:
        """What is there, and the names in the path. Raises `HttpError`: 400, 404 or 405."""
        place, values = self._root, []
        for segment in split_path(path):
            following = place.words.get(segment)
            if following is None:
                if place.name is None or not segment:
                    raise nothing_here()
                following = place.name
                values.append(segment)
            place = following
        if not place.found:
            raise nothing_here()
        if method not in place.found:
            raise _no_such_method(place.found)
        names, what = place.found[method]
        return what, dict(zip(names, values, strict=True))


def nothing_here() -> HttpError:
    return HttpError(404, "Error.NotFound", "there is nothing at this address", fix="check the path and its spelling")


def _no_such_method(allowed: Iterable[str]) -> HttpError:
    methods = ", ".join(sorted(allowed))
    message, headers = "this address knows no such method", (("allow", methods),)
    return HttpError(405, "Error.MethodNotAllowed", message, fix=f"use {methods}", headers=headers)
