"""From the `blackout` of a validated [[job]] table, and the [[blackout]]s it names, to its
Blackout."""

from __future__ import annotations

import difflib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Any

from cron_leader.config import schema
from cron_leader.config.problems import Problem
from cron_leader.config.schedules import is_near
from cron_leader.core.blackout import After, Blackout, Freeze, Hours, Window
from cron_leader.core.cron import read_cron
from cron_leader.core.schedule import ScheduleError, parse_cron, zone_named

Values = Mapping[str, Any]
Named = Mapping[str, Values | None]
"""The windows of [[blackout]] tables by name; None: one that is wrong, and has been reported."""

EXTRA = 'pip install "cron-leader[holidays]"'
_KINDS: Mapping[str, frozenset[str]] = {
    "cron": frozenset({"duration", "timezone"}),
    "holidays": frozenset({"region", "timezone"}),
    "days": frozenset({"from", "to", "timezone"}),
    "from": frozenset({"to", "timezone"}),
}
"""The key that says what a window is, and the keys that may stand beside it."""


class WindowError(Exception):
    """What is wrong with a window. key: where in its table; empty: with the whole."""

    def __init__(self, rule: str, key: str = "") -> None:
        super().__init__(rule)
        self.key = key

    def beside(self, table: Values | str) -> str:
        """The rule behind the key, and the value if it stands there as it was written."""
        if not self.key or isinstance(table, str):
            return str(self)
        value = table.get(self.key)
        written = isinstance(value, str | list | datetime | time)
        shown = f" = {json.dumps(value, ensure_ascii=False, default=str)}" if written else ""
        return f"{self.key}{shown}: {self}"


@contextmanager
def _about(key: str) -> Iterator[None]:
    """What is found within is about that key."""
    try:
        yield
    except ScheduleError as error:
        raise WindowError(str(error), key) from None


def read_named(tables: Any) -> tuple[Named, list[Problem]]:
    """The windows of [[blackout]] tables, and what is wrong with them."""
    found: dict[str, Values | None] = {}
    problems: list[Problem] = []
    for index, table in enumerate(tables if isinstance(tables, list) else ()):
        values, wrong = schema.validate_blackout(table, index)
        name = table.get("name") if isinstance(table, Mapping) else None
        if isinstance(name, str) and name in found:
            rule = "another blackout has this name; a job may use several: rename one"
            wrong.append(Problem(("blackout", index, "name"), rule))
        window = {key: value for key, value in values.items() if key != "name"}
        if not wrong and (error := _wrong(window)):
            at = ("blackout", index, error.key) if error.key else ("blackout", index)
            wrong.append(Problem(at, str(error)))
        if isinstance(name, str):
            found[name] = None if wrong else window
        problems += wrong
    return found, problems


def _wrong(window: Values) -> WindowError | None:
    """What is wrong with a window, whoever uses it; None if nothing is."""
    try:
        _window(window, "UTC")
    except WindowError as error:
        return error
    return None


def read_blackout(
    values: Values, named: Named, report: Callable[[str, str], None]
) -> Blackout | None:
    """All windows of a job. None if it has none, or if one is wrong and has been reported."""
    given = values.get("blackout", ())
    items = [given] if isinstance(given, Mapping | str) else list(given)
    windows = []
    for number, item in enumerate(items, start=1):
        try:
            table = _called(item, named) if isinstance(item, str) else item
            if table is not None:
                windows.append(_window(table, values.get("timezone", "UTC")))
        except WindowError as error:
            place = f"number {number}: " if len(items) > 1 else ""
            report("blackout", f"{place}{error.beside(item)}")
    return Blackout(tuple(windows)) if windows else None


def _called(name: str, named: Named) -> Values | None:
    """The window of that name; None if it is wrong."""
    if name in named:
        return named[name]
    near = difflib.get_close_matches(name, named, n=1)
    cure = f"did you mean {near[0]}?" if near else "define it: [[blackout]], name and times"
    raise WindowError(f'"{name}": no [[blackout]] has this name; {cure}')


def _window(table: Values, job_zone: str) -> Window:
    kind = next((key for key in _KINDS if key in table), None)
    if kind is None:
        raise WindowError("says no time; give from and to, or days, cron, or holidays")
    for key in sorted(table.keys() - {kind} - _KINDS[kind]):
        raise WindowError(f"does not go with {kind}; make it a window of its own", key)
    zone = table.get("timezone", job_zone)
    with _about("timezone"):
        zone_named(zone)
    match kind:
        case "cron":
            return _after(table, zone)
        case "holidays":
            return Hours(_public_holidays(table["holidays"], table.get("region")), zone=zone)
        case _:
            return _from_to(table, zone)


def _after(table: Values, zone: str) -> After:
    if "duration" not in table:
        raise WindowError("cron needs a duration, how long the blackout lasts from each time on")
    with _about("cron"):
        starts = parse_cron(table["cron"], zone)
    return After(starts, timedelta(microseconds=table["duration"] // 1000))


def _from_to(table: Values, zone: str) -> Window:
    """Hours of some days or of each, or one freeze."""
    if ("from" in table) is not ("to" in table):
        raise WindowError("from and to go together; give both")
    ends = [_end(key, table[key]) for key in ("from", "to") if key in table]
    match ends:
        case [datetime() as start, datetime() as end] if "days" not in table:
            with _about("to"):
                return Freeze(start, end)
        case []:
            return Hours(_days(table["days"]), zone=zone)
        case [time() as opens, time() as closes] if opens == closes:
            raise WindowError("from and to are one time; leave both out for the whole day")
        case [time() as opens, time() as closes]:
            return Hours(_days(table.get("days", "*")), opens, closes, zone)
        case _:
            raise WindowError('with days, from and to are hours: "09:00"; else both are alike')


def _end(key: str, value: object) -> datetime | time:
    """A time of day, or an instant in UTC."""
    found = value
    if value == "24:00" and key == "to":
        return time.min
    if isinstance(value, str) and not value.startswith("24:"):  # not every Python's reader takes it
        for read in (time.fromisoformat, datetime.fromisoformat):
            try:
                found = read(value)
                break
            except ValueError:
                continue
    match found:
        case datetime(tzinfo=zone) if zone is not None and is_near(found):
            return found.astimezone(UTC)
        case time(tzinfo=None):
            return found
        case _:
            wanted = '"09:00", or a time with its zone: "2026-12-20T00:00:00Z"'
            raise WindowError(f"must be a time of day: {wanted}", key)


def _days(given: Any) -> Callable[[date], bool]:
    text = given if isinstance(given, str) else ",".join(given)
    with _about("days"):
        return read_cron(f"0 0 * * {''.join(text.split())}").falls_on


@lru_cache(maxsize=1024)
def _public_holidays(country: str, region: str | None) -> Callable[[date], bool]:
    """Whether a date is one; by the `holidays` library, which knows the years it knows."""
    try:
        import holidays
    except ModuleNotFoundError:
        raise WindowError(f"the library is not installed: {EXTRA}", "holidays") from None
    known = holidays.list_supported_countries()
    if country not in known:
        raise WindowError("no such country; write two letters, as 'DE'", "holidays")
    if region is not None and region not in known[country]:
        regions = ", ".join(known[country]) or "it has none"
        raise WindowError(f"unknown in {country}; known: {regions}", "region")
    calendar = holidays.country_holidays(country, subdiv=region)

    def falls_on(day: date) -> bool:
        if day.year in calendar.years:
            return day in calendar
        with warnings.catch_warnings(action="ignore"):  # of a year that it knows in part only
            return day in calendar

    return falls_on
