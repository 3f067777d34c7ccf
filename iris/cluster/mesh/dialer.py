"""Dialer with a concurrency limit: links to nodes by their addresses, some handshakes at a time, fairly by source.

Of several addresses of one node those that do not answer delay none of the others: they are dialled beside each other,
the next one at most a quarter of a second later (``iris.kernel.tasks.happy_eyeballs``).  Relayed connections come
after the addresses of the node itself, each with a handshake's time of its own.

``DialLimiter`` bounds how many handshakes a node begins at a time, and how long each of them may take.  Where many
nodes meet at once, on processors that they share, all the handshakes together may take longer than each of them waits
for an answer.  Then all are given up and begun anew, and none ever ends: 60 nodes that started together on two cores
never converged.  With few of them in progress at each node, each is done in time, and the rest wait.

Those wait by their source, the node that sent the address: for each source in turn one is let in.  A node that has a
credential can make up thousands of nodes that nobody finds at their addresses, and each takes a second; nodes of other
clusters, seeds and peers whose connection broke wait for at most one of those, not for all.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain
from typing import Final, Protocol, final

import trio

from iris.cluster.address_rules import Hearsay
from iris.cluster.mesh.handshakes import MAX_ADDRESSES, Handshakes, no_answer
from iris.cluster.mesh.outbound import OutboundConnections, worst
from iris.cluster.mesh.peer import Peer, PeerTable
from iris.cluster.mesh.ports import Punctuality
from iris.cluster.mesh.refusal_backoff import ALL, RefusalBackoff
from iris.cluster.routes import is_site_url, is_via_url
from iris.kernel.errors import AuthenticationError, ConfigError, NotSent
from iris.kernel.names import NodeId
from iris.kernel.transport import OutgoingConnection
from iris.security.channel import NotAdmitted
from iris.security.identity import OutOfDate

AT_A_TIME: Final = 4
"""Handshakes of one node that are in progress, if it is run when it should be."""

_FEWER: Final = ((0.02, 2), (0.1, 1))
"""Lateness in seconds, and the handshakes allowed from there on.  With 100 nodes on two cores, and 20 ms of work for
each new link, four of each node would take 4 s each, all that a handshake may take; one of each takes a second."""

PATIENCE: Final = 1.0
"""Seconds after which a handshake that is not even connected no longer keeps others waiting: the other end may be cut
off, or its process stopped.  A node that answers a connection is alive, and at most slow."""

_LATER: Final = 10.0
"""Factor of this node's lateness that is added to ``PATIENCE``."""

_LONGER: Final = 100.0
"""A handshake may take so many times the lateness of this node longer: some twenty threads have to be run for it one
after the other, at both ends."""

_LONGEST: Final = 25.0
"""Limit on that in seconds."""


@final
class _DialSlot:
    """A handshake that waits for the limiter, or runs.  ``woken``: it may begin, or is to look for a free slot."""

    __slots__ = ("woken",)

    def __init__(self) -> None:
        self.woken = trio.Event()


_SILENCE: Final = 0.4
"""Share of the time that a handshake may take, 2 s of 5.  After so long without a new member a node that is opened
waits for the others no more.  A handshake over a path of 300 ms takes 1.5 s, with the wait for the end that dials
first."""


