"""Cron expressions: validation and run times, especially around daylight-saving changes."""

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest

from app.schedules.cron import MACROS, Cron, CronError, zone_named
from tests.table import table

BERLIN, NEW_YORK, LORD_HOWE, SAO_PAULO = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo"


def runs(expression: str, zone: str, first: str, until: str) -> list[str]:
    """Returns the runs between two wall times, as wall times with UTC offset."""
    timezone = ZoneInfo(zone)
    start, end = (datetime.fromisoformat(text).replace(tzinfo=timezone) for text in (first, until))
    found = takewhile(lambda run: run < end, Cron(expression, timezone).after(start - timedelta(microseconds=1)))
    return [f"{run.astimezone(timezone):%d %H:%M %z}" for run in found]


def next_five(expression: str, after: str) -> list[str]:
    start = datetime.fromisoformat(after).replace(tzinfo=UTC)
    return [f"{run:%Y-%m-%d %H:%M}" for run in islice(Cron(expression, ZoneInfo("UTC")).after(start), 5)]


@table(
    ("expression", "first"),
    [
        ("* * * * *", "2026-01-01 00:01"),
        ("*/15 * * * *", "2026-01-01 00:15"),
        ("0 9 * * MON-FRI", "2026-01-01 09:00"),
        ("0 9 * * mon", "2026-01-05 09:00"),
        ("30 4 1,15 * *", "2026-01-01 04:30"),
        ("0 0 1 JAN *", "2027-01-01 00:00"),
        ("0 0 * * 7", "2026-01-04 00:00"),
        ("0 0 13 * 5", "2026-01-02 00:00"),  # either day matches, as in every cron
        ("0 0 L * *", "2026-01-31 00:00"),
        ("0 0 * * 1#2", "2026-01-12 00:00"),
        ("0 0 * * FRI#2", "2026-01-09 00:00"),
        ("0 0 * * 5L", "2026-01-30 00:00"),
        ("0 0 */2 * MON", "2026-01-05 00:00"),  # both days match if one of them begins with a star
        ("0 0 29 2 *", "2028-02-29 00:00"),
        ("0 0 29 2 */7", "2032-02-29 00:00"),  # a leap day on a Sunday
        (" 0\t12  *  * * ", "2026-01-01 12:00"),
        ("@hourly", "2026-01-01 01:00"),
        ("@Daily", "2026-01-02 00:00"),
        ("@weekly", "2026-01-04 00:00"),
        ("@monthly", "2026-02-01 00:00"),
        ("@yearly", "2027-01-01 00:00"),
    ],
)
def test_first_run_after_new_year(expression: str, first: str) -> None:
    assert next_five(expression, "2026-01-01 00:00")[0] == first


def test_every_macro_equals_its_expression() -> None:
    assert all(
        next_five(macro, "2026-01-01 00:00") == next_five(fields, "2026-01-01 00:00")
        for macro, fields in MACROS.items()
    )


@table(
    ("expression", "why"),
    [
        ("", "five fields"),
        ("* * * *", "five fields"),
        ("0 * * * * *", "five fields"),
        ("@reboot", "five fields"),
        ("60 * * * *", "the minute must be 0 to 59"),
        ("-1 * * * *", "the minute must be 0 to 59"),
        ("* 24 * * *", "the hour must be 0 to 23"),
        ("* * 0 * *", "the day of the month must be 1 to 31"),
        ("* * 32 * *", "the day of the month must be 1 to 31"),
        ("* * * 13 *", "the month must be 1 to 12"),
        ("* * * * 8", "the day of the week must be 0 to 7"),
        ("* * * * MON#6", "the day of the week must be 0 to 7"),
        ("*/0 * * * *", "the minute must be 0 to 59"),
        ("5-1 * * * *", "the minute must be 0 to 59"),
        ("1,,2 * * * *", "the minute must be 0 to 59"),
        ("² * * * *", "the minute must be 0 to 59"),
        ("a b c d e", "the minute must be 0 to 59"),
        ("0 0 30 2 *", "cron never fires"),
        ("0 0 31 2,4,6,9,11 *", "cron never fires"),
        ("0 0 */31 2 MON#5", "cron never fires"),
    ],
)
def test_invalid_expression_or_one_that_never_runs_is_rejected(expression: str, why: str) -> None:
    with pytest.raises(CronError, match=why):
        Cron(expression, ZoneInfo("UTC"))


