"""Parts of a node, for those that build on it."""

from __future__ import annotations

from typing import NamedTuple, final

from iris.cluster.membership import Lookups, Membership, RevocationExchange
from iris.cluster.mesh import Mesh
from iris.cluster.sites import Reach, Sites
from iris.kernel.config import Config
from iris.node.environment import Environment
from iris.node.join import Joined
from iris.patterns.pubsub import PubSub


@final
class NodeParts(NamedTuple):
    """The parts of a node.

    Attributes:
        sites: other sites as the node reaches them.  None if it is at no named site.
        lookups: search for members.  None if the node is no client.
    """

    mesh: Mesh
    membership: Membership
    sites: Sites | None
    pubsub: PubSub
    environment: Environment
    config: Config
    revoking: RevocationExchange
    joined: Joined
    lookups: Lookups | None

    @property
    def reach(self) -> Reach | None:
        """Links to members that are not linked before they are asked.  None if all are."""
        return self.lookups or self.sites
