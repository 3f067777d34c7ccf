"""Waiting for the links to those who may hear an event."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from iris.cluster.mesh import Mesh
from iris.kernel.config import Config
from iris.patterns.pubsub.interest import InterestTable
from iris.patterns.pubsub.subscriber_links import SubscriberLinks


class Members:
    """Members that are linked three seconds after that was wanted, or never."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.at: float | None = None

    def link_everybody(self) -> None:
        if self.at is None:
            self.at = trio.current_time() + self.seconds

    def lacks_links(self) -> bool:
        assert self.at is not None
        return trio.current_time() < self.at

    async def wait_news(self) -> None:
        assert self.at is not None
        await trio.sleep(self.at - trio.current_time())


def links_of(members: Members) -> SubscriberLinks:
    mesh = SimpleNamespace(peers={}, config=Config())
    return SubscriberLinks(cast("Mesh", mesh), members, cast("InterestTable", None), None)


@pytest.mark.parametrize(("seconds", "waited"), [(3.0, 3.0), (100.0, 5.0)])
async def test_what_a_hurried_event_had_no_time_to_wait_for_the_next_one_waits_for(
    autojump_clock: MockClock, seconds: float, waited: float
) -> None:
    links = links_of(Members(seconds))
    began = trio.current_time()
    assert await links.reach("weather", within=1.0) == pytest.approx(0.5)
    assert links.pending("weather")
    await links.reach("weather")
    assert trio.current_time() == pytest.approx(began + waited)
    assert not links.pending("weather")
