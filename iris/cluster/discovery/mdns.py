"""Multicast DNS (RFC 6762): nodes of a realm find each other on a local network, through the ``zeroconf`` package.

What is announced is opaque: a hash of the realm's fingerprint, a random name, and addresses.  No cluster is named.
What is found is only an address to dial, and anybody on the network can say anything: the node that answers there has
to pass the handshake, and only a few are remembered (``iris.cluster.discovery.mdns_records``).

The package runs in threads of its own.  It is imported with the first use, since it costs 4 MiB and a node of the
local realm does without (``iris.cluster.discovery.mdns_service``).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Final

import trio

from iris.cluster.discovery.local_network import LocalNetwork
from iris.kernel.tasks import open_background, run_in_thread

if TYPE_CHECKING:
    from iris.cluster.discovery.mdns_service import MdnsService

_log: Final = logging.getLogger("iris")

_GOODBYE: Final = 0.5
"""Seconds that taking the announcement back may take."""

OpenLan = Callable[[str, str, tuple[str, ...]], AbstractAsyncContextManager[LocalNetwork]]
"""Opens the notice board of a network: fingerprint of the realm, name of this node there, URLs to announce."""


def realm_mark(fingerprint: str) -> str:
    """Return what stands for a realm on the network: nobody who does not know the realm can tell which it is."""
    return hashlib.blake2b(f"iris lan\0{fingerprint}".encode(), digest_size=8).hexdigest()


@asynccontextmanager
async def open_lan(
    fingerprint: str, own: str, urls: tuple[str, ...], *, interfaces: list[str] | None = None
) -> AsyncIterator[LocalNetwork]:
    """Announce a node to the local network and listen for others, until the block ends.

    A machine on which that is not possible costs one line in the log: seeds work everywhere.

    Args:
        fingerprint: the fingerprint of the realm.
        own: a random name for this node.
        urls: the URLs at which the node listens; those of loopback are not announced.
        interfaces: addresses of this machine whose networks are used; None: all.  Given ones may be loopback.
    """
    lan = LocalNetwork(realm_mark(fingerprint), own)
    token = trio.lowlevel.current_trio_token()
    try:
        board = await run_in_thread(_open_board, lan, token, interfaces)
    except (OSError, RuntimeError) as error:
        _log.warning("nodes on the local network are not looked for: %s", error, extra={"reason": type(error).__name__})
        yield lan
        return
    try:
        async with open_background() as nursery:
            nursery.start_soon(board.announce, own, urls)
            nursery.start_soon(board.ask)
            yield lan
    finally:
        with trio.move_on_after(_GOODBYE) as scope:
            scope.shield = True
            await run_in_thread(board.close, abandon_on_cancel=True)


def _open_board(lan: LocalNetwork, token: trio.lowlevel.TrioToken, interfaces: list[str] | None) -> MdnsService:
    from iris.cluster.discovery.mdns_service import MdnsService  # which imports the package

    return MdnsService(lan, token, interfaces)
