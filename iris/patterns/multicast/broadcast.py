"""Broadcast: at-most-once delivery to every member of a cluster, without replies.

Up to ``Config.relay_above`` members the sender sends to each member itself.  Above that number members forward the
message over a relay tree (``iris.patterns.multicast.tree``), and the sender's work no longer grows with their number.

Flow control: members grant credit (``iris.patterns.multicast.broadcast_credit``).  A sender waits until every receiver
has room for the message, for ``Config.broadcast_patience`` seconds in all (``iris.kernel.patience``).  A member that
was waited for that long is skipped until it has room for half of its window.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final, final

import trio

from iris.cluster.mesh import Mesh, Peer, PeerObserver
from iris.kernel import wire
from iris.kernel.config import Config
from iris.kernel.errors import NoSuchCluster, NotSent
from iris.kernel.link import CONTROL_RESERVE, Link
from iris.kernel.names import NodeId, cluster_of
from iris.kernel.patience import Patience
from iris.kernel.wire import kinds
from iris.patterns.books import LedgerRow, ReceiverSet, SendLedger, Tally
from iris.patterns.multicast.broadcast_credit import Flow, cost
from iris.patterns.multicast.relay import RelayPlan, Relays, stands_alone
from iris.patterns.payloads import encoded
from iris.patterns.picker import MemberDirectory, nobody_serves

_STALLED: Final = 0.25
"""Seconds without progress after which a link no longer slows those who broadcast."""

_AT_ONCE: Final = 64
"""Messages after which a caller that had not to wait does, so that others have a turn."""

_ASK_AFTER: Final = 0.1
"""Seconds without credit after which a member is asked for it: one that is at work reports by itself before."""

_MAX_LANES: Final = 1024
"""Clusters whose flow control state is kept."""


@final
class _Lane:
    """The broadcasts to one cluster: their flow control, and the senders that wait for it.

    Attributes:
        name: name of the cluster, as its members call it.
        turn: lock in which broadcasts wait one after the other, and so stay in order.
        news: parking lot of the first of them.
        links: links that accepted the last broadcast.
        tree: plan over which the last broadcast went.  None if it went over none.
        receiver_set: receivers behind that tree, in the books.
        sequence: number of broadcasts that went over trees.
        rows: rows of the other members, in the books.
        patience: time waited for the members of each owner, by owner.
    """

    __slots__ = ("flow", "links", "name", "news", "patience", "receiver_set", "rows", "sequence", "tree", "turn")

    def __init__(self, name: str, position: int) -> None:
        self.name = name
        self.flow = Flow(position)
        self.turn = trio.StrictFIFOLock()
        self.news = trio.lowlevel.ParkingLot()
        self.links: list[Link] = []
        self.tree: RelayPlan | None = None
        self.receiver_set: ReceiverSet | None = None
        self.sequence = 0
        self.rows: dict[NodeId, LedgerRow] = {}
        self.patience: dict[str, Patience] = {}

    def crowded(self) -> Link | None:
        """Return a link that has no room for now."""
        for link in self.links:
            if not link.has_room() and not link.is_stalled(_STALLED):
                return link
        return None


@final
class Broadcasts(PeerObserver):
    """The broadcasts that this node sends."""

    def __init__(
        self, mesh: Mesh, directory: MemberDirectory, config: Config, relays: Relays, ledger: SendLedger
    ) -> None:
        self.tally: Final = Tally()
        """Counters, one for each message and member."""
        self._mesh = mesh
        self._directory = directory
        self._config = config
        self._relays = relays
        self._ledger = ledger
        self._lanes: dict[str, _Lane] = {}
        self._at_once = 0
        """Messages since a caller had to wait."""
        self._highest = 0
        """Position that no evicted flow has passed: members keep such flows longer than this node."""
        mesh.register(kinds.BroadcastCredit, self._receive_credit)

    async def broadcast(
        self,
        cluster: str,
        payload: object,
        *,
        headers: Mapping[str, str] | None = None,
        without_link: Collection[NodeId] = (),
    ) -> None:
        """See ``Node.broadcast``.

        Args:
            cluster: see ``Node.broadcast``.
            payload: see ``Node.broadcast``.
            headers: see ``Node.broadcast``.
            without_link: members that may not be linked: their copies are lost, and counted.
        """
        body = encoded(payload, self._config.max_payload)
        flat = wire.encode_headers(headers, self._config.max_headers)
        # The only checkpoint before the first send: a caller that is cancelled here has sent to nobody.
        await trio.lowlevel.checkpoint()
        members = self._members(cluster)
        lane = self._lane(cluster)
        if self._send_at_once(lane, members, flat, body, without_link):
            return
        waiting = len(members)
        self.tally.sent += waiting
        try:
            await lane.turn.acquire()
            try:
                await self._wait_open(cluster, lane)
                self.tally.sent -= waiting
                waiting = 0
                self._send(lane, flat, body, without_link)
            finally:
                lane.turn.release()
        except trio.Cancelled:
            self.tally.expired += waiting
            for member in members if waiting else ():
                self._row(lane, member).expired += 1
            raise
        except NoSuchCluster:  # as if there had been nobody in the first place
            self.tally.sent -= waiting
            raise

    def broadcast_at_once(
        self,
        cluster: str,
        payload: object,
        headers: Mapping[str, str] | None = None,
        without_link: Collection[NodeId] = (),
    ) -> bool:
        """Broadcast a message if nothing has to be waited for; return whether it is sent.

        Any code of the node's thread may call it, a task or not.  The links may have no turn meanwhile, and without one
        they would stall, and copies be lost: so a caller has to wait now and then.
        """
        self._at_once += 1
        if self._at_once >= _AT_ONCE:
            self._at_once = 0
            return False
        body = encoded(payload, self._config.max_payload)
        flat = wire.encode_headers(headers, self._config.max_headers)
        members = self._members(cluster)
        return self._send_at_once(self._lane(cluster), members, flat, body, without_link)

    def _send_at_once(
        self,
        lane: _Lane,
        members: Sequence[NodeId],
        headers: wire.Headers,
        body: wire.Payload,
        without_link: Collection[NodeId],
    ) -> bool:
        if lane.turn.locked() or not self._is_open(lane, members):
            return False
        self._send(lane, headers, body, without_link)
        return True

    def _lane(self, cluster: str) -> _Lane:
        name = cluster_of(cluster)
        return self._lanes.get(name) or self._open_lane(name)

    def _members(self, cluster: str) -> Sequence[NodeId]:
        members = self._directory.member_ids(cluster)
        if not members:
            raise nobody_serves(cluster, self._mesh, self._directory)
        return members

    def _open_lane(self, name: str) -> _Lane:
        if len(self._lanes) >= _MAX_LANES:
            idle = next((known for known, lane in self._lanes.items() if not lane.turn.locked()), None)
            if idle is not None:
                closed = self._lanes.pop(idle)
                self._highest = max(self._highest, closed.flow.position)
                self._leave_tree(closed)
        lane = self._lanes[name] = _Lane(name, self._highest)
        return lane

    # -- credit ---------------------------------------------------------------------------------------------

    def _is_open(self, lane: _Lane, members: Sequence[NodeId]) -> bool:
        """Return whether the next broadcast may go to all its receivers."""
        flow = lane.flow
        if not flow.is_open(members) and self._choose(lane, members):
            return False
        if flow.passed_over:
            self._ask_again(lane, trio.current_time())
        return lane.crowded() is None

    def _choose(self, lane: _Lane, members: Sequence[NodeId]) -> list[NodeId]:
        short = lane.flow.choose(members)
        lane.flow.forget([node for node in lane.flow.left() if self._mesh.peer(node) is None])
        return short

    async def _wait_open(self, cluster: str, lane: _Lane) -> None:
        """Wait until the next broadcast may go to all its receivers."""
        while not self._is_open(lane, members := self._members(cluster)):
            crowded = lane.crowded()
            if crowded is not None:
                with trio.move_on_after(_STALLED):
                    await crowded.wait_room()
                continue
            await self._wait_credit(lane, self._choose(lane, members))

    async def _wait_credit(self, lane: _Lane, short: Sequence[NodeId]) -> None:
        """Wait until there is news of members without credit; go on without those that were waited for long enough."""
        flow, now = lane.flow, trio.current_time()
        ask_at = min(self._press(lane, node, now) for node in short)
        waits: dict[Patience, list[NodeId]] = {}
        for node in short:
            if flow.windows[node].asked_at is not None:
                waits.setdefault(self._patience(lane, node), []).append(node)
        ends: dict[Patience, float] = {}
        for patience, nodes in waits.items():
            patience.sent = flow.position
            ends[patience] = patience.begin(now, min(flow.windows[node].size for node in nodes) // 2)
        try:
            with trio.move_on_at(min((ask_at, *ends.values()))):
                await lane.news.park()
        finally:
            now = trio.current_time()
            for patience in waits:
                patience.end(now)
        for patience, nodes in waits.items():
            for node in nodes if now >= ends[patience] else ():
                flow.pass_over(node)

    def _patience(self, lane: _Lane, node: NodeId) -> Patience:
        peer = self._mesh.peer(node)
        owner = node if peer is None else peer.identity.owner
        return lane.patience.setdefault(owner, Patience(self._config.broadcast_patience))

    def _press(self, lane: _Lane, node: NodeId, now: float) -> float:
        """Ask a member for credit when it is time for that; return when it is, if it is not yet."""
        window = lane.flow.windows[node]
        if window.blocked_since is None:
            window.blocked_since = now
        if window.asked_at is None:
            if now < window.blocked_since + _ASK_AFTER:
                return window.blocked_since + _ASK_AFTER
            window.asked_at = now
            self._ask(lane, node)
        return math.inf

    def _ask_again(self, lane: _Lane, now: float) -> None:
        """Ask the members passed over again: one that has left and joined again does not know that it was asked."""
        for node in lane.flow.passed_over:
            window = lane.flow.windows[node]
            if window.asked_at is None or now >= window.asked_at + self._config.broadcast_patience:
                window.asked_at = now
                self._ask(lane, node)

    def _ask(self, lane: _Lane, node: NodeId) -> None:
        end = lane.flow.windows[node].end
        message = kinds.BroadcastCreditWanted(lane.name, lane.flow.position if end is None else end)
        try:
            self._mesh.post(node, message, len(lane.name), CONTROL_RESERVE)
        except NotSent:
            return  # it is gone, or asked again

    def _receive_credit(self, peer: Peer, report: kinds.BroadcastCredit) -> None:
        lane = self._lanes.get(report.cluster)
        if lane is None:
            return  # nothing was sent there for long
        refused = min(lane.flow.receive(peer.node, report), self.tally.handed_over)
        if refused:
            self.tally.handed_over -= refused
            self.tally.refuse("refused by the member", refused)
        lane.news.unpark_all()

    # -- sending --------------------------------------------------------------------------------------------

    def _send(self, lane: _Lane, headers: wire.Headers, body: wire.Payload, without_link: Collection[NodeId]) -> None:
        """Send a message to all its receivers; plain calls, no waiting."""
        for member in without_link:
            if self._mesh.peer(member) is None:
                self.tally.sent += 1
                self.tally.lost["no link"] += 1
                self._ledger.row("broadcast", lane.name, member).lose("no link")
        flow, receivers = lane.flow, lane.flow.receivers
        message = kinds.Broadcast(lane.name, headers, body, flow.position)
        size = wire.payload_size(body) + wire.headers_size(headers)
        if flow.passed_over:
            self.tally.sent += len(flow.passed_over)
            self.tally.refuse("no credit", len(flow.passed_over))
            for node in flow.passed_over:
                self._row(lane, node).refused += 1
        flow.sent(cost(body, headers))
        if len(receivers) <= self._config.relay_above:
            self._leave_tree(lane)
            lane.links = self._send_to(lane, receivers, message, size)
        else:
            # Nodes of a site are not linked to those of another: nobody there could forward the message.
            nearest: list[NodeId] = []
            alone: list[NodeId] = []
            for member in receivers:
                (alone if stands_alone(self._mesh, member) else nearest).append(member)
            links = self._send_to(lane, alone, message, size)
            tree = self._tree(lane, nearest)
            lane.sequence += 1
            lane.links = links + self._relays.send(tree, message, self.tally)

    def _row(self, lane: _Lane, member: NodeId) -> LedgerRow:
        row = lane.rows[member] = self._ledger.row("broadcast", lane.name, member)
        return row

    def _send_to(self, lane: _Lane, members: Sequence[NodeId], message: wire.Message, size: int) -> list[Link]:
        links: list[Link] = []
        for member in members:
            self.tally.sent += 1
            row = lane.rows.get(member) or self._row(lane, member)
            peer = self._mesh.peer(member)
            if peer is None:
                self.tally.lost["no link"] += 1
                row.lose("no link")
                continue
            try:
                peer.link.post(message, size)
            except NotSent:
                self.tally.lost["no room on the link"] += 1
                row.lose("no room on the link")
            else:
                self.tally.handed_over += 1
                row.posted += 1
                links.append(peer.link)
        return links

    def _tree(self, lane: _Lane, members: Sequence[NodeId]) -> RelayPlan:
        """Return the tree of a cluster, which stays the same while its members do."""
        others = tuple(members)
        if lane.tree is None or lane.tree.receivers != others:
            self._leave_tree(lane)
            lane.tree = self._relays.tree(others)
            lane.receiver_set = self._ledger.open_receiver_set("broadcast", lane.name, (), others, lane)
        return lane.tree

    def _leave_tree(self, lane: _Lane) -> None:
        if lane.receiver_set is not None:
            self._ledger.close_receiver_set(lane.receiver_set)
        lane.tree = lane.receiver_set = None

    # -- PeerObserver ---------------------------------------------------------------------------------------

    def frames_lost(self, peer: Peer) -> None:
        """Ask the member for credit again if it was asked: frames may be lost."""
        for lane in self._lanes.values():
            window = lane.flow.windows.get(peer.node)
            if window is not None and window.asked_at is not None:
                self._ask(lane, peer.node)

    def peer_removed(self, peer: Peer, _reason: str) -> None:
        """Stop waiting for a member that is gone."""
        for lane in self._lanes.values():
            lane.flow.forget((peer.node,))
            lane.rows.pop(peer.node, None)
            lane.news.unpark_all()
