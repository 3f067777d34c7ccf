"""Numbers that users give: one rule for all that take seconds, counts and limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import iris
from iris.kernel.config import Config
from iris.kernel.errors import ConfigError
from iris.kernel.numerals import MAX_WHOLE, as_float, as_whole, read_float, read_port, read_whole
from iris.node.arguments import check_count, check_timeout, check_wait
from iris.patterns.multicast.answers import StopRules
from iris.patterns.pubsub.queues.terms import check_seconds, check_whole
from iris.patterns.pubsub.subscribe import with_expiry
from iris.spark_bridge.client import BridgeClient
from iris.spark_bridge.log import Retention

HALVES = [2.5, np.float64(2.5), np.float32(2.5), np.float16(2.5), Decimal("2.5"), Fraction(5, 2)]
TWOS = [2, np.int64(2), np.uint8(2)]
NO_NUMBERS: list[Any] = [True, np.True_, "2", b"2", None, [2], 2j, np.array([2, 3]), math.nan, Decimal("sNaN")]
HUGE = 10**400

SECONDS: dict[str, Callable[[Any], object]] = {
    "timeout": check_timeout,
    "wait": check_wait,
    "hedge": lambda value: iris.RequestOptions(idempotent=True, hedge=value).hedge,
    "quiet": lambda value: StopRules(timeout=1.0, quiet=value).quiet,
    "config": lambda value: Config(drain_timeout=value).drain_timeout,
    "queue": lambda value: check_seconds(value, "lease", 1, 10),
    "outcomes": lambda value: iris.Outcomes(keep=value).keep,
}
COUNTS: dict[str, Callable[[Any], object]] = {
    "members": lambda value: check_count(value, "members"),
    "config": lambda value: Config(tunnels_per_node=value).tunnels_per_node,
    "limits": lambda value: iris.Limits(queue=value).queue,
    "subscription": lambda value: iris.SubscriptionLimits(events=value).events,
    "queue": lambda value: check_whole(value, "attempts", 1, 10),
}


@pytest.mark.parametrize("value", HALVES, ids=repr)
@pytest.mark.parametrize("take", SECONDS)
def test_seconds_may_be_any_real_number_and_become_a_float(take: str, value: Any) -> None:
    taken = SECONDS[take](value)
    assert taken == 2.5
    assert type(taken) is float


@pytest.mark.parametrize("value", TWOS, ids=repr)
@pytest.mark.parametrize("take", COUNTS)
def test_counts_may_be_any_whole_number_and_become_an_int(take: str, value: Any) -> None:
    taken = COUNTS[take](value)
    assert taken == 2
    assert type(taken) is int


@pytest.mark.parametrize("value", [one for one in NO_NUMBERS if one is not None], ids=repr)
@pytest.mark.parametrize("take", SECONDS)
def test_what_is_no_real_number_is_refused(take: str, value: Any) -> None:
    with pytest.raises(ConfigError):
        SECONDS[take](value)


@pytest.mark.parametrize("take", ["config", "queue", "outcomes"])
def test_what_is_beyond_all_floats_is_refused_where_it_has_to_be_finite(take: str) -> None:
    with pytest.raises(ConfigError) as error:
        SECONDS[take](HUGE)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("take", ["timeout", "wait", "hedge", "quiet"])
def test_what_is_beyond_all_floats_is_for_ever_where_one_may_wait_for_ever(take: str) -> None:
    assert SECONDS[take](HUGE) == math.inf


def test_an_event_may_expire_after_seconds_of_any_kind() -> None:
    (headers,) = {tuple(with_expiry(None, value).items()) for value in HALVES}  # type: ignore[arg-type]
    assert headers[0][1] == "2.5"
    with pytest.raises(ConfigError):
        with_expiry(None, HUGE)


def test_a_number_is_of_python_or_none() -> None:
    assert [as_float(value) for value in HALVES] == [2.5] * len(HALVES)
    assert all(math.isnan(as_float(value)) for value in NO_NUMBERS)
    assert [as_float(HUGE), as_float(-HUGE)] == [math.inf, -math.inf]
    assert [as_whole(value) for value in TWOS] == [2] * len(TWOS)
    assert [as_whole(value) for value in [*NO_NUMBERS, 2.0, np.float64(2)]] == [None] * (len(NO_NUMBERS) + 2)


@pytest.mark.parametrize("value", HALVES)
def test_limits_of_a_log_are_numbers_of_any_library(value: Any) -> None:
    assert Retention(max_age=value).max_age == 2.5
    assert type(Retention(max_age=value).max_age) is float


@pytest.mark.parametrize("value", TWOS)
def test_bytes_of_a_log_are_whole_numbers_of_any_library(value: Any) -> None:
    assert type(Retention(max_bytes=value).max_bytes) is int
    assert Retention(max_bytes=HUGE).max_bytes == HUGE
    assert Retention(max_age=HUGE).max_age == math.inf


@pytest.mark.parametrize("value", [one for one in NO_NUMBERS if one is not None])
def test_what_is_no_number_is_no_limit_of_a_log(value: Any) -> None:
    with pytest.raises(ConfigError, match="use a number above 0"):
        Retention(max_age=value)
    with pytest.raises(ConfigError, match="use a number above 0"):
        Retention(max_bytes=value)


@pytest.mark.parametrize("value", [*NO_NUMBERS, math.inf, HUGE, 0])
def test_what_is_no_time_is_no_patience_with_a_bridge(value: Any) -> None:
    node: Any = None
    with pytest.raises(ConfigError, match="use seconds, more than 0"):
        BridgeClient(node, "bridge", patience=value)
    seconds: Any = np.float32(2.5)
    BridgeClient(node, "bridge", patience=seconds)


NO_DIGITS = ["", "1_0", "\u0661", "\uff11", "\u00b2", " 1", "1 ", "1\n", "0x1", "one", "nan", "inf", "--1"]


@pytest.mark.parametrize("text", [*NO_DIGITS, "1.0", "1e3", "+1", "-1", f"{MAX_WHOLE + 1}", "9" * 5000])
def test_of_texts_only_decimal_digits_are_whole_numbers(text: str) -> None:
    assert read_whole(text) is None
    assert read_port(text) is None


@pytest.mark.parametrize("text", [*NO_DIGITS, "e3", ".", "1e", "1.2.3"])
def test_of_texts_only_decimal_digits_are_real_numbers(text: str) -> None:
    assert math.isnan(read_float(text))


def test_numbers_are_read_in_their_ranges() -> None:
    assert [read_whole(text) for text in ("0", "007", f"{MAX_WHOLE}")] == [0, 7, MAX_WHOLE]
    assert [read_whole(text, -9, 9) for text in ("-9", "9", "-10", "10")] == [-9, 9, None, None]
    assert [read_port(text) for text in ("0", "65535", "65536")] == [0, 65535, None]
    assert [read_float(text) for text in ("7", "-.5", "2.", "+1e3", "1E-3", "1e999")] == [
        7,
        -0.5,
        2,
        1e3,
        1e-3,
        math.inf,
    ]
