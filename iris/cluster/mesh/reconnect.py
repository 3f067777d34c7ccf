"""Reconnect with flap damping: a peer whose connection broke is dialled again, the less often the more it flaps.

Flap damping is the term of routers: RFC 2439, "BGP Route Flap Damping"; it is a machine without a clock.  The first
breaks cost nothing, for a listener that restarts or a line that comes and goes breaks a link several times, and is to
be back at once.  But each handshake takes both ends milliseconds, closes the route and has others asked; a node that
drops its links ten times a second would have all others handshake with it as often, for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol, final

import trio

from iris.cluster.mesh.peer import Peer, PeerTable
from iris.kernel.config import Config
from iris.kernel.errors import AuthenticationError, ConfigError, NotSent
from iris.kernel.names import NodeId
from iris.kernel.transport import Refused

FREE: Final = 60
"""Breaks in a row after which a node is dialled again as soon as ever: transfers go on while a network is that bad."""

EVERY: Final = 1.0
"""Seconds after which one more break is free, so that a node whose links live for so long is never waited for; and for
which a node is waited for at most.  With five a tunnel through a network that broke all connections ten times a
second was lost, because its member was given up meanwhile."""

_REMEMBERED: Final = 1024


@final
class FlapDamping:
    """Counts how often the links to each node broke lately: a token bucket for each."""

    def __init__(self) -> None:
        self._left: dict[NodeId, tuple[float, float]] = {}
        """The breaks that are free still, and when that was so; the oldest one first.  Below none: what is to wait."""

    def __repr__(self) -> str:
        return f"<FlapDamping: {len(self._left)} nodes>"

    def broke(self, node: NodeId, now: float) -> None:
        """A link to a node broke, and neither side meant it to."""
        left = self._free(node, now)
        self._left.pop(node, None)
        self._left[node] = (max(-1.0, left - 1), now)
        if len(self._left) > _REMEMBERED:
            del self._left[next(iter(self._left))]

    def pause(self, node: NodeId, now: float) -> float:
        """Return how many seconds from now on a node is not dialled."""
        return max(0.0, -self._free(node, now)) * EVERY

    def _free(self, node: NodeId, now: float) -> float:
        left, since = self._left.get(node, (FREE, now))
        return min(FREE, left + max(0.0, now - since) / EVERY)


PAUSES: Final = (0.0, 0.02, 0.1, 0.5)
"""Pauses before each attempt to reach a peer whose connection broke.  The first one meets a refused port within a
millisecond where the process is gone; the rest ride out a listener that restarts."""

_HEAD_START: Final = 0.001
_LONGEST_START: Final = 0.1
"""Seconds, for each peer and at most, that a peer on this machine is not dialled yet.  When it dies, all the others see
that at once and share the processors: first each is to route it out, which takes it less than a millisecond, and then
they may find out by dialling, and tell each other, that it is dead."""


_LOOK: Final = 0.25
"""Seconds between attempts to reach a peer at a site that cannot be reached."""


def head_start(peer: Peer, peers: int) -> float:
    """Return for how many seconds a peer whose connection broke is not dialled yet; there are so many peers."""
    on_this_machine = bool(peer.addresses) and peer.addresses[0].startswith("ipc:")
    return min(_HEAD_START * peers, _LONGEST_START) if on_this_machine else 0.0


def patience_of(config: Config) -> float:
    """Return for how many seconds without a sign of life a peer is dialled: as long as membership waits for one.

    Four attempts may be over within 10 ms where a network resets connections while they are made.  A node that gave a
    live peer up by their number alone ended its tunnels, whatever the limits of membership were raised to.
    """
    return max(config.refused_grace, config.suspicion_multiplier * config.probe_interval)


def pauses_of(peer: Peer, patience: float) -> Iterator[float]:
    """Yield the pause before each attempt to reach a peer: all of ``PAUSES``, and for ``patience`` seconds at least.

    Attempts and seconds count from the first one since something came from the peer; ``Reconnector`` begins anew then.
    """
    while not has_used_up(peer, patience):
        if not peer.fruitless:
            peer.fruitless_since = trio.current_time()
        peer.fruitless += 1
        yield PAUSES[min(peer.fruitless, len(PAUSES)) - 1]


def pauses_between_sites(patience: float) -> Iterator[float]:
    """Yield the pause before each attempt to reach a peer at another site, for ``patience`` seconds.

    No attempt is made while no route leads there, and it costs nothing to look for one.
    """
    until = trio.current_time() + patience
    yield 0.0
    while trio.current_time() < until:
        yield _LOOK


def has_used_up(peer: Peer, patience: float) -> bool:
    """Return whether a peer has had all attempts of ``PAUSES``, and as many seconds."""
    return peer.fruitless >= len(PAUSES) and trio.current_time() - peer.fruitless_since >= patience


class RedialHost(Protocol):
    """The part of a mesh that reconnecting needs.  The plain methods must not block."""

    async def connect_again(self, peer: Peer) -> None:
        """Make one attempt to reach a peer; see ``Dialer.again``."""
        ...

    def peer_refused(self, peer: Peer) -> None:
        """Nobody listens where a peer was, or somebody else does; called after the attempt that found out."""
        ...

    def drop(self, node: NodeId, reason: str) -> None:
        """Drop a peer."""
        ...

    def note_unexpected(self, what: str, error: Exception) -> None:
        """Count and log an unexpected error of an attempt; others follow."""
        ...


class RedialPatience(NamedTuple):
    """Seconds for which a peer is dialled at least."""

    direct: float
    """See ``patience_of``."""
    refused: float
    """The same for one at whose address nobody listens, which is evidence that it has gone."""
    between_sites: float
    """The same for one at another site."""


@final
class Reconnector:
    """The peers that are being dialled again."""

    def __init__(self, host: RedialHost, peers: PeerTable, nursery: trio.Nursery, patience: RedialPatience) -> None:
        self._host = host
        self._peers = peers
        self._nursery = nursery
        self._patience = patience
        self._in_progress: set[Peer] = set()
        self.flapping: Final = FlapDamping()
        """Breaks of links that do not last, and are not made again at once."""

    def begin(self, peer: Peer) -> bool:
        """Reach a peer again; return whether that is new."""
        if self._peers.get(peer.node) is not peer or peer in self._in_progress or peer.leaving:
            return False
        self._in_progress.add(peer)
        self._nursery.start_soon(self._redial, peer)
        return True

    async def _redial(self, peer: Peer) -> None:
        if peer.session is not None and peer.session.statistics().received_frames:
            peer.fruitless = 0
        try:
            damping = 0.0 if peer.at_remote_site else self.flapping.pause(peer.node, trio.current_time())
            await trio.sleep(max(damping, head_start(peer, len(self._peers))))
            patience = self._patience
            site = pauses_between_sites(patience.between_sites) if peer.at_remote_site else None
            for pause in site or pauses_of(peer, patience.direct):
                await trio.sleep(pause)
                if self._peers.get(peer.node) is not peer or peer.link.outgoing is not None:
                    return
                try:
                    await self._host.connect_again(peer)
                except AuthenticationError as error:
                    self._host.peer_refused(peer)
                    self._in_progress.discard(peer)
                    self._host.drop(peer.node, f"somebody else answers at its address: {error}")
                    return
                except Refused:
                    self._host.peer_refused(peer)
                    if has_used_up(peer, patience.refused):
                        break
                except (NotSent, ConfigError):
                    continue
                except Exception as error:  # noqa: BLE001 -- the peer chose its addresses, and must not end the node
                    self._host.note_unexpected("dialling a peer again", error)
                else:
                    return
        finally:
            self._in_progress.discard(peer)
        if self._peers.get(peer.node) is peer and peer.link.outgoing is None:
            self._host.drop(peer.node, "it cannot be reached any more")
