"""A session is replaced in the middle of traffic: nothing is sealed for a session that the peer does not have."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from iris.kernel.config import Config
from tests.support.events import collect, missed, publish
from tests.support.meshes import Fleet, open_meshes

CONFIG = Config(session_lifetime=10.0, session_rejected=30.0, handshake_timeout=1.0)


async def pause_in_the_handshake(fleet: Fleet, seconds: float) -> None:
    """Have ``b`` stand still when it has answered the first frame of the next handshake."""
    b = fleet["b"]
    while not b.mesh.statistics().half_open:  # noqa: ASYNC110 -- there is no event
        await trio.sleep(0.01)
    await trio.sleep(0.02)
    b.transport.pause()
    await trio.sleep(seconds)
    b.transport.resume()


@pytest.mark.parametrize("seconds", [0.0, 0.3, 2.0, 5.0])
async def test_a_peer_that_stands_still_while_a_session_is_renewed_loses_nothing(
    autojump_clock: MockClock, seconds: float
) -> None:
    async with open_meshes("a", "b", config=CONFIG, latency=(0.1, 0.1)) as fleet, trio.open_nursery() as nursery:
        a, b = fleet["a"], fleet["b"]
        former = a.peer(b).session
        async with b.pubsub.subscribe("t") as events:
            nursery.start_soon(pause_in_the_handshake, fleet, seconds)
            for number in range(400):
                await publish(a, "t", number)
                await trio.sleep(0.05)
            taken = await collect(events)
            assert ([event.payload for event in taken], missed(taken)) == (list(range(400)), 0)
            session = a.peer(b).session
            assert session is not None
            assert session is not former, "it was renewed in the end"
            assert trio.current_time() - session.established < 15
        assert not fleet["b"].mesh.refusals["unknown session"]


async def test_what_waits_on_a_slow_connection_does_not_cost_the_session(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", config=CONFIG) as fleet:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe("t") as events:
            for number in range(1000):
                # Everything takes longer than the last frame of a handshake is waited for, then nothing does.
                slow = number % 250 < 125
                fleet.network.latency = (0.6, 0.6) if slow else (0.01, 0.01)
                await publish(a, "t", number)
                await trio.sleep(0.05)
            fleet.network.latency = (0.01, 0.01)
            taken = await collect(events)
            assert ([event.payload for event in taken], missed(taken)) == (list(range(1000)), 0)
