"""Tunnel table: all tunnel ends of one node.  Dispatches messages to them, accepts openings, keeps final messages.

An end that has ended leaves the table at once.  The last message that the peer needs, the *final message*, is kept for
a while and answers whatever the peer still sends for that tunnel.  So a lost goodbye is repeated when it is missed.

Openings are deduplicated: an opening that arrives twice opens one tunnel.  A peer counts its tunnels, so all numbers up
to the highest seen are used, but for those whose opening was lost in flight and may still come.  These gaps are few and
the only thing to store, for as long as the peer lives.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from typing import Final, Protocol, final

from msgspec import structs

from iris.kernel.config import KIB, Config
from iris.kernel.errors import NotSent, RemoteProtocolError
from iris.kernel.names import NodeId
from iris.kernel.statistics import Statistics
from iris.kernel.tasks import Wakeup
from iris.kernel.wire import Headers, Message, kinds
from iris.patterns.books import BookRow, PatternStatistics, SendLedger
from iris.patterns.tunnel.endpoint import TunnelEndpoint, TunnelMesh
from iris.patterns.tunnel.flow_control import REMOTE_SITE, InflightLimit
from iris.patterns.tunnel.machine import TunnelMachine
from iris.patterns.tunnel.messages import (
    SMALLEST_WINDOW,
    CloseCode,
    Refusal,
    close_message,
)
from iris.patterns.tunnel.receive_half import Budget

_MAX_GAPS: Final = 1024
"""Openings of one peer that may be missing; the oldest are given up, and refused if they come after all."""

_MAX_STEP: Final = 65536
"""A number so far beyond the highest is not counted but invented."""


@final
class OpenedIds:
    """The numbers of tunnels that one peer has opened."""

    __slots__ = ("_begins", "_ends", "_highest", "missing")

    def __init__(self) -> None:
        self._highest = 0
        self._begins: list[int] = []
        self._ends: list[int] = []
        """The gaps, in order: each from a number, and up to but without another one."""
        self.missing = 0
        """Numbers in the gaps."""

    def add(self, number: int) -> bool:
        """Note a number from 1 up; False if it was seen before, or missing for too long.

        Raises:
            RemoteProtocolError: it leaves out more than 65,536 numbers after one that was seen.
        """
        if number <= self._highest:
            return self._fill(number)
        if self._highest and number - self._highest > _MAX_STEP:  # the first one follows what this node has forgotten
            raise RemoteProtocolError(f"tunnel {number} is opened after tunnel {self._highest}")
        begin = max(self._highest + 1, number - _MAX_GAPS)
        self._highest = number
        if begin < number:
            self._begins.append(begin)
            self._ends.append(number)
            self.missing += number - begin
            self._give_up()
        return True

    def _give_up(self) -> None:
        """Give up the oldest of too many missing numbers, by whole gaps: a peer can make large ones."""
        while self.missing > _MAX_GAPS:
            size = min(self._ends[0] - self._begins[0], self.missing - _MAX_GAPS)
            self.missing -= size
            self._begins[0] += size
            if self._begins[0] == self._ends[0]:
                del self._begins[0], self._ends[0]

    def _fill(self, number: int) -> bool:
        """Remove a number from the gap that it is in, if it is in one."""
        at = bisect_right(self._begins, number) - 1
        if at < 0 or number >= self._ends[at]:
            return False
        begin, end = self._begins[at], self._ends[at]
        parts = [(begin, number)] * (begin < number) + [(number + 1, end)] * (number + 1 < end)
        self._begins[at : at + 1] = [first for first, _ in parts]
        self._ends[at : at + 1] = [last for _, last in parts]
        self.missing -= 1
        return True


_FINAL_MESSAGES: Final = 1024
"""Farewells kept for one peer; the oldest go first.  After that it learns only that the tunnel is forgotten."""

_FORMER_PEERS: Final = 1024
"""Lost nodes of which the numbers of tunnels are remembered, in case they were not dead."""

_FORMER_FINAL_MESSAGES: Final = 64
"""Farewells kept for each of these nodes: some 25 MB for all of them."""

_FULL_WINDOWS: Final = 64
"""Windows that the tunnels which one node opens to this one have together, but for ``_LEAST_WINDOW`` that each gets."""

_PART: Final = 16
"""A new tunnel gets at most so much of what is left of them: 48 have full windows, and later ones less and less."""

_LEAST_WINDOW: Final = 16 * KIB
"""Window of the last tunnels of a node, in bytes: 64 MiB for 4,096 of them."""

_MARK_PATIENCE: Final = 4
"""Times ``Config.tunnel_retry`` after which a mark is taken to be lost though no link has noticed."""


class TunnelHost(Protocol):
    """The node that has the tunnels.  No method blocks."""

    def accept(self, opening: kinds.TunnelOpen, end: TunnelEndpoint) -> Refusal | None:
        """Accept a tunnel, or return the refusal.  Called for each tunnel that a peer opens."""
        ...

    def is_at_remote_site(self, node: NodeId) -> bool:
        """Return whether a node is at another site.  Called when the first tunnel with it begins."""
        ...

    def now(self) -> float:
        """Return the time, on the clock of deadlines."""
        ...


@final
class TunnelsStatistics(Statistics, frozen=True, kw_only=True):
    """Counters of all tunnels of one node."""

    open: int
    """Ends that exist now, those that are being opened included."""
    opened: int
    """Tunnels that this node asked for."""
    accepted: int
    """Tunnels of others that this node accepted."""
    refused: int
    """Tunnels of others that it refused."""
    ended: Mapping[str, int]
    """Ends that are no more, by reason."""
    messages: PatternStatistics
    """Messages sent from here; answered are those that the other end has."""


@final
class _Peer:
    """State of the tunnels with one node."""

    __slots__ = (
        "accepted", "budget", "config", "ends", "final_messages", "flight", "opened", "opened_here", "window",
        "windows_left",
    )  # fmt: skip

    def __init__(self, config: Config, flight: InflightLimit) -> None:
        self.config = config
        self.ends: dict[int, TunnelEndpoint] = {}  # by the id in the peer's messages
        self.final_messages: OrderedDict[int, Message] = OrderedDict()
        self.flight = flight
        self.opened = OpenedIds()
        self.opened_here = 0
        self.accepted = 0
        self.window = max(config.tunnel_window, SMALLEST_WINDOW)
        self.windows_left = _FULL_WINDOWS * self.window
        self.budget = Budget(self.windows_left, self)

    def credit_returned(self, number: int) -> None:
        """See ``CreditObserver``."""
        end = self.ends.get(-number)
        if end is not None:
            end.offer()

    def gone(self, machine: TunnelMachine) -> None:
        """Release the window of a tunnel that the peer opened, and that has ended."""
        self.accepted -= 1
        self.windows_left += machine.window
        machine.receiving.leave_budget()

    def next_window(self) -> int:
        """Return the window of the next tunnel that the peer opens."""
        return max(min(self.window, _LEAST_WINDOW), min(self.window, self.windows_left // _PART))


@final
class TunnelTable:
    """The tunnels of one node."""

    def __init__(self, mesh: TunnelMesh, config: Config, ledger: SendLedger, host: TunnelHost) -> None:
        self.mesh: Final = mesh
        self._config = config
        self._ledger = ledger
        self._host = host
        self._begun = Wakeup()
        self._peers: dict[NodeId, _Peer] = {}
        self._former: OrderedDict[NodeId, _Peer] = OrderedDict()
        self._numbered = 0
        """Highest number of a tunnel to any node that is not remembered: that node may remember."""
        self._opened = self._accepted = self._refused = 0
        self._ended: Counter[str] = Counter()
        self._sent = self._delivered = 0
        self._lost: Counter[str] = Counter()

    def __iter__(self) -> Iterator[TunnelEndpoint]:
        """Iterate over a snapshot of all ends."""
        return iter([end for peer in self._peers.values() for end in peer.ends.values()])

    def __len__(self) -> int:
        """Return the number of ends."""
        return sum(len(peer.ends) for peer in self._peers.values())

    def has(self, node: NodeId) -> bool:
        """Return whether there are ends of tunnels with a node."""
        peer = self._peers.get(node)
        return peer is not None and bool(peer.ends)

    # -- this side ------------------------------------------------------------------------------------------

    def open(self, node: NodeId, cluster: str, operation: str | None, headers: Headers) -> TunnelEndpoint:
        """Ask ``node`` for a tunnel; the end is ``TunnelState.OPENING`` until it answers.

        Raises:
            NotSent: there is no route to that node now.
        """
        peer = self._peer(node)
        number = peer.opened_here + 1
        window = max(peer.config.tunnel_window, SMALLEST_WINDOW)
        opening = kinds.TunnelOpen(number, cluster, operation, headers, window, self._config.max_payload)
        machine = TunnelMachine(identifier=number, opening=opening, config=peer.config, now=self._host.now())
        end = peer.ends[-number] = self._make_end(machine, peer, node, -number, cluster)
        peer.opened_here = number
        try:
            self.mesh.post(node, opening, sum(map(len, headers or ())) + 64)
        except NotSent:
            del peer.ends[-number]
            raise
        self._opened += 1
        return end

    async def wait_begun(self) -> None:
        """Wait until an end has been made since this last returned; one task may."""
        await self._begun.wait()

    def expire(self) -> None:
        """Let every end look at the time.  To be called about twice in each ``Config.tunnel_retry``."""
        now = self._host.now()
        for peer in self._peers.values():
            peer.flight.expire(now, _MARK_PATIENCE * self._config.tunnel_retry)
        for end in self:
            if end.due > now:
                continue
            machine = end.machine
            if machine.deadline <= now:
                machine.expire(now)
                end.offer_again()
                end.settle()
            end.due = machine.deadline

    # -- what the mesh says ---------------------------------------------------------------------------------

    def receive_marked(self, sender: NodeId, mark: int) -> None:
        """Accept a mark that has come back."""
        peer = self._peers.get(sender)
        if peer is not None:
            peer.flight.arrived(mark, self._host.now())

    def receive(self, sender: NodeId, message: kinds.OfTunnel) -> None:
        """Accept a message; raise RemoteProtocolError if it is about no tunnel that could exist."""
        peer, identifier = self._peers.get(sender), message.id
        if not identifier:
            raise RemoteProtocolError("a message about a tunnel carries its id")
        end = peer.ends.get(identifier) if peer is not None else None
        if end is not None:
            if isinstance(message, kinds.TunnelOpen):
                end.machine.opened_again()
            else:
                end.machine.receive(message, self._host.now())
            end.settle()
        # A goodbye is not answered: two ends that have both forgotten a tunnel would otherwise answer each other for
        # ever.
        elif not isinstance(message, (kinds.TunnelClose, kinds.TunnelRefuse)):
            self._receive_other(sender, identifier, message)
        if isinstance(message, kinds.TunnelChunk) and message.mark and not (end and end.accepts_mark(message.mark)):
            # Whatever becomes of the chunk: it is here and no longer in flight.
            self._post(sender, kinds.TunnelMarked(message.mark))

    def link_reset(self, node: NodeId) -> None:
        """Frames to or from ``node`` may be lost: compare the progress of every tunnel with it."""
        peer = self._peers.get(node)
        if peer is None:
            return
        peer.flight.reset()
        for end in list(peer.ends.values()):
            end.machine.reset()
            end.offer_again()

    def node_lost(self, node: NodeId, reason: str) -> None:
        """Break every tunnel with ``node``, which is given up."""
        peer = self._peers.pop(node, None)
        if peer is None:
            return
        peer.flight = self._flight(node)
        self._former[node] = peer
        if len(self._former) > _FORMER_PEERS:
            _, forgotten = self._former.popitem(last=False)
            self._numbered = max(self._numbered, forgotten.opened_here)
        for end in list(peer.ends.values()):
            end.machine.lost(reason)
            end.settle()
        while len(peer.final_messages) > _FORMER_FINAL_MESSAGES:
            peer.final_messages.popitem(last=False)

    def member_lost(self, node: NodeId, cluster: str, reason: str) -> None:
        """Break every tunnel that was opened to ``node`` as a member of ``cluster``: it is none any more."""
        peer = self._peers.get(node)
        for end in [] if peer is None else list(peer.ends.values()):
            if end.machine.asked == cluster:
                end.machine.lost(reason)
                end.settle()

    # -- inside ---------------------------------------------------------------------------------------------

    def _peer(self, node: NodeId) -> _Peer:
        peer = self._peers.get(node)
        if peer is None:
            peer = self._former.pop(node, None)
            if peer is None:
                config = self._config
                if self._host.is_at_remote_site(node):
                    config = structs.replace(config, tunnel_window=config.site_tunnel_window)
                peer = _Peer(config, self._flight(node))
                peer.opened_here = self._numbered
            self._peers[node] = peer
        return peer

    def _flight(self, node: NodeId) -> InflightLimit:
        return InflightLimit(REMOTE_SITE if self._host.is_at_remote_site(node) else 1)

    def _make_end(self, machine: TunnelMachine, peer: _Peer, node: NodeId, key: int, cluster: str) -> TunnelEndpoint:
        self._begun.wake()
        return TunnelEndpoint(machine, self, peer.flight, node, key, cluster)

    def _receive_other(self, sender: NodeId, identifier: int, message: kinds.OfTunnel) -> None:
        """Answer a message about a tunnel that is not here, or not yet."""
        peer = self._peer(sender)
        final_message = peer.final_messages.get(identifier)
        if final_message is None and isinstance(message, kinds.TunnelOpen):
            if identifier < 0:
                raise RemoteProtocolError(f"a tunnel is opened under the number {identifier}")
            if peer.opened.add(identifier):
                self._open_for(sender, peer, identifier, message)
                return
        if final_message is None:
            final_message = close_message(-identifier, CloseCode.FORGOTTEN, 0, "there is no such tunnel here")
        self._post(sender, final_message)

    def _open_for(self, sender: NodeId, peer: _Peer, identifier: int, opening: kinds.TunnelOpen) -> None:
        refusal: Refusal | None = None
        if peer.accepted >= self._config.tunnels_per_node:
            refusal = Refusal(code="overloaded", text=f"{peer.accepted} tunnels are open", retry_after=1.0)
        else:
            machine = TunnelMachine(
                identifier=-identifier,
                opening=None,
                config=peer.config,
                now=self._host.now(),
                window=peer.next_window(),
                budget=peer.budget,
            )
            machine.begin(opening.window, opening.limit)
            end = peer.ends[identifier] = self._make_end(machine, peer, sender, identifier, opening.cluster)
            peer.accepted += 1
            peer.windows_left -= machine.window
            self._accepted += 1
            refusal = self._host.accept(opening, end)
            if refusal is None:
                end.settle()
                return
            self._accepted -= 1
            del peer.ends[identifier]
            peer.gone(machine)
        self._refused += 1
        self._part(sender, peer, identifier, refusal.message(-identifier))

    def now(self) -> float:
        """See ``EndpointHost``."""
        return self._host.now()

    def end_ended(self, end: TunnelEndpoint) -> None:
        """Move an end that has ended out of the table and into the counters; see ``EndpointHost``."""
        peer = self._peers.get(end.node) or self._former.get(end.node)
        if peer is not None and peer.ends.pop(end.key, None) is not None and end.key > 0:
            peer.gone(end.machine)
        machine = end.machine
        assert machine.ending is not None
        reason = machine.ending.code.name.lower()
        self._ended[reason] += 1
        self._sent += machine.sending.messages_sent
        self._delivered += machine.sending.messages_delivered
        if machine.ending.lost:
            self._lost[reason] += machine.ending.lost
        if machine.sending.messages_sent:
            row = self._ledger.row("tunnel", end.cluster, end.node)
            row.received += machine.sending.messages_delivered
            if machine.ending.code is CloseCode.LOST:
                row.in_doubt += machine.ending.lost
            elif machine.ending.lost:
                row.lose(reason, machine.ending.lost)
        if machine.final_message is not None and peer is not None:
            self._part(end.node, peer, end.key, machine.final_message)

    def _part(self, node: NodeId, peer: _Peer, key: int, final_message: Message) -> None:
        peer.final_messages[key] = final_message
        if len(peer.final_messages) > _FINAL_MESSAGES:
            peer.final_messages.popitem(last=False)
        self._post(node, final_message)

    def _post(self, node: NodeId, message: Message) -> None:
        try:
            self.mesh.post(node, message, 64)
        except NotSent:
            return  # the peer asks about a tunnel that has gone quiet, and is answered then

    def in_progress(self) -> list[BookRow]:
        """Return what the tunnels that are open have sent, for the books."""
        rows: list[BookRow] = []
        for end in self:
            sent, delivered = end.machine.sending.messages_sent, end.machine.sending.messages_delivered
            if sent:
                rows.append(
                    BookRow(
                        pattern="tunnel", name=end.cluster, receiver=end.node, sent=sent, received=delivered,
                        expired=0, refused=0, lost={}, in_doubt=0, waiting=sent - delivered,
                    )
                )  # fmt: skip
        return rows

    def statistics(self) -> TunnelsStatistics:
        """Return a snapshot of the counters."""
        sent, delivered = self._sent, self._delivered
        for end in self:
            sent += end.machine.sending.messages_sent
            delivered += end.machine.sending.messages_delivered
        lost = sum(self._lost.values())
        return TunnelsStatistics(
            open=len(self),
            opened=self._opened,
            accepted=self._accepted,
            refused=self._refused,
            ended=dict(self._ended),
            messages=PatternStatistics(
                sent=sent,
                answered=delivered,
                handed_over=0,
                expired=0,
                refused=0,
                refused_because={},
                lost=dict(self._lost),
                waiting=sent - delivered - lost,
            ),
        )
