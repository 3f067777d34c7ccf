"""Return address: where others reach a node, also after the address of its machine has changed.

A node that was not told where to listen listens at a free port of the address from which it reaches others.  When that
is another one, because the machine was moved to another network for example, it listens there as well, and tells
everybody.  At a wildcard it listens everywhere, and tells which addresses those are now.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import Final, final

import trio

from iris.cluster.addresses import has_wildcard, split_url
from iris.cluster.mesh import Mesh
from iris.kernel.errors import ConfigError
from iris.kernel.transport import Transport

_log: Final = logging.getLogger("iris")

LOOK: Final = 2.0
"""Seconds between two looks.  One costs 30 us, and no packet, unless a name has to be looked up."""

_ASKED: Final = 8
"""Linked nodes whose routes are looked at."""

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
class ReturnAddress:
    """Keeps the addresses of one node up to date.

    Args:
        mesh: the links of the node.
        transport: the transport by which it listens.
        seeds: the nodes that it dials where no node is linked.
        source: finds the address that faces a URL.
        follows: True if nobody has set where it listens, so that it follows the machine's address.
        changed: called when its addresses have changed.
    """

    def __init__(
        self,
        mesh: Mesh,
        transport: Transport,
        seeds: tuple[str, ...],
        source: FindSource,
        changed: Callable[[], None],
        *,
        follows: bool,
    ) -> None:
        self._mesh = mesh
        self._transport = transport
        self._seeds = seeds
        self._source = source
        self._changed = changed
        self._follows = follows
        self._bound = {host: url for url in mesh.listening if (host := _host(url)) is not None}
        """Every address at which it listens; sockets at former ones stay, for the machine may return."""

    async def run(self) -> None:
        """Look now and then; run it in one task."""
        while self._follows or has_wildcard(self._mesh.listening):
            await trio.sleep(LOOK)
            listening = self._mesh.listening
            if self._follows:
                listening = await self._facing(listening)
            if self._mesh.readdress(listening):
                advertised = ", ".join(self._mesh.advertised)
                _log.info("reached at other addresses now: %s", advertised, extra={"cause": "addresses"})
                try:
                    self._changed()
                except ConfigError as error:
                    _log.warning("%s; others may not find this node", error, extra={"cause": "addresses"})

    async def _facing(self, listening: tuple[str, ...]) -> tuple[str, ...]:
        """Return where to listen, with a socket at the address that faces the others."""
        linked = [peer.reached for peer in islice(self._mesh.peers.values(), _ASKED)]
        sources = [found for url in linked or self._seeds if (found := await self._source(url)) is not None]
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
