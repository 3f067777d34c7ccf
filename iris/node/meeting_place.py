"""Meeting place: the directory of a realm on this machine, where its nodes have their sockets and entries.

The last node that leaves sweeps it.  So a node that is about to listen there, or is not found in it any more, makes it
again; once there is a socket in it, nobody can sweep it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, final

from iris.cluster.discovery import Registry
from iris.kernel.errors import ConfigError
from iris.kernel.names import NodeId
from iris.kernel.tasks import run_in_thread
from iris.kernel.transport import Transport

_SWEPT: Final = 8
"""Times that the directory is made again; others may sweep it until a socket is in it."""


@final
class MeetingPlace:
    """The meeting place of one node.

    Args:
        registry: the entries in the directory.
        make: makes it, if it is not there.
        node: whose place it is.
    """

    def __init__(self, registry: Registry, make: Callable[[], Path], node: NodeId) -> None:
        self._registry = registry
        self._make = make
        self._node = node
        self._listen_again: Callable[[], Awaitable[object]] | None = None
        self._addresses: tuple[str, ...] = ()
        self._chances = _SWEPT

    async def listen(self, transport: Transport, urls: tuple[str, ...]) -> tuple[str, ...]:
        """Listen at ``urls``, the directory's socket first; raise ConfigError if one cannot be listened at."""
        self._listen_again = partial(transport.listen, urls[:1])
        for _ in range(_SWEPT):
            try:
                return await transport.listen(urls)
            except ConfigError:
                if not await self._remake():
                    raise
        return await transport.listen(urls)

    async def _remake(self) -> bool:
        """Make the directory if it has been swept; return whether it had been."""
        if self._registry.exists:
            return False
        await run_in_thread(self._make)
        return True

    def enter(self, addresses: tuple[str, ...]) -> None:
        """Announce the node, which listens, under its addresses."""
        self._addresses = addresses
        self._registry.announce(self._node, addresses)
        if not self._registry.has_socket(self._node):  # in a network in memory it has none
            self._listen_again = None

    def move(self, addresses: tuple[str, ...]) -> None:
        """Announce the node under other addresses; raise ConfigError if the entry cannot be written."""
        if self._addresses and self._chances:
            self._addresses = addresses
            self._registry.announce(self._node, addresses)

    async def announce(self) -> None:
        """Announce the node once more, in a directory that was cleared up: eight times, and not after ``leave``.

        Raises:
            ConfigError: its socket cannot be made again.
        """
        if self._chances:
            await self._remake()
            if self._listen_again is not None and not self._registry.has_socket(self._node):
                await self._listen_again()
            self._registry.announce(self._node, self._addresses)
            self._chances -= 1

    def leave(self) -> None:
        """Withdraw the node's entry, for good."""
        self._chances = 0
        self._registry.withdraw(self._node)
