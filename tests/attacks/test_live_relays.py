"""Two nodes that only dial out, and members between them that lie: what a relay costs whom, and whom it can hurt."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from iris.cluster.mesh import Mesh
from iris.cluster.mesh.peer import Peer
from iris.kernel.wire import kinds
from iris.kernel.wire.kinds import Message
from tests.support.stages import Stage, open_stage
from tests.support.waiting import wait_until


def carry_nothing(mesh: Mesh) -> None:
    """Have a member carry nothing for others, and say nothing of that."""

    def drop(_: Peer, message: Message) -> None:
        """Receive a frame for others."""

    mesh.receivers.own[kinds.Forward] = drop


async def listeners(stage: Stage, *names: str) -> list[Mesh]:
    return [stage.parts[(await stage.node(name)).id].mesh for name in names]


async def test_a_member_without_addresses_costs_nobody_else_a_link(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        stage.harmless = ("RemoteProtocolError",)  # the frame is none
        (left,) = await listeners(stage, "left")
        liar, one = await stage.node("liar", dial_only=True), await stage.node("one", dial_only=True)
        await trio.sleep(1)
        left.peers[liar.id].addresses = ()  # as by a second handshake, begun while the link of the first one ends
        stage.parts[one.id].mesh.post(left.node, kinds.Forward(bytes.fromhex(liar.id), b"frame"), 5)
        await trio.sleep(1)
        assert not [reason for reason in left.refusals if "unexpected" in reason]
        assert one.id in left.peers


async def test_relays_that_drop_what_they_are_to_carry_part_nobody_for_good(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        stage.harmless = ("handshake",)
        for mesh in (await listeners(stage, "a", "b", "c"))[:2]:
            carry_nothing(mesh)
        one, two = await stage.node("one", dial_only=True), await stage.node("two", dial_only=True)
        await wait_until(lambda: two.id in stage.parts[one.id].mesh.peers, pause=0.5)
