"""Numbers that programs give a door: those of any library are accepted, an error names anything else."""

from __future__ import annotations

import asyncio
import math
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy
import pytest

from iris.doors import grant
from iris.doors.clients import ClientLimits
from iris.doors.http import HttpLimits
from iris.doors.mqtt import open_mqtt_door
from iris.doors.nng import open_nng_door
from iris.doors.tokens import load_tokens
from iris.kernel.config import Config
from iris.kernel.errors import ConfigError

NONE: list[Any] = [
    True,
    False,
    0,
    -1,
    -(10**400),
    -(10**5000),
    math.nan,
    math.inf,
    -math.inf,
    "5",
    None,
    numpy.bool_(1),
]
NO_COUNT: list[Any] = [*NONE, 1.5, Decimal(2), numpy.float64(3)]
COUNTS = ["calls", "streams", "subscriptions", "shapes", "groups", "bytes", "retained", "retained_bytes"]


def _said(value: Any) -> str:
    return f"{value!r}" if not isinstance(value, int) or abs(value) < 1000 else "huge"


@pytest.mark.parametrize("value", NO_COUNT, ids=_said)
def test_what_is_no_count_is_refused_by_name(value: Any) -> None:
    for name in COUNTS:
        with pytest.raises(ConfigError, match=f"^{name} is .*: use a whole number above 0"):
            ClientLimits(**{name: value})
    for name in ("connections", "body"):
        with pytest.raises(ConfigError, match=f"^{name} is .*: use a whole number above 0"):
            HttpLimits(**{name: value})


@pytest.mark.parametrize("value", [*NONE, 10**400, 10**5000], ids=_said)
def test_what_is_no_time_is_refused_by_name(value: Any) -> None:
    for name in ("head_timeout", "body_timeout", "stall_timeout", "beat", "close_timeout"):
        with pytest.raises(ConfigError, match=f"^{name} is .*: use a finite number of seconds above 0"):
            HttpLimits(**{name: value})


def test_numbers_of_other_libraries_are_taken_as_python_s_own() -> None:
    limits = ClientLimits(calls=numpy.int64(3))  # type: ignore[arg-type]
    assert (limits.calls, type(limits.calls)) == (3, int)
    of_http = HttpLimits(connections=numpy.uint8(7), beat=Fraction(1, 2), head_timeout=Decimal("0.3"))  # type: ignore[arg-type]
    assert (of_http.connections, of_http.beat, of_http.head_timeout) == (7, 0.5, 0.3)
    assert {type(of_http.connections), type(of_http.beat), type(of_http.head_timeout)} == {int, float}


@pytest.mark.parametrize("name", ["max_connections", "max_payload"])
@pytest.mark.parametrize("value", [True, 0, -1, math.nan, 1.5, -(10**5000)], ids=_said)
def test_doors_refuse_them_before_they_open(name: str, value: Any) -> None:
    nothing: Any = None
    for opening in (
        open_mqtt_door(nothing, nothing, sockets=[], **{name: value}),
        open_nng_door(nothing, nothing, "ipc:///none", "none", **{name: value}),
    ):
        with pytest.raises(ConfigError, match=f"^{name} is .*: use a whole number above 0"):
            asyncio.run(opening.__aenter__())


@pytest.mark.parametrize("value", [True, -1, math.nan, math.inf, 10**400, 10**5000, "soon"], ids=_said)
def test_a_token_with_an_end_that_is_no_time_is_not_written(value: Any, tmp_path: Path) -> None:
    grant(tmp_path / "tokens", "first", expires=numpy.float32(5))  # type: ignore[arg-type]
    assert load_tokens(tmp_path / "tokens")["first"].expires == 5.0
    with pytest.raises(ConfigError, match=r"^expires is .*: use seconds of Unix time, or None"):
        grant(tmp_path / "tokens", "second", expires=value)
    assert list(load_tokens(tmp_path / "tokens")) == ["first"]


def test_a_number_of_thousands_of_digits_is_told_like_any_other() -> None:
    with pytest.raises(ConfigError, match="max_payload is a int that cannot be shown: use a finite number above 0"):
        Config(max_payload=10**5000)
