from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import ConfigError
from semel.inbox.cron import SHORTHANDS, Schedule, periodic_id
from semel.kernel.envelope import Envelope

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")  # 2026-03-29 02:00 -> 03:00, 2026-10-25 03:00 -> 02:00
LORD_HOWE = ZoneInfo("Australia/Lord_Howe")  # half an hour: 2026-10-04 02:00 -> 02:30
HAVANA = ZoneInfo("America/Havana")  # at midnight: 2026-03-08 00:00 -> 01:00
APIA = ZoneInfo("Pacific/Apia")  # without 2011-12-30
ZONES = (UTC, BERLIN, LORD_HOWE, HAVANA, ZoneInfo("America/New_York"), timezone(timedelta(hours=5, minutes=30)))


def micros(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def runs(expression: str, zone: tzinfo, after: datetime, count: int) -> list[str]:
    """The next ones, by the clock on the wall and its offset from UTC."""
    schedule, at, found = Schedule("s", expression, zone), micros(after), []
    for _ in range(count):
        at = schedule.next_after(at)
        found.append((EPOCH + timedelta(microseconds=at)).astimezone(zone).strftime("%m-%d %H:%M %z"))
    return found


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("*/15 * * * *", ["01-01 00:15", "01-01 00:30"]),
        ("30 6 * * mon-fri", ["01-01 06:30", "01-02 06:30", "01-05 06:30"]),
        ("0 0 1,15 * *", ["01-15 00:00", "02-01 00:00"]),
        ("0 0 29 2 *", ["02-29 00:00"]),
        ("0 12 L * *", ["01-31 12:00", "02-28 12:00"]),
        ("0 0 13 * fri", ["01-02 00:00", "01-09 00:00", "01-13 00:00"]),
        ("@hourly", ["01-01 01:00", "01-01 02:00"]),
        ("@daily", ["01-02 00:00"]),
        ("@Weekly", ["01-04 00:00"]),
        (" @monthly ", ["02-01 00:00"]),
        ("@yearly", ["01-01 00:00"]),
    ],
)
def test_expressions(expression: str, expected: list[str]) -> None:
    found = runs(expression, UTC, datetime(2026, 1, 1, tzinfo=UTC), len(expected))
    assert found == [f"{each} +0000" for each in expected]


def test_a_time_that_does_not_exist_runs_once_at_the_next_that_does() -> None:
    night = datetime(2026, 3, 28, 12, tzinfo=BERLIN)
    assert runs("30 2 * * *", BERLIN, night, 2) == ["03-29 03:00 +0200", "03-30 02:30 +0200"]
    assert runs("*/20 2 * * *", BERLIN, night, 2) == ["03-29 03:00 +0200", "03-30 02:00 +0200"]
    assert runs("0 2,3 * * *", BERLIN, night, 2) == ["03-29 03:00 +0200", "03-30 02:00 +0200"]
    assert runs("0 */2 * * *", BERLIN, datetime(2026, 3, 29, 0, 30, tzinfo=BERLIN), 2) == [
        "03-29 03:00 +0200", "03-29 04:00 +0200",
    ]  # fmt: skip
    assert runs("15 2 * * *", LORD_HOWE, datetime(2026, 10, 3, 12, tzinfo=LORD_HOWE), 1) == ["10-04 02:30 +1100"]
    assert runs("0 0 * * *", HAVANA, datetime(2026, 3, 7, 12, tzinfo=HAVANA), 2) == [
        "03-08 01:00 -0400", "03-09 00:00 -0400",
    ]  # fmt: skip


def test_a_day_that_does_not_exist_runs_when_the_next_begins() -> None:
    assert runs("0 9 * * *", APIA, datetime(2011, 12, 29, 12, tzinfo=APIA), 2) == [
        "12-31 00:00 +1400", "12-31 09:00 +1400",
    ]  # fmt: skip


def test_a_day_that_does_not_exist_has_no_hours() -> None:
    for start in (datetime(2011, 12, 28, 12, tzinfo=APIA), datetime(2011, 12, 29, 23, 59, 59, tzinfo=APIA)):
        assert runs("0 * * * fri", APIA, start, 1) == ["01-06 00:00 +1400"]


def test_a_time_that_exists_twice_runs_once() -> None:
    evening = datetime(2026, 10, 24, 12, tzinfo=BERLIN)
    assert runs("30 2 * * *", BERLIN, evening, 2) == ["10-25 02:30 +0200", "10-26 02:30 +0100"]
    assert runs("*/30 2 * * *", BERLIN, evening, 3) == ["10-25 02:00 +0200", "10-25 02:30 +0200", "10-26 02:00 +0100"]


