"""Numbers of bounds that programs give a door, by the one rule for numbers, see ``iris.kernel.numerals``."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from iris.kernel.errors import ConfigError
from iris.kernel.numerals import as_float, as_whole, shown

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def whole(value: object, name: str) -> int:
    """Return a whole number above 0; raise ConfigError for anything else."""
    number = as_whole(value)
    if number is None or number < 1:
        raise ConfigError(f"{name} is {shown(value)}: use a whole number above 0")
    return number


def seconds(value: object, name: str) -> float:
    """Return a finite time above 0; raise ConfigError for anything else."""
    number = as_float(value)
    if not 0 < number < math.inf:
        raise ConfigError(f"{name} is {shown(value)}: use a finite number of seconds above 0")
    return number


def check_numbers(limits: DataclassInstance) -> None:
    """Have each number of a frozen dataclass as Python's own: counts and bytes, and times where it says ``float``.

    Raises:
        ConfigError: one is none, or not above 0.
    """
    for one in dataclasses.fields(limits):
        read = {"int": whole, "float": seconds}.get(str(one.type))
        if read is not None:
            object.__setattr__(limits, one.name, read(getattr(limits, one.name), one.name))
