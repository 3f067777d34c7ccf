"""Gaps of a bridge among nodes: unreported events that it never got, and never one that is in the log."""

from __future__ import annotations

from pathlib import Path

import trio

from iris.kernel.errors import RequestTimeout
from iris.node.node import Node
from iris.testing import open_network
from tests.support.arrivals import stored
from tests.support.bridge_members import open_member


async def publish_until_stored(node: Node, number: int) -> int:
    """Publish an event again after each error; return how often it was in vain."""
    vain = 0
    while True:
        try:
            await node.publish_confirmed("orders", b"%d" % number, timeout=0.1)
        except RequestTimeout:
            vain += 1
        else:
            return vain


async def test_events_that_are_confirmed_at_the_second_attempt_are_no_gaps(tmp_path: Path) -> None:
    done = 0

    async def publish(number: int) -> None:
        nonlocal done
        await publish_until_stored(node, number)
        done += 1

    async with open_network() as network, network.open_parts("shop") as (node, node_parts):
        async with open_member(network, tmp_path):
            await node.wait_for("bridge")
            await publish(0)
        async with trio.open_nursery() as nursery:
            for number in range(1, 21):
                nursery.start_soon(publish, number)
                await trio.sleep(0.01)
            async with open_member(network, tmp_path) as member:
                while done < 21:  # noqa: ASYNC110 -- there is no event
                    await trio.sleep(0.01)
                assert set(stored(member.store)) == {b"%d" % number for number in range(21)}
                assert member.store.reader.gaps() == []
                await publish(21)
                assert member.store.reader.gaps() == []
                assert member.statistics().missed == 0
        assert not node_parts.patterns.pubsub.publishing.resolve("orders").withdrawn, "every bridge knows by now"


async def test_what_nobody_was_told_of_is_a_gap_and_a_consumer_is_told_of_it(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("shop") as node:
        async with open_member(network, tmp_path):
            await node.wait_for("bridge")
            await publish_until_stored(node, 0)
            await node.publish_confirmed("other", b"first")
        try:
            await node.publish_confirmed("orders", b"in vain", timeout=0.05)
        except RequestTimeout:
            for _ in range(3):
                await node.publish("orders", b"lost")
                await node.publish("other", b"lost")
        async with open_member(network, tmp_path) as member:
            await node.wait_for("bridge")
            await publish_until_stored(node, 1)
            await node.publish_confirmed("other", b"last")
            assert {gap.topic: gap.count for gap in member.store.reader.gaps()} == {"orders": 3, "other": 3}
            async with node.bridge().consume("orders", group="billing") as orders:
                gaps = count = 0
                while count < 2:
                    async with await anext(orders) as batch:
                        gaps += batch.gaps
                        count += len(batch)
                assert gaps == 3
                await publish_until_stored(node, 2)
                assert (await anext(orders)).gaps == 0
            async with node.bridge().consume("orders", group="billing") as orders:
                assert (await anext(orders)).gaps == 0
