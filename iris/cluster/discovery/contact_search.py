"""Search for a contact: a client needs one linked node to begin with, and another one when no link is left.

Seeds come first, then this machine, the local network, and where linked nodes were.  Each is tried until one answers:
not all of them, as a node that is a member does.
"""

from __future__ import annotations

import logging
from functools import partial
from random import Random
from typing import Final, final

import trio

from iris.cluster.discovery.sources import FoundNodes, Sources
from iris.cluster.mesh import HeldOff, Mesh, Peer, PeerObserver
from iris.kernel.errors import AuthenticationError, ConfigError, IrisError, NotSent
from iris.kernel.names import NodeId
from iris.kernel.tasks import Wakeup, first_of
from iris.kernel.transport import Refused

_log: Final = logging.getLogger("iris")

_PAUSES: Final = (0.25, 0.5, 1.0, 2.0, 5.0)
"""Seconds between two rounds in which nobody answered, or hung up soon, give or take a half: clients
that were turned away together do not come back together.  The last one repeats."""

_TRIED: Final = 16
"""Entries of this machine's registry, and addresses from the book, that are tried in one round."""

_REMEMBERED: Final = 64
"""Addresses of nodes that were linked, the latest last."""

_SEED: Final = "seeds"
_HEARSAY: Final = "found"
"""Sources of an address, as in ``Discovery``."""

_FAILURES: Final = (NotSent, AuthenticationError, ConfigError)

_RESOLUTION_DELAY: Final = 0.05
"""Seconds for which the first seed that is resolved waits for others (RFC 8305, section 3): a client begins at one of
all, and not at that of the fastest name server."""

_LAN_PATIENCE: Final = 0.5
"""Seconds that a starting client which has found nobody waits for the local network."""


@final
class ContactSearch(PeerObserver):
    """Searches for a node to begin with.

    Args:
        nodes: the membership, which is told of what is found.
        sources: where to look; a client writes nothing into the address book.
        random: chooses which of several is tried first.
    """

    def __init__(self, mesh: Mesh, nodes: FoundNodes, sources: Sources, random: Random) -> None:
        self._mesh = mesh
        self._nodes = nodes
        self._seeds, self._registry, self._lan, self._book = sources
        self._random = random
        self._met: dict[str, None] = {}
        self._warned = False
        self._alone = Wakeup()

    async def look(self) -> None:
        """Look once: return when a node is linked, or none that could be found answers."""
        if await self._look_at_seeds() or await self._look_at_registry():
            return
        if self._lan is not None:
            if not self._lan.urls():
                await self._lan.wait_news(_LAN_PATIENCE)
            if await self._try(self._lan.urls(), _HEARSAY):
                return
        await self._try(list(reversed(self._met)) or self._book.urls()[:_TRIED], _HEARSAY)

    async def run(self) -> None:
        """Look again whenever no link is left, until one is made; run it in one task."""
        rounds = 0
        while True:
            found = trio.current_time()
            while self._mesh.peers:
                await self._alone.wait()
            if trio.current_time() - found > _PAUSES[-1]:
                rounds = 0  # else a node that has no room for this client would be asked again at once
            await trio.sleep(_PAUSES[min(rounds, len(_PAUSES) - 1)] * (0.5 + self._random.random()))
            rounds += 1
            if not self._mesh.peers:
                await self.look()

    async def _look_at_seeds(self) -> bool:
        """Link to a node behind a seed.  Seeds that are not resolved yet hold up none that is."""
        send, receive = trio.open_memory_channel[tuple[str, ...]](len(self._seeds.urls))
        async with trio.open_nursery() as nursery:
            for seed in self._seeds.urls:
                nursery.start_soon(self._resolve, seed, send.clone())
            send.close()
            async for found in receive:
                urls = [*found]
                with trio.move_on_after(_RESOLUTION_DELAY):
                    async for more in receive:
                        urls.extend(more)
                self._random.shuffle(urls)
                if await self._try(urls, _SEED):
                    nursery.cancel_scope.cancel()
                    return True
        return False

    async def _resolve(self, seed: str, found: trio.MemorySendChannel[tuple[str, ...]]) -> None:
        async with found:
            try:
                await found.send(await self._seeds.resolve(seed))
            except NotSent as error:
                self._mesh.note_cut_off(error)

    async def _look_at_registry(self) -> bool:
        if self._registry is None:
            return False
        found: Peer | None = None
        entries = self._registry.entries((), _TRIED)
        attempts = [partial(self._link, list(addresses), "registry", node) for node, addresses in entries.items()]
        with trio.move_on_after(self._mesh.turns.silence()):  # a process that is stopped says nothing
            found = await first_of(attempts, [], expected=_FAILURES, discard=lambda _: None)
        if found is None:
            return False
        await self._nodes.introduce(found.node)
        return True

    async def _try(self, urls: list[str], source: str) -> bool:
        """Link to the node that answers first at one of some addresses; return True if one did."""
        if not urls:
            return False
        try:
            peer = await self._link(urls, source)
        except _FAILURES:
            return False
        await self._nodes.introduce(peer.node)
        return True

    async def _link(self, urls: list[str], source: str, expected: NodeId | None = None) -> Peer:
        try:
            peer = await self._mesh.connect(urls, expected=expected, source=source, hearsay=source == _HEARSAY)
        except _FAILURES as error:
            if isinstance(error, Refused) and expected is not None and self._registry is not None:
                self._registry.withdraw(expected)  # its process was killed and could not do it itself
            self._report(urls[0], error, source)
            raise
        if self._warned:
            self._warned = False
            _log.info("%s is back", urls[0], extra={"address": urls[0], "cause": urls[0]})
        return peer

    def _report(self, url: str, error: IrisError, source: str) -> None:
        """Say why nobody is found where the user has said that somebody is: once, until somebody is found."""
        if source != _SEED:
            _log.debug("%s", error, extra={"address": url})
            return
        self._mesh.note_cut_off(error)
        if not self._warned and not isinstance(error, HeldOff):
            self._warned = True
            _log.warning(
                "%s; trying again", error, extra={"address": url, "reason": type(error).__name__, "cause": url}
            )

    # -- PeerObserver ---------------------------------------------------------------------------------------

    def peer_connected(self, peer: Peer) -> None:
        """Remember where it is."""
        for url in peer.addresses:
            self._met.pop(url, None)
            self._met[url] = None
        while len(self._met) > _REMEMBERED:
            del self._met[next(iter(self._met))]

    def peer_removed(self, _peer: Peer, _reason: str) -> None:
        """Wake the search: it may have been the last linked node."""
        self._alone.wake()
