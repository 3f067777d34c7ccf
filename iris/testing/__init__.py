"""Clusters in one process: nodes on a network in memory, on a virtual clock, with faults from a seed.

::

    async def test_orders(autojump_clock):
        async with iris.testing.open_network(seed=1) as network:
            async with network.open_node("orders") as member, network.open_node("shop") as shop:
                async with member.join("orders", service):
                    await shop.wait_for("orders")
                    assert await shop.request("orders", b"status") == b"open"

Everything but the network is the real thing: handshakes, sealed sessions, membership, patterns.  ``simulate`` runs a
test under many seeds, each with its own order of tasks, latencies and faults; the same seed gives the same run.
"""

from iris.kernel.transport import MemoryNetwork
from iris.security.identity import Rights
from iris.testing import faults
from iris.testing.checks import History, check_answers, check_at_most_once, check_books, check_fifo
from iris.testing.faults import CALM, CHAOS, Faults, Schedule
from iris.testing.inspection import DocumentInspection, Inspection, PeerInspection, inspect, inspect_document
from iris.testing.network import ALL_RIGHTS, Network, open_network
from iris.testing.simulate import SimulationFailed, simulate
from iris.testing.world import World

__all__ = (
    "ALL_RIGHTS", "CALM", "CHAOS", "DocumentInspection", "Faults", "History", "Inspection", "MemoryNetwork", "Network",
    "PeerInspection", "Rights", "Schedule", "SimulationFailed", "World", "check_answers", "check_at_most_once",
    "check_books", "check_fifo", "faults", "inspect", "inspect_document", "open_network", "simulate",
)  # fmt: skip