@table("name", ["UTC", "Europe/Berlin", "Africa/Casablanca", "Etc/GMT+5", "America/Argentina/Ushuaia"])
def test_iana_name_is_a_timezone(name: str) -> None:
    assert zone_named(name) == ZoneInfo(name)


@table(
    "name",
    ["", "Mars/Olympus", "europe/berlin", "Europe", "localtime", "../UTC", "/etc/localtime", "UTC\x00", "+02:00"],
)
def test_any_other_name_is_not_a_timezone(name: str) -> None:
    assert zone_named(name) is None


@table("offset", [timedelta(0), timedelta(microseconds=1), timedelta(seconds=59)])
def test_next_run_is_strictly_after_the_given_time(offset: timedelta) -> None:
    start = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert next(Cron("* * * * *", ZoneInfo("UTC")).after(start + offset)) == start + timedelta(minutes=1)
    assert next(Cron("* * * * *", ZoneInfo("UTC")).after(start - timedelta(microseconds=1))) == start


def test_runs_follow_the_timezone_of_the_schedule_all_year() -> None:
    timezone = ZoneInfo(NEW_YORK)
    found = list(islice(Cron("0 9 * * *", timezone).after(datetime(2026, 1, 1, tzinfo=UTC)), 365))
    assert {run.astimezone(timezone).hour for run in found} == {9}
    assert {run.hour for run in found} == {13, 14}


# The clock jumps ahead: 02:00 -> 03:00 in Berlin and New York, 02:00 -> 02:30 on Lord Howe,
# 00:00 -> 01:00 in São Paulo.


@table(
    ("zone", "expression", "first", "until", "expected"),
    [
        (BERLIN, "30 2 * * *", "2026-03-28", "2026-03-31", ["28 02:30 +0100", "29 03:00 +0200", "30 02:30 +0200"]),
        (BERLIN, "0 3 * * *", "2026-03-28", "2026-03-31", ["28 03:00 +0100", "29 03:00 +0200", "30 03:00 +0200"]),
        (BERLIN, "0 2,3 * * *", "2026-03-29", "2026-03-30", ["29 03:00 +0200"]),
        (BERLIN, "*/20 2 * * *", "2026-03-29", "2026-03-30", ["29 03:00 +0200"]),
        (BERLIN, "30 2 29 3 *", "2026-01-01", "2027-01-01", ["29 03:00 +0200"]),
        (
            BERLIN,
            "0 */6 * * *",
            "2026-03-29",
            "2026-03-30",
            ["29 00:00 +0100", "29 06:00 +0200", "29 12:00 +0200", "29 18:00 +0200"],
        ),
        (NEW_YORK, "30 2 * * *", "2026-03-07", "2026-03-10", ["07 02:30 -0500", "08 03:00 -0400", "09 02:30 -0400"]),
        (LORD_HOWE, "15 2 * * *", "2026-10-03", "2026-10-06", ["03 02:15 +1030", "04 02:30 +1100", "05 02:15 +1100"]),
        (LORD_HOWE, "45 2 * * *", "2026-10-03", "2026-10-06", ["03 02:45 +1030", "04 02:45 +1100", "05 02:45 +1100"]),
        (SAO_PAULO, "0 0 * * *", "2018-11-03", "2018-11-06", ["03 00:00 -0300", "04 01:00 -0200", "05 00:00 -0200"]),
        (
            "Pacific/Apia",
            "0 12 * * *",
            "2011-12-29",
            "2012-01-01",
            ["29 12:00 -1000", "31 00:00 +1400", "31 12:00 +1400"],
        ),
    ],
)
def test_skipped_fixed_time_runs_at_the_jump(
    zone: str, expression: str, first: str, until: str, expected: list[str]
) -> None:
    assert runs(expression, zone, first, until) == expected


