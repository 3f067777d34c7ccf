"""Return address: where others reach a node, also after the address of its machine has changed.

A node that was not told where to listen listens nowhere until it serves, and dials both directions of its links.  From
then on it listens where ``IRIS_LISTEN`` says, or at a free port of the address from which it reaches others.  When that
is another one, because the machine was moved to another network for example, it listens there as well, and tells
everybody.  At a wildcard it listens everywhere, and tells which addresses those are now.

Connections that leave from an address which the machine has no more lead nowhere, and nobody says so: packets of the
other end come to nobody.  So they are made anew as soon as the address is seen to be another one.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import Final, final

import trio

from iris.cluster.addresses import has_wildcard, split_url
from iris.cluster.discovery.seeds import Seeds
from iris.cluster.mesh import Mesh, Peer, PeerObserver
from iris.kernel.errors import ConfigError
from iris.kernel.tasks import Wakeup
from iris.kernel.transport import Transport

_log: Final = logging.getLogger("iris")

LOOK: Final = 2.0
"""Seconds between two looks.  One costs 30 us, and no packet, unless a name has to be looked up."""

_ASKED: Final = 8
"""Linked nodes whose routes decide where this node listens."""

_WATCHED: Final = 256
"""Linked nodes whose routes are looked at, to see that another address leads there: 10 us each."""

_PATIENCE: Final = 2.0
"""Seconds for which a node that opens waits for the names of its seeds."""

FindSource = Callable[[str], Awaitable[str | None]]
"""Returns a URL with a free port at the address from which a URL is reached; None if there is no route."""


async def way_back(urls: Iterable[str], source: FindSource) -> tuple[str, ...]:
    """Return where to listen if nothing was configured: at a free port of the address facing the first remote URL.

    Names that no name server answers for in time are passed over: ``ReturnAddress`` asks again.
    """
    order = list(dict.fromkeys(urls))
    found: dict[str, str | None] = {}

    async def ask(url: str) -> None:
        found[url] = await source(url)
        before = itertools.takewhile(found.__contains__, order)
        if any(found[url] is not None for url in before):
            asking.cancel_scope.cancel()

    with trio.move_on_after(_PATIENCE):
        async with trio.open_nursery() as asking:
            for url in order:
                asking.start_soon(ask, url)
    facing = next((facing for url in order if (facing := found.get(url)) is not None), None)
    return () if facing is None else (facing,)


@final
class ReturnAddress(PeerObserver):
    """Keeps the addresses of one node up to date, and its connections on those that the machine has.

    Args:
        mesh: the links of the node.
        transport: the transport by which it listens.
        seeds: where to look for others; what they stand for is faced where no node is linked.
        source: finds the address that faces a URL.
        changed: called when its addresses have changed.
        later: where it listens once it serves; empty: at the address that faces the others, which it then follows.
            None: it listens already, or never.
    """

    of_clients = True

    def __init__(
        self,
        mesh: Mesh,
        transport: Transport,
        seeds: Seeds,
        source: FindSource,
        changed: Callable[[], None],
        later: tuple[str, ...] | None,
    ) -> None:
        self._mesh = mesh
        self._transport = transport
        self._seeds = seeds
        self._source = source
        self._changed = changed
        self._later = later
        self._follows = False
        """True if nobody has set where it listens, so that it follows the machine's address."""
        self._bound = {host: url for url in mesh.listening if (host := _host(url)) is not None}
        """Every address at which it listens; sockets at former ones stay, for the machine may return."""
        self._sources: dict[str, str] = {}
        """Address of this machine from which each linked node is reached, by the address of that one."""
        self._unseen: set[str] = set()
        """Addresses of linked nodes whose source is not known yet."""
        self._linked = Wakeup()
        self._is_fixed = False
        """True once nothing can change where this node is reached: it looks no more, and notes nothing."""

    async def serve(self) -> None:
        """Listen, unless this node does: it is about to serve others.

        Without ``IRIS_LISTEN`` it may listen nowhere still, as long as no address leads to others; ``run`` goes on
        looking.  Cancelling it may leave the node listening.

        Raises:
            ConfigError: an address of ``IRIS_LISTEN`` is taken, or not this machine's.
        """
        if self._later is None:
            return
        later, self._later = self._later, None
        if later:
            try:
                bound = await self._transport.listen(later)
            except BaseException:
                self._later = later
                raise
            self._bound.update((host, url) for url in bound if (host := _host(url)) is not None)
            self._readdress((*self._mesh.listening, *bound))
        else:
            self._follows = True
            faced = (*self._linked_by_network(), *self._seeds.addresses())
            self._readdress(await self._listen_facing(await way_back(faced, self._source)))

    async def run(self) -> None:
        """Look now and then; run it in one task."""
        while self._later is not None or self._follows or self._mesh.dial_only or has_wildcard(self._mesh.listening):
            with trio.move_on_after(LOOK):
                while True:
                    await self._linked.wait()
                    await self._note_sources()
            if self._follows or has_wildcard(self._mesh.listening):
                self._readdress(await self._follow() if self._follows else self._mesh.listening)
            await self._leave_former_addresses()
        self._is_fixed = True
        self._unseen.clear()

    def _readdress(self, listening: tuple[str, ...]) -> None:
        if self._mesh.readdress(listening):
            advertised = ", ".join(self._mesh.advertised)
            _log.info("reached at other addresses now: %s", advertised, extra={"cause": "addresses"})
            try:
                self._changed()
            except ConfigError as error:
                _log.warning("%s; others may not find this node", error, extra={"cause": "addresses"})

    # -- connections ----------------------------------------------------------------------------------------

    def peer_connected(self, peer: Peer) -> None:
        """Note from which address it is reached."""
        if not self._is_fixed and split_url(peer.reached) is not None and peer.reached not in self._sources:
            self._unseen.add(peer.reached)
            self._linked.wake()

    async def _note_sources(self) -> None:
        while self._unseen:
            url = self._unseen.pop()
            if (source := await self._source(url)) is not None:
                self._sources[url] = source

    async def _leave_former_addresses(self) -> None:
        """Have the connections made anew that leave from another address than is there now."""
        reached = {node: peer.reached for node, peer in islice(self._mesh.peers.items(), _WATCHED)}
        before, self._sources = self._sources, {}
        now: dict[str, str | None] = {}
        for url in set(reached.values()):
            # Without any route all stay: it may be the same again, and frames that wait then go on.
            now[url] = await self._source(url) if split_url(url) is not None else None
            source = now[url] or before.get(url)
            if source is not None:
                self._sources[url] = source
        for node, url in reached.items():
            if now[url] is not None and before.get(url, now[url]) != now[url]:
                _log.info("node %s is dialled from another address of this machine", node, extra={"peer": node})
                self._mesh.redial(node)

    # -- where it listens -----------------------------------------------------------------------------------

    def _linked_by_network(self) -> list[str]:
        linked = islice(self._mesh.peers.values(), _WATCHED)
        return [peer.reached for peer in linked if split_url(peer.reached) is not None][:_ASKED]

    async def _follow(self) -> tuple[str, ...]:
        faced = self._linked_by_network() or self._seeds.addresses()
        return await self._listen_facing([found for url in faced if (found := await self._source(url)) is not None])

    async def _listen_facing(self, sources: Sequence[str]) -> tuple[str, ...]:
        """Return where this node listens, with a socket at the first of the addresses that face the others."""
        listening = self._mesh.listening
        present = {_host(url) for url in listening}
        if not sources or any(_host(url) in present for url in sources):
            return listening
        host = _host(sources[0])
        if host is None:
            return listening
        if host not in self._bound:
            try:
                (self._bound[host],) = await self._transport.listen(sources[:1])
            except ConfigError as error:  # it is gone again, or the machine has no descriptor left: the next look
                _log.debug("%s", error, extra={"address": sources[0]})
                return listening
        return (*(url for url in listening if _host(url) is None), self._bound[host])


def _host(url: str) -> str | None:
    parts = split_url(url)
    return None if parts is None else parts[1]
