"""Times in payloads: dates and timestamps as Spark's ``from_json`` reads them, by its grammar or by a pattern.

Without a pattern a text is what Spark casts: ``2013-01-01T10:00:00.5Z``, ``2013-1-1 10:00``, ``2013-01``, with an
offset (``+01:00``) or the name of a zone.  A number is seconds since 1970.  With one (``timestampFormat``) a text has
to match it; patterns are those of Java's DateTimeFormatter, as far as ``compile_format`` says.

Results are integers, microseconds or days since 1970, for years that ``datetime`` does not know.
"""

from __future__ import annotations

import calendar
import dataclasses
import datetime
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.compute as pc

from iris.kernel.errors import ConfigError

_SECOND: Final = 1_000_000
_DAY: Final = 86_400
_LAST: Final = 2**63 - 1

_DATE: Final = re.compile(
    r"\s*(?P<year>[+-]?\d{4,6})(?:-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2})(?:[T ].*)?)?)?\s*", re.ASCII | re.DOTALL
)
_TIMESTAMP: Final = re.compile(
    r"\s*(?P<year>[+-]?\d{4,6})(?:-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2})"
    r"(?:[T ](?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d*))?)?)?"
    r"\s*(?P<zone>[A-Za-z+-].*?)?)?)?)?\s*",
    re.ASCII,
)
_OFFSET: Final = re.compile(
    r"(?:UTC|GMT|UT)?(?P<sign>[+-])(?P<hours>\d{1,2})(?::?(?P<minutes>\d{2})(?::?(?P<seconds>\d{2}))?)?", re.ASCII
)
_MOST_OFFSET: Final = 18 * 3600

