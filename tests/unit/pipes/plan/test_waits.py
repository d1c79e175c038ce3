"""How long a confirm may still be on its way."""

from __future__ import annotations

import math

from semel.pipes.language.notation import parse_path
from semel.pipes.language.options import Options
from semel.pipes.plan.elements import durable_points, stretches
from semel.pipes.plan.waits import confirms_within_s, is_counted_late, shortest_wait_s, waits_s


def within(text: str) -> list[float]:
    path = parse_path(text)
    return confirms_within_s(stretches(path)[1], durable_points(path))


def test_a_confirm_on_receipt_takes_the_way_there_and_back() -> None:
    assert within("A -[retries=2,delay=1s]-> B -[retries=2,delay=3s]-> C") == [2.0, 6.0]


def test_a_cascade_waits_for_what_lies_behind_it() -> None:
    assert within("A -[retries=2,delay=1s,confirm=cascade]-> B -[retries=2,delay=3s]-> C") == [8.0, 6.0]


def test_a_sender_behind_it_that_may_have_to_send_again_adds_its_waits() -> None:
    assert within("A -[retries=2,confirm=cascade]-> B -[retries=2,timeout=5s,loss=0.1]-> C") == [15.0, 0.0]
    assert within("A -[retries=2,confirm=cascade]-> B -[retries=inf,loss=0.1]-> C") == [math.inf, 0.0]


def test_a_durable_point_answers_at_once_for_what_lies_behind_it() -> None:
    assert within("A -[retries=2,confirm=cascade]-> B -[delay=1s]-> C{durable=yes} -[delay=9s]-> D")[0] == 2.0


def test_all_waits_of_a_message() -> None:
    assert waits_s(Options(retries=2, timeout=5.0), endless=False) == 15.0
    assert waits_s(Options(retries=2, timeout=5.0, backoff=2.0), endless=False) == 35.0
    assert waits_s(Options(retries=2, timeout=50.0, backoff=2.0), endless=False) == 50.0 + 60.0 + 60.0
    assert waits_s(Options(retries=2), endless=True) == waits_s(Options(retries=math.inf), endless=False) == math.inf
    assert shortest_wait_s(Options(timeout=5.0, jitter=0.2)) == 4.0


def test_late_confirms_are_counted_where_a_wait_is_fixed_and_does_not_end_with_the_confirm() -> None:
    def counted(options: str) -> bool:
        return is_counted_late(stretches(parse_path(f"A -[{options}]-> B"))[1][0])

    assert counted("retries=2,delay=1.5s,timeout=2s")
    assert not counted("retries=2,delay=2s,timeout=2s")
    assert not counted("retries=2,delay=1.5s,timeout=2s,jitter=0.1")
    assert not counted("retries=2,delay=1.5s,timeout=2s,backoff=2")
    assert not counted("retries=2,delay=1.5s,timeout=2s,confirm=processing")
