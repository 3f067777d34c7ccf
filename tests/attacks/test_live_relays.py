"""Two nodes that only dial out, and members between them that lie: what a relay costs whom, and whom it can hurt."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from iris.cluster.mesh import Mesh
from iris.cluster.mesh.peer import Peer
from iris.kernel.wire import kinds
from iris.kernel.wire.kinds import Message
from tests.support.stages import Stage, open_stage


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
        began = trio.current_time()
        with trio.fail_after(120):
            while two.id not in stage.parts[one.id].mesh.peers:
                await trio.sleep(0.5)
        print("linked after", trio.current_time() - began)


async def test_many_callers_behind_one_address_and_long_lines_get_their_links(autojump_clock: MockClock) -> None:
    async with open_stage(latency=(0.4, 1.0)) as stage:
        stage.harmless = ("handshake", "dial", "too many", "first frame")
        office = await stage.node("office")
        began = trio.current_time()
        names = [f"web-{number}" for number in range(40)]

        async def enter(name: str, number: int) -> None:
            await stage.node(name, dial_only=True)

        for number, name in enumerate(names):
            await enter(name, number)
        with trio.fail_after(120):
            while len(stage.parts[office.id].mesh.peers) < len(names):
                await trio.sleep(0.5)
        print("linked after", trio.current_time() - began)
        stage.forget_accounts()
