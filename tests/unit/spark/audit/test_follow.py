from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock, Mock, call

import pytest

from semel.errors import ConfigError
from semel.kernel.ledger import Kind
from semel.spark.audit import follow, sources
from semel.spark.audit.chains import Paths
from semel.spark.audit.figures import LedgerHop
from semel.spark.audit.follow import PARTS_MAX, AuditFollower, FollowOptions
from semel.spark.audit.follow_state import (
    STATE_FILE,
    AuditQuestion,
    Folder,
    FollowedPart,
    FollowState,
    HopReadings,
    Lanes,
    LastJudgement,
    suffix,
    together,
)
from semel.spark.audit.sources import Evidence


def test_only_the_newest_parts_become_one_while_the_others_are_larger() -> None:
    assert suffix([100, 5]) == 2
    assert suffix([1000, 100, 3, 2, 1]) == 3
    assert suffix([1000, 100, 50, 30, 20]) == 4
    assert suffix([5, 5, 5]) == 3


def test_a_row_is_moved_a_few_times_only_however_much_is_kept() -> None:
    sizes: list[int] = []
    moved = 0
    for _ in range(2000):
        sizes.append(10)
        if len(sizes) > PARTS_MAX:
            count = suffix(sizes)
            moved += sum(sizes[-count:])
            sizes[-count:] = [sum(sizes[-count:])]
    assert sum(sizes) == 20_000
    assert moved / 20_000 < 10


def test_parts_become_one() -> None:
    hop = LedgerHop("p", "a>b", 7, 1 << Kind.SENT, 3)
    more = LedgerHop("p", "a>b", 7, 1 << Kind.ACCEPTED, 2)
    parts = [
        FollowedPart("0", (hop,), ("chat",), (("p", "m>n", int(Kind.SENT), 4),), (5, 9)),
        FollowedPart("1"),
        FollowedPart("2", (more,), ("chat", "room"), (("p", "m>n", int(Kind.SENT), 6),), (3, 4)),
    ]
    whole = together("all", parts, 12)
    assert whole.hops == (LedgerHop("p", "a>b", 7, 1 << Kind.SENT | 1 << Kind.ACCEPTED, 5),)
    assert (whole.streams, whole.metered, whole.times) == (
        ("chat", "room"),
        (("p", "m>n", int(Kind.SENT), 10),),
        (3, 9),
    )
    assert whole.rows == 12


def test_a_state_comes_back_as_it_was_written(tmp_path: Path) -> None:
    reading = HopReadings(((1, True, False, False, False),), ((1, 2),), ((1, 2),), 5, None, 7)
    judgement = LastJudgement("j", ("p",), reading, 9, {1: 4}, Paths(((3, 2),), (1,)), due=11, rows=6)
    asked = AuditQuestion(("s",), 60, None, ())
    state = FollowState(asked, parts=(FollowedPart("p", rows=3),), judgement=judgement, lanes=(Lanes("l", 1),), late=2)
    folder = Folder(Mock(), tmp_path)
    folder.put(state)
    assert folder.found(FollowState(asked)) == state


def test_a_state_of_an_earlier_version_is_made_again(tmp_path: Path) -> None:
    asked = AuditQuestion(("s",), 60, None, ())
    folder = Folder(Mock(), tmp_path)
    (tmp_path / STATE_FILE).write_text('{"version": 1, "asked": "in other words"}')
    folder.checkpoint.mkdir()
    assert folder.found(FollowState(asked)) == FollowState(asked)
    assert not folder.checkpoint.exists()


def test_the_clock_is_read_before_the_stores_are(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Mock()
    calls.clock.return_value = 7
    evidence = Evidence(("sqlite:hub.db",))
    follower = Mock(
        spec=AuditFollower, evidence=evidence, folder=Mock(), state=Mock(parts=()), spark=MagicMock(),
        _drain=calls.drain, _judge=calls.judge,
    )  # fmt: skip
    monkeypatch.setattr(follow, "clock_us", calls.clock)
    monkeypatch.setattr(sources, "find", calls.find)
    AuditFollower.step(follower)
    assert calls.mock_calls[:4] == [call.clock(), call.find(("sqlite:hub.db",)), call.drain(), call.judge(7)]


@pytest.mark.parametrize("given", [{"every_s": 0}, {"keep_s": -1}])
def test_times_that_make_no_sense_are_refused(given: dict[str, float], tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        FollowOptions(tmp_path, **given)  # type: ignore[arg-type]
