"""Announcements of one node: what others may have it keep, ask and wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from iris.cluster.mesh import Mesh
from iris.kernel.names import NodeId
from iris.kernel.wire import Message, kinds
from iris.patterns.pubsub.announcements import Announcements
from iris.patterns.pubsub.interest import InterestRetry, OwnInterest, Terms
from tests.support.membership import node

OWN, PEER, OTHER, PUBLISHER = map(node, range(1, 5))


def stranger(number: int) -> NodeId:
    """Return a node of which there is no record."""
    return node(1000 + number)


class Around:
    """A node with two peers, which notes what is posted: its mesh, and its members."""

    def __init__(self) -> None:
        self.node = OWN
        self.posted: list[tuple[NodeId, Message]] = []
        self.receivers: dict[type[Message], Callable[[Any, Any], None]] = {}
        self.records = {PEER, OTHER, PUBLISHER}
        self.kept: set[NodeId] = set()
        self.peers = {one: self.peer(one) for one in (PEER, OTHER)}
        self.own = OwnInterest()
        self.announcements = Announcements(cast("Mesh", self), self, self.own, InterestRetry(cast("Mesh", self)))

    @staticmethod
    def peer(one: NodeId) -> SimpleNamespace:
        link = SimpleNamespace(is_up=True)
        return SimpleNamespace(node=one, other_realm=None, at_remote_site=False, leaving=False, link=link)

    # The mesh.

    def register(self, kind: type[Message], receiver: Callable[[Any, Any], None]) -> None:
        self.receivers[kind] = receiver

    def is_between_members(self, peer: object) -> bool:
        return True

    def post(self, one: NodeId, message: Message, size: int, reserve: int = 0) -> None:
        self.posted.append((one, message))

    # The members.

    def others(self) -> Sequence[NodeId]:
        return sorted(self.records)

    def knows(self, node: NodeId) -> bool:
        return node in self.records

    def is_known(self, node: NodeId) -> bool:
        return node in self.records

    def announces(self, node: NodeId) -> bool:
        return True

    def keep(self, node: NodeId) -> None:
        self.kept.add(node)

    def release(self, node: NodeId) -> None:
        self.kept.remove(node)

    def on_placed(self, listener: Callable[[NodeId], None]) -> None:
        self.placed = listener

    # What happens.

    def announce(self, publisher: NodeId, *roots: str, number: int = 0, sender: NodeId = PEER) -> None:
        message = kinds.Announce(bytes.fromhex(publisher), number, 500, roots or ("news",))
        self.receivers[kinds.Announce](self.peer(sender), message)

    def record_comes(self, one: NodeId) -> None:
        self.records.add(one)
        self.placed(one)

    def dials_again(self, one: NodeId) -> None:
        gone = self.peers.pop(one)
        self.announcements.peer_gone(one)
        self.peers[one] = gone

    def announced(self) -> Iterator[tuple[NodeId, kinds.Announce]]:
        """Yield what was announced to whom since the last look."""
        posted, self.posted = self.posted, []
        return ((one, message) for one, message in posted if isinstance(message, kinds.Announce))

    def asked(self) -> int:
        return sum(message.number > 0 for _, message in self.announced())


async def test_who_tells_of_many_that_nobody_knows_has_no_room_for_more_by_a_new_link(
    autojump_clock: MockClock,
) -> None:
    around = Around()
    for number in range(600):
        around.announce(stranger(number))
        if number % 100 == 99:
            around.dials_again(PEER)
    assert len(around.announcements.publishers) == 256
    around.announce(stranger(999), sender=OTHER)
    assert len(around.announcements.publishers) == 257
    await trio.sleep(61.0)
    around.announce(stranger(700))
    assert around.announcements.publishers.keys() == {stranger(700)}


async def test_what_there_was_no_room_for_is_asked_for_again_when_its_record_comes(autojump_clock: MockClock) -> None:
    around = Around()
    around.announcements.begin()
    for number in range(300):
        around.announce(stranger(number))
    assert stranger(299) not in around.announcements.publishers
    async with trio.open_nursery() as nursery:
        nursery.start_soon(around.announcements.run)
        around.posted.clear()
        around.record_comes(stranger(299))
        await trio.sleep(1.0)
        assert [(one, type(message)) for one, message in around.posted] == [(PEER, kinds.Announced)]
        around.announce(stranger(299))  # as it has something else
        assert stranger(299) in around.announcements.publishers
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("known", "most"), [(True, 128), (False, 64)])
async def test_questions_beyond_a_budget_are_not_passed_on_but_what_is_news(
    autojump_clock: MockClock, known: bool, most: int
) -> None:
    around = Around()
    publisher = PUBLISHER if known else stranger(1)
    for number in range(1, 500):
        around.announce(publisher, number=number)
        if number % 100 == 99:
            around.dials_again(PEER)
    assert around.asked() == most
    around.announce(publisher, "more", number=501)
    ((told, message),) = around.announced()
    assert (told, message.number, message.roots) == (OTHER, 0, ("more", "news"))


async def test_one_neighbour_has_its_questions_whoever_they_are_of(autojump_clock: MockClock) -> None:
    around = Around()
    around.records.update(map(node, range(100, 200)))
    for turn in range(1, 101):
        for number in range(100, 200):
            around.announce(node(number), number=turn)
        around.dials_again(PEER)
    assert around.asked() == 1024
    around.announce(PUBLISHER, number=1, sender=OTHER)
    assert around.asked() == 1
    await trio.sleep(1.0)
    for turn in range(201, 301):
        around.announce(node(100 + turn % 100), number=turn)
    assert around.asked() == 32


async def test_a_subscriber_waits_for_a_newcomer_that_publishes_and_not_for_those_of_a_liar(
    autojump_clock: MockClock,
) -> None:
    around = Around()
    announcements = around.announcements
    around.own.add(Terms("news.>", None, durable=False))
    news = trio.Event()

    async def waited() -> float:
        began = trio.current_time()
        await announcements.wait_records(news.wait)
        return trio.current_time() - began

    vain = 0.0
    for number in range(100):
        around.announce(stranger(number))
        vain += await waited()
    assert vain == pytest.approx(0.5)
    around.announce(stranger(200))
    assert not announcements.awaits_records()
    assert await waited() == 0.0
    around.announce(stranger(201), sender=OTHER)
    assert announcements.awaits_records()
    around.record_comes(stranger(201))
    assert not announcements.awaits_records()
    assert announcements.is_patient(OTHER)
    around.dials_again(PEER)
    assert not announcements.is_patient(PEER)
    await trio.sleep(600.0)
    assert announcements.is_patient(PEER)


async def test_a_node_keeps_links_to_the_publishers_of_what_it_subscribes_to(autojump_clock: MockClock) -> None:
    around = Around()
    terms = Terms("news.>", None, durable=False)
    around.announce(PUBLISHER)
    assert not around.kept
    around.own.add(terms)
    around.announcements.interest_changed()
    around.announce(OTHER)
    around.announce(PEER, "orders")
    assert around.kept == set(around.announcements.followed) == {PUBLISHER, OTHER}
    around.own.remove(terms)
    around.announcements.interest_changed()
    assert not around.kept
