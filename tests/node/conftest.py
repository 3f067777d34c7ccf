"""For every test with whole nodes: at its end the counters of each node and each membership add up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import iris
import iris._opening
import iris.patterns.serving
from iris.patterns.member import Membership


@pytest.fixture(autouse=True)
def _accounts_add_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    nodes: list[iris.Node] = []
    memberships: list[Membership] = []

    def open_node(*arguments: Any, **options: Any) -> iris.Node:
        nodes.append(iris.Node(*arguments, **options))
        return nodes[-1]

    def join(*arguments: Any, **options: Any) -> Membership:
        memberships.append(Membership(*arguments, **options))
        return memberships[-1]

    monkeypatch.setattr(iris._opening, "Node", open_node)
    monkeypatch.setattr(iris.patterns.serving, "Membership", join)
    yield
    for node in nodes:
        statistics = node.statistics()
        for pattern in (statistics.requests, statistics.broadcasts, statistics.relayed, statistics.events):
            ended = pattern.delivered + pattern.expired + pattern.refused + sum(pattern.lost.values())
            assert pattern.sent == ended, pattern
            assert pattern.waiting == 0, pattern
    for membership in memberships:
        it = membership.statistics()
        assert it.received == it.served + it.failed + it.expired + it.cancelled + it.refused, it
        assert (it.running, it.queued) == (0, 0), it
        assert it.shed <= it.refused, it
