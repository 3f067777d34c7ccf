"""What joining a cluster takes, and what it gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from iris._environment import Environment
from iris.cluster.papers import proof_of, serves_by_right
from iris.kernel.errors import ConfigError
from iris.patterns.member import ServiceStatistics
from iris.security.credential import Credential
from iris.security.identity import NodeIdentity


@final
class ClusterMembership:
    """This node as a member of a cluster.  Made by ``node.join``."""

    def __init__(self, cluster: str, statistics: Callable[[], ServiceStatistics]) -> None:
        self.cluster: Final[str] = cluster
        self._statistics = statistics

    def statistics(self) -> ServiceStatistics:
        """Return a snapshot of the counters."""
        return self._statistics()


def proof_for(cluster: str, credential: Credential | None, identity: NodeIdentity, environment: Environment) -> bytes:
    """Return what shows that a node may serve a cluster; nothing if its own certificate does.

    Raises:
        ConfigError: it may not, or the credential is for another cluster.
    """
    if serves_by_right(identity.certificate, cluster):
        return b""
    if credential is None:
        raise ConfigError(
            f"this node speaks for the cluster {identity.cluster!r} and has no right to serve {cluster!r}: pass a "
            f"credential of {cluster!r} to join"
        )
    if credential.name != cluster:
        raise ConfigError(f"the credential is for the cluster {credential.name!r} and not for {cluster!r}")
    delegation = credential.delegate(identity, environment.wall_clock())
    return proof_of(credential.certificate, delegation)
