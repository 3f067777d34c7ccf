"""Parts of a node, for those that build on it."""

from __future__ import annotations

from typing import NamedTuple, final

from iris.cluster.membership import Membership, RevocationExchange
from iris.cluster.mesh import Mesh
from iris.cluster.sites import Sites
from iris.kernel.config import Config
from iris.node.environment import Environment
from iris.patterns.pubsub import PubSub


@final
class NodeParts(NamedTuple):
    """The parts of a node; ``sites`` is None if it is at no named site."""

    mesh: Mesh
    membership: Membership
    sites: Sites | None
    pubsub: PubSub
    environment: Environment
    config: Config
    revoking: RevocationExchange