_USUAL: Final = (
    r"^[1-9][0-9]{3}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
)
_USUAL_TIME: Final = r"[T ](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_USUAL_ZONE: Final = r"(?:Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9])"
"""What Arrow reads, so that one text among many that it does not read leaves the others to it."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TimeFormats:
    """How times are written in payloads; None: as Spark casts them."""

    timestamp: str | None = None
    timestamp_ntz: str | None = None
    date: str | None = None
    zone: str = "UTC"
    """Of timestamps that name none."""


def check_formats(formats: TimeFormats) -> None:
    """Make sure that formats can be read.

    Raises:
        ConfigError: a pattern is not understood, or the zone is not known.
    """
    for option, pattern in (
        ("timestampFormat", formats.timestamp),
        ("timestampNTZFormat", formats.timestamp_ntz),
        ("dateFormat", formats.date),
    ):
        if pattern is not None:
            try:
                compile_format(pattern)
            except ValueError as error:
                raise ConfigError(f"option {option} is {pattern!r}: {error}") from None
    try:
        zone_of(formats.zone)
    except ValueError as error:
        raise ConfigError(f"option timeZone is {formats.zone!r}: {error}") from None


def zone_of(name: str) -> datetime.tzinfo:
    """Return a zone by its name or offset.

    Raises:
        ValueError: there is none.
    """
    if name in ("Z", "UTC", "GMT", "UT"):
        return datetime.UTC
    found = _OFFSET.fullmatch(name)
    if found is not None:
        seconds = int(found["hours"]) * 3600 + int(found["minutes"] or 0) * 60 + int(found["seconds"] or 0)
        if seconds <= _MOST_OFFSET:
            return datetime.timezone(datetime.timedelta(seconds=-seconds if found["sign"] == "-" else seconds))
    elif name[:1].isalpha():
        try:
            return ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            pass
    raise ValueError("no time zone that is known here: use a name such as Europe/Berlin, or an offset such as +01:00")


def parse_date(text: str) -> int:
    """Return the days since 1970 of a date, as Spark casts one.

    Raises:
        ValueError: it is none.
    """
    found = _DATE.fullmatch(text)
    if found is None:
        raise ValueError("no date")
    return _days(int(found["year"]), int(found["month"] or 1), int(found["day"] or 1))


def parse_timestamp(text: str, zone: datetime.tzinfo | None) -> int:
    """Return the microseconds since 1970 of a timestamp, as Spark casts one.

    Args:
        text: what is written.
        zone: of a text that names none; None: a text may not name one.

    Raises:
        ValueError: it is none.
    """
    found = _TIMESTAMP.fullmatch(text)
    if found is None:
        raise ValueError("no timestamp")
    named = found["zone"]
    if named is not None:
        if zone is None:
            raise ValueError("a timestamp with a zone")
        zone = zone_of(named)
    return _microseconds(
        int(found["year"]),
        int(found["month"] or 1),
        int(found["day"] or 1),
        int(found["hour"] or 0),
        int(found["minute"] or 0),
        int(found["second"] or 0),
        int(f"{found['fraction'] or '':0<6}"[:6]),
        zone,
    )


def _days(year: int, month: int, day: int) -> int:
    """Return the days since 1970 in the proleptic Gregorian calendar."""
    if not 1 <= month <= 12:
        raise ValueError("no month")
    # The calendar repeats every 400 years.
    cycles, within = divmod(year, 400)
    if not 1 <= day <= calendar.monthrange(within + 400, month)[1]:
        raise ValueError("no day")
    return datetime.date(within + 400, month, day).toordinal() - 719_163 + (cycles - 1) * 146_097


def _microseconds(
    year: int, month: int, day: int, hour: int, minute: int, second: int, fraction: int, zone: datetime.tzinfo | None
) -> int:
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError("no time of day")
    seconds = _days(year, month, day) * _DAY + hour * 3600 + minute * 60 + second
    if zone is not None and zone is not datetime.UTC:
        local = datetime.datetime(min(max(year, 1), 9999), month, min(day, 28), hour, minute, second, tzinfo=zone)
        if 1 <= year <= 9999:
            local = local.replace(day=day)
        offset = local.utcoffset()
        assert offset is not None
        seconds -= int(offset.total_seconds())
    found = seconds * _SECOND + fraction
    if abs(found) > _LAST:
        raise ValueError("a time that is too far away")
    return found


# -- patterns ------------------------------------------------------------------------------------------------

_MONTHS: Final = [name.lower() for name in calendar.month_name]
_SHORT_MONTHS: Final = [name[:3] for name in _MONTHS]
_LETTERS: Final = "y u M d H h a m s S X x Z V"
_GROUPS: Final = {
    "y": "year",
    "u": "year",
    "M": "month",
    "d": "day",
    "H": "hour",
    "h": "hour12",
    "a": "half",
    "m": "minute",
    "s": "second",
    "S": "fraction",
    "X": "zone",
    "x": "zone",
    "Z": "zone",
    "V": "zone",
}


@final
class TimeFormat:
    """A pattern of Java's, ready to read texts.  Get one from ``compile_format``.

    Args:
        expression: with a group for each part.
    """

    def __init__(self, expression: str) -> None:
        self._expression = re.compile(expression, re.ASCII | re.IGNORECASE)

    def _match(self, text: str) -> dict[str, str | None]:
        found = self._expression.fullmatch(text)
        if found is None:
            raise ValueError("not as the pattern says")
        return found.groupdict()

    def date(self, text: str) -> int:
        """Return days since 1970.

        Raises:
            ValueError: the text is written otherwise.
        """
        return _days(*_date_of(self._match(text)))

    def timestamp(self, text: str, zone: datetime.tzinfo | None) -> int:
        """Return microseconds since 1970; ``zone`` as in ``parse_timestamp``.

        Raises:
            ValueError: the text is written otherwise.
        """
        parts = self._match(text)
        named = parts.get("zone")
        if named is not None:
            if zone is None:
                raise ValueError("a timestamp with a zone")
            zone = zone_of(named.upper() if len(named) == 1 else named)
        hour = int(parts.get("hour") or 0)
        if twelfth := parts.get("hour12"):
            if not 1 <= int(twelfth) <= 12:
                raise ValueError("no hour")
            hour = int(twelfth) % 12 + (12 if (parts.get("half") or "am").lower() == "pm" else 0)
        minute, second = int(parts.get("minute") or 0), int(parts.get("second") or 0)
        fraction = int(f"{parts.get('fraction') or '':0<6}"[:6])
        return _microseconds(*_date_of(parts), hour, minute, second, fraction, zone)


def _date_of(parts: dict[str, str | None]) -> tuple[int, int, int]:
    year = parts.get("year") or "1970"
    month = (parts.get("month") or "1").lower()
    number = int(month) if month.isdigit() else (_MONTHS if month in _MONTHS[1:] else _SHORT_MONTHS).index(month)
    return int(year) + (2000 if len(year) == 2 else 0), number, int(parts.get("day") or 1)


def compile_format(pattern: str) -> TimeFormat:
    """Read a pattern of Java's DateTimeFormatter: letters y u M d H h a m s S X x Z V, 'text' and [what may lack].

    Raises:
        ValueError: something else is in it, or a part stands in it twice.
    """
    expression, seen = "", set[str]()
    for part in re.finditer(
        r"'(?P<text>(?:[^']|'')*)'|(?P<letter>[A-Za-z])(?P=letter)*|(?P<other>.)", pattern, re.DOTALL
    ):
        if part["text"] is not None:
            expression += re.escape(part["text"].replace("''", "'") or "'")
        elif part["letter"] is not None:
            letter, count = part["letter"], len(part[0])
            if letter not in _GROUPS:
                raise ValueError(f"the letter {letter} is not understood; use {_LETTERS}, and 'text' in quotes")
            group = _GROUPS[letter]
            if group in seen:
                raise ValueError(f"{group} stands in it twice")
            seen.add(group)
            expression += f"(?P<{group}>{_expression_of(letter, count)})"
        elif part["other"] == "[":
            expression += "(?:"
        elif part["other"] == "]":
            expression += ")?"
        elif part["other"] in "'{}#":
            raise ValueError(f"{part['other']} has no place there")
        else:
            expression += re.escape(part["other"])
    try:
        return TimeFormat(expression)
    except re.error:
        raise ValueError("its brackets do not match") from None


def _expression_of(letter: str, count: int) -> str:
    if letter in "yu":
        return r"\d{2}" if count == 2 else rf"[+-]?\d{{{min(count, 6)},6}}"
    if letter == "M" and count >= 3:
        return "|".join(_SHORT_MONTHS[1:] if count == 3 else _MONTHS[1:])
    if letter == "S":
        return rf"\d{{{count}}}"
    if letter == "a":
        return "am|pm"
    if letter == "V":
        return r"[A-Za-z+-][A-Za-z0-9_+/:-]*"
    if letter in "XxZ":
        offset = r"[+-]\d{2}(?::?\d{2})?(?::?\d{2})?"
        return f"Z|{offset}" if letter == "X" else offset
    return r"\d{2}" if count == 2 else r"\d{1,2}"


# -- columns -------------------------------------------------------------------------------------------------


def timestamp_reader(formats: TimeFormats, *, zoned: bool) -> Callable[[str], int]:
    """Return what reads the text of one timestamp; it raises ValueError."""
    zone = zone_of(formats.zone) if zoned else None
    pattern = formats.timestamp if zoned else formats.timestamp_ntz
    if pattern is not None:
        compiled = compile_format(pattern)
        return lambda text: compiled.timestamp(text, zone)
    return lambda text: parse_timestamp(text, zone)


def date_reader(formats: TimeFormats) -> Callable[[str], int]:
    """Return what reads the text of one date; it raises ValueError."""
    return parse_date if formats.date is None else compile_format(formats.date).date


def usual_texts(values: Sequence[Any], kind: pa.DataType) -> tuple[pa.Array[Any], list[int]] | None:
    """Return those values that Arrow reads as ``kind``, null for the others, and the places of these; None: not texts.

    An offset has to be in each text, if the kind has a zone.
    """
    try:
        texts = pa.array(values, pa.string())
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None
    try:
        return texts.cast(kind), []
    except pa.ArrowInvalid:
        pass
    pattern = _USUAL
    if isinstance(kind, pa.TimestampType):
        pattern += _USUAL_TIME + ("" if kind.tz is None else _USUAL_ZONE)
    usual = pc.fill_null(pc.match_substring_regex(texts, f"{pattern}$"), True)
    others: list[int] = pc.indices_nonzero(pc.invert(usual)).to_pylist()
    return pc.if_else(usual, texts, pa.scalar(None, pa.string())).cast(kind), others
