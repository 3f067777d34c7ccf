"""Sender keys, receiving side: opens events that were sealed once under a publisher's sender key.

The key arrives over the session, the frames by another route, or by two while routes change.  Frames that arrive before
their key, or before the frame that they follow, wait for it, and later frames queue behind them, so nothing is
delivered out of order.  A frame that costs more work than the bound for one frame waits likewise.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from heapq import heappop, heappush
from typing import Final, final

import trio

from iris.cluster.mesh import Mesh, Peer
from iris.kernel import wire
from iris.kernel.config import MIB
from iris.kernel.errors import AuthenticationError, NotSent, RemoteProtocolError
from iris.kernel.link import CONTROL_RESERVE
from iris.kernel.names import NodeId
from iris.kernel.tasks import Wakeup
from iris.kernel.wire import kinds
from iris.security.channel import CopyHeader, ReceiverKey, read_copy_header_untrusted

MAX_KEYS: Final = 1024
"""Keys of one publisher that are kept: as many as it has audiences.  The oldest goes first, and is asked for again."""

MAX_KEYS_OF_OWNER: Final = 8192
"""Keys that are kept of all publishers that one owner vouches for; 3 KiB each.  The oldest of them goes first."""

MAX_WAITING: Final = 4 * MIB
"""Size limit of one publisher's frames that wait for a key, in bytes."""

MAX_OF_OWNER: Final = 8 * MIB
"""Size limit of what waits of all publishers that one owner vouches for, a cluster or another realm, in bytes: the
holder of its key can come as any number of publishers."""

MAX_IN_ALL: Final = 32 * MIB
"""Size limit of what waits of all publishers together, in bytes."""

_OVERHEAD: Final = 256
"""Memory that a frame takes while it waits, beside its own bytes."""

_LATE: Final = 0.25
"""Seconds for which a frame waits for the one before it.  When a gateway leaves, frames on the old route arrive after
those on the new one, by as much as waits for that gateway."""

PATIENCE: Final = 5.0
"""Seconds for which a frame waits for its key, and ``_LATE`` longer at most."""

_ASK_AGAIN: Final = 1.0
_GATHER: Final = 0.05
"""Seconds for which losses are collected before they are reported to the publisher."""


@final
class _Publisher:
    __slots__ = ("asked", "asked_at", "began", "keys", "last", "owner", "size", "waiting")

    def __init__(self, owner: str) -> None:
        self.owner: Final = owner
        self.keys: OrderedDict[int, ReceiverKey] = OrderedDict()
        self.waiting: list[tuple[int, float, CopyHeader, bytes]] = []
        """Frames that wait: a heap by their numbers, each with the time of its arrival."""
        self.began = 0.0
        """Time at which frames began to wait."""
        self.size = 0
        self.last = 0
        self.asked = 0
        self.asked_at = 0.0


