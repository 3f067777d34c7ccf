"""Ranges of numbers that a member on Kafka confirms."""

from __future__ import annotations

import pytest

from iris.spark_bridge.kafka.member import _merged, _without


@pytest.mark.parametrize(
    ("refused", "ranges"),
    [
        ([], [(5, 8)]),
        ([0], [(6, 8)]),
        ([3], [(5, 7)]),
        ([2, 1], [(5, 5), (8, 8)]),
        ([0, 1, 2, 3], []),
    ],
)
def test_what_was_refused_is_not_confirmed(refused: list[int], ranges: list[tuple[int, int]]) -> None:
    assert _without(5, 4, refused) == ranges


def test_ranges_of_several_partitions_are_put_together() -> None:
    assert _merged([(3, 4), (9, 9), (1, 2), (5, 5)]) == [1, 5, 9, 9]
