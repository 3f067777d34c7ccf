"""Handshakes that cross: both ends go on in the same session."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from tests.support.meshes import open_meshes


async def test_two_renewals_at_once_cut_neither_way(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        await trio.sleep(1)
        a, b = fleet["a"].mesh, fleet["b"].mesh
        async with trio.open_nursery() as nursery:
            for mesh, peer in ((a, a.peers[b.node]), (b, b.peers[a.node])):
                assert peer.link.outgoing is not None
                nursery.start_soon(mesh.renew_session, peer, peer.link.outgoing)
        with trio.fail_after(2):
            await a.barrier(b.node)
            await b.barrier(a.node)


async def test_nodes_that_all_have_new_certificates_at_once_stay_linked(autojump_clock: MockClock) -> None:
    names = [f"n{number}" for number in range(6)]
    async with open_meshes(*names, seed=1, latency=(0.005, 0.03)) as fleet:
        meshes = [fleet[name].mesh for name in names]
        await trio.sleep(3)
        for mesh in meshes:
            mesh._renewing._stale = trio.current_time()
        await trio.sleep(5)
        for one in meshes:
            for other in meshes:
                if one is not other:
                    with trio.fail_after(2):
                        await one.barrier(other.node)
