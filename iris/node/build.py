"""Build: the patterns of a node, each made with what it needs, in the order in which they need each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, final

from iris.cluster.membership import Lookups, Membership
from iris.cluster.mesh import Mesh
from iris.cluster.sites import Reach
from iris.node.calls import Calls, FirstMembers
from iris.node.environment import Environment
from iris.node.run_guard import RunGuard
from iris.patterns.books import Bookkeeper
from iris.patterns.multicast import Broadcasts, Relays, Surveys
from iris.patterns.pubsub import Elsewhere, OpenSubscriptions, PubSub
from iris.patterns.request import Requests
from iris.patterns.service import Server, Tunnels, WorkerPools

if TYPE_CHECKING:
    from iris.node.telemetry.tracing import Tracing


@final
class Patterns(NamedTuple):
    """The patterns of a node.

    Attributes:
        tracing: joins calls and handlers to traces.  None if the program traces nothing.
    """

    guard: RunGuard
    tracing: Tracing | None
    books: Bookkeeper
    requests: Requests
    first: FirstMembers
    calls: Calls
    relays: Relays
    broadcasts: Broadcasts
    surveys: Surveys
    pubsub: PubSub
    serving: Server
    tunnels: Tunnels


def build_patterns(
    mesh: Mesh,
    membership: Membership,
    memberships: WorkerPools,
    *,
    reach: Reach | None,
    elsewhere: Elsewhere | None,
    lookups: Lookups | None,
    environment: Environment,
    tracing: Tracing | None,
) -> Patterns:
    """Make the patterns of a node.  Nothing runs before ``Node`` runs it."""
    config = mesh.config
    guard = RunGuard()
    subscriptions = OpenSubscriptions(tracing)
    books = Bookkeeper(mesh, subscriptions)
    ledger = books.ledger
    requests = Requests(mesh, membership, config, ledger, reach)
    books.under_way.append(requests.under_way)
    first = FirstMembers(membership, lookups, guard)
    calls = Calls(requests, first, reach, guard, tracing, environment.entropy)
    relays = Relays(mesh, membership)
    broadcasts = Broadcasts(mesh, membership, config, relays, ledger)
    surveys = Surveys(mesh, requests, membership, relays, config)
    pubsub = PubSub(mesh, books, subscriptions, membership, relays.tally, elsewhere)
    serving = Server(mesh, relays, books, memberships, bridges=calls, observer=tracing)
    tunnels = Tunnels(mesh, membership, serving, config, books)
    membership.on_suspected(requests.peer_unreachable)
    membership.proofs.on_lost(tunnels.member_expelled)
    return Patterns(
        guard, tracing, books, requests, first, calls, relays, broadcasts, surveys, pubsub, serving, tunnels
    )
