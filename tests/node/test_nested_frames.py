"""Frames inside of frames: each level would be one of the stack, so there is one, or two through gateways."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

import iris
import iris.testing
from iris.cluster.mesh.peer import Peer
from iris.federation.gateway import open_gateway
from iris.kernel import buffer_pool
from iris.kernel.wire import MAX_MESSAGES, kinds
from iris.kernel.wire.kinds import Message
from tests.support.attacks import Attacker, renumbering
from tests.support.messages import fields_of


@asynccontextmanager
async def open_pair(*, gateway: bool = False) -> AsyncIterator[tuple[Attacker, iris.Node, list[int]]]:
    """Open a victim, perhaps a gateway, and an attacker; yield them and the tokens of pings that the victim takes."""
    async with (
        iris.testing.open_network(seed=3) as network,
        network.open_parts("victim", site="here") as (victim, victim_parts),
        network.open_parts("villain", site="here") as (_, villain_parts),
        trio.open_nursery() as nursery,
    ):
        pings: list[int] = []

        def receive(peer: Peer, message: Message) -> None:
            pings.append(fields_of(message)[0])

        if gateway:
            await nursery.start(_be_gateway, victim)
        victim_parts.mesh.receivers.own[kinds.Ping] = receive
        attacker = Attacker(villain_parts.mesh, victim_parts.mesh)
        await attacker.wait_linked()
        await trio.sleep(1)
        pings.clear()
        yield attacker, victim, pings
        nursery.cancel_scope.cancel()


async def _be_gateway(node: iris.Node, task_status: trio.TaskStatus[None]) -> None:
    async with open_gateway(node, listen=["mem://between"]):
        task_status.started()
        await trio.sleep_forever()


@pytest.mark.parametrize("gateway", [False, True])
@pytest.mark.parametrize("kind", [kinds.Forward, kinds.Carry])
@pytest.mark.parametrize("depth", [2, 250, 2000])
async def test_nested_frames_are_an_error_of_their_sender_and_change_nothing(
    autojump_clock: MockClock, kind: type[Message], depth: int, gateway: bool
) -> None:
    async with open_pair(gateway=gateway) as (attacker, victim, pings):
        await attacker.send(attacker.nested(kind, depth))
        await trio.sleep(0.1)
        refusals = victim.statistics().refusals
        assert refusals.get(f"message of kind {kind.__name__}", 0) + refusals.get("RemoteProtocolError", 0) == 1
        assert not [reason for reason in refusals if reason.startswith("unexpected")]
        assert pings == []
        await attacker.send(attacker.seal(kinds.Ping(7)))
        await trio.sleep(0.1)
        assert pings == [7]


@pytest.mark.parametrize("kind", [kinds.Forward, kinds.Carry])
async def test_a_frame_is_taken_out_of_one(autojump_clock: MockClock, kind: type[Message]) -> None:
    async with open_pair() as (attacker, _, pings):
        await attacker.send(attacker.nested(kind, 1))
        await trio.sleep(0.1)
        assert pings == [1]


@pytest.mark.parametrize(
    ("outer", "inner", "taken"), [(kinds.Forward, kinds.Carry, True), (kinds.Carry, kinds.Forward, False)]
)
async def test_what_comes_through_gateways_may_come_the_last_step_through_another_node(
    autojump_clock: MockClock, outer: type[Message], inner: type[Message], taken: bool
) -> None:
    async with open_pair() as (attacker, _, pings):
        session = attacker.mesh.peers[attacker.victim.node].session
        assert session is not None
        with renumbering(session) as number_next:
            number_next(2)
            frame = attacker.seal(kinds.Ping(7))
            number_next(1)
            frame = attacker.seal(attacker.around(inner, frame))
            number_next(0)
            frame = attacker.seal(attacker.around(outer, frame))
        await attacker.send(frame)
        await trio.sleep(0.1)
        assert pings == ([7] if taken else [])


@pytest.mark.parametrize("kind", [kinds.Forward, kinds.Carry])
async def test_a_genuine_frame_that_is_too_much_is_reported_to_its_sender_as_lost(
    autojump_clock: MockClock, kind: type[Message]
) -> None:
    async with open_pair() as (attacker, victim, pings):
        resets: list[Peer] = []
        attacker.mesh.receivers.own[kinds.Reset] = lambda peer, _: resets.append(peer)
        many = tuple(kinds.Ping(number) for number in range(MAX_MESSAGES))
        await attacker.send(attacker.carried(kind, many, many, many))
        await trio.sleep(1)
        assert len(pings) == 2 * MAX_MESSAGES
        assert len(resets) == 1
        assert victim.statistics().refusals["TooMuchWork"] == 1


@pytest.mark.parametrize("carried", [False, True])
async def test_large_frames_that_are_refused_take_no_memory_of_the_pool(
    autojump_clock: MockClock, carried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_pair() as (attacker, victim, _):
        made: list[int] = []

        class Made(bytearray):
            def __init__(self, size: int) -> None:
                super().__init__(size)
                made.append(size)

        monkeypatch.setattr(buffer_pool, "bytearray", Made, raising=False)
        session = attacker.mesh.peers[attacker.victim.node].session
        assert session is not None
        for number in range(40):
            with renumbering(session) as number_next:
                number_next(carried)
                frame = bytearray(attacker.seal_batch(b"\xc1" * 100_000))  # genuine, and no batch
                if number % 2:
                    frame[5000] ^= 1  # forged
                number_next(0)
                if carried:
                    frame = bytearray(attacker.seal(attacker.around(kinds.Forward, bytes(frame))))
            await attacker.send(bytes(frame))
            await trio.sleep(0.1)
        assert victim.statistics().refusals["RemoteProtocolError"] == 20
        assert victim.statistics().refusals["AuthenticationError"] >= 20
        assert len(made) <= 4