@final
class DialLimiter:
    """Limits concurrent handshakes; one that is not even connected after ``PATIENCE`` counts no more.

    Args:
        timeout: seconds that a handshake may take, if this node is run when it should be.
        punctuality: measures how late it is.
    """

    def __init__(self, timeout: float, punctuality: Punctuality) -> None:
        self._timeout = timeout
        self._punctuality = punctuality
        self._until: dict[_DialSlot, float] = {}
        """Handshakes that run, and the time until which each of them counts."""
        self._waiting: dict[str, deque[_DialSlot]] = {}
        """Handshakes that wait, by source; the source whose turn is next comes first."""
        self._watcher: _DialSlot | None = None
        """The waiting handshake that looks when a running one counts no more.  If all did, thousands would wake up."""

    def __len__(self) -> int:
        return len(self._until)

    def lateness(self) -> float:
        """Seconds by which this node does too late what is due: it, or its machine, has too much to do."""
        return self._punctuality.lateness

    def patience(self) -> float:
        """Seconds that a handshake may take now: what is given up for want of processor time is done again."""
        return self._timeout + min(_LONGEST, _LONGER * self._punctuality.lateness)

    def silence(self) -> float:
        """Seconds for which nobody has to be linked for a node that is opened to wait for silent ones no more."""
        return _SILENCE * self.patience()

    @asynccontextmanager
    async def acquire(self, source: str = "") -> AsyncIterator[Callable[[], None]]:
        """Wait for a turn, and have it for the length of the block.  Cancelling the wait gives it to the next one.

        Args:
            source: the source that reported the node.  Those of one source come in their order.

        Yields:
            what to call when there is a connection.
        """
        turn = _DialSlot()

        def connected() -> None:
            self._until[turn] = math.inf

        try:
            await self._wait(turn, source)
            yield connected
        finally:
            self._until.pop(turn, None)
            self._let_in()

    async def _wait(self, turn: _DialSlot, source: str) -> None:
        self._waiting.setdefault(source, deque()).append(turn)
        self._let_in()
        try:
            while turn not in self._until:
                self._watcher = self._watcher or turn
                with trio.move_on_at(self._next_look() if self._watcher is turn else math.inf):
                    await turn.woken.wait()
                    turn.woken = trio.Event()
                self._let_in()
        finally:
            if turn not in self._until:
                self._waiting[source].remove(turn)
                if not self._waiting[source]:
                    del self._waiting[source]
            if self._watcher is turn:
                self._watcher = None
            if self._watcher is None:  # also when this one was to be it, and is cancelled
                for queue in self._waiting.values():
                    queue[0].woken.set()  # which makes it the next one
                    break

    def _let_in(self) -> None:
        """Let in as many as there are free slots, one of each source in rotation."""
        now = trio.current_time()
        while self._waiting and sum(until > now for until in self._until.values()) < self._at_a_time():
            source, queue = next(iter(self._waiting.items()))
            turn = queue.popleft()
            del self._waiting[source]
            if queue:
                self._waiting[source] = queue
            self._until[turn] = now + PATIENCE + _LATER * self._punctuality.lateness
            turn.woken.set()

    def _next_look(self) -> float:
        """Return when a slot may become free although nobody gives one back."""
        now = trio.current_time()
        return min((until for until in self._until.values() if now < until < math.inf), default=now + PATIENCE)

    def _at_a_time(self) -> int:
        late = self._punctuality.lateness
        return min([AT_A_TIME, *(count for least, count in _FEWER if late >= least)])


Dial = Callable[[], Awaitable[OutgoingConnection]]
"""Connects to a node, at one of its addresses."""


class DialHost(Protocol):
    """The part of a mesh that a dialer needs."""

    refusals: Counter[str]

    async def own_urls(self, dialled: str, over: OutgoingConnection | None = None) -> tuple[str, ...]:
        """Return where the node at ``dialled`` can reach this one; ``over``: the connection to it."""
        ...

    def refused(self, node: NodeId | None, url: str) -> None:
        """The handshake has shown that one of the two nodes is not to be talked to: revoked, or out of date."""
        ...


@final
class HeldOff(NotSent):
    """This node dials nobody for a while, because nobody lets it in; the mesh has logged that."""


