"""Waiting for the links to those who may hear an event."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from iris.cluster.mesh import Mesh
from iris.kernel.config import Config
from iris.kernel.names import NodeId
from iris.patterns.pubsub.announcements import Announcements
from iris.patterns.pubsub.echo import Wave
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

    def request_link(self, node: NodeId) -> bool:
        if self.at is None:
            self.at = trio.current_time() + self.seconds
        return True

    def is_settled(self, node: NodeId) -> bool:
        return self.at is not None and trio.current_time() >= self.at

    def is_suspected(self, node: NodeId) -> bool:
        return False

    def knows(self, node: NodeId) -> bool:
        return True

    def is_known(self, node: NodeId) -> bool:
        return True

    def announces(self, node: NodeId) -> bool:
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


class Parts:
    """What is around the links: a certificate that does not permit one topic, and nodes that say nothing."""

    node = node(1)
    peers: Mapping[NodeId, object] = MappingProxyType({})
    config = Config()

    def __init__(self) -> None:
        self.identity = SimpleNamespace(certificate=SimpleNamespace(rights=self))

    def may_publish(self, topic: str) -> bool:
        return topic != "secret"

    def announce(self, root: str) -> None:
        """All are linked."""

    def is_whole(self, node: NodeId) -> bool:
        return False

    def is_patient(self, neighbour: NodeId) -> bool:
        return True

    def waited_in_vain(self, neighbours: Iterable[NodeId], seconds: float) -> None:
        """It is asked once."""

    async def barrier(self, node: NodeId, said: object) -> None:
        await trio.lowlevel.checkpoint()


def links_of(members: Members, parts: Parts | None = None) -> SubscriberLinks:
    parts = parts or Parts()
    interest, announcements = cast("InterestTable", parts), cast("Announcements", parts)
    return SubscriberLinks(cast("Mesh", parts), members, interest, announcements, None)


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


async def test_what_a_cancelled_event_began_to_wait_for_a_later_one_waits_for(autojump_clock: MockClock) -> None:
    links = links_of(Members(100.0))
    with trio.move_on_after(0.1):
        await links.reach("weather")
    await trio.sleep(10.0)
    began = trio.current_time()
    await links.reach("weather")
    assert trio.current_time() == pytest.approx(began + Config().subscribe_timeout)


async def test_nodes_that_are_made_up_in_an_answer_are_not_asked(autojump_clock: MockClock) -> None:
    members = [node(number) for number in range(2, 12)]
    ids = b"".join(map(bytes.fromhex, members))
    made_up = b"".join(number.to_bytes(16) for number in range(1000, 4000))
    asked: list[NodeId] = []

    class Crowd(Members):
        def others(self) -> Sequence[NodeId]:
            return members

        def is_known(self, node: NodeId) -> bool:
            return node in members

        async def wait_news(self) -> None:
            await trio.sleep_forever()

    class Asking(Parts):
        def ask(self, root: str, left: float) -> Wave:
            wave = Wave((node(1), 1), None, (), 0.0)
            wave.done = True
            wave.answers[members[1]] = ids + made_up, bytes.fromhex(members[0]) + made_up
            return wave

        async def wait_answered(self, wave: Wave) -> None:
            await trio.lowlevel.checkpoint()

        async def barrier(self, node: NodeId, said: object) -> None:
            asked.append(node)
            await trio.lowlevel.checkpoint()

    await links_of(Crowd(0.0), Asking()).reach("weather")
    assert asked == members[:1]
