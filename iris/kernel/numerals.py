"""Numerals: numbers that users give, of whatever library or as texts, as Python's own.

One rule everywhere: a real number of Python, ``numpy``, ``decimal`` or ``fractions`` is one; True and False are none.
Of texts, decimal digits are: no underscores, no blanks, no digits of other scripts, as ``int`` and ``float`` take them.
"""

from __future__ import annotations

import math
import operator
import re
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


_WHOLE: Final = re.compile(r"-?[0-9]{1,19}")
_REAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")

MAX_WHOLE: Final = 2**63 - 1
"""Largest whole number that is read of a text."""


def read_whole(text: str, least: int = 0, most: int = MAX_WHOLE) -> int | None:
    """Return the whole number that a text is; None: it is none, or out of its range."""
    number = int(text) if _WHOLE.fullmatch(text) else None
    return number if number is not None and least <= number <= most else None


def read_float(text: str) -> float:
    """Return the number that a text is: infinite beyond all floats, and NaN if it is none."""
    return float(text) if _REAL.fullmatch(text) else math.nan


def read_port(text: str) -> int | None:
    """Return the port that a text is, 0 to 65535; None: it is none."""
    return read_whole(text, 0, 65_535)
