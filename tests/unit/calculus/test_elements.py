"""The algebra against two other ways to the same answer: adding up all cases, and playing it out."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.calculus.every_case import cases
from tests.unit.calculus.simulate import measure

from semel.calculus.elements import (
    Crash,
    Dedup,
    DurableElement,
    Element,
    LinkElement,
    MeterElement,
    ParallelElement,
    PipeElement,
    Series,
)
from semel.calculus.figures import distribution, figures, generating, sigma
from semel.calculus.jet import Jet
from semel.calculus.values import TwoState, powers
from semel.errors import ConfigError

shares = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0])
links = st.builds(LinkElement, loss=shares, duplicate=shares, confirm_loss=shares, repeats=st.integers(0, 1))
plain = st.recursive(
    links | st.builds(Crash, shares),
    lambda inner: (
        st.builds(Series, st.lists(inner, max_size=2))
        | st.builds(ParallelElement, st.lists(inner, min_size=1, max_size=2))
    ),
    max_leaves=3,
)
piped = st.builds(PipeElement, plain, st.integers(1, 2), cascade=st.booleans())
# A pipe that waits for the one after it is left to the played-out cases below: there `asked` plays a part.
paths = plain | piped | st.builds(lambda first, rest: Series((first, rest)), piped, plain)
finite = st.recursive(
    links | st.builds(Crash, shares) | st.builds(DurableElement) | st.builds(Dedup),
    lambda inner: (
        st.builds(Series, st.lists(inner, max_size=3))
        | st.builds(ParallelElement, st.lists(inner, min_size=1, max_size=3))
        | st.builds(PipeElement, inner, st.integers(1, 4), st.booleans(), st.booleans(), st.integers(0, 2))
    ),
    max_leaves=6,
)


@settings(max_examples=60)
@given(paths)
def test_the_same_as_adding_up_every_case(path: Element) -> None:
    every = cases(path)
    probability: dict[int, float] = {}
    for (copies, _), p in every.items():
        probability[copies] = probability.get(copies, 0.0) + float(p)
    mean = sum(k * p for k, p in probability.items())
    got = figures(path)
    assert got.reliability == pytest.approx(1 - probability.get(0, 0.0), abs=1e-12)
    assert got.copies == pytest.approx(mean, abs=1e-9)
    for z in (0.3, 0.8):
        unconfirmed = sum(float(p) * z**k for (k, confirmed), p in every.items() if not confirmed)
        u, g = path.apply(0.0, z, True)
        assert u == pytest.approx(unconfirmed, abs=1e-12)
        assert g == pytest.approx(sum(p * z**k for k, p in probability.items()), abs=1e-12)


L = LinkElement
PLAYED: dict[str, Element] = {
    "retries": PipeElement(L(0.3, 0, 0.2), 3),
    "doubling link": PipeElement(L(0.3, 0.2, 0.4), 4),
    "infinite": PipeElement(L(0.5, 0.1, 0.5), None),
    "blind repeats": Series([L(0.4, repeats=2), L(0.2, 0.1)]),
    "series": Series([PipeElement(L(0.5, 0, 0.5), 3), PipeElement(L(0.5, 0, 0.5), 3)]),
    "dedup of each pipe": Series(
        [PipeElement(L(0.2, 0, 0.5), 3, dedup=True), PipeElement(L(0.5, 0.3, 0.5), 3, dedup=True)]
    ),
    "pipe dedup behind copies": Series([PipeElement(L(0.2, 0, 0.5), 3), PipeElement(L(0.5, 0.3, 0.5), 3, dedup=True)]),
    "dedup at the end": Series([PipeElement(L(0.5, 0, 0.5), 3), PipeElement(L(0.5, 0, 0.5), 3), Dedup()]),
    "dedup between": Series([PipeElement(L(0.5, 0, 0.5), 3), Dedup(), PipeElement(L(0.5, 0, 0.5), 3)]),
    "crash behind a receipt": Series([PipeElement(L(0.2, 0, 0.3), 4), Crash(0.3), PipeElement(L(0.2, 0, 0.3), 4)]),
    "wrapped crash": PipeElement(Series([L(0.2, 0, 0.1), Crash(0.3), L(0.1, 0.2, 0.2)]), 4, dedup=True),
    "parallel": ParallelElement([L(0.1), Series([L(0.1), L(0.3)])]),
    "wrapped parallel": PipeElement(Series([L(0.1, 0, 0.3), ParallelElement([L(0.3, 0, 0.5), L(0.5, 0, 0.1)])]), 3),
    "cascade over links": Series([PipeElement(L(0.2, 0, 0.1), 4, cascade=True), L(0.3, 0, 0.4)]),
    "cascade without end": Series([PipeElement(L(0.2, 0, 0.1), None, cascade=True), L(0.3, 0, 0.4)]),
    "cascade waits for a pipe": Series([PipeElement(L(0.2, 0, 0.3), 3, cascade=True), PipeElement(L(0.4, 0, 0.3), 2)]),
    "cascade waits through a crash": Series(
        [PipeElement(L(0.2, 0, 0.3), 3, cascade=True), Crash(0.2), PipeElement(L(0.4, 0, 0.3), 2)]
    ),
    "cascade waits for a dedup pipe": Series(
        [PipeElement(L(0.2, 0, 0.3), 3, cascade=True), PipeElement(L(0.4, 0, 0.3), 2, dedup=True), L(0.1)]
    ),
    "three cascades": Series(
        [PipeElement(L(0.2, 0, 0.3), 3, cascade=True), PipeElement(L(0.1, 0, 0.2), 2, cascade=True), L(0.3, 0, 0.2)]
    ),
    "cascade ends at a store": Series([PipeElement(L(0.2, 0, 0.3), 3, cascade=True), DurableElement(), L(0.4, 0, 0.5)]),
    "cascade remembers": Series([PipeElement(L(0.2, 0, 0.4), 4, True, True), L(0.3, 0, 0.3)]),
    "cascade remembers without end": Series([PipeElement(L(0.2, 0, 0.4), None, True, True), L(0.3, 0, 0.3)]),
    "cascade remembers doubles": Series([PipeElement(L(0.2, 0.5, 0.4), 3, True, True), L(0.3, 0, 0.3)]),
    "two remembering cascades": Series(
        [PipeElement(L(0.2, 0.3, 0.4), 3, True, True), PipeElement(L(0.3, 0.2, 0.3), 2, True, True)]
    ),
    "cascade then dedup alone": Series([PipeElement(L(0.2, 0, 0.4), 4, cascade=True), Dedup(), L(0.3, 0, 0.3)]),
    "pipe in a pipe": PipeElement(Series([L(0.1, 0, 0.2), PipeElement(L(0.3, 0, 0.4), 2), L(0.2, 0, 0.1)]), 3),
    "pipe in a pipe in a pipe": PipeElement(
        Series([L(0.1, 0, 0.2), PipeElement(PipeElement(L(0.3, 0, 0.6), 2), 2), L(0.2)]), 3
    ),
    "dedup pipe in a pipe": PipeElement(
        Series([L(0.1, 0, 0.2), PipeElement(L(0.3, 0, 0.4), 3, True), L(0.2, 0, 0.1)]), 3, True
    ),
    "remembering cascade in one": PipeElement(
        Series([L(0.1, 0.2, 0.2), PipeElement(L(0.3, 0, 0.4), 2, True, True), L(0.2, 0, 0.3)]), 3, True, True
    ),
    "pipe in a remembering cascade": Series(
        [PipeElement(Series([PipeElement(L(0.3, 0, 0.4), None), L(0.2, 0, 0.2)]), None, True, True), L(0.2, 0, 0.3)]
    ),
    "dedup alone in a pipe": PipeElement(Series([L(0.2, 0.5, 0.2), Dedup(), L(0.3, 0, 0.2)]), 3),
    "late confirms": PipeElement(L(0.3, 0, 0.2), 4, overlap=2),
    "late confirms without end": PipeElement(L(0.3, 0, 0.2), None, overlap=2),
    "late confirms, more than attempts": PipeElement(L(0.3, 0, 0.2), 2, overlap=5),
    "late cascade that remembers": Series([PipeElement(L(0.2, 0, 0.4), 4, True, True, 2), L(0.3, 0, 0.3)]),
}
MESSAGES = 5_000


@pytest.mark.parametrize("name", PLAYED)
def test_the_same_as_playing_it_out(name: str) -> None:
    path = PLAYED[name]
    counts, _ = measure(path, MESSAGES, seed=7)
    got, spread = figures(path), sigma(path, MESSAGES)
    assert counts.reliability is not None
    assert counts.uniqueness is not None
    assert counts.reliability == pytest.approx(got.reliability, abs=4 * spread.reliability + 1e-12)
    assert counts.received / counts.sent == pytest.approx(got.copies, abs=4 * spread.copies + 1e-12)
    assert counts.uniqueness == pytest.approx(got.uniqueness, abs=4 * spread.uniqueness + 1e-12)


@pytest.mark.parametrize("name", [name for name, path in PLAYED.items() if figures(path).attempts > 1])
def test_attempts_as_played_out(name: str) -> None:
    path = PLAYED[name]
    parts = Series([path]).elements
    first = parts[0]
    assert isinstance(first, PipeElement)
    metered = PipeElement(
        Series([MeterElement(1.0), first.inner]), first.attempts, first.dedup, first.cascade, first.overlap
    )
    _, attempts = measure(Series([metered, *parts[1:]]), MESSAGES, seed=11)
    got = figures(path)
    if any("lower bound" in note for note in got.notes):
        assert attempts >= got.attempts
    else:
        assert attempts == pytest.approx(got.attempts, rel=0.08)


@settings(max_examples=150)
@given(finite)
def test_probabilities_stay_probabilities(path: Element) -> None:
    got = figures(path)
    assert 0 <= got.reliability <= 1
    assert 0 <= got.uniqueness <= 1
    assert got.copies >= got.reliability - 1e-9
    assert generating(path, 1.0) == pytest.approx(1)
    u, g = path.apply(0.0, 0.7)
    assert -1e-12 <= u <= g + 1e-12


@settings(max_examples=80)
@given(finite)
def test_the_distribution_has_the_moments(path: Element) -> None:
    got = figures(path)
    if got.copies > 6:
        return
    probabilities = distribution(path, 40)
    assert sum(probabilities) <= 1 + 1e-9
    assert probabilities[0] == pytest.approx(1 - got.reliability, abs=1e-9)
    if 1 - sum(probabilities) < 1e-11:
        mean = sum(k * p for k, p in enumerate(probabilities))
        assert mean == pytest.approx(got.copies, abs=1e-6)


@settings(max_examples=80)
@given(finite, finite, finite)
def test_series_are_associative(first: Element, second: Element, third: Element) -> None:
    left = Series([Series([first, second]), third])
    assert left == Series([first, Series([second, third])]) == Series([first, second, third])
    assert Series([Series([]), first]) == Series([first])


@settings(max_examples=80)
@given(plain, plain)
def test_composition_is_composition(first: Element, second: Element) -> None:
    z = 0.4
    assert Series([first, second]).apply(0.0, z) == pytest.approx(first.apply(*second.apply(0.0, z)))


@settings(max_examples=80)
@given(finite, finite)
def test_parallel_is_commutative(first: Element, second: Element) -> None:
    for z in (0.0, 0.6):
        assert ParallelElement([first, second]).apply(0.0, z) == pytest.approx(
            ParallelElement([second, first]).apply(0.0, z)
        )


@settings(max_examples=80)
@given(finite)
def test_dedup_is_idempotent_and_keeps_reliability(path: Element) -> None:
    bare, once, twice = (figures(Series([path, *[Dedup()] * n])) for n in (0, 1, 2))
    assert once.reliability == pytest.approx(bare.reliability)
    assert once.copies == pytest.approx(once.reliability)
    assert (twice.reliability, twice.copies) == pytest.approx((once.reliability, once.copies))


def test_a_pipe_with_dedup_is_a_pipe_and_a_dedup() -> None:
    link = LinkElement(0.3, 0.2, 0.4)
    for z in (0.0, 0.5, 1.0):
        with_memory = generating(PipeElement(link, 3, dedup=True), z)
        assert with_memory == pytest.approx(generating(Series([PipeElement(link, 3), Dedup()]), z))
        assert with_memory == pytest.approx(generating(PipeElement(link, 3, dedup=True, cascade=True), z))


def test_the_two_states_of_a_remembering_cascade() -> None:
    """By hand for one link (p, q) and an onward link (x, y): sums over when the message was settled."""
    p, q, x, y, n = 0.2, 0.4, 0.3, 0.3, 4
    pipe = Series([PipeElement(LinkElement(p, 0, q), n, True, True), LinkElement(x, 0, y)])
    for z in (0.0, 0.6):
        u, g = x + (1 - x) * y * z, x + (1 - x) * z
        open_still = p + (1 - p) * u
        settled_unheard = (1 - p) * (g - u) * q
        unheard = p + (1 - p) * q
        left = open_still**n + sum(open_still**i * settled_unheard * unheard ** (n - 1 - i) for i in range(n))
        total = open_still**n + sum(open_still**i * (1 - p) * (g - u) for i in range(n))
        assert pipe.apply(0.0, z) == pytest.approx((left, total))


@pytest.mark.parametrize("count", range(9))
@pytest.mark.parametrize("base", [0.0, 0.5, 1.0, Jet(0.5, 1, 0), Jet(1, 1, 0), TwoState(0.5, 0.25, 1.0)])
def test_powers(base: float | Jet | TwoState, count: int) -> None:
    power: object = 1.0
    total: object = 0.0
    for _ in range(count):
        total = total + power  # type: ignore[operator]
        power = power * base  # type: ignore[operator]
    one = TwoState(1.0, 0.0, 1.0) if isinstance(base, TwoState) else Jet(1.0)
    got = powers(base, count)
    assert (got[0] * one, got[1] * one) == (power * one, total * one)  # type: ignore[operator]


class TestWithoutEnd:
    def test_nothing_arrives(self) -> None:
        got = figures(PipeElement(LinkElement(loss=1), None))
        assert (got.reliability, got.uniqueness, got.copies, got.attempts) == (0, 1, 0, math.inf)
        assert got.time_s == math.inf
        assert got.notes == ("nothing arrives: UR is undefined, and 1 by convention",)

    def test_no_confirm_comes_back(self) -> None:
        got = figures(PipeElement(LinkElement(0.3, 0, 1.0), None))
        assert (got.reliability, got.uniqueness, got.copies, got.attempts) == (1, 0, math.inf, math.inf)
        assert "copies without end" in got.notes[0]

    def test_no_confirm_comes_back_and_the_memory_holds(self) -> None:
        got = figures(PipeElement(LinkElement(0.3, 0, 1.0), None, dedup=True))
        assert (got.reliability, got.uniqueness, got.copies, got.attempts) == (1, 1, 1, math.inf)

    @pytest.mark.parametrize("wrap", [None, 3])
    def test_copies_without_end_inside_more(self, wrap: int | None) -> None:
        endless = PipeElement(LinkElement(0.3, 0, 1.0), None)
        assert figures(PipeElement(endless, wrap)).copies == math.inf
        assert figures(Series([LinkElement(0.5), endless])).reliability == 0.5
        assert figures(Series([LinkElement(0.5), endless])).copies == math.inf
        assert figures(Series([endless, LinkElement(0.5)])).copies == math.inf

    def test_copies_without_end_that_never_come_through(self) -> None:
        endless = PipeElement(LinkElement(0.3, 0, 1.0), None)
        for path in (Series([LinkElement(loss=1), endless]), Series([endless, LinkElement(loss=1)])):
            assert (figures(path).reliability, figures(path).copies) == (0, 0)

    def test_a_memory_at_the_end_makes_them_one(self) -> None:
        got = figures(Series([PipeElement(LinkElement(0.3, 0, 1.0), None), Dedup()]))
        assert (got.reliability, got.uniqueness, got.copies) == (1, 1, 1)

    def test_a_cascade_that_is_never_answered(self) -> None:
        for dedup in (False, True):
            got = figures(Series([PipeElement(LinkElement(0.3, 0, 0.2), None, dedup, True), LinkElement(0.5, 0, 1.0)]))
            assert (got.reliability, got.uniqueness, got.copies, got.attempts) == (1, 0, math.inf, math.inf)

    def test_a_cascade_that_is_answered_but_never_heard(self) -> None:
        got = figures(Series([PipeElement(LinkElement(0.3, 0, 1.0), None, True, True), LinkElement(0.5, 0, 0.5)]))
        assert got.reliability == 1
        assert got.copies == pytest.approx(2)  # onward until confirmed: 1 / (1 - 0.5)
        assert got.attempts == math.inf

    def test_the_distribution_of_copies_without_end_is_empty(self) -> None:
        assert distribution(PipeElement(LinkElement(0.3, 0, 1.0), None), 5) == pytest.approx([0] * 5, abs=1e-12)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: LinkElement(loss=1.5), "loss is 1.5"),
        (lambda: LinkElement(duplicate=-0.1), "duplicate is -0.1"),
        (lambda: LinkElement(confirm_loss=math.nan), "confirm_loss is nan"),
        (lambda: LinkElement(repeats=-1), "repeats is -1"),
        (lambda: LinkElement(repeats=1.5), "repeats is 1.5"),
        (lambda: Crash(2), "crash is 2"),
        (lambda: ParallelElement([]), "no branch"),
        (lambda: PipeElement(LinkElement(), 0), "attempts is 0"),
        (lambda: PipeElement(LinkElement(), True), "attempts is True"),
        (lambda: PipeElement(LinkElement(), 1, overlap=-1), "overlap is -1"),
    ],
)
def test_a_wrong_value_is_named(make: object, names: str) -> None:
    with pytest.raises(ConfigError, match=names) as caught:
        make()  # type: ignore[operator]
    assert caught.value.fix
