"""From a path to its workers, its routes and the ways back."""

from __future__ import annotations

import math

import pytest

from semel.errors import ConfigError
from semel.kernel.dedup import OnGap
from semel.pipes.language.notation import parse_path
from semel.pipes.language.options import ConfirmOn, DedupBy, Options
from semel.pipes.language.path import Hop, Path, Point
from semel.pipes.workers.build import APP, Built, build
from semel.pipes.workers.inlet import InletConfig
from semel.pipes.workers.outlet import OutletConfig


def made(text: str, **options: object) -> Built:
    return build(parse_path(text), **options)  # type: ignore[arg-type]


def names(built: Built) -> list[str]:
    return [worker.config.name for worker in built.workers]


def inlet(built: Built, worker: str, hop: str) -> InletConfig:
    return next(each for each in built.worker(worker).config.inlets if each.hop == hop)


def outlet(built: Built, worker: str) -> OutletConfig:
    (found,) = built.worker(worker).config.outlets
    return found


def test_a_hop_is_an_outlet_and_an_inlet() -> None:
    built = made("A -[loss=0.1,duplicate=0.2,confirm_loss=0.3,delay=0.5,retries=5,timeout=2,window=3,dedup=id]-> B")
    assert (built.first, built.last, names(built)) == ("A", "B", ["A", "B"])
    (link,) = built.routes["A", "B"]
    assert (link.loss, link.duplicate, link.confirm_loss, link.delay) == (0.1, 0.2, 0.3, 0.5)
    assert built.back["B", "A"] == (link,)
    resend = outlet(built, "A").resend
    assert resend is not None
    assert (resend.window, resend.timeout_s, resend.retry.retries, resend.retry.then) == (3, 2.0, 5, "discard")
    found = inlet(built, "B", "A>B")
    assert (found.peers, found.confirm, found.dedup) == (("A",), ConfirmOn.RECEIPT, DedupBy.ID)
    assert not built.worker("A").config.handles
    assert built.worker("B").config.handles


def test_messages_enter_where_the_path_begins() -> None:
    built = made("A -> B")
    assert inlet(built, "A", f"{APP}>A").peers == (APP,)
    assert outlet(built, "A").resend is None
    assert inlet(built, "B", "A>B").confirm is None


def test_meters_and_seeds_are_told_to_every_worker() -> None:
    built = made("A -> B -> C", report_s=5.0, seed=7)
    assert [worker.config.report_s for worker in built.workers] == [5.0] * 3
    assert [worker.config.seed for worker in built.workers] == [7, 8, 9]
    assert all(worker.config.folds for worker in built.workers)
    assert not any(worker.config.folds for worker in made("A -> B", report_s=5.0, folds=False).workers)
    assert not any(worker.config.folds for worker in made("A -> B").workers)


def test_waits_grow_and_spread_as_the_hop_says() -> None:
    built = made("A -[retries=inf,timeout=2,backoff=3,jitter=0.5]-> B")
    resend = outlet(built, "A").resend
    assert resend is not None
    assert resend.timeout_s == 2.0
    assert [resend.retry.wait_s(attempt, 0.0) for attempt in (1, 2, 3, 4, 99)] == [6.0, 18.0, 54.0, 60.0, 60.0]
    assert resend.retry.jitter == 0.5
    slow = outlet(made("A -[retries=1,timeout=90,backoff=2]-> B"), "A").resend
    assert slow is not None
    assert slow.retry.wait_s(9, 0.0) == 90.0


def test_a_strict_inlet_is_as_patient_as_its_sender() -> None:
    fixed = made("A -[retries=2,timeout=2,dedup=strict]-> B")
    assert inlet(fixed, "B", "A>B").gap.after_s == 8.0
    growing = made("A -[retries=2,timeout=2,backoff=2,dedup=strict]-> B")
    assert inlet(growing, "B", "A>B").gap.after_s == 16.0


def test_crash_and_durability_belong_to_the_worker() -> None:
    built = made("A -[retries=inf,durable=yes]-> B -[retries=inf]-> C{crash=0.3}")
    assert [(w.config.name, w.durable, w.crash) for w in built.workers] == [
        ("A", True, 0.0), ("B", True, 0.0), ("C", False, 0.3),
    ]  # fmt: skip


