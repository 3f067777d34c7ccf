"""The connections that this node has dialled: whose each is, and whom to tell when it breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, final

from iris.cluster.peer import Peer
from iris.cluster.site_ways import Carrier, is_site_url
from iris.kernel.errors import ConfigError, NotSent
from iris.kernel.transport import Outgoing, Transport


@final
class Ways:
    """Connections out, from the moment they are made until they break or are closed.

    Args:
        broken: called with each connection that broke, and the peer that it was given to.
    """

    def __init__(self, transport: Transport, broken: Callable[[Outgoing, Peer | None], None]) -> None:
        self._transport: Final = transport
        self._broken = broken
        self._owners: dict[Outgoing, Peer | None] = {}
        self.carrier: Carrier | None = None
        """What leads to nodes of other sites."""

    def __len__(self) -> int:
        return len(self._owners)

    def __contains__(self, outgoing: object) -> bool:
        """Whether a connection has neither broken nor been closed, as far as is known."""
        return outgoing in self._owners

    async def dial(self, url: str) -> Outgoing:
        """Connect to a URL.  Cancelling leaves no connection behind.

        Raises:
            NotSent, Refused, ConfigError: see ``Transport.dial``.
        """
        outgoing: Outgoing | None = None
        broke = False

        def note() -> None:
            nonlocal broke
            broke = True
            if outgoing is not None and outgoing in self._owners:
                owner = self._owners.pop(outgoing)
                outgoing.close()
                self._broken(outgoing, owner)

        if is_site_url(url):
            if self.carrier is None:
                raise NotSent(f"nothing leads from here to {url}")
            outgoing = await self.carrier.dial(url, note)
        else:
            outgoing = await self._transport.dial(url, note)
        if broke:
            outgoing.close()
            raise NotSent(f"the connection to {url} broke at once")
        self._owners[outgoing] = None
        return outgoing

    async def dial_any(self, urls: Iterable[str]) -> Outgoing:
        """Connect to the first of ``urls`` that can be reached.

        Raises:
            NotSent, Refused, ConfigError: what the last one said.
        """
        failure: NotSent | ConfigError = NotSent("there is no address to connect to")
        for url in urls:
            try:
                return await self.dial(url)
            except (NotSent, ConfigError) as error:
                failure = error
        raise failure

    def give(self, outgoing: Outgoing, peer: Peer) -> None:
        """Note whose connection it is."""
        self._owners[outgoing] = peer

    def owner(self, outgoing: Outgoing) -> Peer | None:
        """Return whose connection it is, if it was given to somebody."""
        return self._owners.get(outgoing)

    def close(self, outgoing: Outgoing) -> None:
        """Close a connection; nobody is told."""
        self._owners.pop(outgoing, None)
        outgoing.close()

    def close_all(self, peer: Peer | None = None) -> None:
        """Close every connection, or every one of a peer."""
        for outgoing in [outgoing for outgoing, owner in self._owners.items() if peer is None or owner is peer]:
            self.close(outgoing)