@final
class Dialer:
    """Links to nodes by their addresses.

    Args:
        host: the mesh; attempts that failed are counted there.
        peers: the linked nodes.
        backoff: pauses after refusals.
    """

    def __init__(
        self,
        host: DialHost,
        outbound: OutboundConnections,
        handshakes: Handshakes,
        turns: DialLimiter,
        peers: PeerTable,
        backoff: RefusalBackoff,
    ) -> None:
        self._host: Final = host
        self._outbound: Final = outbound
        self._handshakes: Final = handshakes
        self._turns: Final = turns
        self._peers: Final = peers
        self._backoff: Final = backoff

    async def connect(
        self, urls: Iterable[str], expected: NodeId | None, realm_id: str, source: str, *, hearsay: bool
    ) -> Peer:
        """See ``Mesh.connect``."""
        hearsay_of = Hearsay(by=source, node=expected) if hearsay else None
        failures: list[NotSent | AuthenticationError | ConfigError] = []
        for group in _groups(list(urls)[:MAX_ADDRESSES]):
            addresses: tuple[str, ...] = group
            while addresses:
                if expected is not None and (linked := self._peers.get(expected)) is not None:
                    return linked
                met: list[str] = []
                try:
                    dial: Dial = partial(self._outbound.dial_any, addresses, hearsay=hearsay_of)
                    return await self._shake_hands(addresses, dial, (), expected, realm_id, source, met)
                except (NotSent, AuthenticationError, ConfigError) as error:
                    failures.append(error)
                # Somebody else may answer at one of them, or nobody after all.
                addresses = tuple(url for url in addresses if url not in met) if met else ()
        raise worst(failures)

    async def straighten(self, node: NodeId, urls: Iterable[str], source: str) -> None:
        """See ``Mesh.straighten``."""
        direct = tuple(url for url in urls if not is_via_url(url))[:MAX_ADDRESSES]
        dial: Dial = partial(self._outbound.dial_any, direct, hearsay=Hearsay(by=source, node=node))
        await self._shake_hands(direct, dial, (), node, "", source, [])

    async def again(self, peer: Peer) -> None:
        """Make a new connection to a peer, and handshake over it: somebody else may have taken its address.

        Raises:
            NotSent, AuthenticationError, ConfigError: see ``Mesh.connect``.
        """
        failures: list[NotSent | AuthenticationError | ConfigError] = []
        source = f"again {peer.identity.cluster}"
        hearsay = Hearsay(by=source, node=peer.node, by_ipc=peer.reached.startswith("ipc:"))
        for group in _groups(peer.addresses):
            dial: Dial = partial(self._outbound.dial_any, group, hearsay=hearsay, proved=peer.reached)
            try:
                await self._shake_hands(
                    group, dial, peer.addresses, peer.node, peer.identity.other_realm_id, source, []
                )
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
        """Dial a node and handshake with it, once the limiter lets it; ``met`` gets the address that answered."""
        async with self._turns.acquire(source) as connected:
            linked = None if expected is None else self._peers.get(expected)
            in_use = None if linked is None else linked.link.outgoing
            if linked is not None and in_use is not None and not self._straightens(in_use, addresses):
                return linked  # it was faster
            self._check_not_refused(addresses, expected)
            own: tuple[str, ...] | None = None
            with trio.move_on_after(patience := self._turns.patience()):
                outgoing = await dial()
                connected()
                try:
                    url = self._outbound.url_of(outgoing) or addresses[0]
                    met.append(url)
                    own = await self._host.own_urls(url, outgoing)
                    if not own:
                        raise NotSent(
                            f"this node listens nowhere, and {url} leads one way only: use a tcp:// or ws:// address "
                            "of the node there"
                        )
                    return await self._handshakes.initiate(
                        outgoing, tuple(dict.fromkeys((url, *known))), own, expected, realm_id
                    )
                except BaseException as error:
                    self._outbound.close(outgoing)
                    if isinstance(error, NotSent | AuthenticationError):
                        self._host.refusals["handshake that came to nothing"] += 1
                    if isinstance(error, NotAdmitted | OutOfDate):
                        self._host.refused(expected, (*met, addresses[0])[0])
                    raise
        self._host.refusals["handshake that came to nothing"] += 1
        raise no_answer((*met, *addresses), patience, own)

    def _check_not_refused(self, addresses: tuple[str, ...], expected: NodeId | None) -> None:
        """Raise HeldOff, or NotSent, while it is too soon to be refused once more."""
        backoff, now = self._backoff, trio.current_time()
        pause = backoff.pause(ALL, now)
        if pause:
            raise HeldOff(f"nobody lets this node in (is its clock right?): it dials again in {pause:.0f} s")
        pause = max(
            0.0 if expected is None else backoff.pause(expected, now),
            min(backoff.pause(url, now) for url in addresses),
        )
        if pause:
            raise NotSent(
                f"{addresses[0]} does not let this node in (is its clock right?): dialled again in {pause:.0f} s"
            )

    def _straightens(self, in_use: OutgoingConnection, addresses: tuple[str, ...]) -> bool:
        return self._outbound.is_relayed(in_use) and not is_via_url(addresses[0])


def _groups(urls: Iterable[str]) -> Iterable[tuple[str, ...]]:
    """Divide the addresses of a node: those that lead to it, and each of those that lead through others by itself."""
    direct = tuple(url for url in urls if not (is_via_url(url) or is_site_url(url)))
    through = ((url,) for url in urls if is_via_url(url) or is_site_url(url))
    return chain((direct,) if direct else (), through)
