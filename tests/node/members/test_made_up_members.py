"""The holder of one cluster's credential makes up members at addresses of his choice: what nodes do about it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import final

import trio
from trio.testing import MockClock

import iris
from iris.cluster.membership.proofs import ProofVerifier, proof_of
from iris.cluster.swim.local_member import signed
from iris.cluster.swim.records import ClusterEntry, NodeRecord
from iris.kernel.config import Config
from iris.kernel.wire import kinds
from iris.testing import Network, open_network

_FIELD = "somewhere"


@final
class Bystander:
    """A listener at an address that is no node: closes every connection, and counts them."""

    def __init__(self, network: Network, host: str) -> None:
        self.host = host
        self.dials = 0
        self._transport = network.memory.transport(host)
        self._transport.observe(self)

    async def listen(self) -> None:
        await self._transport.listen([f"mem://{self.host}:1", f"mem://{self.host}:2"])

    def connection_opened(self, connection: int, address: str | None) -> None:
        self.dials += 1
        self._transport.hang_up(connection)

    def connection_closed(self, connection: int) -> None:
        """See ``ConnectionObserver``."""

    def connections_refused(self, count: int) -> None:
        """See ``ConnectionObserver``."""


def make_up(network: Network, cluster: str, count: int, *addresses: str) -> list[NodeRecord]:
    """Return records of nodes that there are not, signed as they must be."""
    credential = network.credential(cluster)
    records: list[NodeRecord] = []
    for _ in range(count):
        identity = credential.new_identity(network._random.randbytes, network.wall_clock())
        record = NodeRecord(
            node=identity.node_id,
            name=cluster,
            proof=proof_of(identity.certificate, identity.delegation),
            addresses=addresses,
            clusters=(ClusterEntry(name=cluster),),
        )
        records.append(signed(record, ProofVerifier(identity, network.wall_clock)))
    return records


def tell(member: iris.Node, records: list[NodeRecord]) -> None:
    """Have a member report these to all nodes that it is linked to."""
    for begin in range(0, len(records), 20):
        updates = tuple(record.as_update() for record in records[begin : begin + 20])
        for peer in member._mesh.peers.values():
            peer.link.post(kinds.State(False, updates), 20_000)


async def test_hundreds_of_members_that_one_made_up_have_few_dials_made_and_keep_nobody_out(
    autojump_clock: MockClock,
) -> None:
    config = Config(member_limit=200, records_per_cluster_key=100, failed_dials=20)
    async with open_network() as network, AsyncExitStack() as stack:
        bystander = Bystander(network, _FIELD)
        await bystander.listen()
        service = iris.Service("good")
        honest = [
            await stack.enter_async_context(network.open_node("good", host=f"good-{number}", config=config))
            for number in range(3)
        ]
        bad = await stack.enter_async_context(network.open_node("bad", host="bad", config=config))
        tell(bad, make_up(network, "bad", 300, f"mem://{_FIELD}:1", f"mem://{_FIELD}:2"))
        began = trio.current_time()
        await trio.sleep(5.0)
        tell(bad, make_up(network, "bad", 50, f"mem://{_FIELD}:1"))
        newcomer = await stack.enter_async_context(network.open_node("good", host="late", config=config))
        await stack.enter_async_context(newcomer.join("good", service))
        await honest[0].wait_for("good", 1)
        seconds = trio.current_time() - began
        for node in honest:
            assert len(node._membership._records) <= 100 + 6
        each = config.failed_dials + config.failed_dial_rate * seconds
        assert 5 * config.failed_dials < bystander.dials <= 5 * (each + 1), "by five nodes; thousands without limits"
        assert honest[0].statistics().refusals["dial to a host where nobody was found"] > 0
        await trio.sleep(2.0)
        for node in (*honest, newcomer):
            assert {other.id for other in (*honest, newcomer) if other is not node} <= set(node._mesh.peers)


async def test_a_member_of_the_same_cluster_gets_in_although_made_up_ones_have_all_places(
    autojump_clock: MockClock,
) -> None:
    config = Config(records_per_cluster_key=50)
    async with open_network() as network, AsyncExitStack() as stack:
        honest = await stack.enter_async_context(network.open_node("good", host="good", config=config))
        bad = await stack.enter_async_context(network.open_node("bad", host="bad"))
        tell(bad, make_up(network, "bad", 200, "mem://nobody:1"))
        await trio.sleep(0.5)
        assert len(honest._membership._records) >= 50
        newcomer = await stack.enter_async_context(network.open_node("bad", host="late"))
        await trio.sleep(1.0)
        assert newcomer.id in honest._membership._records
        assert newcomer.id in honest._mesh.peers
