"""A member whose connection stands still in the middle of a frame is given up, and its connection closed."""

from __future__ import annotations

import contextlib
import os
import struct
from contextlib import AsyncExitStack

import trio

import iris
from iris.cluster.mesh.mesh import Mesh
from iris.kernel import wire
from iris.kernel.config import Config
from iris.kernel.transport.network import NetworkTransport
from iris.kernel.transport.sp import GREETING
from iris.node.open import open_parts
from iris.security.authority.issuing import create_realm, issue_cluster
from tests.support.admission import open_reading_mesh
from tests.support.mesh_cases import MARK
from tests.support.realms import WALL, TestRealm
from tests.support.tapped import TappedTransport, Wire


async def test_a_member_cannot_stand_still_within_a_frame_by_a_second_connection() -> None:
    """It is alive by its first one, so nothing else would end the second."""
    config = Config(frame_timeout=0.5)
    realm = TestRealm()
    async with AsyncExitStack() as stack:
        meshes: list[Mesh] = []
        for name in ("node", "member"):
            transport = NetworkTransport(config)
            listening = await transport.listen(["tcp://127.0.0.1:0"])
            mesh = open_reading_mesh(
                realm.identity(name),
                transport,
                listening,
                config=config,
                entropy=os.urandom,
                wall_clock=lambda: WALL,
            )
            meshes.append(await stack.enter_async_context(mesh))
        node, member = meshes
        peer = await member.connect(node.listening)
        await member.barrier(node.node)
        assert peer.session is not None
        stream = await trio.open_tcp_stream("127.0.0.1", int(node.listening[0].rpartition(":")[2]))
        heard = trio.Event()
        node.register(MARK, lambda peer, message: heard.set())
        frame = peer.session.seal(wire.encode_batch([MARK(1)]))
        began = trio.current_time()
        async with stream:
            await stream.send_all(
                GREETING + struct.pack(">Q", len(frame)) + frame + struct.pack(">Q", 2**20) + bytes(1000)
            )
            assert await stream.receive_some(8) == b"\0SP\0\0\x51\0\0"
            await heard.wait()
            assert node.statistics().inbound == 2
            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:

                    async def be_healthy() -> None:
                        while True:
                            await member.barrier(node.node)
                            with contextlib.suppress(trio.BrokenResourceError):
                                await stream.send_all(b"x")  # which is no progress worth the name
                            await trio.sleep(0.05)

                    nursery.start_soon(be_healthy)
                    with contextlib.suppress(trio.BrokenResourceError):
                        assert await stream.receive_some(8) == b""
                    nursery.cancel_scope.cancel()
        assert trio.current_time() - began > 0.4
        assert node.refusals["no whole frame of a member in time"] == 1
        await member.barrier(node.node)
        assert member.node in node.peers
        assert node.statistics().inbound == 1


async def test_a_connection_that_stalls_within_a_frame_is_closed_with_the_verdict_on_its_member() -> None:
    _, credential = issue_cluster(
        create_realm(os.urandom), "store", entropy=os.urandom, wall_now=iris.Environment().wall_clock()
    )
    async with trio.open_nursery() as nursery:
        wire, other = Wire(nursery), Wire(nursery)

        def environment(tap: Wire) -> iris.Environment:
            return iris.Environment(transport=lambda config: TappedTransport(config, tap), directory=None, lan=None)

        listen = ["tcp://127.0.0.1:0"]
        async with (
            open_parts(credential=credential, listen=listen, environment=environment(wire)) as (node, parts),
            iris.open_node(
                credential=credential, listen=listen, seeds=node.addresses, environment=environment(other)
            ) as member,
        ):
            await parts.patterns.pubsub.wait_interest_exchanged()
            while member.id not in node.statistics().links:  # noqa: ASYNC110 -- there is no event
                await trio.sleep(0.01)
            assert parts.mesh.statistics().inbound == 1
            began = trio.current_time()
            wire.stalls = True
            with trio.fail_after(60):
                while not wire.hung_up_at:  # noqa: ASYNC110 -- nor do taps
                    await trio.sleep(0.01)
            # nng shows nothing of it; the member answers no probes any more.
            assert wire.hung_up_at[0] - began > 1
        nursery.cancel_scope.cancel()
