"""Statistics are what ``dataclasses`` takes, though no start compiles them."""

from __future__ import annotations

import copy
import dataclasses

import pytest

import iris

LATENCY = iris.LatencyStatistics(buckets={0.5: 2}, total=0.75)


def test_dataclasses_take_them() -> None:
    assert dataclasses.is_dataclass(LATENCY)
    assert dataclasses.asdict(LATENCY) == {"buckets": {0.5: 2}, "total": 0.75, "errors": {}}
    assert dataclasses.replace(LATENCY, total=1.0) == iris.LatencyStatistics(buckets={0.5: 2}, total=1.0)
    assert [field.name for field in dataclasses.fields(iris.LatencyStatistics)] == ["buckets", "total", "errors"]
    assert copy.deepcopy(LATENCY) == LATENCY


def test_they_are_frozen() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        LATENCY.total = 1.0  # type: ignore[misc]
