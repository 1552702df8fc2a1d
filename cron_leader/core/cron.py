"""A cron expression as a set of local times, before any time zone comes in.

cronsim supplies the sets and Debian's day rule (a day field that starts with `*` is ANDed with the
other, else they are ORed). What it accepts wrongly or refuses without a reason is handled here
first: every refusal names the field and says why. Dates are searched here, not with cronsim's
iterator: that takes 15 to 300 us a slot, goes one way, and cannot count.

A sixth field, in front, has seconds. `H` spreads jobs: it stands for a number that a hash of the
fleet's name, the job's and the field's draws, so that it is the same on each node and for ever.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from difflib import get_close_matches
from functools import lru_cache
from string import ascii_lowercase, ascii_uppercase

from cronsim import CronSim, CronSimError

HORIZON_YEARS = 50
"""A search gives up after so many years; 29 February on a given weekday comes within 40."""

_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)
_UPPER = str.maketrans(ascii_lowercase, ascii_uppercase)
"""Of ASCII only: other letters become ASCII in their other case."""

_DAY = timedelta(days=1)
_SOME_DAY = datetime(2000, 1, 1)  # noqa: DTZ001  local time, of no zone

_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class ScheduleError(ValueError):
    """A schedule that cannot be meant; the text names the field and the reason."""


@dataclass(frozen=True, slots=True, eq=False)
class CronFields:
    """What an expression says, read once and shared; equal only to itself.

    text: in canonical form: numbers only, nicknames replaced, no seconds if they are 0.
    elapsed: minute or hour starts with `*`, or there are seconds: it follows elapsed time over
    clock changes.
    """

    text: str
    elapsed: bool
    seconds: tuple[int, ...]
    minutes: array[int] = field(repr=False)
    """The minutes of a day, 0 to 1439, ascending: two bytes each, for there may be 1440."""
    months: frozenset[int] = field(repr=False)
    falls_on: Callable[[date], bool] = field(repr=False)

    def after(self, local: datetime) -> datetime:
        """The first match strictly after a local time; OverflowError if there is none."""
        day = self._day(local.date(), +1)
        if day == local.date():
            rank = self._rank(local)
            if rank < self._per_day():
                return self._at(day, rank)
            day = self._day(day + _DAY, +1)
        return self._at(day, 0)

    def before(self, local: datetime) -> datetime:
        """The last match strictly before a local time; OverflowError if there is none."""
        last = local - timedelta.resolution
        day = self._day(last.date(), -1)
        if day == last.date():
            rank = self._rank(last)
            if rank > 0:
                return self._at(day, rank - 1)
            day = self._day(day - _DAY, -1)
        return self._at(day, self._per_day() - 1)

    def count(self, after: datetime, upto: datetime) -> int:
        """How many matches lie in (after, upto]; takes time by the day, not by the match."""
        first, last = after.date(), upto.date()
        days = (first + n * _DAY for n in range((last - first).days))
        whole = sum(self._matches(day) for day in days) * self._per_day()
        return whole + self._upto(upto) - self._upto(after)

    def _upto(self, local: datetime) -> int:
        """How many matches its day has up to and including a local time."""
        return self._rank(local) if self._matches(local.date()) else 0

    def _per_day(self) -> int:
        return len(self.minutes) * len(self.seconds)

    def _rank(self, local: datetime) -> int:
        """How many times of day that match are up to and including its own."""
        minute = 60 * local.hour + local.minute
        upto = bisect_right(self.minutes, minute)
        if not upto or self.minutes[upto - 1] != minute:
            return upto * len(self.seconds)
        return (upto - 1) * len(self.seconds) + bisect_right(self.seconds, local.second)

    def _at(self, day: date, rank: int) -> datetime:
        """The match of a day with so many before it."""
        index, second = divmod(rank, len(self.seconds))
        hour, minute = divmod(self.minutes[index], 60)
        return datetime.combine(day, time(hour, minute, self.seconds[second]))

    def _matches(self, day: date) -> bool:
        return day.month in self.months and self.falls_on(day)

    def _day(self, day: date, step: int) -> date:
        """The nearest matching day from `day` on, forwards (+1) or backwards (-1).

        Beyond the horizon is as beyond the calendar: OverflowError.
        """
        end = day.year + step * HORIZON_YEARS
        while day.year != end:
            if day.month not in self.months:
                day = _next_month(day) if step > 0 else day.replace(day=1) - _DAY
            elif self.falls_on(day):
                return day
            else:
                day += step * _DAY
        raise OverflowError(f"{self.text}: no match within {HORIZON_YEARS} years")


@lru_cache(maxsize=4096)
def read_cron(expression: str) -> CronFields:
    """Read `[second] minute hour day-of-month month day-of-week` or a nickname such as @daily.

    Beside Debian's grammar: `a/n` (from a on), `sat-sun`, `L` and `LW` (last day, last weekday of
    the month), `5L` (last Friday), `5#2` (second Friday). `H` is for `spread`. Raises
    ScheduleError.
    """
    second, *texts = _split(expression)
    second = _SECOND.canonical(second)
    texts = [known.canonical(text) for known, text in zip(_FIELDS, texts, strict=True)]
    try:
        sim = CronSim(" ".join(texts), _SOME_DAY)
    except CronSimError:  # the grammar is checked: what remains is a day that no month has
        raise _never(texts) from None
    seconds = _seconds(second)
    fields = CronFields(
        text=" ".join(texts if seconds == (0,) else [second, *texts]),
        elapsed=seconds != (0,) or texts[0].startswith("*") or texts[1].startswith("*"),
        seconds=seconds,
        minutes=array("H", (60 * h + m for h in sorted(sim.hours) for m in sorted(sim.minutes))),
        months=frozenset(sim.months),
        falls_on=sim.match_day,
    )
    try:
        fields.after(_SOME_DAY)
    except OverflowError:
        raise _never(texts) from None
    return fields


def spread(expression: str, seed: str) -> str:
    """The expression with a number for each `H`, drawn by a hash of the seed and the field's name.

    `H` is any number of the field, `H(a-b)` one from a to b, `H/n` and `H(a-b)/n` each n-th from
    a drawn one on. A day of the month is drawn from 1-28, which every month has. Two fields of one
    expression are drawn apart. Raises ScheduleError.
    """
    if "h" not in expression.lower():
        return expression
    fields = (",".join([item.draw(seed) for item in field]) for field in _blanks(expression))
    return " ".join(fields)


@lru_cache(maxsize=4096)
def _blanks(expression: str) -> tuple[tuple[_Blank, ...], ...]:
    """The items of its fields: read once, drawn for each of the many jobs that have it."""
    known = zip((_SECOND, *_FIELDS), _split(expression), strict=True)
    fields = [field.blanks(text) for field, text in known]
    return tuple(fields if len(expression.split()) == 6 else fields[1:])


def _seconds(text: str) -> tuple[int, ...]:
    """The numbers of a seconds field in canonical form: those that cronsim gives a minute field."""
    return tuple(sorted(CronSim(f"{text} * * * *", _SOME_DAY).minutes))


def _split(expression: str) -> list[str]:
    """Six fields: of a five-field expression the seconds are 0."""
    text = expression.strip().translate(_LOWER)
    if text.startswith("@"):
        text = _nickname(text)
    texts = text.translate(_UPPER).split()
    if texts and texts[0].startswith(("TZ=", "CRON_TZ=")):
        zone = expression.split()[0].partition("=")[2]
        raise ScheduleError(f'no zone stands in an expression: write timezone = "{zone}"')
    if len(texts) == 5:
        return ["0", *texts]
    if len(texts) != 6:
        fields = "1 field" if len(texts) == 1 else f"{len(texts)} fields"
        raise ScheduleError(f"{fields} where cron has 5 ({_NAMES}), or 6 with second")
    return texts


def _nickname(text: str) -> str:
    if text in _NICKNAMES:
        return _NICKNAMES[text]
    if text.startswith("@every"):
        raise ScheduleError('@every is not cron: write every = "..." instead')
    near = get_close_matches(text, _NICKNAMES, n=1)
    cure = f"did you mean {near[0]}?" if near else f"known are {', '.join(_NICKNAMES)}"
    raise ScheduleError(f"unknown nickname {text!r}; {cure}")


def _never(texts: list[str]) -> ScheduleError:
    _, _, day, month, weekday = texts
    return ScheduleError(
        f"day-of-month {day!r} never fires: no such day with month {month!r}"
        f" and day-of-week {weekday!r}"
    )


# ------------------------------------------------------------------ the grammar of one field

_NUMBER = re.compile(r"[0-9]{1,9}")
_HASH = re.compile(r"H(?:\((?P<low>[0-9]{1,9})-(?P<high>[0-9]{1,9})\))?(?:/(?P<step>[0-9]{1,9}))?")
_NTH = re.compile(r"(?P<day>[^#/,-]+)#(?P<nth>[1-5])")


@dataclass(frozen=True, slots=True)
class _Blank:
    """An item: a number drawn for `field`, one of `width` from `low` on, if width is not 0; and how
    it goes on."""

    field: str = ""
    low: int = 0
    width: int = 0
    ending: str = ""

    def draw(self, seed: str) -> str:
        if not self.width:
            return self.ending
        digest = hashlib.sha256(f"{seed} {self.field}".encode()).digest()
        return f"{self.low + int.from_bytes(digest[:8], 'big') % self.width}{self.ending}"


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    low: int
    high: int
    names: Mapping[str, int]

    def canonical(self, text: str) -> str:
        """The field in a form that cronsim reads as it is meant here; raises ScheduleError."""
        return ",".join(self._item(item) for item in self._items(text))

    def blanks(self, text: str) -> tuple[_Blank, ...]:
        """Its items, with room for numbers where there is an `H`; raises ScheduleError."""
        items = self._items(text)
        return tuple(self._blank(i) if i.startswith("H") else _Blank(ending=i) for i in items)

    def _items(self, text: str) -> list[str]:
        items = text.split(",")
        if "" in items:
            raise self._error(text, "an item is empty; take a comma out")
        return items

    def _blank(self, item: str) -> _Blank:
        match = _HASH.fullmatch(item)
        if match is None:
            raise self._error(item, "write H, H/n, H(a-b) or H(a-b)/n")
        low, high = self.low, {"day-of-month": 28, "day-of-week": 6}.get(self.name, self.high)
        if match["low"] is not None:
            low, high = (self._number(item, match[end]) for end in ("low", "high"))
            if high < low:
                raise self._error(item, "the range runs backwards; write two items")
        width = high - low + 1
        if match["step"] is None:
            return _Blank(self.name, low, width)
        step = int(match["step"])
        if not 1 <= step <= width:
            raise self._error(item, f"the step {step} is not in 1-{width}")
        return _Blank(self.name, low, step, f"-{high}/{step}")

    def _item(self, item: str) -> str:
        if special := self._special(item):
            return special
        body, slash, step = item.partition("/")
        if slash and not (_NUMBER.fullmatch(step) and int(step)):
            raise self._error(item, f"the step {step!r} is not a whole number from 1")
        if body == "*":
            return f"*/{int(step)}" if slash else body
        low, high = self._range(item, body, open_ended=bool(slash))
        if low == high:  # cronsim would read 5-5/2 as 5/2
            return str(low)
        return f"{low}-{high}/{int(step)}" if slash else f"{low}-{high}"

    def _special(self, item: str) -> str | None:
        """`L`, `LW`, `5L` and `5#2`; None if it is none of these."""
        if self.name == "day-of-month" and item in {"L", "LW"}:
            return item
        if self.name == "day-of-week" and len(item) > 1 and item.endswith("L"):
            return f"{self._number(item, item[:-1])}L"
        if self.name == "day-of-week" and "#" in item:
            if not (nth := _NTH.fullmatch(item)):
                raise self._error(item, "write a day, # and 1-5, as FRI#2")
            return f"{self._number(item, nth['day'])}#{nth['nth']}"
        return None

    def _range(self, item: str, body: str, *, open_ended: bool) -> tuple[int, int]:
        """`a-b`; `a` alone is a to a, or from a on if a step follows (open_ended)."""
        first, dash, last = body.partition("-")
        low = self._number(item, first)
        if not dash:
            return low, self.high if open_ended else low
        high = 7 if last == "SUN" and low > 0 else self._number(item, last)
        if high < low:
            cure = f"{low}-{self.high},{self.low}-{high}"
            raise self._error(item, f"the range runs backwards; write {cure}")
        return low, high

    def _number(self, item: str, text: str) -> int:
        if text in self.names:
            return self.names[text]
        if not _NUMBER.fullmatch(text):
            names = f" or a name {' '.join(self.names)}" if self.names else ""
            raise self._error(item, f"{text!r} is not a number {self.low}-{self.high}{names}")
        if not self.low <= int(text) <= self.high:
            raise self._error(item, f"{int(text)} is not in {self.low}-{self.high}")
        return int(text)

    def _error(self, item: str, why: str) -> ScheduleError:
        return ScheduleError(f"{self.name} {item!r}: {why}")


_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_FIELDS = (
    _Field("minute", 0, 59, {}),
    _Field("hour", 0, 23, {}),
    _Field("day-of-month", 1, 31, {}),
    _Field("month", 1, 12, {name: n for n, name in enumerate(_MONTHS, start=1)}),
    _Field("day-of-week", 0, 7, {name: n for n, name in enumerate(_DAYS)}),
)
_SECOND = _Field("second", 0, 59, {})
_NAMES = " ".join(known.name for known in _FIELDS)


def _next_month(day: date) -> date:
    return (day.replace(day=1) + 31 * _DAY).replace(day=1)
