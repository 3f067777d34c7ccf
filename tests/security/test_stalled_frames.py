"""A member whose connection stands still in the middle of a frame is given up, and its connection closed."""

from __future__ import annotations

import os

import trio

import iris
from iris.security.keyring import create_realm, issue_cluster
from tests.support.tapped import TappedTransport, Wire


async def test_a_connection_that_stalls_within_a_frame_is_closed_within_ten_seconds() -> None:
    _, credential = issue_cluster(
        create_realm(os.urandom), "store", entropy=os.urandom, wall_now=iris.Environment().wall_clock()
    )
    async with trio.open_nursery() as nursery:
        wire, other = Wire(nursery), Wire(nursery)

        def environment(tap: Wire) -> iris.Environment:
            return iris.Environment(transport=lambda config: TappedTransport(config, tap), directory=None, lan=None)

        listen = ["tcp://127.0.0.1:0"]
        async with (
            iris.open_node(credential=credential, listen=listen, environment=environment(wire)) as node,
            iris.open_node(
                credential=credential, listen=listen, seeds=node.addresses, environment=environment(other)
            ) as member,
        ):
            await node.wait_ready()
            while member.id not in node.statistics().links:  # noqa: ASYNC110 -- links tell nobody
                await trio.sleep(0.01)
            assert len(node._mesh._inbound) == 1
            began = trio.current_time()
            wire.stalls = True
            with trio.fail_after(20):
                while not wire.hung_up_at:  # noqa: ASYNC110 -- nor do taps
                    await trio.sleep(0.01)
            # nng shows nothing of it; the member answers no probes any more.
            assert 1 < wire.hung_up_at[0] - began < 10
        nursery.cancel_scope.cancel()
