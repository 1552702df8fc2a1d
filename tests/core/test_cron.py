"""What a cron expression may say, and how it is refused."""

from __future__ import annotations

import random
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cron_leader.core.cron import CronFields, read_cron
from cron_leader.core.schedule import ScheduleError, parse_cron

CASES = Path(__file__).with_name("cases")

SAME = """
    @hourly            | 0 * * * *
    @daily             | 0 0 * * *
    @midnight          | 0 0 * * *
    @weekly            | 0 0 * * 0
    @monthly           | 0 0 1 * *
    @yearly            | 0 0 1 1 *
    @Annually          | 0 0 1 1 *
    0 0 * jan mon      | 0 0 * 1 1
    0 0 * Jan-MAR Tue  | 0 0 * 1-3 2
    0 0 * * 7          | 0 0 * * 0
    0 0 * * sat-sun    | 0 0 * * 6,7
    0 0 * * 6-7        | 0 0 * * 6,0
    0 0 * * fri-sun    | 0 0 * * 5,6,0
    0 0 * * sun-sat    | 0 0 * * *
    0 0 * * sun-tue    | 0 0 * * 0,1,2
    0 0 * * 0-7        | 0 0 * * *
    0 0 * * sat-sun/2  | 0 0 * * 6
    0 0 * * */7        | 0 0 * * 0
    0 0 * * 1/2        | 0 0 * * 1,3,5,7
    */20 * * * *       | 0,20,40 * * * *
    0/20 * * * *       | 0,20,40 * * * *
    5/20 * * * *       | 5,25,45 * * * *
    10-40/15 * * * *   | 10,25,40 * * * *
    5-5/20 * * * *     | 5 * * * *
    */60 * * * *       | 0 * * * *
    */90 * * * *       | 0 * * * *
    007 08 * * *       | 7 8 * * *
    3,1,2,2 * * * *    | 1-3 * * * *
    1-4,3-6 * * * *    | 1-6 * * * *
    0 0 */40 * *       | 0 0 1 * *
    0 0 * * friL       | 0 0 * * 5L
    0 0 * * fri#2      | 0 0 * * 5#2
    0 */5 * * * *      | */5 * * * *
    */60 0 9 * * *     | 0 9 * * *
    */20 0 9 * * *     | 0,20,40 0 9 * * *
    55/2 * * * * *     | 55,57,59 * * * * *
"""

