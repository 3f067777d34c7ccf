"""The way of copies: one message for each link, whatever leads to no link, and pauses."""

from __future__ import annotations

from typing import Any

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from iris.cluster.directory.directory import SitePath
from iris.cluster.directory.messages import Hop
from iris.cluster.routes.copies import CopyRoute
from iris.cluster.routes.copies_aside import MAX_OF_PUBLISHER
from iris.cluster.routes.gateway import PAUSE
from iris.kernel.config import KIB, Config
from iris.kernel.link.link import Link
from iris.kernel.names import NodeId
from tests.support.links import PlainSession
from tests.support.links import Way as Wire
from tests.support.messages import array

OWN, ONE, TWO = (NodeId(f"{number:032x}") for number in range(1, 4))
EAR = bytes(range(16))
ROUTES = {"eu": ONE, "us": ONE, "ap": TWO}


class Place:
    """A node with links to two gateways, over which three sites are reached."""

    def __init__(self) -> None:
        self.links: dict[NodeId, Link] = {node: Link(node, Config()) for node in (ONE, TWO)}
        self.given_up: set[NodeId] = set()
        self.way = CopyRoute(("own", OWN), self)

    def is_peer(self, node: NodeId) -> bool:
        return node not in self.given_up

    def link_to(self, neighbour: NodeId) -> Link | None:
        return self.links.get(neighbour)

    def path(self, site: str) -> SitePath | None:
        return SitePath(ROUTES[site], (Hop(site, ROUTES[site]),)) if site in ROUTES else None

    def posted(self, node: NodeId) -> int:
        return self.links[node].statistics().posted


def sent(link: Link) -> list[Any]:
    wire = Wire()
    link.use(PlainSession())
    link.attach(wire)
    while link._push():
        pass
    return wire.messages


async def test_sites_behind_one_gateway_share_a_message() -> None:
    place = Place()
    place.way.address({"eu": EAR, "us": EAR + EAR, "ap": EAR})
    assert place.way.send_nowait(b"frame")
    own = bytes.fromhex(OWN)
    assert sent(place.links[ONE]) == [(0x66, 16, "own", own, (("eu", EAR), ("us", EAR + EAR)), b"frame")]
    assert sent(place.links[TWO]) == [(0x66, 16, "own", own, (("ap", EAR),), b"frame")]


async def test_what_no_route_leads_to_waits_for_one_and_holds_up_nobody() -> None:
    place = Place()
    lost_link = place.links.pop(ONE)
    for number in range(3):
        place.way.address({"eu": EAR, "ap": EAR})
        assert place.way.send_nowait(b"frame %d" % number)
        assert place.posted(TWO) == number + 1
    place.links[ONE] = lost_link
    place.way.address({"eu": EAR + EAR})
    assert place.way.send_nowait(b"frame 3"), "those that wait go before it"
    assert [message[-2:] for message in sent(lost_link)] == [
        *(((("eu", EAR),), b"frame %d" % number) for number in range(3)),
        ((("eu", EAR + EAR),), b"frame 3"),
    ]
    assert place.way.lost == {}


async def test_what_waits_for_a_route_leaves_as_soon_as_there_is_one() -> None:
    place = Place()
    found = place.links.pop(TWO)
    place.way.address({"ap": EAR})
    assert place.way.send_nowait(b"frame")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(place.way.wait_sent)
        await wait_all_tasks_blocked()
        place.links[TWO] = found
        place.way.routes_changed()
    assert place.posted(TWO) == 1
    await place.way.wait_sent()


async def test_what_waits_for_a_route_is_bounded_and_counted_as_lost() -> None:
    place = Place()
    other = bytes(reversed(EAR))
    place.way.address({"nowhere": EAR + other, "ap": EAR})
    frame = bytes(MAX_OF_PUBLISHER // 4)
    for count in range(1, 5):
        assert place.way.send_nowait(frame)
        assert place.posted(TWO) == count, "it holds up nobody"
    assert place.way.lost == {"no route": 2}
    place.way.forget("nowhere", NodeId(other.hex()))
    assert place.way.lost == {"no route": 5}
    place.way.forget("nowhere", NodeId(EAR.hex()))
    assert place.way.lost == {"no route": 8}
    place.way.address({"nowhere": EAR})
    assert place.way.send_nowait(frame)
    assert place.way.lost == {"no route": 8}, "there is room again"


async def test_nothing_waits_for_a_node_that_was_given_up_before_its_frame_was_sealed() -> None:
    place = Place()
    other = bytes(reversed(EAR))
    place.given_up.add(NodeId(other.hex()))
    place.way.forget("nowhere", NodeId(other.hex()))
    place.way.address({"nowhere": other})
    assert place.way.send_nowait(b"frame")
    with trio.fail_after(1):
        await place.way.wait_sent()
    place.way.address({"nowhere": EAR + other})
    assert place.way.send_nowait(b"frame")
    assert place.way.lost == {"no route": 2}
    place.way.forget("nowhere", NodeId(EAR.hex()))
    assert place.way.lost == {"no route": 3}


async def test_a_full_link_is_waited_for_until_it_stalls(autojump_clock: MockClock) -> None:
    place = Place()
    full = place.links[TWO]
    while full.has_room():
        full.post(array(1, bytes(64 * KIB)), 64 * KIB)
    place.way.address({"eu": EAR, "ap": EAR})
    assert not place.way.send_nowait(b"frame")
    assert place.posted(ONE) == 0, "a frame goes to all or to nobody"
    await place.way.wait_writable()
    await trio.sleep(0.1)
    assert place.way.send_nowait(b"frame"), "a link on which nothing moves does not hold up the others"
    assert place.posted(ONE) == 1
    full.close("the end")
    assert place.way.send_nowait(b"frame")
    assert place.way.lost == {"link full": 1}


async def test_a_pause_lasts_until_it_is_ended_or_over(autojump_clock: MockClock) -> None:
    place = Place()
    place.way.address({"eu": EAR})
    place.way.pause()
    assert not place.way.send_nowait(b"frame")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(place.way.wait_writable)
        await wait_all_tasks_blocked()
        place.way.resume()
    assert place.way.send_nowait(b"frame")
    place.way.pause()
    began = trio.current_time()
    await place.way.wait_writable()
    assert trio.current_time() - began == PAUSE
    assert place.way.send_nowait(b"frame")