def test_a_cascade_is_inherited_by_hops_without_retries() -> None:
    built = made("A -[retries=2,confirm=cascade]-> B -> C -[retries=1]-> D -> E")
    assert inlet(built, "B", "A>B").confirm is ConfirmOn.CASCADE
    assert inlet(built, "C", "B>C").confirm is ConfirmOn.CASCADE
    assert inlet(built, "D", "C>D").confirm is ConfirmOn.RECEIPT
    assert inlet(built, "E", "D>E").confirm is None


def test_at_the_end_of_the_path_a_cascade_waits_for_the_handler() -> None:
    assert inlet(made("A -[retries=2,confirm=cascade]-> B"), "B", "A>B").confirm is ConfirmOn.PROCESSING


def test_only_the_end_of_the_path_processes() -> None:
    assert inlet(made("A -[retries=2,confirm=processing]-> B"), "B", "A>B").confirm is ConfirmOn.PROCESSING
    with pytest.raises(ConfigError, match="passes messages on"):
        made("A -[retries=2,confirm=processing]-> B -> C")


def test_a_strict_inlet_waits_for_a_sender_that_never_gives_up() -> None:
    built = made("A -[retries=inf,dedup=strict,window=4]-> B")
    assert inlet(built, "B", "A>B").gap.then is OnGap.WAIT
    assert built.worker("A").config.outlets[0].floors, "its sender says what it need not wait for"
    for text in ("A -[retries=2,dedup=strict]-> B", "A -[dedup=strict]-> B"):
        assert inlet(made(text), "B", "A>B").gap.then is OnGap.SKIP
    assert not made("A -[dedup=strict]-> B").worker("A").config.outlets[0].floors, "nothing is ever settled there"


def test_a_pipe_around_bare_links_is_a_route_through_forwarders() -> None:
    built = made("A -> (P1 -[loss=0.1]-> X{crash=0.2} -[confirm_loss=0.3]-> P2){retries=inf} -> B")
    assert names(built) == ["A", "P1", "P2", "B"]
    first, second = built.routes["P1", "P2"]
    assert (first.receiver, first.loss, first.crash) == ("X", 0.1, 0.2)
    assert (second.sender, second.confirm_loss, second.crash) == ("X", 0.3, 0.0)
    assert built.back["P2", "P1"] == (second, first)
    assert built.forwarders == ("X",)
    assert not outlet(built, "P1").packs


def test_a_pipe_around_a_middle_with_promises_packs() -> None:
    built = made("A -> (P1 -[loss=0.1,retries=1]-> X -[confirm_loss=0.3]-> P2){retries=inf,dedup=id} -> B")
    assert names(built) == ["A", "P1", "P1~out", "X", "P2~in", "P2", "B"]
    packs = outlet(built, "P1")
    assert (packs.hop, packs.peer, packs.packs) == ("P1>P2", "P1~out", True)
    unpacks = inlet(built, "P2", "P1>P2")
    assert (unpacks.peers, unpacks.unpacks, unpacks.confirm, unpacks.dedup) == (
        ("P2~in",), True, ConfirmOn.RECEIPT, DedupBy.ID,
    )  # fmt: skip
    assert [link.confirm_loss for link in built.back["P2", "P1"]] == [0.3, 0.0]


def test_a_middle_that_ends_durably_waits_for_a_confirm_of_what_it_hands_over() -> None:
    built = made("A -> (P1 -[retries=inf,durable=yes]-> P2){retries=inf,dedup=id} -> B")
    assert built.worker("P2~in").durable
    assert inlet(built, "P2", "P1>P2").confirms_carrier
    built = made("A -> (P1 -[retries=inf,durable=yes]-> X -> P2){retries=inf,dedup=id} -> B")
    assert not inlet(built, "P2", "P1>P2").confirms_carrier


@pytest.mark.parametrize(
    "middle", ["P1 -[repeats=1]-> X -> P2", "P1 -> X{durable=yes} -> P2", "P1 ( -> X -> | -> ) P2"]
)
def test_whatever_does_more_than_forward_is_a_middle(middle: str) -> None:
    assert "P1~out" in names(made(f"A -> ({middle}){{retries=1}} -> B"))


def test_a_cascade_in_a_middle_ends_where_the_middle_ends() -> None:
    built = made("(P1 -[retries=1,confirm=cascade]-> X -> P2){retries=inf}")
    assert inlet(built, "X", "P1~out>X").confirm is ConfirmOn.CASCADE
    assert inlet(built, "P2~in", "X>P2~in").confirm is ConfirmOn.RECEIPT


