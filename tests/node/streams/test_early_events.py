"""Events that come over a tree before their publisher's word of it: all of them are delivered once it is there."""

from __future__ import annotations

import trio
from trio.testing import MockClock

import iris
import iris.testing
from iris.kernel.wire import MAX_MESSAGES, encode_batch, kinds
from iris.patterns.pubsub.tree import topology
from tests.support.attacks import Attacker, renumbering
from tests.support.messages import fields_of

EVENTS = 2400


async def test_more_of_them_than_a_frame_may_bring_come_whole_and_take_nothing_of_what_is_carried(
    autojump_clock: MockClock,
) -> None:
    async with (
        iris.testing.open_network(seed=3) as network,
        network.open_parts("reader", site="here") as (reader, reader_parts),
        network.open_parts("writer", site="here") as (_, writer_parts),
        reader.subscribe("a.>", limits=iris.SubscriptionLimits(events=10_000)) as events,
    ):
        pings: list[int] = []
        reader_parts.mesh.receivers.own[kinds.Ping] = lambda _, ping: pings.append(fields_of(ping)[0])
        writer = Attacker(writer_parts.mesh, reader_parts.mesh)
        await writer.wait_linked()
        await trio.sleep(1)
        mesh = writer.mesh
        await writer.send(writer.seal(kinds.EventTree(1, b"\1", ())))
        for number, first in enumerate(range(0, EVENTS, 300), 1):
            numbers = range(first, first + 300)
            body = encode_batch([kinds.Events("a.b", 1 + n, 0, None, None, None, (b"%d" % n,), ()) for n in numbers])
            signature = mesh.identity.sign(topology.claim(mesh.node, 1, number, 1, body))
            relayed, _ = topology.RelayedEvents(mesh.node, 1, number, 1, body, signature).message()
            await writer.send(writer.seal(relayed))
        await trio.sleep(0.1)
        assert events.statistics().received == 0
        session = mesh.peers[reader.id].session
        assert session is not None
        with renumbering(session) as number_next:
            number_next(1)
            carried = [writer.around(kinds.Forward, writer.seal(*[kinds.Ping(7)] * MAX_MESSAGES)) for _ in range(2)]
            number_next(0)
            await writer.send(writer.seal(kinds.EventRoute(1, 1, False), *carried))
        await trio.sleep(0.1)
        assert len(pings) == 2 * MAX_MESSAGES
        assert events.statistics().received == EVENTS
        assert [(await anext(events)).payload for _ in range(EVENTS)] == [b"%d" % number for number in range(EVENTS)]
        assert not reader.statistics().refusals
