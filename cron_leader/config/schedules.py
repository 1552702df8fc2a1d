"""From the schedule keys of a validated [[job]] table to its Schedule: all that they describe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from cron_leader.core.schedule import (
    EPOCH,
    At,
    Bounded,
    DstFold,
    DstGap,
    Every,
    Schedule,
    ScheduleError,
    Union,
    parse_cron,
)

Values = Mapping[str, Any]
Report = Callable[[str, str], None]
"""Called with a key of the table ("" for the table itself) and the rule that does not hold."""

KINDS = ("cron", "every", "at")
_GOES_WITH = {"timezone": "cron", "dst_gap": "cron", "dst_fold": "cron", "anchor": "every"}
_BOUNDS = ("start", "end")
_NOT_PLAIN = frozenset({"every", "at", "anchor", *_BOUNDS})
"""What a job with one cron expression and no more does not have."""
YEARS = range(1900, 9000)
"""Those that a time in the configuration may lie in."""


def read_schedule(values: Values, seed: str, report: Report) -> Schedule | None:
    """All slots of `cron`, `every` and `at` together, as their companions say.

    seed: what `H` is drawn by. None if problems were reported.
    """
    if isinstance(values.get("cron"), str) and _NOT_PLAIN.isdisjoint(values):
        return _cron(values["cron"], values, seed, report)
    kinds = [kind for kind in KINDS if kind in values]
    if not kinds:
        report("", f"has no schedule; give one of {', '.join(KINDS)}, or several")
        return None
    if "at" in kinds and not _listed(values["at"]):
        report("at", "must not be empty; give a time, or leave it out")
        return None
    for key, owner in _GOES_WITH.items():
        if owner not in kinds and values.get(key, "UTC") != "UTC":
            report(key, f"goes with {owner} only, not with {' and '.join(kinds)}; leave it out")
    given = [key for key in _BOUNDS if key in values]
    if given and kinds == ["at"]:
        report(given[0], "goes with cron and every, not with at; leave it out")
        return None
    recurring = [_recurring(kind, values, seed, report) for kind in kinds if kind != "at"]
    times = [_at(value, report) for value in _listed(values.get("at", ()))]
    regular = _together(recurring)
    bounded = _bounded(regular, values, given, report) if regular and given else regular
    return _together([*([bounded] if recurring else ()), *times])


def _recurring(kind: str, values: Values, seed: str, report: Report) -> Schedule | None:
    if kind == "every":
        return _every(values, report)
    return _together([_cron(text, values, seed, report) for text in _listed(values["cron"])])


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _together(found: Sequence[Schedule | None]) -> Schedule | None:
    """The one schedule, or the union of several; None if there is none, or one of them is wrong."""
    members = tuple(schedule for schedule in found if schedule is not None)
    if not members or len(members) < len(found):
        return None
    return members[0] if len(members) == 1 else Union(members)


def _cron(expression: str, values: Values, seed: str, report: Report) -> Schedule | None:
    gap, fold = values.get("dst_gap"), values.get("dst_fold")
    zone = values.get("timezone", "UTC")
    try:
        return parse_cron(
            expression,
            zone,
            seed=seed,
            dst_gap=DstGap(gap) if gap else None,
            dst_fold=DstFold(fold) if fold else None,
        )
    except ScheduleError as error:
        listed = isinstance(values["cron"], list | tuple) and not _is_about_zone(expression)
        text = f'"{expression}": {error}' if listed else str(error)
        report("timezone" if _is_about_zone(expression) else "cron", text)
        return None


def _is_about_zone(expression: str) -> bool:
    """Whether the expression is fine in UTC, so that the zone must be what is wrong."""
    try:
        parse_cron(expression, "UTC")
    except ScheduleError:
        return False
    return True


def _every(values: Values, report: Report) -> Schedule | None:
    anchor = EPOCH
    if "anchor" in values:
        if (found := _instant(values["anchor"], "anchor", report)) is None:
            return None
        anchor = found
    return Every(timedelta(microseconds=values["every"] // 1000), anchor)


def _at(value: object, report: Report) -> Schedule | None:
    when = _instant(value, "at", report)
    return At(when) if when else None


def _bounded(
    schedule: Schedule, values: Values, given: list[str], report: Report
) -> Schedule | None:
    bounds = {key: _instant(values[key], key, report) for key in given}
    if None in bounds.values():
        return None
    try:
        return Bounded(schedule, **bounds)
    except ScheduleError as error:
        report(given[-1], str(error))
        return None


def _instant(value: object, key: str, report: Report) -> datetime | None:
    """A time with its zone, in UTC."""
    when = value
    if isinstance(value, str):
        try:
            when = datetime.fromisoformat(value)
        except ValueError:
            when = None
    if not isinstance(when, datetime) or when.tzinfo is None:
        report(key, 'must be a time with its zone: "2026-12-01T09:00:00Z"')
        return None
    if not is_near(when):
        report(key, f"must lie in the years {YEARS.start} to {YEARS[-1]}")
        return None
    return when.astimezone(UTC)


def is_near(when: datetime) -> bool:
    """Whether it lies far enough from the ends of the calendar to reckon with."""
    return when.year in YEARS
