"""Events with made-up numbers at a bridge: their sender harms no other, and the counters can still be reported."""

from __future__ import annotations

from pathlib import Path

from iris.kernel.wire import kinds
from iris.spark_bridge.admin import read_status
from iris.spark_bridge.client.client import BridgeClient
from iris.testing import open_network
from tests.spark_bridge.server.test_bridge import bridge_node
from tests.support.arrivals import stored
from tests.support.waiting import wait_until

LARGEST = 2**62


async def test_numbers_beyond_all_bounds_end_no_bridge_and_leave_its_counters_readable(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        bridge_node(network, tmp_path) as bridge,
        network.open_node("publisher") as publisher,
        network.open_parts("villain") as (villain, villain_parts),
    ):
        await publisher.wait_for("bridge")
        await villain.wait_for("bridge")
        (victim,) = [node for node in villain_parts.mesh.peers if node != publisher.id]

        def send(topic: str, sequence: int, confirm: int, *payloads: bytes) -> None:
            message = kinds.Events(topic, sequence, confirm, None, None, None, payloads, ())
            villain_parts.mesh.post(victim, message, 100)
            villain_parts.mesh.peers[victim].link.end_batch()  # a batch is refused as a whole

        send("a.b", 1, 2**64 - 1, b"1", b"2")  # the confirmation of the second one had no form on the wire
        send("a.b", 2**64 - 1, 0, b"1", b"2")
        send("a.b", LARGEST, LARGEST, b"1", b"2")
        for number in range(6):  # each is a gap
            send(f"a.c{number}", 1, 0, b"first")
            send(f"a.c{number}", LARGEST, 0, b"last")
        send("a.d", 1, LARGEST, b"confirmed")
        await wait_until(lambda: bridge.statistics().stored == 13)
        await publisher.publish_confirmed("a.b", b"honest")
        assert stored(bridge.store)[-1] == b"honest"
        assert bridge.statistics().missed == LARGEST
        status = await read_status(BridgeClient(publisher, "bridge", patience=5))
        assert [counters["missed"] for counters in status.counters.values()] == [LARGEST]
