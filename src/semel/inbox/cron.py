"""Periodic messages: when the next one is due, and which id it has.

Expressions have five fields (minute, hour, day of month, month, day of week), or are one of @hourly, @daily, @midnight,
@weekly, @monthly, @yearly, @annually. `cronsim` reads them and finds the days, as Debian's cron would: it is small,
kept up, typed, and reads no clock. What happens when clocks change is decided here:

    a time that does not exist    runs once, at the first moment that does
    a time that exists twice      runs once, at the first of the two
    hour *                        every hour is meant: it goes by the time that passes, not by the clock on the wall

The id comes from the schedule's name and the time alone. However many processes send the message, it is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

from cronsim import CronSim, CronSimError

from semel.errors import ConfigError
from semel.kernel.envelope import rfc3339
from semel.kernel.text import check_text

NAME_CHARS_MAX = 200
EXPRESSION_CHARS_MAX = 255
SHORTHANDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a periodic message is due. `zone` is UTC, or a `zoneinfo.ZoneInfo` that the caller has loaded."""

    name: str
    expression: str
    zone: tzinfo = UTC

    def __post_init__(self) -> None:
        check_text("the name of a schedule", self.name, chars_max=NAME_CHARS_MAX)
        if not isinstance(self.zone, tzinfo):
            raise ConfigError(
                f"the zone of schedule {self.name!r} is {self.zone!r}", fix='give ZoneInfo("Europe/Berlin")'
            )
        if len(self.expression) > EXPRESSION_CHARS_MAX or len(self.fields) != 5:
            raise self._refusal("it has not five fields")
        try:
            if next(CronSim(" ".join(self.fields), _EPOCH), None) is None:
                raise self._refusal("it is due on no day")
        except CronSimError as error:
            raise self._refusal(str(error)) from None

    @property
    def fields(self) -> list[str]:
        return SHORTHANDS.get(self.expression.strip().lower(), self.expression).split()

    def next_after(self, time: int) -> int:
        """The next time it is due, later than `time`. Both are microseconds since 1970 in UTC."""
        moment = _EPOCH + time * _MICROSECOND
        for found in self._candidates(moment):
            # the first of two equal wall times may lie before `moment`, when that lies between the two
            if found > moment:
                return (found - _EPOCH) // _MICROSECOND
        raise self._refusal("it is due on no day of the next 50 years")

    def _candidates(self, moment: datetime) -> Iterator[datetime]:
        local, expression = moment.astimezone(self.zone), " ".join(self.fields)
        if self.fields[1] == "*":
            found = ((each, each.astimezone(UTC)) for each in CronSim(expression, local))
            # a day that does not exist at all has no hours
            return (moment for each, moment in found if moment.astimezone(self.zone).date() == each.date())
        return (self._moment_of(wall) for wall in CronSim(expression, local.replace(tzinfo=None)))

    def _moment_of(self, wall: datetime) -> datetime:
        """The first moment at which the clock on the wall shows this or, where it never does, more than this."""
        moment = wall.replace(tzinfo=self.zone, fold=0).astimezone(UTC)
        exists = moment.astimezone(self.zone).replace(tzinfo=None) == wall
        return moment if exists else self._end_of_gap(wall)

    def _end_of_gap(self, wall: datetime) -> datetime:
        """Look in halves for the first moment at which the clock shows more than `wall`. It lies between the two that
        the offsets after the gap (fold 1) and before it (fold 0) give."""
        low = wall.replace(tzinfo=self.zone, fold=1).astimezone(UTC)
        high = wall.replace(tzinfo=self.zone, fold=0).astimezone(UTC)
        while high - low > _MICROSECOND:
            middle = low + (high - low) / 2
            if middle.astimezone(self.zone).replace(tzinfo=None) > wall:
                high = middle
            else:
                low = middle
        return high

    def _refusal(self, why: str) -> ConfigError:
        return ConfigError(
            f"schedule {self.name!r}: {self.expression[:EXPRESSION_CHARS_MAX]!r} cannot be used: {why}",
            fix='write minute, hour, day of month, month and day of week, as in "30 6 * * mon-fri", or "@daily"',
        )


def periodic_id(name: str, due: int) -> str:
    """The id of the message that is due at that time, the same in every process."""
    return f"{name}@{rfc3339(due)}"
