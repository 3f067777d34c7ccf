"""Public names of iris.testing, which imports this module when the first one is read."""

# Not "from iris.testing": that asks the package, and the package asks this module.
import iris.testing.faults as faults
from iris.kernel.transport import MemoryNetwork
from iris.security.identity import Rights
from iris.testing.checks import History, check_answers, check_at_most_once, check_books, check_fifo
from iris.testing.faults import CALM, CHAOS, Faults, Schedule
from iris.testing.inspection import DocumentInspection, Inspection, PeerInspection, inspect, inspect_document
from iris.testing.network import ALL_RIGHTS, Network, open_network
from iris.testing.simulation import SimulationFailed, simulate
from iris.testing.world import World

__all__ = (
    "ALL_RIGHTS", "CALM", "CHAOS", "DocumentInspection", "Faults", "History", "Inspection", "MemoryNetwork", "Network",
    "PeerInspection", "Rights", "Schedule", "SimulationFailed", "World", "check_answers", "check_at_most_once",
    "check_books", "check_fifo", "faults", "inspect", "inspect_document", "open_network", "simulate",
)  # fmt: skip
