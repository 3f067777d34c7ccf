"""Waiting for the links to those who may hear an event."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from iris.cluster.mesh import Mesh
from iris.kernel.config import Config
from iris.kernel.names import NodeId
from iris.patterns.pubsub.announcements import Announcements
from iris.patterns.pubsub.interest import InterestTable
from iris.patterns.pubsub.subscriber_links import SubscriberLinks
from tests.support.membership import node


class Members:
    """A member that is linked three seconds after that was wanted, or never."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.at: float | None = None
        self.kept: set[NodeId] = set()

    def others(self) -> Sequence[NodeId]:
        return [node(2)]

    def request_link(self, _: NodeId) -> bool:
        if self.at is None:
            self.at = trio.current_time() + self.seconds
        return True

    def is_settled(self, _: NodeId) -> bool:
        assert self.at is not None
        return trio.current_time() >= self.at

    def is_suspected(self, _: NodeId) -> bool:
        return False

    def knows(self, _: NodeId) -> bool:
        return True

    def is_known(self, _: NodeId) -> bool:
        return True

    def announces(self, _: NodeId) -> bool:
        return True

    def keep(self, node: NodeId) -> None:
        self.kept.add(node)

    def release(self, node: NodeId) -> None:
        self.kept.remove(node)

    def on_placed(self, listener: Callable[[NodeId], None]) -> None:
        pass

    async def wait_news(self) -> None:
        assert self.at is not None
        await trio.sleep(self.at - trio.current_time())


def links_of(members: Members) -> SubscriberLinks:
    rights = SimpleNamespace(may_publish=lambda topic: topic != "secret")
    identity = SimpleNamespace(certificate=SimpleNamespace(rights=rights))

    async def barrier(*_: object) -> None:
        await trio.lowlevel.checkpoint()

    mesh = SimpleNamespace(peers={}, config=Config(), identity=identity, barrier=barrier)
    interest = SimpleNamespace(is_whole=lambda _: False)
    announcements = SimpleNamespace(announce=lambda _: None)
    return SubscriberLinks(
        cast("Mesh", mesh),
        members,
        cast("InterestTable", interest),
        cast("Announcements", announcements),
        None,
    )


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
    assert not links.pending("weather.here")
    assert links.pending("news")


async def test_what_may_not_be_published_is_announced_to_nobody(autojump_clock: MockClock) -> None:
    links = links_of(Members(3.0))
    for topic in ("secret", "not a topic", "realm/topic"):
        await links.reach(topic)
        assert links.pending(topic)
        assert repr(links) == "<SubscriberLinks: 0 roots>"


async def test_more_roots_than_there_is_room_for_are_announced_as_one(autojump_clock: MockClock) -> None:
    links = links_of(Members(0.0))
    for number in range(70):
        await links.reach(f"root{number}.a")
    assert repr(links) == "<SubscriberLinks: 65 roots>"
    assert not links.pending("another.a")
