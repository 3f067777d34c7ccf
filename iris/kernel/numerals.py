"""Numerals: numbers that users give, of whatever library, as Python's own.

One rule everywhere: a real number of Python, ``numpy``, ``decimal`` or ``fractions`` is one; True and False are none.
"""

from __future__ import annotations

import math
import operator
from decimal import Decimal
from numbers import Integral, Real
from typing import Final


def as_float(value: object) -> float:
    """Return a real number as a float: infinite beyond all floats, and NaN if it is none."""
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, Real | Decimal):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return -math.inf if value < 0 else math.inf
    except (ValueError, TypeError):  # a signalling NaN of decimal; a span of time, which numpy counts among integers
        return math.nan


_SHOWN: Final = 100
"""Characters of a value in an error."""


def shown(value: object) -> str:
    """Return what an error shows of a value that a user gave: of a long one, the beginning and the end."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 -- whatever its class does; Python shows no whole number of 4,300 digits and more
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 20]}...{text[-17:]}"


def as_whole(value: object) -> int | None:
    """Return a whole number as an int; None: it is none."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        return None
    try:
        return operator.index(value)
    except TypeError:  # a span of time, which numpy counts among integers
        return None
