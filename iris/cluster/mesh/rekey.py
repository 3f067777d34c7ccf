"""Rekey schedule: each session is replaced by a fresh handshake in time, and ends with the certificates it rests on.

Rules of this file:

- A session of ``Config.session_lifetime`` is replaced, over the same connection; one of ``session_rejected`` is closed.
- A peer whose certificate or delegation ends is given up within a second of that.  Before, it is asked for fresh ones:
  its session is replaced when it is older than what is left of them, that is ever more often towards the end.
- When this node gets another certificate, or a fresh delegation at the last moment, all sessions are replaced so that
  peers know it: a few dozen each second, for one costs both ends half a millisecond.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, Protocol, final

import trio

from iris.cluster.mesh.peer import Peer, SessionEntry
from iris.kernel.config import Config
from iris.kernel.errors import AuthenticationError, NotSent
from iris.kernel.names import NodeId
from iris.kernel.transport import OutgoingConnection
from iris.security.identity import NodeIdentity

_LOOK: Final = 1.0
"""Seconds between looks, at most."""

_AT_ONCE: Final = 64
"""Sessions that are begun to be replaced at one look because of another certificate."""

_PATIENCE: Final = 1.15
"""The side that answered waits longer by this factor, so that one handshake is made and not two."""


class RekeyHost(Protocol):
    """The part of a mesh that the rekey schedule needs."""

    refusals: Counter[str]

    @property
    def config(self) -> Config:
        """The limits of this node."""
        ...

    @property
    def peers(self) -> Mapping[NodeId, Peer]:
        """The nodes that are linked."""
        ...

    def drop(self, node: NodeId, reason: str) -> None:
        """Drop a peer."""
        ...

    def note_unexpected(self, what: str, error: Exception) -> None:
        """Count and log an error that nobody expects, in what others have brought about."""
        ...

    def forget_session(self, entry: SessionEntry) -> None:
        """Close a session that has ended, and take it out."""
        ...

    async def renew_session(self, peer: Peer, outgoing: OutgoingConnection) -> None:
        """Replace the session of a peer by a fresh handshake over the same connection."""
        ...

    @property
    def wall_clock(self) -> Callable[[], float]:
        """Returns the seconds since 1970."""
        ...


@final
class RekeySchedule:
    """Replaces the sessions of one mesh before they are too old.

    Args:
        mesh: the mesh; renewals that failed are counted there.
        sessions: the sessions of the mesh, by index.
    """

    def __init__(self, mesh: RekeyHost, sessions: Mapping[int, SessionEntry], nursery: trio.Nursery) -> None:
        self._mesh: Final = mesh
        self._sessions = sessions
        self._nursery = nursery
        self._config = mesh.config
        self._wall_clock = mesh.wall_clock
        self._stale = -math.inf
        self._in_progress: set[NodeId] = set()

    def follow(self, former: NodeIdentity, renewed: NodeIdentity) -> None:
        """This node has other certificates: replace every session within seconds, if peers have to know them soon."""
        late = former.expires - self._wall_clock() < self._config.session_rejected
        if late or renewed.certificate.signed != former.certificate.signed:
            self._stale = trio.current_time()

    async def run(self) -> None:
        """Look after the sessions; run it in one task."""
        while True:
            await trio.sleep(min(_LOOK, self._config.session_lifetime / 10))
            now, wall_now = trio.current_time(), self._wall_clock()
            self._close_old(now)
            self._drop_ended(wall_now)
            self._replace(now, wall_now)

    def _close_old(self, now: float) -> None:
        for entry in list(self._sessions.values()):
            session, peer = entry.session, entry.peer
            if now - session.established > self._config.session_rejected:
                # From here on no frame under these keys is accepted, also of a peer that could not renew them: a key
                # that never ends would be worth stealing.
                self._mesh.forget_session(entry)
                if peer.session is session:
                    self._mesh.drop(peer.node, "its session could not be renewed")

    def _drop_ended(self, wall_now: float) -> None:
        for peer in list(self._mesh.peers.values()):
            if wall_now >= peer.identity.expires:
                self._mesh.drop(peer.node, f"its certificates of cluster {peer.identity.cluster!r} have ended")

    def _replace(self, now: float, wall_now: float) -> None:
        awaited = {entry.peer for entry in self._sessions.values() if entry.is_awaited(now, self._config)}
        stale = 0
        for peer in list(self._mesh.peers.values()):
            outgoing, session = peer.link.outgoing, peer.session
            if outgoing is None or session is None or peer in awaited or peer.node in self._in_progress:
                continue
            age = now - session.established
            patience = 1.0 if peer.initiated else _PATIENCE
            left = peer.identity.expires - wall_now
            due = age > min(self._config.session_lifetime, left) * patience
            if not due and session.established <= self._stale and stale < _AT_ONCE:
                stale += 1
                due = True
            if due:
                self._in_progress.add(peer.node)
                self._nursery.start_soon(self._renew, peer, outgoing)

    async def _renew(self, peer: Peer, outgoing: OutgoingConnection) -> None:
        """Replace a session by a fresh handshake over the same connection."""
        try:
            with trio.move_on_after(self._config.handshake_timeout):
                await self._mesh.renew_session(peer, outgoing)
        except (NotSent, AuthenticationError) as error:
            self._mesh.refusals[f"renewal: {type(error).__name__}"] += 1
        except Exception as error:  # noqa: BLE001 -- a peer has its part in it, and must not be able to end the node
            self._mesh.note_unexpected("renewal of a session", error)
        finally:
            self._in_progress.discard(peer.node)
