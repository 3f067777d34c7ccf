"""Who gets how much of what is not enough for all: each as much as the others, as far as he has use for it."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import TypeVar

G = TypeVar("G")
T = TypeVar("T")


def fair_share(wanted: Mapping[G, Sequence[tuple[T, int]]], *, places: int, weight: int) -> set[T]:
    """Choose what fits into so many places and so much weight; a pure function.

    Whose part is the smallest so far, in places or in weight, whichever is the greater part of all, is next (dominant
    resource fairness, Ghodsi et al., NSDI 2011).  So whoever wants very much gets what others leave.

    Args:
        wanted: what each wants, with what it weighs; the first ones first.  Nothing is wanted twice.
    """
    chosen: set[T] = set()
    queue = [(0.0, number, 0, 0, 0) for number in range(len(wanted))]
    lists = list(wanted.values())
    free = weight
    while queue and len(chosen) < places:
        _, number, at, count, used = heapq.heappop(queue)
        if at == len(lists[number]):
            continue
        item, weighs = lists[number][at]
        if weighs <= free:
            chosen.add(item)
            free -= weighs
            count, used = count + 1, used + weighs
        heapq.heappush(queue, (max(count / places, used / weight), number, at + 1, count, used))
    return chosen
