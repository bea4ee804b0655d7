"""Parses instants and checks their range, for bodies, queries and cursors.

Both ends of the range are at least a day inside Python's calendar, so that an accepted instant can
be written in any time zone. The first instant of that calendar, 0001-01-01T00:00:00Z, is rejected,
although Go programs send it as their zero time. asyncpg would store it as `-infinity`, and read
`-infinity` back as a datetime without a time zone.
"""

import re
from datetime import UTC, datetime
from typing import Annotated

import msgspec

FIRST = datetime(1970, 1, 1, tzinfo=UTC)
LAST = datetime(9999, 12, 30, 23, 59, 59, 999999, tzinfo=UTC)
NO_SUCH_DATE = "must be a date and time that exist in the calendar"
FORMAT_RULE = "must be an instant with a time zone, such as 2030-01-31T12:00:00Z"
_FORMAT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
RANGE = "from 1970-01-01T00:00:00Z to 9999-12-30T23:59:59.999999Z"


def parse(text: str) -> datetime:
    """Parses an RFC 3339 instant with a time zone, by the same rules as in a body.

    Raises ValueError if the text is invalid or the instant is out of the accepted range.
    """
    try:
        instant: datetime = msgspec.convert(text, Annotated[datetime, msgspec.Meta(tz=True)])
    except msgspec.ValidationError:
        raise ValueError(NO_SUCH_DATE if _FORMAT.fullmatch(text) else FORMAT_RULE) from None
    if not is_in_range(instant):
        raise ValueError(f"must be {RANGE}")
    return instant


def parse_or_none(value: object) -> datetime | None:
    """Parses a text, and returns a datetime unchanged. Returns None for an invalid text and for any
    other value."""
    try:
        return parse(value) if isinstance(value, str) else value if isinstance(value, datetime) else None
    except ValueError:
        return None


def is_in_range(instant: datetime) -> bool:
    """Whether the instant is in the range that the broker accepts. The instant may have any UTC
    offset."""
    return FIRST <= instant <= LAST