REFUSED = """
                       | 0 fields where cron has 5
    * * * *            | 4 fields where cron has 5
    * * * * * * *      | 7 fields where cron has 5 (minute hour day-of-month month day-of-week)
    0 0 1 1 * * 2027   | 7 fields where cron has 5
    CRON_TZ=UTC 0 0 * * * | write timezone = "UTC"
    TZ=Asia/Tokyo @daily | no zone stands in an expression: write timezone = "Asia/Tokyo"
    TZ=0               | no zone stands in an expression
    *                  | 1 field where cron has 5
    @                  | unknown nickname '@'; known are @yearly
    @fortnightly       | unknown nickname '@fortnightly'; did you mean @monthly?
    @dayly             | did you mean @daily?
    @reboot            | unknown nickname '@reboot'
    @every 5m          | write every =
    60 * * * * *       | second '60': 60 is not in 0-59
    60 * * * *         | minute '60': 60 is not in 0-59
    -1 * * * *         | minute '-1': '' is not a number 0-59
    1.5 * * * *        | minute '1.5': '1.5' is not a number
    ٣ * * * *          | minute '٣'
    0x1 * * * *        | minute '0X1'
    1234567890 * * * * | minute '1234567890'
    */0 * * * *        | minute '*/0': the step '0' is not a whole number from 1
    */ * * * *         | minute '*/': the step '' is not
    */-5 * * * *       | minute '*/-5': the step '-5' is not
    */1.5 * * * *      | minute '*/1.5': the step '1.5' is not
    */2/3 * * * *      | minute '*/2/3': the step '2/3' is not
    1, * * * *         | minute '1,': an item is empty; take a comma out
    ,1 * * * *         | minute ',1': an item is empty
    1,,2 * * * *       | minute '1,,2': an item is empty
    0 0 * * ſun        | day-of-week 'ſUN': 'ſUN' is not a number
    @weeKly            | unknown nickname '@weeKly'
    1- * * * *         | minute '1-': '' is not a number
    1-2-3 * * * *      | minute '1-2-3': '2-3' is not a number
    *-5 * * * *        | minute '*-5': '*' is not a number
    ** * * * *         | minute '**': '**' is not a number
    jan * * * *        | minute 'JAN': 'JAN' is not a number
    30-10 * * * *      | minute '30-10': the range runs backwards; write 30-59,0-10
    * 24 * * *         | hour '24': 24 is not in 0-23
    * 22-4 * * *       | hour '22-4': the range runs backwards; write 22-23,0-4
    * 5L * * *         | hour '5L'
    0 0 0 * *          | day-of-month '0': 0 is not in 1-31
    0 0 32 * *         | day-of-month '32': 32 is not in 1-31
    0 0 ? * *          | day-of-month '?': '?' is not a number
    0 0 15W * *        | day-of-month '15W'
    0 0 L-1 * *        | day-of-month 'L-1'
    0 0 L/2 * *        | day-of-month 'L/2'
    0 0 * 0 *          | month '0': 0 is not in 1-12
    0 0 * 13 *         | month '13': 13 is not in 1-12
    0 0 * foo *        | month 'FOO': 'FOO' is not a number 1-12 or a name JAN FEB
    0 0 * nov-feb *    | month 'NOV-FEB': the range runs backwards; write 11-12,1-2
    0 0 * * 8          | day-of-week '8': 8 is not in 0-7
    0 0 * * monday     | day-of-week 'MONDAY': 'MONDAY' is not a number 0-7 or a name SUN MON
    0 0 * * fri-mon    | day-of-week 'FRI-MON': the range runs backwards; write 5-7,0-1
    0 0 * * 6-0        | day-of-week '6-0': the range runs backwards
    0 0 * * 7-1        | day-of-week '7-1': the range runs backwards
    0 0 * * L          | day-of-week 'L'
    0 0 * * 5L/2       | day-of-week '5L/2'
    0 0 * * 1#6        | day-of-week '1#6': write a day, # and 1-5, as FRI#2
    0 0 * * 1#0        | day-of-week '1#0': write a day, # and
    0 0 * * #5         | day-of-week '#5': write a day, # and
    0 0 * * mon-fri#1  | day-of-week 'MON-FRI#1': write a day, # and
    0 0 * * 9#1        | day-of-week '9#1': 9 is not in 0-7
    0 0 * * 8L         | day-of-week '8L': 8 is not in 0-7
    0 0 * * mon-fri/0  | day-of-week 'MON-FRI/0': the step
    0 0 30 2 *         | day-of-month '30' never fires: no such day with month '2'
    0 0 31 4,6,9,11 *  | day-of-month '31' never fires
    0 0 30-31 feb */2  | day-of-month '30-31' never fires
    0 0 LW * */7       | day-of-month 'LW' never fires
"""


def rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")] for line in table.splitlines()[1:]]


def meaning(fields: CronFields) -> list[datetime | None]:
    """Enough of the slots to tell two expressions apart."""
    start = datetime(2027, 1, 1)  # noqa: DTZ001  local time, of no zone
    return [fields.after(start + n * timedelta(hours=37, minutes=11)) for n in range(150)]


@pytest.mark.parametrize(("one", "other"), rows(SAME))
def test_both_spellings_mean_the_same(one: str, other: str) -> None:
    assert meaning(read_cron(one)) == meaning(read_cron(other))


@pytest.mark.parametrize(("expression", "why"), rows(REFUSED))
def test_a_refusal_names_the_field_and_the_reason(expression: str, why: str) -> None:
    with pytest.raises(ScheduleError) as refusal:
        parse_cron(expression)
    assert why in str(refusal.value)


@pytest.mark.parametrize("expression", (CASES / "cron_rejects.txt").read_text().splitlines())
def test_a_handed_reject_is_refused(expression: str) -> None:
    with pytest.raises(ScheduleError):
        parse_cron(expression)


def test_any_text_is_read_or_refused() -> None:
    rng = random.Random(5)
    parts = "0 1 2 5 7 9 31 59 * / - , # L W SUN MAR @".split()  # noqa: SIM905
    for _ in range(400):
        fields = ["".join(rng.choices(parts, k=rng.randint(1, 4))) for _ in range(5)]
        with suppress(ScheduleError):
            schedule = parse_cron(" ".join(fields))
            assert schedule.next_after(datetime(2000, 1, 1, tzinfo=UTC)) is not None


