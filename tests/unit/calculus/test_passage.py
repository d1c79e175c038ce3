"""What lies inside a pipe lets the pipe's confirms pass one by one, and what an exit knows may die with it."""

from __future__ import annotations

import pytest

from semel.calculus.elements import LinkElement, ParallelElement, Passage, PipeElement, Series
from semel.calculus.figures import figures, transmissions
from semel.errors import ConfigError

ONE, TWO = LinkElement(loss=0.1, confirm_loss=0.5), LinkElement(loss=0.2, confirm_loss=0.3)
BOTH = 1 - 0.5 * 0.7


def test_without_doubling_it_is_the_same_as_a_series() -> None:
    series, passage = Series((ONE, TWO)), Passage(Series((ONE, TWO)), BOTH)
    for u, g in ((0.0, 1.0), (0.0, 0.4), (0.3, 0.7)):
        assert passage.apply(u, g) == pytest.approx(series.apply(u, g))
    assert passage.way_back_loss() == pytest.approx(series.way_back_loss())


def test_each_of_two_copies_has_a_confirm_of_its_own_on_the_whole_way() -> None:
    """By hand: both copies arrive, and neither confirm crosses both links. In a series the first link carries one."""
    inner = Series((LinkElement(confirm_loss=0.5), LinkElement(duplicate=1.0, confirm_loss=0.3)))
    assert Passage(inner, BOTH).apply(0.0, 1.0)[0] == pytest.approx(BOTH**2)
    assert inner.apply(0.0, 1.0)[0] == pytest.approx(0.3**2 + 0.5 * (1 - 0.3**2))


def test_a_cascade_inside_has_confirms_apart_from_those_of_the_pipe() -> None:
    """By hand: inside, two attempts until its own confirm comes; outside, each copy is confirmed or not."""
    inner = PipeElement(LinkElement(confirm_loss=0.4), attempts=2, cascade=True)
    unconfirmed = Passage(inner, 0.4).apply(0.0, 1.0)[0]
    assert unconfirmed == pytest.approx(0.6 * 0.4 + 0.4 * 0.4**2)


def test_figures_look_inside() -> None:
    pipe = PipeElement(LinkElement(loss=0.5), attempts=2)
    assert figures(Passage(pipe)).attempts == pytest.approx(1.5)
    assert transmissions(PipeElement(Passage(Series((LinkElement(), LinkElement()))), attempts=1)) == pytest.approx(2.0)
    branches = ParallelElement((LinkElement(confirm_loss=0.1), LinkElement(confirm_loss=0.2)))
    assert figures(PipeElement(Passage(branches, 0.1), attempts=3)).exact


def test_the_loss_is_a_probability() -> None:
    with pytest.raises(ConfigError, match="confirm_loss"):
        Passage(LinkElement(), 1.5)


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_an_exit_that_dies_takes_the_next_copy_for_new(attempts: int) -> None:
    """By hand: it delivers one copy, unless none came or it died with each that came."""
    loss, lost, dies = 0.3, 0.4, 0.25
    pipe = PipeElement(LinkElement(loss, confirm_loss=lost), attempts, dedup=True, forgets=dies)
    nothing, goes_on = 0.0, 1.0
    for _ in range(attempts):
        nothing += goes_on * (1 - loss) * (1 - lost) * dies
        goes_on *= loss + (1 - loss) * lost * dies
    assert figures(pipe).reliability == pytest.approx(1 - nothing - goes_on)
    assert figures(pipe).uniqueness == pytest.approx(1.0)


@pytest.mark.parametrize("options", [{}, {"dedup": True, "cascade": True}])
def test_only_a_memory_behind_a_confirm_on_receipt_forgets(options: dict[str, bool]) -> None:
    with pytest.raises(ConfigError, match="forgets"):
        PipeElement(LinkElement(), 1, forgets=0.5, **options)
