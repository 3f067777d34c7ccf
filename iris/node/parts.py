"""Parts of a node, for what is built on it inside of Iris, and for its tests."""

from __future__ import annotations

from typing import NamedTuple, final

from iris.cluster.discovery import ReturnAddress, Seeds
from iris.cluster.membership import Lookups, Membership, RevocationExchange
from iris.cluster.mesh import Mesh
from iris.cluster.sites import Reach, Sites
from iris.cluster.swim import ClientView, Swim
from iris.kernel.config import Config
from iris.kernel.transport import Transport
from iris.node.build import Patterns
from iris.node.environment import Environment
from iris.node.join import Joined


@final
class NodeParts(NamedTuple):
    """The parts of a node.

    Attributes:
        transport: connections of the mesh.
        view: members as they are seen.
        sites: other sites as the node reaches them.  None if it is at no named site.
        lookups: search for members.  None if the node is no client.
        reach: links to members that are not linked before they are asked.
        seeds: where the user says that other nodes are.
        reception: where the node listens, and has it listen before it serves.
    """

    mesh: Mesh
    transport: Transport
    view: Swim | ClientView
    membership: Membership
    sites: Sites | None
    lookups: Lookups | None
    reach: Reach
    revoking: RevocationExchange
    seeds: Seeds
    reception: ReturnAddress
    joined: Joined
    patterns: Patterns
    environment: Environment
    config: Config