def test_a_list_of_items_is_the_union_of_its_items() -> None:
    assert read_cron("0 0 L,15,1-3 * *").text == "0 0 L,15,1-3 * *"
    assert read_cron("0 0 1 1 5L,mon#1,3").text == "0 0 1 1 5L,1#1,3"


# expression | seed | what is read
SPREAD = """
    H H * * *            | default/a | 40 7 * * *
    H H * * *            | default/b | 53 6 * * *
    h H * * *            | default/a | 40 7 * * *
    H/15 * * * *         | default/a | 10-59/15 * * * *
    H(0-29) H(2-4) * * * | default/a | 10 3 * * *
    H(0-29)/10 * * * *   | default/a | 0-29/10 * * * *
    0 0 H * *            | default/a | 0 0 23 * *
    0 0 * * H            | default/a | 0 0 * * 2
    H * * * * *          | default/a | 34 * * * * *
    0,H 0 * * thu        | default/a | 0,40 0 * * 4
"""

BAD_SPREAD = """
    HH * * * *          | minute 'HH': write H, H/n, H(a-b) or H(a-b)/n
    H,, * * * *         | minute 'H,,': an item is empty
    H(5-60) * * * *     | minute 'H(5-60)': 60 is not in 0-59
    H(30-10) * * * *    | minute 'H(30-10)': the range runs backwards; write two items
    H/0 * * * *         | minute 'H/0': the step 0 is not in 1-60
    H(0-9)/11 * * * *   | minute 'H(0-9)/11': the step 11 is not in 1-10
"""


@pytest.mark.parametrize(("expression", "seed", "drawn"), rows(SPREAD))
def test_a_hash_draws_the_same_number_for_ever(expression: str, seed: str, drawn: str) -> None:
    assert parse_cron(expression, seed=seed).digest == parse_cron(drawn).digest


@pytest.mark.parametrize(("expression", "why"), rows(BAD_SPREAD))
def test_a_refused_hash_says_why(expression: str, why: str) -> None:
    with pytest.raises(ScheduleError) as refusal:
        parse_cron(expression, seed="default/a")
    assert why in str(refusal.value)


def test_hashes_of_many_jobs_are_spread_over_the_hour() -> None:
    drawn = [parse_cron("H * * * *", seed=f"default/{n}").digest for n in range(1000)]
    assert len(set(drawn)) == 60
    assert max(drawn.count(one) for one in set(drawn)) < 40


def test_seconds_that_are_0_make_the_five_field_twin() -> None:
    assert parse_cron("0 30 2 * * *").digest == parse_cron("30 2 * * *").digest
    assert parse_cron("*/60 30 2 * * *").digest == parse_cron("30 2 * * *").digest
    assert parse_cron("5,10 30 2 * * *").digest == "cron 5,10 30 2 * * * UTC"


def test_blanks_and_letter_case_do_not_matter() -> None:
    tidy = parse_cron("0 9 * JAN MON")
    assert parse_cron("  0\t9  *   JAN MON\n") == tidy
    assert parse_cron("0 9 * jan mon").digest == tidy.digest


@pytest.mark.parametrize(
    ("zone", "cure"),
    [
        ("Europe/Warsw", "; did you mean 'Europe/Warsaw'?"),
        ("CEST", "; write a zone such as 'Europe/Warsaw'"),
        ("america/sao paulo", "; did you mean 'America/Sao_Paulo'?"),
        ("", ""),
        ("America", ""),
        ("../UTC", ""),
        ("/etc/passwd", ""),
        ("\0", ""),
    ],
)
def test_an_unknown_zone_is_refused_with_the_nearest_name(zone: str, cure: str) -> None:
    with pytest.raises(ScheduleError) as refusal:
        parse_cron("* * * * *", zone)
    assert f"zone {zone!r}: there is no such time zone{cure}" in str(refusal.value)


@pytest.mark.parametrize(
    ("zone", "why"),
    [
        ("localtime", "each machine has its own; write a zone such as 'Europe/Warsaw'"),
        ("posixrules", "each machine has its own"),
        ("right/Europe/Berlin", "not on each machine; write 'Europe/Berlin'"),
        ("posix/UTC", "not on each machine; write 'UTC'"),
        ("local", "there is no such time zone"),
    ],
)
def test_a_zone_that_is_not_the_same_for_all_nodes_is_refused(zone: str, why: str) -> None:
    with pytest.raises(ScheduleError) as refusal:
        parse_cron("* * * * *", zone)
    assert f"zone {zone!r}: {why}" in str(refusal.value)
    assert "'localtime'?" not in str(refusal.value)
