"""For how long a member that is declared dead keeps its link."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from iris.cluster.directory import SiteTag
from iris.cluster.membership.link_states import LinkStates
from iris.cluster.membership.linking import Linking, dials_second
from iris.cluster.mesh.dialer import DialLimiter
from iris.cluster.mesh.mesh import Mesh
from iris.cluster.mesh.peer import PeerTable
from iris.cluster.mesh.reconnect import EVERY, FREE, FlapDamping
from iris.cluster.swim.context import Changed
from iris.cluster.swim.records import MemberState, NodeRecord
from iris.kernel.errors import IrisError, NotSent
from iris.kernel.names import NodeId
from iris.node.parts import NodeParts
from iris.testing import open_network
from tests.support.membership import node, record
from tests.support.messages import array


@asynccontextmanager
async def open_pair() -> AsyncIterator[tuple[NodeParts, NodeParts]]:
    async with open_network() as network, network.open_parts("one") as one, network.open_parts("two") as two:
        yield one.parts, two.parts


def tell(parts: NodeParts, other: NodeId, state: MemberState) -> None:
    """Have a node's membership notified by its machine of another node's state."""
    record = parts.view.record(other)
    assert record is not None
    parts.membership._perform([Changed(node=other, state=state, record=record)])


async def test_who_was_not_heard_under_suspicion_loses_its_link_when_it_is_declared_dead(
    autojump_clock: MockClock,
) -> None:
    async with open_pair() as (one, two):
        tell(one, two.mesh.node, MemberState.SUSPECT)
        tell(one, two.mesh.node, MemberState.DEAD)
        link = one.mesh.peers[two.mesh.node].link
        await trio.testing.wait_all_tasks_blocked()
        assert one.mesh.peers.get(two.mesh.node) is None or one.mesh.peers[two.mesh.node].link is not link


async def test_who_was_heard_under_suspicion_keeps_its_link_for_time_to_refute(autojump_clock: MockClock) -> None:
    async with open_pair() as (one, two):
        tell(one, two.mesh.node, MemberState.SUSPECT)
        await two.mesh.barrier(one.mesh.node)
        tell(one, two.mesh.node, MemberState.DEAD)
        link = one.mesh.peers[two.mesh.node].link
        await trio.sleep(4.9)
        assert one.mesh.peers[two.mesh.node].link is link
        await trio.sleep(0.2)
        assert one.mesh.peers.get(two.mesh.node) is None or one.mesh.peers[two.mesh.node].link is not link


async def test_who_refutes_in_time_keeps_its_link(autojump_clock: MockClock) -> None:
    async with open_pair() as (one, two):
        tell(one, two.mesh.node, MemberState.SUSPECT)
        await two.mesh.barrier(one.mesh.node)
        tell(one, two.mesh.node, MemberState.DEAD)
        link = one.mesh.peers[two.mesh.node].link
        await trio.sleep(1)
        tell(one, two.mesh.node, MemberState.ALIVE)
        await trio.sleep(10)
        assert one.mesh.peers[two.mesh.node].link is link


async def test_a_suspicion_that_has_passed_does_not_count(autojump_clock: MockClock) -> None:
    async with open_pair() as (one, two):
        tell(one, two.mesh.node, MemberState.SUSPECT)
        await two.mesh.barrier(one.mesh.node)
        tell(one, two.mesh.node, MemberState.ALIVE)
        tell(one, two.mesh.node, MemberState.SUSPECT)
        tell(one, two.mesh.node, MemberState.DEAD)
        link = one.mesh.peers[two.mesh.node].link
        await trio.testing.wait_all_tasks_blocked()
        assert one.mesh.peers.get(two.mesh.node) is None or one.mesh.peers[two.mesh.node].link is not link


def test_of_any_two_one_leaves_it_to_the_other_to_dial_and_each_dials_about_half_of_all() -> None:
    random = Random(1)
    nodes = [NodeId(f"{random.getrandbits(128):032x}") for _ in range(100)]
    for one in nodes:
        assert all(dials_second(one, other) != dials_second(other, one) for other in nodes if other != one)
        assert 25 < sum(dials_second(one, other) for other in nodes if other != one) < 75


class Links:
    """The part of a mesh that linking needs, with no other peer in it."""

    def __init__(self, node: NodeId, *, answers: bool, late: float = 0.0) -> None:
        self.node = node
        self.peers: dict[NodeId, object] = {}
        self.lateness = late
        self.turns = DialLimiter(5.0, self)
        self.closing = self.dial_only = False
        self.advertised = ()
        self.tag = SiteTag()
        self.answers = answers
        self.redialling = self
        self.flapping = FlapDamping()
        self.dialled: list[float] = []
        self.sources: list[str] = []

    def peer(self, node: NodeId) -> object:
        return self.peers.get(node)

    async def connect(self, urls: object, *, expected: NodeId, source: str, hearsay: bool) -> None:
        self.dialled.append(trio.current_time())
        self.sources.append(source)
        if not self.answers:
            await trio.sleep(5.0)
            raise NotSent("nobody answers")
        self.peers[expected] = object()


class Alive:
    """Nineteen members that are alive."""

    def __init__(self, *, wanted: bool = True) -> None:
        self._records = {node(number): record(number) for number in range(1, 20)}
        self.wanted = wanted
        self.gone: set[NodeId] = set()

    def record_of(self, node: NodeId) -> NodeRecord | None:
        return self._records.get(node)

    def knows(self, node: NodeId) -> bool:
        return node not in self.gone

    def wants(self, node: NodeId) -> bool:
        return self.wanted

    def peer_refused(self, node: NodeId) -> None:
        pass

    def link_failed(self, error: IrisError) -> None:
        pass

    def news(self) -> None:
        pass


@asynccontextmanager
async def open_linking(
    links: Links, states: LinkStates | None = None, *, wanted: bool = True, alive: Alive | None = None
) -> AsyncIterator[Linking]:
    states = states or LinkStates(links.node, PeerTable())
    async with trio.open_nursery() as nursery:
        yield Linking(cast("Mesh", links), nursery, alive or Alive(wanted=wanted), states)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("late", "hurry", "after"), [(0.0, False, 0.5), (0.0, True, 0.0), (0.01, True, 0.0), (0.1, True, 2.5)]
)
async def test_who_has_something_to_say_waits_for_the_other_to_dial_only_if_it_is_late(
    autojump_clock: MockClock, late: float, hurry: bool, after: float
) -> None:
    one, other = next((node(n), node(1)) for n in range(2, 20) if dials_second(node(n), node(1)))
    links = Links(one, answers=True, late=late)
    async with open_linking(links) as linking:
        began = trio.current_time()
        linking.begin(other)
        if hurry:
            linking.hold(other, array(0x14, ()))
        await trio.sleep(10.0)
    assert links.dialled == [pytest.approx(began + after)]


async def test_a_member_is_new_until_two_attempts_to_link_to_it_have_failed(autojump_clock: MockClock) -> None:
    one, other = next((node(n), node(1)) for n in range(2, 20) if not dials_second(node(n), node(1)))
    links, states = Links(one, answers=False), LinkStates(one, PeerTable())
    async with open_linking(links, states) as linking:
        assert not states.is_new(other)
        linking.begin(other, new=True)
        await trio.sleep(10.2)
        assert states.is_new(other)
        await trio.sleep(0.1)
        assert not states.is_new(other)
        assert len(links.dialled) == 2


async def test_who_did_not_answer_is_dialled_less_and_less_often_and_counts_as_unreached_until_it_is_linked(
    autojump_clock: MockClock,
) -> None:
    links = Links(node(2), answers=False)
    async with open_linking(links, wanted=False) as linking:
        linking.begin(node(1), alone=True)
        await trio.sleep(4.9)
        assert not linking.is_unreached(node(1)), "callers wait for it"
        for _ in range(200):
            await trio.sleep(1.0)
            assert linking.is_unreached(node(1))
            linking.begin(node(1), alone=True)
            linking.hold(node(1), array(0x14, ()))
        gaps = [later - former for former, later in itertools.pairwise(links.dialled)]
        assert gaps == pytest.approx([5.0 + min(0.25 * 2**number, 30.0) for number in range(len(gaps))])
        assert gaps[-1] == 35.0
        links.answers = True
        await trio.sleep(35.0)
        assert not linking.is_unreached(node(1))
        assert not len(linking)


@pytest.mark.parametrize(
    "why", ["it is to be kept", "it is back", "this node has another credential", "it has dialled"]
)
async def test_who_did_not_answer_is_dialled_at_once_where_that_may_help(autojump_clock: MockClock, why: str) -> None:
    links = Links(node(2), answers=False)
    alive = Alive(wanted=False)
    async with open_linking(links, alive=alive) as linking:
        linking.begin(node(1), alone=True)
        await trio.sleep(100.0)
        dials, links.answers = len(links.dialled), True
        match why:
            case "it is to be kept":
                alive.wanted = True
                linking.begin(node(1))
            case "it is back":
                linking.retry(node(1))
            case "it has dialled":
                links.peers[node(1)] = object()
                linking.linked(node(1))
            case _:
                linking.retry()
        await trio.testing.wait_all_tasks_blocked()
        assert len(links.dialled) == dials + (why != "it has dialled")
        assert node(1) in links.peers
        await trio.sleep(5.1)
        assert not len(linking)


async def test_who_died_meanwhile_is_not_dialled_any_more(autojump_clock: MockClock) -> None:
    links = Links(node(2), answers=False)
    alive = Alive(wanted=False)
    async with open_linking(links, alive=alive) as linking:
        linking.begin(node(1), alone=True)
        await trio.sleep(100.0)
        dials = len(links.dialled)
        alive.gone.add(node(1))
        await trio.sleep(35.0)
        assert len(links.dialled) == dials
        assert not len(linking)


async def test_a_member_that_was_linked_before_is_not_new(autojump_clock: MockClock) -> None:
    states = LinkStates(node(2), PeerTable())
    async with open_linking(Links(node(2), answers=False), states) as linking:
        linking.begin(node(1))
        linking.begin(node(1), new=True)
        await trio.testing.wait_all_tasks_blocked()
        assert not states.is_new(node(1))


@pytest.mark.parametrize("late", [0.0, 0.1])
async def test_newcomers_are_dialled_at_different_times_by_those_that_are_late(
    autojump_clock: MockClock, late: float
) -> None:
    random = Random(2)
    others = [NodeId(f"{random.getrandbits(128):032x}") for _ in range(100)]
    waited: list[float] = []
    for one in [other for other in others if not dials_second(other, node(1))]:
        links = Links(one, answers=True, late=late)
        async with open_linking(links) as linking:
            began = trio.current_time()
            linking.begin(node(1), new=True)
            await trio.sleep(3.0)
            waited.append(links.dialled[0] - began)
    assert max(waited) <= 20 * late
    assert len(waited) > 30
    assert (len(set(waited)) > 0.9 * len(waited)) == bool(late)


async def test_a_member_waits_for_its_turn_behind_those_of_its_own_cluster(autojump_clock: MockClock) -> None:
    links = Links(node(2), answers=True)
    async with open_linking(links) as linking:
        linking.hold(node(1), array(0x14, ()))
        await trio.testing.wait_all_tasks_blocked()
    assert links.sources == [f"cluster {record(1).name}"]


async def test_where_many_members_of_a_cluster_cannot_be_reached_they_are_tried_again_so_often_in_all(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iris.cluster.membership.linking._RETRIES", 0.1)
    links = Links(node(50), answers=False)
    async with open_linking(links) as linking:
        for number in range(1, 20):
            linking.begin(node(number))
        await trio.sleep(1000.0)
        assert 19 + 0.09 * 1000 * 0.9 < len(links.dialled) <= 2 * 19 + 0.1 * 1000
        assert sum(linking._unreached.values()) == 19
    assert not linking._unreached


async def test_a_member_whose_links_never_live_is_dialled_later_also_after_it_was_given_up(
    autojump_clock: MockClock,
) -> None:
    links = Links(node(2), answers=True)
    began = trio.current_time()
    for _ in range(2 * FREE):
        links.flapping.broke(node(1), began)
    async with open_linking(links) as linking:
        linking.hold(node(1), array(0x14, ()))
        await trio.sleep(10.0)
    assert links.dialled == [pytest.approx(began + EVERY)]


async def test_who_died_is_not_looked_for_where_another_node_is_now(autojump_clock: MockClock) -> None:
    """A program that was started anew has another identity at the same address: each try was a handshake with it."""
    async with open_network() as network, network.open_node("one", host="x") as one:
        async with network.open_node("two", host="y"):
            await trio.sleep(1)
            network.memory.crash("y")
            await trio.sleep(5)
        async with network.open_node("three", host="z"), network.open_node("two", host="y") as anew:
            await trio.sleep(10)
            assert anew.id in {peer.node for peer in one.nodes()}
            handshakes: list[str] = []

            def observe(source: str, target: str, size: int, _: str) -> None:
                if (source, target) == ("x", "y") and 1000 < size < 2000:  # longer is the comparison of views
                    handshakes.append(source)

            network.memory.observer = observe
            await trio.sleep(60)
            assert len(handshakes) <= 1, "its session may be renewed"
