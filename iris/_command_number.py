"""Numbers with a fraction, as options of verbs."""

from __future__ import annotations

import math
from typing import Any, final

import click


@final
class Finite(click.FloatRange):
    """A float in a range that is a number: nan passes every comparison of a range, and nobody waits for infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number that ``value`` stands for."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


POSITIVE = Finite(0, min_open=True)
"""More than nothing."""