@table(
    ("zone", "expression", "first", "until", "expected"),
    [
        (
            BERLIN,
            "30 * * * *",
            "2026-03-29T01:00",
            "2026-03-29T05:00",
            ["29 01:30 +0100", "29 03:30 +0200", "29 04:30 +0200"],
        ),
        (
            BERLIN,
            "*/30 */1 * * *",
            "2026-03-29T01:30",
            "2026-03-29T04:00",
            ["29 01:30 +0100", "29 03:00 +0200", "29 03:30 +0200"],
        ),
        (
            NEW_YORK,
            "@hourly",
            "2026-03-08T01:00",
            "2026-03-08T05:00",
            ["08 01:00 -0500", "08 03:00 -0400", "08 04:00 -0400"],
        ),
        # On that day the hour from two to three has only 30 minutes.
        (
            LORD_HOWE,
            "*/15 * * * *",
            "2026-10-04T01:45",
            "2026-10-04T03:00",
            ["04 01:45 +1030", "04 02:30 +1100", "04 02:45 +1100"],
        ),
    ],
)
def test_hourly_schedule_continues_over_the_jump(
    zone: str, expression: str, first: str, until: str, expected: list[str]
) -> None:
    assert runs(expression, zone, first, until) == expected


# The clock goes back: 03:00 -> 02:00 in Berlin, 02:00 -> 01:00 in New York, 02:00 -> 01:30 on Lord
# Howe.


@table(
    ("zone", "expression", "first", "until", "expected"),
    [
        (BERLIN, "30 2 * * *", "2026-10-24", "2026-10-27", ["24 02:30 +0200", "25 02:30 +0200", "26 02:30 +0100"]),
        (BERLIN, "0 2,3 * * *", "2026-10-25", "2026-10-26", ["25 02:00 +0200", "25 03:00 +0100"]),
        (NEW_YORK, "30 1 * * *", "2026-10-31", "2026-11-03", ["31 01:30 -0400", "01 01:30 -0400", "02 01:30 -0500"]),
        (NEW_YORK, "*/30 1 * * *", "2026-11-01", "2026-11-02", ["01 01:00 -0400", "01 01:30 -0400"]),
        (LORD_HOWE, "45 1 * * *", "2026-04-04", "2026-04-07", ["04 01:45 +1100", "05 01:45 +1100", "06 01:45 +1030"]),
        (SAO_PAULO, "30 23 * * *", "2018-02-16", "2018-02-19", ["16 23:30 -0200", "17 23:30 -0200", "18 23:30 -0300"]),
        (
            "Africa/Casablanca",
            "30 2 * * *",
            "2026-02-14",
            "2026-02-17",
            ["14 02:30 +0100", "15 02:30 +0100", "16 02:30 +0000"],
        ),
    ],
)
def test_repeated_fixed_time_runs_once(zone: str, expression: str, first: str, until: str, expected: list[str]) -> None:
    assert runs(expression, zone, first, until) == expected


@table(
    ("zone", "expression", "first", "until", "expected"),
    [
        (
            BERLIN,
            "*/30 * * * *",
            "2026-10-25T02:00",
            "2026-10-25T03:30",
            ["25 02:00 +0200", "25 02:30 +0200", "25 02:00 +0100", "25 02:30 +0100", "25 03:00 +0100"],
        ),
        (
            NEW_YORK,
            "15 * * * *",
            "2026-11-01T01:00",
            "2026-11-01T03:00",
            ["01 01:15 -0400", "01 01:15 -0500", "01 02:15 -0500"],
        ),
        (
            LORD_HOWE,
            "*/15 * * * *",
            "2026-04-05T01:30",
            "2026-04-05T02:15",
            ["05 01:30 +1100", "05 01:45 +1100", "05 01:30 +1030", "05 01:45 +1030", "05 02:00 +1030"],
        ),
    ],
)
def test_hourly_schedule_runs_in_both_repeated_hours(
    zone: str, expression: str, first: str, until: str, expected: list[str]
) -> None:
    assert runs(expression, zone, first, until) == expected


def test_every_minute_schedule_has_no_gap_in_any_timezone() -> None:
    start = datetime(2026, 10, 24, 22, tzinfo=UTC)
    for zone in (BERLIN, NEW_YORK, LORD_HOWE):
        found = list(islice(Cron("* * * * *", ZoneInfo(zone)).after(start), 3000))
        assert {later - run for run, later in pairwise(found)} == {timedelta(minutes=1)}
