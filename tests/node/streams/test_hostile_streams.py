"""Nodes with valid credentials that break the rules of tunnels and events: the honest end says why, and goes on."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

import iris
import iris.testing
from iris.kernel.errors import NotSent
from iris.kernel.wire import kinds
from iris.kernel.wire.kinds import Message
from iris.patterns.tunnel.messages import END
from tests.support.messages import raw

WINDOW = 64 * 1024
PAYLOAD = 32 * 1024
CONFIG = iris.Config(tunnel_window=WINDOW, max_payload=PAYLOAD)

Hostile = list[Message]


def chunks(numbers: range, size: int, flags: int = END) -> Hostile:
    """Return the chunks that an opener would send through its first tunnel."""
    return [kinds.TunnelChunk(1, number, flags, bytes(size), 0) for number in numbers]


HOSTILE: dict[str, Hostile] = {
    "ignores credit": chunks(range(200), 8000),
    "out of order": chunks(range(1, 400), 8000),
    "bytes, the limit that was agreed on": chunks(range(20), 8000, flags=0),
    "a piece of 1 bytes": chunks(range(20), 1, flags=0),
    "only 0 were sent": [kinds.TunnelAck(1, 5, 0, 0, 0)],
}


class Victim:
    """A service whose tunnels note how they end; nobody reads from them before that."""

    def __init__(self) -> None:
        self.service = iris.Service("victims")
        self.service.tunnel(self.hold)
        self.service.request(self.echo)
        self.tunnels: list[iris.Tunnel] = []
        self.endings: list[str] = []

    async def echo(self, request: iris.Request) -> object:
        return request.payload

    async def hold(self, tunnel: iris.Tunnel) -> None:
        self.tunnels.append(tunnel)
        await trio.sleep(5)
        try:
            async for _ in tunnel:
                pass
        except iris.TunnelBroken as error:
            self.endings.append(str(error))


@pytest.mark.parametrize("reason", HOSTILE)
async def test_a_tunnel_whose_peer_breaks_the_rules_ends_with_the_reason_and_nothing_else_does(
    autojump_clock: MockClock, reason: str
) -> None:
    victim = Victim()
    async with (
        iris.testing.open_network(seed=5) as network,
        network.open_node("victims", config=CONFIG) as member,
        member.join("victims", victim.service),
        network.open_parts("villain") as (villain, villain_parts),
        network.open_node("honest") as honest,
    ):
        for node in (villain, honest):
            await node.wait_for("victims")
        # What the villain's own end makes of acknowledgements for what it has not sent is not the question.
        villain_parts.mesh.receivers.own[kinds.TunnelAck] = lambda peer, message: None
        async with villain.open_tunnel("victims") as tunnel:
            async with honest.open_tunnel("victims") as good:
                await good.send(b"mine")
                for message in HOSTILE[reason]:
                    villain_parts.mesh.post(member.id, message, 100)
                    held = sum(one.statistics().bytes_held for one in victim.tunnels)
                    assert held <= WINDOW + PAYLOAD + 1000
                    await trio.sleep(0.001)
                assert await honest.request("victims", b"still there?") == b"still there?"
                await trio.sleep(10)
                assert not good.statistics().messages_lost
            with pytest.raises(iris.TunnelBroken):
                await tunnel.receive()
            tunnel.abort()
        await trio.sleep(10)
        assert len([ending for ending in victim.endings if reason in ending]) == 1
        assert member.statistics().tunnels.open == 0


KINDS = [f"message of kind {kind.__name__}" for kind in kinds.BY_KIND.values()]

MALFORMED: dict[str, Message] = {
    "interest": raw(kinds.Interest, 1, False, (("a..b", None, False, False, ()),), ()),
    "terms of the wrong length": raw(kinds.Interest, 1, False, (("a", None, False),), ()),
    "events": kinds.Events("t", 0, 0, None, None, None, (b"",), ()),
    "no events": kinds.Events("t", 1, 0, None, None, None, (), ()),
    "events on no topic": kinds.Events("", 1, 0, None, None, None, (b"",), ()),
    "events on a pattern": kinds.Events("t.*", 1, 0, None, None, None, (b"",), ()),
    "events on a topic that controls a terminal": kinds.Events("t.\x1b[2J", 1, 0, None, None, None, (b"",), ()),
    "events on a topic with a C1 control": kinds.Events("t.\x9b2J", 1, 0, None, None, None, (b"",), ()),
    "events on a topic that turns text around": kinds.Events("t.\u202e", 1, 0, None, None, None, (b"",), ()),
    "events on a topic of 33 tokens": kinds.Events(".".join("t" * 33), 1, 0, None, None, None, (b"",), ()),
    "last value of a topic with a C1 control": kinds.Retained("t.\x9b2J", 1, 1, None, None, b"", ()),
    "interest in a pattern of 33 tokens": raw(
        kinds.Interest,
        1,
        False,
        ((".".join("t" * 33), None, False, False, ()),),
        (),
    ),
    "interest with a mark that turns text around": raw(
        kinds.Interest,
        1,
        False,
        (("t.\u2066", None, False, False, ()),),
        (),
    ),
    "last value of a pattern": kinds.Retained("t.>", 2, 1, None, None, b"", ()),
    "hold": kinds.Hold("a b", True),
    "last value": kinds.Retained("t", 1, 2, None, None, b"", ()),
    "wish": raw(kinds.RetainedWanted, 5),
    "losses": raw(kinds.Received, 1, 0, False, (0,) * 6, ()),
    "losses of a pattern that there is not": raw(kinds.Received, 4, 0, False, (0,) * 7, ()),
    "confirmation": kinds.Confirmed(((2, 1),)),
    "no reason": raw(kinds.ConfirmDelayed, 5),
    "a reason that is a novel": kinds.ConfirmDelayed("x" * 257),
    "a reason that controls a terminal": kinds.ConfirmDelayed("\x1b[2J"),
    "version": raw(kinds.InterestKnown, None, 0),
    "place in a tree": kinds.EventTree(1, b"", ()),
    "way": kinds.EventRoute(0, 0, False),
    "relayed events": kinds.EventsRelayed(b"", 1, 1, b"\x01", b"", bytes(64)),
    "word of a relay": kinds.EventRelay(1, 5, b""),
}


@pytest.mark.parametrize("what", MALFORMED)
async def test_malformed_messages_about_events_are_counted_and_change_nothing(
    autojump_clock: MockClock, what: str
) -> None:
    async with (
        iris.testing.open_network(seed=6) as network,
        network.open_node("reader") as reader,
        network.open_parts("villain") as (villain, villain_parts),
        reader.subscribe("t") as events,
    ):
        await reader.publish("t", 1)
        villain_parts.mesh.post(reader.id, MALFORMED[what], 100)
        await trio.sleep(1)
        await villain.publish("t", 2)
        assert [(await anext(events)).payload for _ in range(2)] == [1, 2]
        refusals = reader.statistics().refusals
        assert sum(refusals.get(reason, 0) for reason in ("RemoteProtocolError", *KINDS)) == 1
        assert not reader.statistics().publishing.dropped


async def test_a_publisher_that_does_not_wait_cannot_fill_the_memory_of_a_patient_subscriber(
    autojump_clock: MockClock,
) -> None:
    async with (
        iris.testing.open_network(seed=7) as network,
        network.open_node("reader") as reader,
        network.open_parts("villain") as (_, villain_parts),
        reader.subscribe("t", overflow="wait", limits=iris.SubscriptionLimits(bytes=1_000_000)) as events,
    ):
        payload = bytes(60_000)
        sent = 0
        for number in range(1, 3000):  # 180 MB
            try:
                villain_parts.mesh.post(
                    reader.id, kinds.Events("t", number, 0, None, None, None, (payload,), ()), 60_000
                )
                sent += 1
            except NotSent:
                await trio.sleep(0.01)
        await trio.sleep(1)
        statistics = events.statistics()
        assert statistics.received == sent > 2000
        assert statistics.waiting_bytes <= 1_000_000 + 64 * 2**20
        assert statistics.dropped == sent - statistics.waiting > 0
