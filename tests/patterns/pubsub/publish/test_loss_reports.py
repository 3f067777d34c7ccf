"""Reports to a publisher of events that its subscribers did not get, and errors of strict publishing."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from iris.kernel import wire
from iris.kernel.config import Config
from iris.kernel.errors import EventsLost, NotSent, RemoteProtocolError
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.patterns.books import ledger, receipts
from iris.patterns.books.columns import NOTHING
from iris.patterns.pubsub.subscribe.subscription import Overflow
from tests.support.events import collect, publish
from tests.support.meshes import Fleet, MeshNode, open_meshes
from tests.support.messages import arrived


def started(fleet: Fleet, nursery: trio.Nursery) -> None:
    """Let the nodes look after what needs the time, as whole nodes do."""
    for node in fleet.nodes.values():
        nursery.start_soon(node.pubsub.run)
        nursery.start_soon(node.books.run)


def told(node: MeshNode) -> tuple[int, int]:
    statistics = node.pubsub.statistics()
    return statistics.dropped, statistics.refused


async def test_losses_are_reported_together_and_within_100_ms(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet, trio.open_nursery() as nursery:
        started(fleet, nursery)
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe("t", max_events=2):
            await publish(a, "t", 1, 2)  # which wait, so that reports come ever more seldom
            await trio.sleep(60)
            posted = b.peer(a).link.statistics().posted
            for number in range(3, 23):
                await publish(a, "t", number)
                await trio.sleep(0.005)
            await trio.sleep(0.11)
            assert told(a) == (20, 0)
            assert b.peer(a).link.statistics().posted - posted <= 4
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("overflow", ["drop_oldest", "drop_newest"])
async def test_a_publisher_learns_exactly_how_many_events_were_dropped(
    autojump_clock: MockClock, overflow: Overflow
) -> None:
    async with open_meshes("a", "b", "c") as fleet, trio.open_nursery() as nursery:
        started(fleet, nursery)
        a, b, c = (fleet[name] for name in "abc")
        async with (
            b.pubsub.subscribe("t", max_events=5, overflow=overflow) as one,
            b.pubsub.subscribe(">", max_events=50, overflow=overflow) as two,
            c.pubsub.subscribe("t") as roomy,
        ):
            await publish(a, "t", *range(100))
            await publish(c, "t", *range(7))
            await trio.sleep(1)
            dropped = one.statistics().dropped + two.statistics().dropped
            assert told(a)[0] + told(c)[0] == dropped == (107 - 5) + (107 - 50)
            assert told(a)[0] > 100
            assert told(b) == (0, 0)
            with pytest.raises(EventsLost) as caught:
                a.pubsub.publishing.raise_for_losses("t")
            assert caught.value.count == told(a)[0]
            assert len(await collect(roomy)) == 107
        nursery.cancel_scope.cancel()


async def test_events_that_a_subscriber_does_not_allow_are_told_as_refused(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", "c") as fleet, trio.open_nursery() as nursery:
        started(fleet, nursery)
        a, b, c = (fleet[name] for name in "abc")
        async with b.pubsub.subscribe("t", allow=["c"]):
            await publish(a, "t", 1, 2, 3)
            await publish(c, "t", 1)
            await trio.sleep(1)
            assert (told(a), told(c)) == ((0, 3), (0, 0))
        nursery.cancel_scope.cancel()


async def test_a_strict_publisher_is_told_once_of_what_was_lost_on_its_topic(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet, trio.open_nursery() as nursery:
        started(fleet, nursery)
        a, b = fleet["a"], fleet["b"]
        check = a.pubsub.publishing.raise_for_losses
        async with b.pubsub.subscribe(">", max_events=5):
            await publish(a, "t", *range(9))
            check("t")  # nobody has said anything yet
            await trio.sleep(1)
            check("other")
            with pytest.raises(EventsLost, match="'t' did not get 4 of the events") as caught:
                check("t")
            assert caught.value.count == 4
            check("t")
            await publish(a, "t", 10)
            await trio.sleep(1)
            with pytest.raises(EventsLost) as caught:
                check("t")
            assert caught.value.count == 1
        nursery.cancel_scope.cancel()


async def test_what_a_link_did_not_take_is_known_at_once(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", config=Config(link_bytes=2_000_000)) as fleet:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe("t") as stalled:
            b.transport.pause()
            await publish(a, "t", *[bytes(1000)] * 20_000)
            await publish(a, "u", b"unheard")
            statistics = a.pubsub.statistics()
            with pytest.raises(EventsLost) as caught:
                a.pubsub.publishing.raise_for_losses("t")
            assert caught.value.count == statistics.lost["subscriber stalled"] > 1000
            assert statistics.sent == statistics.handed_over + sum(statistics.lost.values()) == 20_000
            assert (statistics.published, statistics.without_subscriber) == (20_001, 1)
            a.pubsub.publishing.raise_for_losses("u")
            b.transport.resume()
            assert len(await collect(stalled)) == statistics.handed_over


async def test_a_report_that_finds_no_room_is_made_later_and_is_complete(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_meshes("a", "b") as fleet, trio.open_nursery() as nursery:
        started(fleet, nursery)
        a, b = fleet["a"], fleet["b"]
        full = True
        post = b.mesh.post

        def post_unless_full(node: NodeId, message: wire.Message, size: int, reserve: int = 0) -> None:
            if full and isinstance(message, kinds.Received):
                raise NotSent("full")
            post(node, message, size, reserve)

        monkeypatch.setattr(b.mesh, "post", post_unless_full)
        async with b.pubsub.subscribe(">", max_events=1):
            for topic in range(1000):  # more than one message holds
                await publish(a, f"t.{topic}", 1)
            await trio.sleep(1)
            assert told(a) == (0, 0)
            full = False
            await trio.sleep(3)  # 64 topics every 100 ms
            assert told(a) == (999, 0)
        nursery.cancel_scope.cancel()


async def test_topics_without_a_row_of_their_own_raise_what_they_share_once(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "NAMES", 3)
    monkeypatch.setattr(receipts, "NAMES", 3)
    async with open_meshes("a", "b") as fleet, trio.open_nursery() as nursery:
        started(fleet, nursery)
        a, b = fleet["a"], fleet["b"]
        check = a.pubsub.publishing.raise_for_losses
        async with b.pubsub.subscribe(">", max_events=1):
            for topic in range(10):
                await publish(a, f"t.{topic}", 1)
            await trio.sleep(1)
            assert told(a) == (9, 0)
            counts: list[int] = []
            for topic in range(4):
                with pytest.raises(EventsLost) as caught:
                    check(f"t.{topic}")
                counts.append(caught.value.count)
            assert counts == [1, 1, 1, 6]
            for topic in range(10):
                check(f"t.{topic}")
        nursery.cancel_scope.cancel()


async def test_losses_on_topics_that_were_never_published_raise_nothing(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe("known"):
            await publish(a, "known", 1)
            names = (
                kinds.ReceivedEntry("made up", 5, 0, 0, 0, 0, 5, 0),
                kinds.ReceivedEntry("known", 3, 0, 0, 0, 2, 1, 0),
            )
            for _ in range(3):  # a report that is repeated says nothing new
                b.mesh.post(a.id, kinds.Received(1, 0, False, (8, 0, 0, 0, 2, 6, 0), names), 0)
            await trio.sleep(1)
            a.pubsub.publishing.raise_for_losses("made up")
            with pytest.raises(EventsLost) as caught:
                a.pubsub.publishing.raise_for_losses("known")
            assert caught.value.count == 3
            a.pubsub.publishing.raise_for_losses("known")


@pytest.mark.parametrize(
    "fields",
    [
        (),
        (4, 0, False, NOTHING, ()),
        (1, -1, False, NOTHING, ()),
        (1, 0, 1, NOTHING, ()),
        (1, 0, False, (0,) * 6, ()),
        (1, 0, False, (-1,) * 7, ()),
        (1, 0, False, NOTHING, (("t", *(0,) * 6),)),
        (1, 0, False, NOTHING, ((1, *(0,) * 7),)),
        (1, 0, False, NOTHING, (("t", *(2**62 + 1,) * 7),)),
        (1, 0, False, NOTHING, (("t", *(0,) * 7),) * 65),
    ],
)
def test_malformed_reports_are_the_peers_error(fields: tuple[object, ...]) -> None:
    with pytest.raises(RemoteProtocolError):
        arrived(kinds.Received, *fields)
