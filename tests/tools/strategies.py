"""Hypothesis strategies for Semel's own values."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from semel.kernel.envelope import Blob, Envelope
from semel.kernel.position import OFFSET_MAX

TIME_MAX = 253_402_214_400_000_000


def texts(max_size: int = 30) -> st.SearchStrategy[str]:
    """Text that every store can hold, the empty one included."""
    return st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=max_size)


def ids(max_size: int = 30) -> st.SearchStrategy[str]:
    return texts(max_size).filter(bool)


def json_bodies() -> st.SearchStrategy[bytes]:
    values = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts(10)
    nested = st.recursive(
        values,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(5), inner, max_size=3),
        max_leaves=6,
    )
    return nested.map(msgspec.json.encode)


def bodies() -> st.SearchStrategy[bytes]:
    return st.binary(max_size=50) | json_bodies() | texts().map(str.encode)


@st.composite
def envelopes(draw: st.DrawFn) -> Envelope:
    """Envelopes of every shape: with and without session, index, headers, with a body or the name of a large one."""
    blob = draw(st.none() | st.builds(Blob, ids(), st.integers(0, 2**53)))
    types = st.sampled_from(["application/json", "text/plain", "text/json", "x+json"]) | ids()
    return Envelope(
        id=draw(ids()),
        source=draw(ids()),
        type=draw(ids()),
        data=draw(bodies()) if blob is None else b"",
        session=draw(st.none() | ids()),
        index=draw(st.none() | st.integers(0, OFFSET_MAX)),
        time=draw(st.none() | st.integers(0, TIME_MAX)),
        subject=draw(st.none() | texts()),
        datacontenttype=draw(st.none() | types),
        headers=draw(st.dictionaries(ids(), texts(), max_size=3)),
        blob=blob,
    )
