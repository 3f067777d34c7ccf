"""A node's own first frames come back to it: from somebody who listens to the network, or because it dialled itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from iris.kernel import wire
from iris.kernel.errors import NotSent
from iris.kernel.transport.port import OutgoingConnection
from iris.security.channel.admission import FIRST_FRAMES
from tests.support.meshes import Fleet, MeshNode, open_meshes
from tests.support.transports import ignore

FAR = 0.3
"""Seconds that the eavesdropper is quicker than the other node's answer."""

OWN = "first frame of this node itself"


@asynccontextmanager
async def eavesdropper(fleet: Fleet, victim: MeshNode, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[bytes]]:
    """Send each first frame of a node back to it at once, over a new connection; yield the frames."""
    transport = fleet.network.transport("eavesdropper", 1 << 20)
    handshakes = victim.mesh._handshakes
    send = handshakes._send
    seen: list[bytes] = []
    ways: list[OutgoingConnection] = []

    async def overheard(outgoing: OutgoingConnection, frame: bytes) -> None:
        await send(outgoing, frame)
        if frame[0] == wire.HANDSHAKE_INIT:
            seen.append(frame)
            ways.append(await transport.dial(victim.url, ignore))
            assert ways[-1].send_nowait(frame)

    monkeypatch.setattr(handshakes, "_send", overheard)
    try:
        yield seen
    finally:
        for way in ways:
            way.close()
        transport.close()


def slow_down(node: MeshNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a node answer first frames later than the eavesdropper."""
    handshakes = node.mesh._handshakes
    send = handshakes._send

    async def late(outgoing: OutgoingConnection, frame: bytes) -> None:
        if frame[0] == wire.HANDSHAKE_RESPONSE:
            await trio.sleep(FAR)
        await send(outgoing, frame)

    monkeypatch.setattr(handshakes, "_send", late)


async def test_a_copy_of_its_own_first_frame_does_not_end_a_handshake(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_meshes("a", "b", linked=False) as fleet:
        a, b = fleet["a"], fleet["b"]
        slow_down(b, monkeypatch)
        async with eavesdropper(fleet, a, monkeypatch) as seen:
            await a.mesh.connect([b.url], expected=b.id)
            await trio.sleep(1)
        assert a.mesh.refusals[OWN] == len(seen) == 1
        assert b.id in a.mesh.peers
        assert a.id in b.mesh.peers


async def test_copies_do_not_keep_a_link_from_being_renewed(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_meshes("a", "b") as fleet:
        for node in fleet["a"], fleet["b"]:
            slow_down(node, monkeypatch)
        async with (
            eavesdropper(fleet, fleet["a"], monkeypatch) as seen_of_a,
            eavesdropper(fleet, fleet["b"], monkeypatch) as seen_of_b,
        ):
            await trio.sleep(400)
        assert len(seen_of_a) + len(seen_of_b) >= 3
        for node in fleet["a"], fleet["b"]:
            assert node.mesh.peers
            assert node.log.reasons == []


async def test_where_nobody_else_answers_the_reason_is_said_within_seconds(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_meshes("a", "b", linked=False) as fleet:
        a, b = fleet["a"], fleet["b"]
        b.transport.pause()
        began = trio.current_time()
        async with eavesdropper(fleet, a, monkeypatch):
            with pytest.raises(NotSent, match="mem://b is the address of this node itself"):
                await a.mesh.connect([b.url])
        assert 1 <= trio.current_time() - began < 1.5


async def test_a_recorded_first_frame_is_opened_as_often_by_its_sender_as_by_others(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_meshes("a", "b", linked=False) as fleet:
        a, b = fleet["a"], fleet["b"]
        async with eavesdropper(fleet, a, monkeypatch) as seen:
            await a.mesh.connect([b.url])
        transport = fleet.network.transport("late", 1 << 20)
        for _ in range(20):
            way = await transport.dial(a.url, ignore)
            assert way.send_nowait(seen[0])
            await trio.sleep(0.1)
            way.close()
        transport.close()
        assert a.mesh.refusals[OWN] == FIRST_FRAMES
        assert a.mesh.refusals["first frame that was sent too often"] == 20 + 1 - FIRST_FRAMES
        assert a.mesh.refusals["junk from a stranger"] >= FIRST_FRAMES
        assert b.id in a.mesh.peers
