"""Any path that can be written."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain, count

from hypothesis import strategies as st

from semel.pipes.language.options import LINK_OPTIONS, ConfirmOn, DedupBy, Options
from semel.pipes.language.path import Branch, Hop, Parallel, Path, Pipe, Place, Point, Way

PROBABILITIES = st.one_of(st.sampled_from([0.0, 0.1, 1.0]), st.floats(0, 1))
SECONDS = st.floats(1e-3, 1e6)
NAMES = st.one_of(
    st.text("ABCxyz019._~@:%+/-", min_size=1, max_size=6),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=6),
)


@st.composite
def options(draw: st.DrawFn, *, of_pipe: bool = False) -> Options:
    retries = draw(st.one_of(st.none(), st.just(math.inf), st.integers(0, 1000)))
    dedup = draw(st.sampled_from(DedupBy))
    by_id = dedup is DedupBy.ID
    link: dict[str, object] = {name: draw(PROBABILITIES) for name in LINK_OPTIONS[:3]}
    link["delay"] = draw(st.one_of(st.just(0.0), SECONDS))
    link["repeats"] = 0 if retries is not None else draw(st.integers(0, 3))
    return Options(
        **({} if of_pipe else link),  # type: ignore[arg-type]
        retries=retries,
        timeout=draw(SECONDS),
        backoff=draw(st.sampled_from([1.0, 1.5, 2.0, 1000.0])),
        jitter=draw(PROBABILITIES),
        window=draw(st.integers(1, 100)),
        dedup=dedup,
        keep=draw(st.one_of(st.none(), SECONDS)) if by_id else None,
        size=draw(st.one_of(st.none(), st.integers(1, 10**6))) if by_id else None,
        confirm=ConfirmOn.RECEIPT if retries is None else draw(st.sampled_from(ConfirmOn)),
        durable=draw(st.booleans()),
    )


HOPS = st.builds(Hop, options())


@st.composite
def paths(draw: st.DrawFn) -> Path:
    """A dozen points or so, pipes in pipes, and branches."""
    drawn = draw(st.lists(NAMES, min_size=12, max_size=12, unique=True))
    names = chain(drawn, (name for name in map("more{}".format, count()) if name not in drawn))
    return _path(draw, names, depth=2, at_least=1)


def _path(draw: st.DrawFn, names: Iterator[str], *, depth: int, at_least: int) -> Path:
    steps: list[Place | Way] = [_place(draw, names, depth)]
    for _ in range(draw(st.integers(at_least - 1, 1 if depth < 2 else 2))):
        steps += [_way(draw, names), _place(draw, names, depth)]
    return Path(tuple(steps))


def _place(draw: st.DrawFn, names: Iterator[str], depth: int) -> Place:
    if depth and draw(st.integers(0, 3)) == 0:
        return Pipe(_path(draw, names, depth=depth - 1, at_least=2), draw(options(of_pipe=True)))
    return _point(draw, names)


def _point(draw: st.DrawFn, names: Iterator[str]) -> Point:
    return Point(next(names), draw(PROBABILITIES), draw(st.booleans()), draw(st.booleans()))


def _way(draw: st.DrawFn, names: Iterator[str]) -> Way:
    if draw(st.integers(0, 3)):
        return draw(HOPS)
    branches = []
    for _ in range(draw(st.integers(2, 3))):
        steps: list[Hop | Point] = [draw(HOPS)]
        if draw(st.booleans()):
            steps += [_point(draw, names), draw(HOPS)]
        branches.append(Branch(tuple(steps)))
    return Parallel(tuple(branches))