def test_between_the_two_the_second_is_not_run() -> None:
    """A process that starts in the hour that comes twice: what is due then has been run by another."""
    between = datetime(2026, 10, 25, 2, 10, tzinfo=BERLIN, fold=1)
    assert runs("30 2 * * *", BERLIN, between, 1) == ["10-26 02:30 +0100"]


def test_every_hour_is_every_hour_whatever_the_clocks_do() -> None:
    assert runs("0 * * * *", BERLIN, datetime(2026, 10, 25, 1, 30, tzinfo=BERLIN), 3) == [
        "10-25 02:00 +0200", "10-25 02:00 +0100", "10-25 03:00 +0100",
    ]  # fmt: skip
    assert runs("*/30 * * * *", BERLIN, datetime(2026, 3, 29, 1, 15, tzinfo=BERLIN), 2) == [
        "03-29 01:30 +0100", "03-29 03:00 +0200",
    ]  # fmt: skip


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    spans = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    return st.just("*") | number.map(str) | spans | st.integers(1, 7).map(lambda step: f"*/{step}")


expressions = st.tuples(field(0, 59), field(0, 23), field(1, 28), field(1, 12), field(0, 6)).map(" ".join)
times = st.integers(micros(datetime(2000, 1, 1, tzinfo=UTC)), micros(datetime(2060, 1, 1, tzinfo=UTC)))


@given(expressions, st.sampled_from(ZONES), times)
def test_the_next_time_is_later_and_nothing_lies_between(expression: str, zone: tzinfo, time: int) -> None:
    schedule = Schedule("s", expression, zone)
    following = schedule.next_after(time)
    assert following > time
    # from any moment between, the same one is next
    assert schedule.next_after((time + following) // 2) == following
    assert schedule.next_after(following - 1) == following


@given(expressions, times)
def test_the_next_time_matches_in_every_field(expression: str, time: int) -> None:
    moment = EPOCH + timedelta(microseconds=Schedule("s", expression).next_after(time))
    minute, hour, day, month, weekday = expression.split()
    assert moment.second == moment.microsecond == 0
    assert matches(minute, moment.minute, 0)
    assert matches(hour, moment.hour, 0)
    assert matches(month, moment.month, 1)
    days = [matches(day, moment.day, 1), matches(weekday, moment.isoweekday() % 7, 0)]
    assert all(days) if day.startswith("*") or weekday.startswith("*") else any(days)


def matches(field: str, value: int, low: int) -> bool:
    if field.startswith("*"):
        return (value - low) % int(field.partition("/")[2] or 1) == 0
    first, _, last = field.partition("-")
    return int(first) <= value <= int(last or first)


@pytest.mark.parametrize(
    "wrong",
    ["", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "0 0 31 2 *", "* * * 13 *", "* * * * 8",
     "@reboot", "*/0 * * * *", "5-1 * * * *", "x * * * *", "9" * 5000, "² * * * *"],
)  # fmt: skip
def test_an_expression_that_cannot_be_used_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Schedule("report", wrong)
    assert "'report'" in caught.value.message
    assert caught.value.fix


@given(
    st.text(max_size=30) | st.lists(st.text("0123456789*/,-#LW?@ ", max_size=6), min_size=5, max_size=5).map(" ".join)
)
def test_no_text_brings_it_down(text: str) -> None:
    with suppress(ConfigError):
        assert Schedule("s", text).next_after(0) > 0


def test_a_zone_by_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="zone"):
        Schedule("report", "@daily", "Europe/Berlin")  # type: ignore[arg-type]


@pytest.mark.parametrize("shorthand", SHORTHANDS)
def test_a_shorthand_is_its_expression(shorthand: str) -> None:
    assert Schedule("s", shorthand).next_after(0) == Schedule("s", SHORTHANDS[shorthand]).next_after(0)


def test_the_id_is_the_schedule_and_the_time() -> None:
    due = micros(datetime(2026, 1, 2, tzinfo=UTC))
    assert periodic_id("report", due) == "report@2026-01-02T00:00:00Z"
    Envelope(periodic_id("x" * 200, due))


@given(st.tuples(st.text("a@", min_size=1, max_size=4), times), st.tuples(st.text("a@", min_size=1, max_size=4), times))
def test_two_schedules_or_times_have_two_ids(one: tuple[str, int], other: tuple[str, int]) -> None:
    assert (periodic_id(*one) == periodic_id(*other)) == (one == other)
