"""Options of calls: one rule for what they may say, at all doors."""

from __future__ import annotations

import pytest

from iris.doors.options import BROADCAST, LONGEST, PUBLISH, PUSH, REQUEST, SURVEY, read_options
from iris.doors.problems import Problem


def test_options_are_read_by_their_kinds_and_a_timeout_is_there_in_any_case() -> None:
    assert read_options([], REQUEST) == {"timeout": 5.0}
    assert read_options([], SURVEY, 1.0) == {"timeout": 1.0}
    assert read_options([], BROADCAST) == {}
    pairs = [("timeout", "2.5"), ("wait", "47.5"), ("idempotent", "true"), ("key", "")]
    assert read_options(pairs, REQUEST) == {"timeout": 2.5, "wait": 47.5, "idempotent": True, "key": ""}
    assert read_options([("wait", f"{LONGEST}")], BROADCAST) == {"wait": LONGEST}


TIMES = ["1e300", "50.1", "-1", "-0.001", "-1e300"]


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("name", ["timeout", "wait"])
def test_no_call_lasts_longer_than_the_longest(name: str, time: str) -> None:
    for known in (REQUEST, SURVEY):
        with pytest.raises(Problem, match=r"timeout is above 0.* 50 s together at most"):
            read_options([(name, time)], known)
    with pytest.raises(Problem, match="timeout is above 0"):
        read_options([("timeout", "0")], PUBLISH)  # also where nothing waits


@pytest.mark.parametrize(
    ("pairs", "told"),
    [
        ([("timeout", "inf")], "expected a number, got 'inf'"), ([("wait", "nan")], "expected a number"),
        ([("timeout", "soon")], "expected a number"), ([("idempotent", "yes")], "expected true or false"),
        ([("timeout", "1_0")], "expected a number"), ([("timeout", "\u0663")], "expected a number"),
        ([("timeout", " 3")], "expected a number"),
        ([("timout", "1")], "'timout' is no option here, or stands twice; there are operation, timeout"),
        ([("key", "a"), ("key", "a")], "stands twice"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told(pairs: list[tuple[str, str]], told: str) -> None:
    with pytest.raises(Problem, match=told) as caught:
        read_options(pairs, REQUEST)
    assert caught.value.status == 400
    with pytest.raises(Problem, match="there are key, retain"):
        read_options([("confirm", "true")], PUSH)


@pytest.mark.parametrize("text", ["1_0", "\u0661\u0662", "+1", " 1", "1.0", "0x1", "1" * 5000, ""])
def test_whole_numbers_have_decimal_digits_only(text: str) -> None:
    assert read_options([("count", "012")], SURVEY)["count"] == 12
    with pytest.raises(Problem, match="option count: expected a whole number"):
        read_options([("count", text)], SURVEY)
