"""Times in payloads: Spark's grammar, Java's patterns, and that Arrow reads the usual ones alike."""

from __future__ import annotations

import datetime
import operator
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.kernel.errors import ConfigError
from iris.spark_bridge.datasource.payloads.times import (
    TimeFormats,
    check_formats,
    compile_format,
    parse_date,
    parse_timestamp,
    usual_texts,
)

UTC = datetime.UTC
TIMESTAMP = pa.timestamp("us", tz="UTC")


def microseconds(text: str) -> int:
    found = datetime.datetime.fromisoformat(text)
    return round(found.timestamp()) * 1_000_000 + found.microsecond


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2013-01-01T10:00:00Z", "2013-01-01T10:00:00Z"),
        ("2013-1-1 1:2:3", "2013-01-01T01:02:03Z"),
        ("2013-01-01T10:00:00.123456789+01:00", "2013-01-01T09:00:00.123456Z"),
        ("2013-07-01T10:00:00 Europe/Berlin", "2013-07-01T08:00:00Z"),
        ("2013-01-01T10:00:00 UTC+1", "2013-01-01T09:00:00Z"),
        ("2013", "2013-01-01T00:00:00Z"),
        (" 2013-01 ", "2013-01-01T00:00:00Z"),
    ],
)
def test_a_timestamp_is_read_as_spark_casts_it(text: str, expected: str) -> None:
    assert parse_timestamp(text, UTC) == microseconds(expected)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2013-02-30T10:00:00Z",
        "2013-01-01T24:00:00Z",
        "10:00:00",
        "2013-01-01T10:00:00+19:00",
        "2013-01-01T10:00:00 Nowhere/At",
    ],
)
def test_what_is_no_timestamp_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no (timestamp|day|time of day|time zone)"):
        parse_timestamp(text, UTC)


def test_a_date_is_read_as_spark_casts_it() -> None:
    assert parse_date("1970-01-02T10:00:00") == 1
    assert parse_date("0000-03-01") == -719468
    assert parse_date("12000-2-29") - parse_date("2000-2-29") == 10_000 * 146_097 // 400
    for text in ("", "2013-02-29", "2013-13-01", "01/02/2013"):
        with pytest.raises(ValueError, match=r"no (date|day|month)"):
            parse_date(text)


times = st.datetimes(min_value=datetime.datetime(1, 1, 1)).map(lambda found: found.isoformat(timespec="microseconds"))
texts: st.SearchStrategy[str] = st.one_of(
    st.builds(operator.add, times, st.sampled_from(["Z", "", "+01:00", "-11:30", " x"])),
    st.from_regex(r"[0-9]{4}-[01][0-9]-[0-3][0-9]([T ][0-2][0-9](:[0-6][0-9](:[0-6][0-9])?)?Z)?", fullmatch=True),
)


@given(st.lists(texts, min_size=1, max_size=4))
def test_what_arrow_reads_is_what_spark_casts(values: list[str]) -> None:
    kinds: tuple[tuple[pa.DataType, Callable[[str], object]], ...] = (
        (TIMESTAMP, lambda text: parse_timestamp(text, UTC)),
        (pa.date32(), parse_date),
    )
    for kind, read in kinds:
        found = usual_texts(values, kind)
        assert found is not None
        column, others = found
        numbers = column.cast(pa.int64() if kind == TIMESTAMP else pa.int32()).to_pylist()
        for at, (text, number) in enumerate(zip(values, numbers, strict=True)):
            if at in others:
                assert number is None
            else:
                assert number == read(text)


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("dd/MM/yyyy HH:mm:ss", "31/12/2013 23:59:58", "2013-12-31T23:59:58Z"),
        ("yyyyMMddHHmmss", "20131231235958", "2013-12-31T23:59:58Z"),
        ("yyyy-MM-dd'T'HH:mm:ss[.SSS][X]", "2013-12-31T23:59:58.5", None),
        ("yyyy-MM-dd'T'HH:mm:ss[.SSS][X]", "2013-12-31T23:59:58.500+01:00", "2013-12-31T22:59:58.500Z"),
        ("yyyy-MM-dd'T'HH:mm:ss[.SSS][X]", "2013-12-31T23:59:58", "2013-12-31T23:59:58Z"),
        ("d MMM yy, h:mm a", "1 Feb 13, 12:05 PM", "2013-02-01T12:05:00Z"),
        ("d MMMM yyyy VV", "1 February 2013 Asia/Tokyo", "2013-01-31T15:00:00Z"),
    ],
)
def test_a_pattern_is_javas(pattern: str, text: str, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(ValueError, match="not as the pattern says"):
            compile_format(pattern).timestamp(text, UTC)
    else:
        assert compile_format(pattern).timestamp(text, UTC) == microseconds(expected)


@pytest.mark.parametrize(
    ("formats", "message"),
    [
        (
            TimeFormats(timestamp="yyyy-DDD"),
            "option timestampFormat is 'yyyy-DDD': the letter D is not understood; use",
        ),
        (TimeFormats(date="yyyy[-MM"), "option dateFormat .* brackets do not match"),
        (TimeFormats(timestamp_ntz="dd dd"), "option timestampNTZFormat .* day stands in it twice"),
        (TimeFormats(date="yyyy 'x"), "option dateFormat .* ' has no place there"),
        (TimeFormats(zone="Mars/Base"), "option timeZone is 'Mars/Base': no time zone that is known here"),
    ],
)
def test_a_format_that_is_not_understood_is_refused(formats: TimeFormats, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_formats(formats)
