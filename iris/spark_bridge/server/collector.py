"""Collector: broadcasts and tunnels to a cluster become events of the log.

A bridge that collects for the cluster ``orders`` is a member of it.  A broadcast becomes an event on the topic
``broadcasts.orders``.  Each message of a tunnel becomes an event on ``tunnels.orders``.  Its key names the tunnel, so
all messages of the tunnel stand in one shard in their order, and its header ``position`` counts them from 0.  At the
end of file the other end gets the number of messages as soon as they are on the disk.

A broadcast is stored at most once, as it is delivered.  A tunnel that breaks may be stored in part; the sender that
sends it again finds the parts by their keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import trio

from iris.kernel.config import MIB
from iris.kernel.names import Entropy
from iris.kernel.wire import encode_payload
from iris.patterns.messages import Message, Sender
from iris.patterns.pubsub.subscribe import EventRun, single_run
from iris.patterns.service import Service
from iris.patterns.tunnel import Tunnel
from iris.spark_bridge.server.member import BridgeMember

_LARGEST: Final = 16 * MIB
"""Payloads were within the node's own limit when they arrived."""

_ID_BYTES: Final = 8


def gathering_service(cluster: str, member: BridgeMember, entropy: Entropy) -> Service:
    """Return the service of a bridge's member in a cluster for which it gathers.

    Args:
        cluster: name of the cluster.
        member: stores.
        entropy: names tunnels.
    """
    service = Service(cluster)

    @service.broadcast
    async def receive_broadcast(message: Message) -> None:
        topic = f"broadcasts.{cluster}"
        if member.sharding.owns(None, message.sender.node, topic):  # every member of the bridge gets it
            await member.append([_event(topic, message.payload, message.sender, None, message.headers)])

    @service.tunnel
    async def receive_tunnel(tunnel: Tunnel) -> None:
        topic = f"tunnels.{cluster}"
        key = entropy(_ID_BYTES).hex()
        while not member.sharding.owns(key, tunnel.sender.node, topic):
            key = entropy(_ID_BYTES).hex()
        position = 0
        async for payload in tunnel:
            await member.append([_event(topic, payload, tunnel.sender, key, {"position": str(position)})])
            position += 1
        stored = trio.Event()
        await member.append([], stored.set)
        await stored.wait()
        await tunnel.send(position)

    return service


def _event(topic: str, payload: object, sender: Sender, key: str | None, headers: Mapping[str, str]) -> EventRun:
    encoded = encode_payload(payload, _LARGEST)
    return single_run(sender, topic, headers, key, encoded)