def test_a_pipe_may_begin_and_end_with_a_pipe() -> None:
    built = made("((P1 -[loss=0.1]-> X -> Q1){retries=1} -> (Q2 -> Y -> P2){retries=1}){retries=2}")
    assert names(built) == ["P1", "P1~out", "Q1", "Q2", "P2~in", "P2"]
    assert set(built.routes) == {
        ("P1", "P1~out"), ("P1~out", "Q1"), ("Q1", "Q2"), ("Q2", "P2~in"), ("P2~in", "P2"),
    }  # fmt: skip
    assert len(set(names(built))) == len(built.workers)


def test_confirms_pass_by_the_first_of_several_branches() -> None:
    built = made("(P1 ( -[confirm_loss=0.1]-> X -> | -[confirm_loss=0.2]-> ) P2){retries=1}")
    assert [link.confirm_loss for link in built.back["P2", "P1"]] == [0.0, 0.1]


def test_branches_side_by_side_meet_again() -> None:
    built = made("A ( -[loss=0.1]-> X -[loss=0.2]-> | -[loss=0.3]-> | -[loss=0.4]-> | -[loss=0.5]-> ) B")
    assert names(built) == ["A", "B", "X", "B~2", "B~3"]
    assert [each.peer for each in built.worker("A").config.outlets] == ["X", "B", "B~2", "B~3"]
    assert built.routes["A", "B~3"][0].loss == 0.5
    assert built.routes["B~2", "B"][0].loss == 0.0
    assert [each.peers for each in built.worker("B").config.inlets] == [("X",), ("A",), ("B~2",), ("B~3",)]


def test_durable_branches_make_both_ends_durable() -> None:
    built = made("A ( -[retries=inf]-> X -[retries=inf,durable=yes]-> | -[retries=inf,durable=yes]-> ) B")
    assert [name for name in names(built) if built.worker(name).durable] == ["A", "B", "X"]


def test_a_durable_worker_sends_until_it_is_confirmed() -> None:
    built = made("A -> S{durable=yes} -> B")
    resend = outlet(built, "S").resend
    assert resend is not None
    assert resend.retry.retries is None
    assert inlet(built, "B", "S>B").confirm is ConfirmOn.RECEIPT
    assert outlet(built, "A").resend is None
    with pytest.raises(ConfigError, match="repeats"):
        made("S{durable=yes} -[repeats=2]-> B")


def test_the_ends_of_a_pipe_with_a_middle_cannot_be_durable() -> None:
    with pytest.raises(ConfigError, match="cannot be durable"):
        made("(P1{durable=yes} -[retries=1]-> X -> P2){retries=inf}")
    assert made("(P1{durable=yes} -> X -> P2){retries=inf}").worker("P1").durable


def test_inside_a_pipe_there_is_no_order_of_the_producer() -> None:
    with pytest.raises(ConfigError, match="dedup=session on P1~out>P2~in, inside a pipe"):
        made("A -> (P1 -[retries=inf,dedup=session,durable=yes]-> P2){retries=inf,dedup=id} -> B")
    behind = made("A -> (P1 -[retries=inf]-> X -> P2){retries=inf,dedup=id} -> S -[dedup=session,durable=yes]-> B")
    assert behind.worker("B").durable


def test_one_point_is_no_path() -> None:
    with pytest.raises(ConfigError, match="one point"):
        build(Path((Point("A"),)))


def test_endless_retries_have_no_number() -> None:
    built = build(Path((Point("A"), Hop(Options(retries=math.inf, timeout=90.0)), Point("B"))))
    resend = outlet(built, "A").resend
    assert resend is not None
    assert resend.retry.retries is None
    assert resend.retry.interval_max_s == 90.0
    with pytest.raises(StopIteration):
        built.worker("nobody")


def test_a_window_must_not_be_narrower_before_a_receiver_in_the_producers_order() -> None:
    text = "A -[retries=inf,window=8,confirm=cascade]-> X -[retries=inf,window={},dedup=session,durable=yes]-> B"
    assert made(text.format(8)).worker("B").durable
    with pytest.raises(ConfigError, match=r"window=7 on X>B is narrower than the 8"):
        made(text.format(7))
