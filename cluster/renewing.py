"""Sessions are replaced when they have lived long enough, and forgotten when they may not be used any more."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Final, Protocol, final

import trio

from iris.cluster.handshakes import Handshakes, Host
from iris.cluster.peer import Peer, SessionEntry
from iris.kernel.errors import AuthenticationError, NotSent
from iris.kernel.ids import NodeId
from iris.kernel.transport import Outgoing

_LOOK: Final = 1.0
"""Seconds between looks at the ages of sessions; they live for minutes."""


class Owner(Host, Protocol):
    """What renewing needs of its mesh."""

    def drop(self, node: NodeId, reason: str) -> None:
        """Give a peer up."""
        ...


@final
class Renewing:
    """The sessions of one node, by their age."""

    def __init__(
        self,
        mesh: Owner,
        peers: Mapping[NodeId, Peer],
        sessions: MutableMapping[int, SessionEntry],
        handshakes: Handshakes,
        nursery: trio.Nursery,
    ) -> None:
        self._mesh: Final = mesh
        self._peers = peers
        self._sessions = sessions
        self._handshakes = handshakes
        self._nursery = nursery
        self._under_way: set[NodeId] = set()

    async def run(self) -> None:
        """Look after the sessions; run it in one task."""
        config = self._mesh.config
        while True:
            await trio.sleep(min(_LOOK, config.session_lifetime / 10))
            now = trio.current_time()
            for index, entry in list(self._sessions.items()):
                session, peer = entry.session, entry.peer
                if now - session.established > config.session_rejected:
                    del self._sessions[index]
                    session.close()
                    if peer.session is session:
                        self._mesh.drop(peer.node, "its session could not be renewed")
            awaited = {entry.peer for entry in self._sessions.values() if entry.is_awaited(now, config)}
            for peer in list(self._peers.values()):
                assert peer.session is not None
                if peer in awaited:
                    continue
                age = now - peer.session.established
                # The answering side waits longer, so that one handshake is made and not two.
                patience = 1.0 if peer.initiated else 1.15
                outgoing = peer.link.outgoing
                if age > config.session_lifetime * patience and outgoing is not None:
                    self._nursery.start_soon(self._renew, peer, outgoing)

    async def _renew(self, peer: Peer, outgoing: Outgoing) -> None:
        """Replace the session by a fresh handshake over the same connection."""
        if peer.node in self._under_way:
            return
        self._under_way.add(peer.node)
        try:
            with trio.move_on_after(self._mesh.config.handshake_timeout):
                own = await self._mesh.own_urls(peer.addresses[0], outgoing)
                await self._handshakes.initiate(outgoing, peer.addresses, own, peer.node)
        except (NotSent, AuthenticationError) as error:
            self._mesh.refusals[f"renewal: {type(error).__name__}"] += 1
        finally:
            self._under_way.discard(peer.node)
