"""Numerals: numbers that users give, of whatever library, as Python's own.

One rule everywhere: a real number of Python, ``numpy``, ``decimal`` or ``fractions`` is one; True and False are none.
"""

from __future__ import annotations

import math
import operator
from decimal import Decimal
from numbers import Integral, Real
from typing import Any


def as_float(value: object) -> float:
    """Return a real number as a float: infinite beyond all floats, and NaN if it is none."""
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, Real | Decimal):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        huge: Any = value
        return math.inf if huge > 0 else -math.inf
    except ValueError:  # a signalling NaN of decimal
        return math.nan


def shown(value: object) -> str:
    """Return a number that is none here as an error tells it: that of a thousand digits has no other text."""
    try:
        return f"{value!r:.100}"
    except ValueError:  # more digits than Python writes
        return "a number of thousands of digits"


def as_whole(value: object) -> int | None:
    """Return a whole number as an int; None: it is none."""
    return operator.index(value) if isinstance(value, Integral) and not isinstance(value, bool) else None
