"""Senders through a gateway are paused while a link is busy, and resumed when it has drained."""

from __future__ import annotations

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from iris.cluster.directory.directory import SitePath
from iris.cluster.directory.messages import Hop
from iris.cluster.routes.gateway import PAUSE, GatewayRoute
from iris.federation.backpressure import Backpressure, FrameFlow
from iris.kernel.config import KIB, MIB, Config
from iris.kernel.link.link import Link
from iris.kernel.names import NodeId
from tests.support.links import PlainSession
from tests.support.links import Way as Wire
from tests.support.messages import array
from tests.support.transports import ignore

ONE, TWO = (FrameFlow("eu", bytes([number]) * 16, "us", b"t" * 16) for number in (1, 2))
LIMIT = 16 * MIB


class Senders:
    """Writes down what the senders are notified of."""

    def __init__(self) -> None:
        self.told: list[tuple[FrameFlow, bool]] = []

    def report_pressure(self, flow: FrameFlow, *, busy: bool) -> None:
        self.told.append((flow, busy))


def fill(link: Link, mib: float) -> None:
    for _ in range(int(mib * 16)):
        link.post(array(1, bytes(64 * KIB)), 64 * KIB)


async def test_a_sender_is_told_once_that_a_link_is_busy_and_once_that_it_is_ready(autojump_clock: MockClock) -> None:
    senders = Senders()
    told, pressure = senders.told, Backpressure(LIMIT, senders)
    link = Link(NodeId("1" * 32), Config())
    fill(link, 1.5)
    assert not pressure.is_high(link)
    fill(link, 1)
    assert pressure.is_high(link)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pressure.run)
        for _ in range(5):
            pressure.hold(link, ONE, 0.0)
        pressure.hold(link, TWO, 0.0)
        await wait_all_tasks_blocked()
        assert told == [(ONE, True), (TWO, True)]
        nursery.start_soon(link.run)
        link.use(PlainSession())
        link.attach(Wire())
        await wait_all_tasks_blocked()
        assert told[2:] == [(ONE, False), (TWO, False)]
        assert link.waiting_bytes == 0
        assert pressure.held == 2
        nursery.cancel_scope.cancel()


def test_who_goes_on_all_the_same_is_told_again() -> None:
    senders = Senders()
    pressure = Backpressure(LIMIT, senders)
    link = Link(NodeId("1" * 32), Config())
    for now in (0.0, 0.1, PAUSE, PAUSE + 0.1, 2 * PAUSE):
        pressure.hold(link, ONE, now)
    assert [busy for _, busy in senders.told] == [True] * 3


async def test_a_link_that_ends_holds_up_nobody(autojump_clock: MockClock) -> None:
    senders = Senders()
    pressure = Backpressure(LIMIT, senders)
    link = Link(NodeId("1" * 32), Config())
    fill(link, 5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pressure.run)
        pressure.hold(link, ONE, 0.0)
        await wait_all_tasks_blocked()
        link.close("the end")
        await wait_all_tasks_blocked()
        assert [busy for _, busy in senders.told] == [True, False]
        nursery.cancel_scope.cancel()


class Paths:
    """One link, over which everything leaves."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def path(self, site: str) -> SitePath | None:
        return None

    def link_to(self, neighbour: NodeId) -> Link | None:
        return self._link

    def is_peer(self, node: NodeId) -> bool:
        return True

    def route_closed(self, route: GatewayRoute) -> None:
        pass


def way_over(link: Link) -> GatewayRoute:
    node = NodeId("2" * 32)
    way = SitePath(node, (Hop("us", node),))
    return GatewayRoute(("us", node), ("eu", node), way, Paths(link), ignore)


async def test_a_way_that_is_paused_takes_nothing_until_it_is_resumed(autojump_clock: MockClock) -> None:
    link = Link(NodeId("1" * 32), Config())
    way = way_over(link)
    assert way.send_nowait(b"frame")
    way.pause()
    assert not way.send_nowait(b"frame")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(way.wait_writable)
        await wait_all_tasks_blocked()
        way.resume()
    assert trio.current_time() == autojump_clock.current_time()
    assert way.send_nowait(b"frame")
    assert link.statistics().posted == 2


async def test_a_pause_that_nobody_ends_ends_by_itself(autojump_clock: MockClock) -> None:
    way = way_over(Link(NodeId("1" * 32), Config()))
    way.pause()
    began = trio.current_time()
    await way.wait_writable()
    assert trio.current_time() - began == PAUSE
    assert way.send_nowait(b"frame")


async def test_no_more_than_a_mebibyte_waits_for_the_first_gateway(autojump_clock: MockClock) -> None:
    link = Link(NodeId("1" * 32), Config())
    way = way_over(link)
    sent = 0
    while way.send_nowait(bytes(64 * KIB)):
        sent += 1
    assert MIB <= sent * 64 * KIB <= MIB + 64 * KIB
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        link.use(PlainSession())
        link.attach(Wire())
        await way.wait_writable()
        assert link.waiting_bytes <= MIB // 2
        nursery.cancel_scope.cancel()
