"""Numbers with a fraction, as options of verbs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, final

import click

Verb = TypeVar("Verb", bound=Callable[..., Any])


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


def takes_wait(verb: Verb) -> Verb:
    """Give ``verb`` the option ``--wait``."""
    option = click.option(
        "--wait",
        type=Finite(0),
        default=0.0,
        show_default=True,
        metavar="SECONDS",
        help="How long to wait for a first member of CLUSTER.",
    )
    return option(verb)
