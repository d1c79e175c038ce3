from __future__ import annotations

import pytest

from semel.kernel.ledger import Kind
from semel.spark.audit.chains import CHAINS_MAX, ChainPoint, Paths, chains_of, figures_of, predicted, stays_of
from semel.spark.audit.figures import LedgerHop
from semel.spark.audit.result import CellFigures, WindowState


def hops(*names: str, pipeline: str = "p") -> list[LedgerHop]:
    return [LedgerHop(pipeline, name, hash((pipeline, name)), 0, 0) for name in names]


def named(found: list[tuple[LedgerHop, ...]]) -> list[str]:
    return [" ".join(hop.hop for hop in chain) for chain in found]


def test_hops_that_meet_make_a_chain() -> None:
    assert named(chains_of(hops("b>c", "a>b", "c>d"))) == ["a>b b>c c>d"]


def test_a_hop_alone_is_no_chain() -> None:
    assert chains_of(hops("a>b", "c>d", "store")) == []


def test_branches_make_a_chain_each() -> None:
    assert named(chains_of(hops("a>b", "b>c", "b>d", "x>b"))) == ["a>b b>c", "a>b b>d", "x>b b>c", "x>b b>d"]


def test_chains_stay_within_a_pipeline() -> None:
    assert chains_of([*hops("a>b", pipeline="p"), *hops("b>c", pipeline="q")]) == []


def test_a_way_back_ends_a_chain() -> None:
    assert named(chains_of(hops("s>a", "a>b", "b>a", "b>c"))) == ["s>a a>b b>c"]


def test_a_web_of_hops_is_cut_off() -> None:
    layers = [f"{a}{x}>{b}{y}" for a, b in ("ab", "bc", "cd", "de") for x in range(5) for y in range(5)]
    assert len(chains_of(hops(*layers))) == CHAINS_MAX


def forwarding(*names: str) -> list[LedgerHop]:
    return [LedgerHop("p", name, hash(name), 1 << Kind.FORWARDED, 1) for name in names]


def test_messages_stay_in_workers_between_hops() -> None:
    """Every hop that leads on from there counts, and a receipt, where the worker keeps a stream of them."""
    found = [*forwarding("a>b", "b>c", "b>d"), *hops("c>e")]
    stays = stays_of(chains_of(found), found, {"c/receipts"})
    assert {(stay.into.hop, tuple(hop.hop for hop in stay.onward)) for stay in stays} == {
        ("a>b", ("b>c", "b>d")), ("b>c", ("c>e",)),
    }  # fmt: skip
    assert {stay.into.hop: stay.receipts.hop.sender for stay in stays if stay.receipts} == {"b>c": "c/receipts"}
    assert stays[0].inside(3).where == "between a>b and b>c or b>d"
    assert stays_of(chains_of(hops("a>b", "b>c")), hops("a>b", "b>c"), ()) == []


def test_a_chain_knows_what_was_lost_inside_its_workers() -> None:
    found = forwarding("a>b", "b>c")
    chains = chains_of(found)
    [chain] = figures_of(chains, stays_of(chains, found, ()), Paths(((10, 7),), (2,)), [cell("a>b", 10, 9)])
    assert (chain.sent, chain.arrived, chain.measured, chain.inside) == (10, 7, 0.7, 2)


def cell(hop: str, sent: int, accepted: int, *, session_class: str = "") -> CellFigures:
    return CellFigures(
        "p", hop, session_class, None, WindowState.SETTLED, sent=sent, accepted=accepted, accepted_unique=accepted,
        accepted_squares=accepted,
    )  # fmt: skip


def test_the_prediction_is_the_product_over_all_session_classes() -> None:
    chain = hops("a>b", "b>c")
    totals = [cell("a>b", 10, 8), cell("a>b", 10, 10, session_class="vip"), cell("b>c", 18, 9), cell("x>y", 5, 1)]
    assert predicted(chain, totals) == pytest.approx(0.9 * 0.5)


def test_without_a_figure_there_is_no_prediction() -> None:
    assert predicted(hops("a>b", "b>c"), [cell("a>b", 1, 1)]) is None


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("a>b", ChainPoint("a>b", "accepted")),
        ("sent:a>b", ChainPoint("a>b", "sent")),
        ("stream:odd>name", ChainPoint("odd>name", "stream")),
        ("chat", ChainPoint("chat", "stream")),
        ("room:1", ChainPoint("room:1", "stream")),
    ],
)
def test_points_are_written_by_name(text: str, point: ChainPoint) -> None:
    assert ChainPoint.parse(text, "accepted") == point
