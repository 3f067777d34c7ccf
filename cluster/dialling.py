"""Linking to nodes by their addresses: whose turn it is, which address answers, and the handshake there.

Of several addresses of one node those that do not answer keep nobody from the others: they are dialled beside each
other, the next one a quarter of a second later at the most (``iris.kernel.staggered``).  Ways through other nodes come
after those that lead to the node itself, each with a handshake's time of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from typing import Final, Protocol, final

import trio

from iris.cluster.address_rules import Told
from iris.cluster.handshakes import MAX_ADDRESSES, Handshakes, no_answer
from iris.cluster.peer import Peer
from iris.cluster.site_ways import is_site_url
from iris.cluster.turns import Turns
from iris.cluster.via_ways import is_via_url
from iris.cluster.ways import Ways, worst
from iris.kernel.errors import AuthenticationError, ConfigError, NotSent
from iris.kernel.ids import NodeId
from iris.kernel.transport import Outgoing

Dial = Callable[[], Awaitable[Outgoing]]
"""Connects to a node, at one of its addresses."""


class OwnUrls(Protocol):
    """Returns where the node at ``dialled`` can reach this one; ``over``: the connection to it."""

    def __call__(self, dialled: str, over: Outgoing | None = None) -> Awaitable[tuple[str, ...]]:
        """See above."""
        ...


@final
class Dialling:
    """The handshakes that this node begins.

    Args:
        peers: who is linked.
        outgoing_to: returns the connection in use to a node.
        own_urls: see there.
        refusals: where attempts that came to nothing are counted.
    """

    def __init__(
        self,
        ways: Ways,
        handshakes: Handshakes,
        turns: Turns,
        peers: Mapping[NodeId, Peer],
        refusals: Counter[str],
        *,
        outgoing_to: Callable[[NodeId], Outgoing | None],
        own_urls: OwnUrls,
    ) -> None:
        self._ways: Final = ways
        self._handshakes: Final = handshakes
        self._turns: Final = turns
        self._peers: Final = peers
        self._refusals: Final = refusals
        self._outgoing_to = outgoing_to
        self._own_urls = own_urls

    async def connect(
        self, urls: Iterable[str], expected: NodeId | None, realm_id: str, source: str, *, hearsay: bool
    ) -> Peer:
        """See ``Mesh.connect``."""
        told = Told(by=source, node=expected) if hearsay else None
        failures: list[NotSent | AuthenticationError | ConfigError] = []
        for group in _groups(list(urls)[:MAX_ADDRESSES]):
            addresses: tuple[str, ...] = group
            while addresses:
                if expected is not None and expected in self._peers:
                    return self._peers[expected]
                met: list[str] = []
                try:
                    dial: Dial = partial(self._ways.dial_any, addresses, told=told)
                    return await self._shake_hands(addresses, dial, (), expected, realm_id, source, met)
                except (NotSent, AuthenticationError, ConfigError) as error:
                    failures.append(error)
                # Somebody else may answer at one of them, or nobody after all.
                addresses = tuple(url for url in addresses if url not in met) if met else ()
        raise worst(failures)

    async def again(self, peer: Peer) -> None:
        """Make a new connection to a peer, and shake hands over it: somebody else may have taken its address.

        Raises:
            NotSent, AuthenticationError, ConfigError: see ``Mesh.connect``.
        """
        failures: list[NotSent | AuthenticationError | ConfigError] = []
        source = f"again {peer.identity.cluster}"
        told = Told(by=source, node=peer.node, by_ipc=peer.reached.startswith("ipc:"))
        for group in _groups(peer.addresses):
            dial: Dial = partial(self._ways.dial_any, group, told=told, proved=peer.reached)
            try:
                await self._shake_hands(group, dial, peer.addresses, peer.node, peer.identity.foreign_id, source, [])
            except (NotSent, ConfigError) as error:
                failures.append(error)
            else:
                return
        raise worst(failures)

    async def _shake_hands(
        self,
        addresses: tuple[str, ...],
        dial: Dial,
        known: tuple[str, ...],
        expected: NodeId | None,
        realm_id: str,
        source: str,
        met: list[str],
    ) -> Peer:
        """Dial a node and shake hands with it, when it is this one's turn; ``met`` gets the address that answered."""
        async with self._turns.take(source) as connected:
            if expected is not None and self._outgoing_to(expected) is not None:  # it was faster
                return self._peers[expected]
            own: tuple[str, ...] | None = None
            with trio.move_on_after(patience := self._turns.patience()):
                outgoing = await dial()
                connected()
                try:
                    url = self._ways.url_of(outgoing) or addresses[0]
                    met.append(url)
                    own = await self._own_urls(url, outgoing)
                    return await self._handshakes.initiate(
                        outgoing, tuple(dict.fromkeys((url, *known))), own, expected, realm_id
                    )
                except BaseException as error:
                    self._ways.close(outgoing)
                    if isinstance(error, NotSent | AuthenticationError):
                        self._refusals["handshake that came to nothing"] += 1
                    raise
        self._refusals["handshake that came to nothing"] += 1
        raise no_answer((*met, *addresses), patience, own)


def _groups(urls: Iterable[str]) -> Iterable[tuple[str, ...]]:
    """Divide the addresses of a node: those that lead to it, and each of those that lead through others by itself."""
    direct = tuple(url for url in urls if not (is_via_url(url) or is_site_url(url)))
    through = ((url,) for url in urls if is_via_url(url) or is_site_url(url))
    return chain((direct,) if direct else (), through)
