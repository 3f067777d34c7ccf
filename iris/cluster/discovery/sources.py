"""Sources of addresses: where a node looks for others, and whom it tells of those that it finds."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from iris.cluster.discovery.address_book import AddressBook
from iris.cluster.discovery.local_network import LocalNetwork
from iris.cluster.discovery.registry import Registry
from iris.cluster.discovery.seeds import Seeds
from iris.kernel.names import NodeId


class Sources(NamedTuple):
    """The sources of one node."""

    seeds: Seeds
    """Places at which the user says that nodes are."""
    registry: Registry | None
    """The registry of this machine."""
    lan: LocalNetwork | None
    """The announcements on the local network."""
    book: AddressBook
    """Addresses that were good before."""


class FoundNodes(Protocol):
    """The part that is told of nodes that were found: the membership."""

    async def introduce(self, node: NodeId, *, by_chance: bool = False) -> None:
        """A node was newly linked.  Returns when the memberships have been exchanged.

        Args:
            node: it.
            by_chance: it was drawn among all that are there, so that it is as good as any to keep a link to.
        """
        ...

    def addresses(self) -> set[str]:
        """Return the addresses that those have by their own word who are held alive.  Must not block."""
        ...

    def knows(self, node: NodeId) -> bool:
        """Return whether a node is held alive, so that the link to it is looked after.  Must not block."""
        ...


class Announcer(Protocol):
    """The part that announces this node on this machine."""

    async def announce(self) -> None:
        """Put this node's entry into the registry again: somebody has removed it.  Raises ConfigError."""
        ...
