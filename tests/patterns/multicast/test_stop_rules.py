"""End of a survey, by each rule alone and together."""

from __future__ import annotations

import math
from typing import Any

import pytest

from iris.kernel.errors import ConfigError
from iris.patterns.multicast.answers import StopRules


@pytest.mark.parametrize(
    ("rules", "answered", "last", "end"),
    [
        (StopRules(timeout=2), 0, 10.0, 12.0),
        (StopRules(timeout=2), 5, 11.5, 12.0),
        (StopRules(timeout=2, count=3), 2, 10.5, 12.0),
        (StopRules(timeout=2, count=3), 3, 10.5, 10.5),
        (StopRules(timeout=2, quiet=0.5), 0, 10.0, 12.0),
        (StopRules(timeout=2, quiet=0.5), 1, 10.2, 10.7),
        (StopRules(timeout=2, quiet=0.5), 1, 11.9, 12.0),
        (StopRules(timeout=2, quiet=5, count=1), 1, 10.1, 10.1),
        (StopRules(timeout=math.inf), 9, 11.0, math.inf),
    ],
)
def test_the_first_rule_ends_it(rules: StopRules, answered: int, last: float, end: float) -> None:
    assert rules.end(10.0, answered, last) == pytest.approx(end)


@pytest.mark.parametrize(
    ("answered", "now", "reason"), [(3, 10.5, "count"), (3, 12.0, "count"), (2, 11.0, "quiet"), (2, 12.0, "deadline")]
)
def test_what_ended_it_is_known(answered: int, now: float, reason: str) -> None:
    assert StopRules(timeout=2, count=3, quiet=0.5).reason(10.0, answered, now) == reason


@pytest.mark.parametrize(
    "rules",
    [{"count": 0}, {"count": -1}, {"count": 1.5}, {"count": True}, {"quiet": 0}, {"quiet": math.nan}, {"quiet": "1"}],
)
def test_rules_that_make_no_sense_are_refused(rules: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        StopRules(timeout=1, **rules)