@final
class SealedReceiver:
    """Opens the frames that publishers of other sites have sealed for several nodes, this one among them.

    What is in them goes to the mesh's receiver of events.
    """

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._publishers: dict[NodeId, _Publisher] = {}
        self._decoder: Final = wire.BatchDecoder(kinds.Events)
        self._lossy: set[NodeId] = set()
        self._news = Wakeup()
        self._behind: dict[NodeId, None] = {}
        """Publishers with frames beyond the bound of work."""
        self._more = Wakeup()
        self._kept: dict[str, OrderedDict[tuple[NodeId, int], None]] = {}
        """Publishers and numbers of the keys that are kept of each owner, the oldest first."""
        self._sizes: Counter[str] = Counter()
        """Size of the frames that wait, in bytes, by the owner of their publishers."""
        self._waiting: dict[NodeId, None] = {}
        """Publishers with frames that wait."""
        self._begun = Wakeup()
        mesh.register(kinds.SenderKey, self._receive_key)

    def __repr__(self) -> str:
        return f"<SealedReceiver of {len(self._publishers)} publishers, {self.waiting_bytes} bytes wait>"

    @property
    def waiting_bytes(self) -> int:
        """Size of frames that wait for their keys, or for work to be allowed, in bytes."""
        return self._sizes.total()

    @property
    def keys(self) -> int:
        """Number of keys that it has of publishers."""
        return sum(len(known.keys) for known in self._publishers.values())

    # -- keys -----------------------------------------------------------------------------------------------

    def _receive_key(self, peer: Peer, key: kinds.SenderKey) -> None:
        number = key.number
        if not peer.at_remote_site:
            raise RemoteProtocolError("sender keys are for nodes of other sites")
        known = self._publishers.setdefault(peer.node, _Publisher(peer.identity.owner))
        if number not in known.keys:
            try:
                known.keys[number] = ReceiverKey(key.suite, key.key)
            except AuthenticationError as error:
                raise RemoteProtocolError(str(error)) from None
            self._keep(peer.node, known, number)
        if known.asked == number:
            known.asked = 0  # answered: should it be thrown out, it is asked for anew at once
        self._go_on(peer, known)

    def _keep(self, node: NodeId, known: _Publisher, number: int) -> None:
        """Count a key that has come; the oldest ones make room for it."""
        kept = self._kept.setdefault(known.owner, OrderedDict())
        kept[node, number] = None
        if len(known.keys) > MAX_KEYS:
            oldest, _ = known.keys.popitem(last=False)
            del kept[node, oldest]
        if len(kept) > MAX_KEYS_OF_OWNER:
            (other, oldest), _ = kept.popitem(last=False)
            del self._publishers[other].keys[oldest]

    def _ask(self, peer: Peer, known: _Publisher, number: int) -> None:
        now = trio.current_time()
        if known.asked == number and now - known.asked_at < _ASK_AGAIN:
            return
        known.asked, known.asked_at = number, now
        try:
            peer.link.post(kinds.SenderKeyWanted(number), 0, CONTROL_RESERVE)
        except NotSent:
            self._mesh.refusals["answer without room on the link"] += 1

    # -- frames ---------------------------------------------------------------------------------------------

    def receive(self, site: str, source: NodeId, frame: bytes) -> None:
        """Accept a frame from a gateway; a refusal is counted in ``Mesh.refusals``.

        It may wait, and delay what follows, before its publisher is verified: so it has to come from that one's site,
        and gateways of another realm delay nobody of this one.
        """
        peer = self._mesh.peers.get(source)
        if peer is None or not peer.at_remote_site or peer.site != site:
            self._mesh.refusals["copy from a node that is not linked"] += 1
            return
        try:
            header = read_copy_header_untrusted(frame)
        except AuthenticationError:
            self._mesh.refusals["AuthenticationError"] += 1
            return
        known = self._publishers.setdefault(source, _Publisher(peer.identity.owner))
        key = known.keys.get(header.key)
        if known.waiting or key is None or header.before > key.last or not self._mesh.work.may_open(len(frame)):
            if self._has_room(known, len(frame) + _OVERHEAD):
                now = trio.current_time()
                known.began = known.began if known.waiting else now
                heappush(known.waiting, (header.number, now, header, frame))
                self._count(known, len(frame) + _OVERHEAD)
                self._waiting[source] = None
                self._begun.wake()
            else:
                self._mesh.refusals["copy without its key"] += 1
            self._go_on(peer, known)
        else:
            self._open(peer, known, header, frame)

    def _has_room(self, known: _Publisher, size: int) -> bool:
        """Return whether a frame may wait; one may, however large it is."""
        waiting = (known.size, self._sizes[known.owner], self.waiting_bytes)
        bounds = (MAX_WAITING, MAX_OF_OWNER, MAX_IN_ALL)
        return all(not held or held + size <= bound for held, bound in zip(waiting, bounds, strict=True))

    def _count(self, known: _Publisher, size: int) -> None:
        known.size += size
        self._sizes[known.owner] += size
        if not self._sizes[known.owner]:
            del self._sizes[known.owner]

    def _go_on(self, peer: Peer, known: _Publisher) -> None:
        """Open waiting frames in order, as far as their keys are here."""
        now = trio.current_time()
        while known.waiting:
            _, since, header, frame = known.waiting[0]
            key = known.keys.get(header.key)
            # A gateway that brings ever lower numbers, under whatever keys, holds up the others for no longer.
            is_patient = now - known.began < PATIENCE
            if key is None and is_patient and now - since < PATIENCE:
                self._ask(peer, known, header.key)
                return
            if key is not None and header.before > key.last and is_patient and now - since < _LATE:
                return
            if key is not None and not self._mesh.work.may_open(len(frame)):
                self._behind[peer.node] = None
                self._more.wake()
                return
            heappop(known.waiting)
            self._count(known, -len(frame) - _OVERHEAD)
            if header.key in known.keys:
                self._open(peer, known, header, frame)
            else:
                self._mesh.refusals["copy without its key"] += 1
        self._waiting.pop(peer.node, None)

    async def _catch_up(self) -> None:
        """Open the frames that were beyond the bound of work, one bound's worth at a time."""
        while True:
            await self._more.wait()
            while self._behind:
                node = next(iter(self._behind))
                del self._behind[node]
                peer, known = self._mesh.peers.get(node), self._publishers.get(node)
                if peer is not None and known is not None:
                    self._mesh.work.begin()
                    with self._mesh.survive("copies of events"):
                        self._go_on(peer, known)
                await trio.lowlevel.checkpoint()

    async def _follow_up(self) -> None:
        """Ask again for keys that do not come, and drop frames that have waited, though nothing more arrives."""
        while True:
            await self._begun.wait()
            while self._waiting:
                await trio.sleep(_LATE)
                self._behind.update(self._waiting)
                self._more.wake()

    def _open(self, peer: Peer, known: _Publisher, header: CopyHeader, frame: bytes) -> None:
        # A gateway may repeat or delay a frame that it cannot read: each number is opened once, and in order.
        if header.number <= known.last:
            self._mesh.refusals["copy that repeats or comes late"] += 1
            return
        key = known.keys[header.key]
        lost = key.lost
        try:
            body = key.open_untrusted(frame, peer.identity.verify_untrusted)
        except AuthenticationError:
            self._mesh.refusals["AuthenticationError"] += 1
            return
        # Only after the signature was verified: a forged number must not shut out the frames that follow.
        known.last = header.number
        if key.lost != lost:
            self._lossy.add(peer.node)
            self._news.wake()
        try:
            for events in self._decoder.decode_untrusted(body):
                if events.group is not None:
                    raise RemoteProtocolError("a copy holds events for subscribers of no group")
                self._mesh.deliver(peer, events)
        except RemoteProtocolError:
            self._mesh.refusals["message of kind Copy"] += 1
        except Exception as error:  # noqa: BLE001 -- it is the publisher's doing, and not that of the gateway that brought it
            self._mesh.quarantine_peer(peer, "copy of events", error)

    # -- losses ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Open waiting frames and report lost ones to publishers; run it in one task."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._catch_up)
            nursery.start_soon(self._follow_up)
            await self._report_lost()

    async def _report_lost(self) -> None:
        """Report lost frames, so that publishers repeat events that wait for confirmation."""
        while True:
            await self._news.wait()
            await trio.sleep(_GATHER)
            lossy, self._lossy = self._lossy, set()
            for node in lossy:
                peer = self._mesh.peers.get(node)
                if peer is None or peer.other_realm:
                    continue  # nothing is confirmed between realms
                try:
                    self._mesh.post(node, kinds.CopiesLost(), 0, CONTROL_RESERVE)
                except NotSent:
                    self._mesh.refusals["answer without room on the link"] += 1

    def peer_removed(self, node: NodeId) -> None:
        """Forget a publisher."""
        known = self._publishers.pop(node, None)
        if known is not None:
            self._count(known, -known.size)
            kept = self._kept.get(known.owner, OrderedDict())
            for number in known.keys:
                kept.pop((node, number), None)
            if not kept:
                self._kept.pop(known.owner, None)
        self._waiting.pop(node, None)
        self._behind.pop(node, None)
        self._lossy.discard(node)
