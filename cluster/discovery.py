"""How a node finds others: the registry of the local realm, and seeds.  It goes on looking as long as it lives.

What is found is only an address to dial.  Once one node of the realm is linked, gossip tells of all others.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, final

import trio

from iris.cluster.mesh import Mesh
from iris.cluster.registry import Registry
from iris.kernel.errors import AuthenticationError, ConfigError, IrisError, NotSent
from iris.kernel.ids import NodeId
from iris.kernel.transport import Refused

_log: Final = logging.getLogger("iris")

_REGISTRY_INTERVAL: Final = 2.0
"""Seconds between two looks into the registry.  Nodes that start announce themselves before they look, so only
those that were cut off are found this way."""

_SEED_PAUSES: Final = (0.25, 0.5, 1.0, 2.0, 5.0)
"""Seconds between attempts to reach seeds; the last one repeats."""

_FIRST_ROUND: Final = 4
"""Nodes of the registry that a starting node dials; gossip brings the others."""


@final
class Discovery:
    """Looks for other nodes of the realm.

    Args:
        introduce: called with each node that was newly linked; returns when the memberships have been exchanged.
    """

    def __init__(
        self,
        mesh: Mesh,
        registry: Registry | None,
        seeds: tuple[str, ...],
        introduce: Callable[[NodeId], Awaitable[None]],
    ) -> None:
        self._mesh = mesh
        self._registry = registry
        self._seeds = seeds
        self._introduce = introduce
        self._seed_nodes: dict[str, NodeId] = {}
        self._warned: set[str] = set()

    async def look(self) -> None:
        """Look once: dial seeds and announced nodes, and exchange memberships with those that answer."""
        async with trio.open_nursery() as nursery:
            for url in self._seeds:
                if self._seed_nodes.get(url) not in self._mesh.peers:
                    nursery.start_soon(self._try_seed, url)
            if self._registry is not None:
                unknown = [
                    (node, addresses)
                    for node, addresses in self._registry.entries().items()
                    if node != self._mesh.node and node not in self._mesh.peers
                ]
                for node, addresses in unknown[:_FIRST_ROUND]:
                    nursery.start_soon(self._try_announced, node, addresses)

    async def run(self) -> None:
        """Go on looking."""
        attempt = 0
        while True:
            missing = [url for url in self._seeds if self._seed_nodes.get(url) not in self._mesh.peers]
            attempt = attempt + 1 if missing else 0
            pause = _SEED_PAUSES[min(attempt, len(_SEED_PAUSES)) - 1] if missing else _REGISTRY_INTERVAL
            await trio.sleep(pause)
            await self.look()

    async def _try_seed(self, url: str) -> None:
        try:
            peer = await self._mesh.connect([url])
        except (NotSent, AuthenticationError, ConfigError) as error:
            self._warn(url, error)
            return
        self._warned.discard(url)
        self._seed_nodes[url] = peer.node
        await self._introduce(peer.node)

    async def _try_announced(self, node: NodeId, addresses: tuple[str, ...]) -> None:
        assert self._registry is not None
        try:
            peer = await self._mesh.connect(addresses, expected=node)
        except Refused:
            self._registry.withdraw(node)  # its process was killed and could not do it itself
        except (NotSent, AuthenticationError, ConfigError) as error:
            self._warn(node, error)
        else:
            await self._introduce(peer.node)

    def _warn(self, where: str, error: IrisError) -> None:
        """Say it once for each address, and again after it has worked."""
        if where not in self._warned:
            self._warned.add(where)
            _log.warning("%s; trying again", error)
