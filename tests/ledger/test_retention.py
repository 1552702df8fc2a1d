"""Retention: what goes, what never does, and when it ends."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from cron_leader.config import schema
from cron_leader.core.model import (
    Claim,
    CommandResult,
    Entry,
    Gap,
    Reason,
    Refused,
    Result,
    State,
)
from cron_leader.ledger import retention
from cron_leader.ledger.retention import (
    FIRST,
    LEAST,
    LONG_S,
    MOST,
    SHORT_S,
    Kept,
    Key,
    Page,
    Surplus,
)
from cron_leader.ledger.sql import to_text, to_time
from cron_leader.upkeep import Policy, Upkeep
from tests.etcd_kit import Emitted

from .kit import ELECTION, T0, Lab, Leader, at, order, settlement, slot

OLD = T0 - timedelta(days=40)
DAY = timedelta(days=1)


class Wall:
    """A clock that stands at T0."""

    def wall(self) -> datetime:
        return T0

    def boot_ns(self) -> int:
        return 0


def upkeep(leader: Leader, policy: Policy, emit: Emitted | None = None) -> Upkeep:
    return Upkeep(
        leader.ledger,
        policy,
        leading=lambda: leader.term,
        clock=Wall(),  # type: ignore[arg-type]
        emit=emit or Emitted(),
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cron_leader.upkeep.PAUSE_S", 0)


async def ran(leader: Leader, when: float, job: str = "job") -> Claim:
    """A slot that was run, and ended, at its time."""
    claim = Claim(slot(when, job), f"{job} {when}")
    await leader.take(claim, now=at(when), to=at(when))
    await leader.finish(claim, result=Result(0, False, None, None, at(when), 1))
    return claim


def days(number: float) -> float:
    """Seconds from T0, in the past."""
    return -number * DAY.total_seconds()


async def test_old_slots_go_with_their_attempts_and_gaps_and_younger_ones_stay(lab: Lab) -> None:
    leader = await lab.leader("a", settlement())
    await ran(leader, days(40))
    await ran(leader, days(20))
    gaps = tuple(
        Gap("job", at(days(far)), at(days(far - 1)), 11, Reason.COALESCED) for far in (50, 30.5)
    )
    await leader.take(gaps=gaps)
    assert await upkeep(leader, Policy(30 * DAY, 0)).round()
    with lab.read() as reader:
        assert [row.scheduled_for for row in reader.slots()] == [at(days(20))]
        assert [row.scheduled_for for row in reader.attempts()] == [at(days(20))]
        assert [row.first for row in reader.gaps()] == [at(days(30.5))]


async def test_what_is_unfinished_or_ended_only_lately_stays_however_old_its_time(lab: Lab) -> None:
    leader = await lab.leader("a", settlement())
    running, due, late = slot(days(60)), slot(days(61)), slot(days(62))
    await leader.take(
        Claim(running, "r"),
        Claim(late, "late"),
        entries=(Entry(due, State.DUE, next_at=T0),),
    )
    await leader.finish(Claim(late, "late"))  # at T0 + 1 s
    assert await upkeep(leader, Policy(30 * DAY, 1)).round()
    assert lab.states() == {running: "running", due: "due", late: "succeeded"}


async def test_of_each_job_the_newest_slots_stay_and_none_of_the_last_hour_goes(lab: Lab) -> None:
    leader = await lab.leader("a", settlement(jobs=("few", "many", "young")))
    for minutes in range(10):
        await ran(leader, -7200 - 60 * minutes, "many")
        await ran(leader, -60 * minutes, "young")
    await ran(leader, days(400), "few")
    assert await upkeep(leader, Policy(None, 3)).round()
    with lab.read() as reader:
        assert [r.scheduled_for for r in reader.slots(job="many")] == [
            at(-7200 - 60 * minutes) for minutes in range(3)
        ]
        assert len(reader.slots(job="young")) == 10
        assert len(reader.slots(job="few")) == 1


async def test_more_than_a_batch_goes_batch_by_batch(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cron_leader.upkeep.FIRST", Page(rows=4))
    monkeypatch.setattr(retention, "JOBS", 1)
    leader = await lab.leader("a", settlement(jobs=("a", "b", "c")))
    missed = tuple(
        Entry(slot(days(40) + n, job), State.MISSED, Reason.LATE)
        for n in range(6)
        for job in ("a", "b", "c")
    )
    await leader.take(entries=missed, now=at(days(40)))
    assert await upkeep(leader, Policy(30 * DAY, 0)).round()
    assert lab.states() == {}


async def test_each_elections_newest_term_stays_whatever_its_age(lab: Lab) -> None:
    for _ in range(3):
        leader = await lab.leader("a", settlement(now=OLD))
        await leader.ledger.close_term(leader.term, "resigned", OLD)
    assert await upkeep(leader, Policy(30 * DAY, 0)).round()
    with lab.read() as reader:
        assert [row.fence for row in reader.terms()] == [leader.fence]
        assert reader.terms()[0].planned_to == OLD
    past = await (await lab.ledger()).read_past(leader.term)
    assert past.planned_to == OLD


async def test_answered_orders_refusals_and_notices_go_and_an_unanswered_order_stays(
    lab: Lab,
) -> None:
    leader = await lab.leader("a", settlement())
    for name in ("old", "waiting"):
        lab.give(order(leader.fence, id=name, at=OLD))
    lab.give(order(leader.fence, id="young", at=T0))
    for name in ("old", "young"):
        await leader.ledger.answer_order(leader.term, name, CommandResult.NOT_LEADING, T0)
    when = to_text(OLD)
    lab.sql(
        "INSERT INTO cron_leader_refusal (at, election, fence, node, what) "
        f"VALUES ('{when}', '{ELECTION}', 1, 'z', 'claim')"
    )
    lab.sql(f"INSERT INTO cron_leader_notice (key, sent_at, fence) VALUES ('k', '{when}', 1)")
    assert await upkeep(leader, Policy(30 * DAY, 0)).round()
    with lab.read() as reader:
        assert {row.id for row in reader.commands()} == {"waiting", "young"}
        assert reader.refusals() == ()
        assert reader._database.run("SELECT key FROM cron_leader_notice", {}) == []


async def test_of_a_retired_job_the_last_row_goes_when_all_others_have(lab: Lab) -> None:
    jobs = ("gone", "has slots", "has gaps", "paused", "lately", "there")
    leader = await lab.leader("a", settlement(jobs=jobs))
    await ran(leader, days(20), "has slots")
    await leader.take(gaps=(Gap("has gaps", at(days(30.5)), at(days(29)), 11, Reason.COALESCED),))
    old, lately, later = (to_text(at(days(far))) for far in (40, 20, -1))
    lab.sql(f"UPDATE cron_leader_job SET retired_at = '{old}' WHERE job <> 'there'")
    lab.sql(f"UPDATE cron_leader_job SET retired_at = '{lately}' WHERE job = 'lately'")
    lab.sql(f"UPDATE cron_leader_job SET paused_until = '{later}' WHERE job = 'paused'")
    assert await upkeep(leader, Policy(30 * DAY, 0)).round()
    with lab.read() as reader:
        assert {row.job for row in reader.jobs()} == {*jobs} - {"gone"}


async def test_a_deposed_leader_deletes_nothing_and_says_so_once(lab: Lab) -> None:
    leader = await lab.leader("a", settlement())
    await ran(leader, days(40))
    await lab.leader("b")
    emit = Emitted()
    assert not await upkeep(leader, Policy(30 * DAY, 0), emit).round()
    assert [(name, said["what"]) for name, said in emit.lines] == [("ledger.refused", "retention")]
    assert len(lab.states()) == 1


async def test_a_step_down_ends_it_at_the_next_batch(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cron_leader.upkeep.FIRST", Page(rows=1))
    leader = await lab.leader("a", settlement())
    for far in (40, 41, 42, 43):
        await ran(leader, days(far))
    looks = iter([leader.term, leader.term, leader.term, None])  # at first, and around a batch
    kept = upkeep(leader, Policy(30 * DAY, 0))
    kept._leading = lambda: next(looks)
    assert not await kept.round()
    assert len(lab.states()) == 3


async def test_switched_off_it_returns_at_once(lab: Lab) -> None:
    leader = await lab.leader("a", settlement())
    await asyncio.wait_for(upkeep(leader, Policy.of(None, 0)).run(), 5)


def test_a_batch_that_took_long_is_followed_by_a_smaller_one_and_a_short_one_by_a_larger() -> None:
    keys = (("job", T0, ""),)
    long, short = LONG_S * 1.1, SHORT_S * 0.9
    assert FIRST.after(Kept.SLOTS, keys, long).rows < FIRST.rows
    assert FIRST.after(Kept.SLOTS, keys, short).rows > FIRST.rows
    assert FIRST.after(Kept.SLOTS, keys, (LONG_S + SHORT_S) / 2).rows == FIRST.rows
    least = most = FIRST
    for _ in range(20):
        least, most = least.after(Kept.GAPS, keys, long), most.after(Kept.GAPS, keys, short)
    assert (least.rows, most.rows) == (LEAST, MOST)


async def test_what_was_deleted_is_not_looked_through_again(lab: Lab) -> None:
    """It lies about until a vacuum: of a million rows, each batch would read all before it."""
    leader = await lab.leader("a", settlement())
    for far in (42, 41, 40):
        await ran(leader, days(far))
    ledger, page = leader.ledger, Page(rows=2)
    keys = await ledger.expired(ELECTION, Kept.SLOTS, T0, page=page)
    page = page.after(Kept.SLOTS, keys, LONG_S)
    left = await ledger.expired(ELECTION, Kept.SLOTS, T0, page=page)
    assert [_time(key) for key in left] == [at(days(41)), at(days(40))]
    surplus = Surplus("job", at(days(41)))
    assert [
        _time(key) for key in await ledger.expired(ELECTION, Kept.SLOTS, T0, surplus, page=page)
    ] == [at(days(41))]


def _time(key: Key) -> datetime:
    when = key[1]
    assert isinstance(when, str | datetime)
    return to_time(when)


async def test_a_trim_sent_twice_is_one(lab: Lab) -> None:
    leader = await lab.leader("a", settlement())
    await ran(leader, days(40))
    keys = await leader.ledger.expired(ELECTION, Kept.SLOTS, T0)
    for _ in range(2):
        assert not isinstance(await leader.ledger.trim(leader.term, Kept.SLOTS, keys, T0), Refused)
    assert lab.states() == {}


# ------------------------------------------------------------------ the keys


@pytest.mark.parametrize(
    ("key", "given", "meant"),
    [
        ("retention", "30d", 30 * 86_400 * 10**9),
        ("retention", "off", None),
        ("retention", "0", None),
        ("keep", 500, 500),
        ("keep", 0, 0),
        ("keep", "off", 0),
    ],
)
def test_the_keys_mean(key: str, given: object, meant: object) -> None:
    values, problems = schema.validate_sections({"ledger": {key: given}})
    assert (values["ledger"][key], problems) == (meant, [])


@pytest.mark.parametrize(
    ("key", "given", "rule"),
    [
        ("retention", "59m", 'must be at least 1h, or "off"'),
        ("retention", "long", "not a duration"),
        ("keep", -1, "must be at least 0"),
        ("keep", "all", "must be a whole number"),
    ],
)
def test_a_wrong_value_is_refused(key: str, given: object, rule: str) -> None:
    _, (problem,) = schema.validate_sections({"ledger": {key: given}})
    assert rule in problem.rule
