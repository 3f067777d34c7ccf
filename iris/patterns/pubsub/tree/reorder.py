"""Reorder buffer: the events of one publisher in the order of publication, whichever path they take (sans-IO).

Plain calls, as on every path that each event takes.  A publisher reaches a node directly or over a tree, and changes
from one path to the other.  It announces the change on the direct link, behind everything that it has sent there, and
sends END over the tree that it leaves, behind everything that it has sent there.  Rules of this file:

- Events of a tree that arrive before the publisher's announcement of that tree wait for the announcement.  They are
  then delivered as far as the frame may bring work about, and the rest by ``expire``, which is due at once.
- Direct events after the announcement that a tree was left wait for the tree's END, for ``PATIENCE`` seconds.
- Events of a tree that was left are dropped.  The loss is not silent: the numbers of the events show the gap.

So nothing is ever out of order.  Lost is what was in flight through a node that died, or came too late.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final, Protocol, final

from msgspec.msgpack import Ext
from msgspec.structs import astuple

from iris.kernel import wire
from iris.kernel.config import MIB
from iris.kernel.names import NodeId
from iris.kernel.shapes import is_tuple
from iris.kernel.wire import kinds
from iris.patterns.pubsub.tree.topology import END, Child, RelayedEvents, TreeRole

PATIENCE: Final = 1.0
"""Seconds for which the end of a tree is waited for: its nodes may be slow, or gone before the publisher notices."""

_HELD_BYTES: Final = 16 * MIB
"""Size of what may wait here of one publisher, in each of the two queues; as much as may wait on a link."""

_PIECE: Final = 256
"""Size that each part of a waiting message is counted with, besides the bytes in it.  What waits is delivered in one
go: 5,000 small messages are as much work as five frames."""

_MAX_ROLES: Final = 32
"""Trees of one publisher that this node knows of besides the one in use: the next one, what was never used, and what
waits behind an end that does not come.  A publisher makes one a second at most, and waits for an end as long.  Each
takes up to 48 KiB."""

LATE: Final = "relayed events of a tree that was left"
MISROUTED: Final = "relayed events of a tree that was not announced"


def _weight(message: object) -> int:
    """Return the memory that a message takes.  Its publisher chose how deep it is, so nothing here calls itself."""
    weight = 0
    parts: list[object] = [message]
    while parts:
        part = parts.pop()
        weight += _PIECE
        if isinstance(part, wire.Message):
            parts.extend(astuple(part))
        elif is_tuple(part):
            parts.extend(part)
        elif isinstance(part, Ext):
            weight += wire.payload_size(part)
        elif isinstance(part, (bytes, str)):
            weight += len(part)
    return weight


class OrderedReceiver(Protocol):
    """Receiver of the events of one publisher.  No method blocks."""

    def receive(self, message: wire.Message) -> None:
        """Receive a message that came directly, in its turn."""
        ...

    def receive_body(self, body: bytes) -> None:
        """Receive a body that came over a tree and is for this node, in its turn."""
        ...

    def may_receive(self, body: bytes) -> bool:
        """Return whether a body that has waited may be received now; if so, ``receive_waiting`` is called with it."""
        ...

    def receive_waiting(self, body: bytes) -> None:
        """Receive such a body."""
        ...

    def forward(self, relayed: RelayedEvents, children: tuple[Child, ...]) -> None:
        """Forward events to nodes behind this one, its children in that tree.  Called as they come."""
        ...

    def refuse(self, reason: str) -> None:
        """Count a message that is dropped."""
        ...

    def ended(self, tree: int) -> None:
        """Note that everything has come over a tree."""
        ...


@final
class ReorderBuffer:
    """Reorder buffer of one publisher.

    Args:
        receiver: receiver of the events in their order.
    """

    def __init__(self, receiver: OrderedReceiver) -> None:
        self._receiver = receiver
        self._roles: dict[int, TreeRole] = {}
        self._turn = 0  # the last one that was announced
        self._tree = 0  # the last one that was turned to
        self._ended = True
        """True once nothing more comes over that tree."""
        self._number = 0
        self._behind: deque[wire.Message] = deque()
        """Direct events behind a change of path that has not happened yet."""
        self._behind_bytes = 0
        self._behind_until = math.inf
        self._early: list[RelayedEvents] = []
        """Events that came over a tree that is not in use yet."""
        self._early_bytes = 0
        self._early_until = math.inf
        self._drains = False
        """True while the first of them are of the tree in use: no frame may bring about all at once."""

    @property
    def is_waiting(self) -> bool:
        """True while direct events have to wait."""
        return bool(self._behind)

    @property
    def deadline(self) -> float:
        """Time at which to call ``expire``; infinity if never."""
        return min(self._behind_until, self._early_until)

    # -- what arrives ---------------------------------------------------------------------------------------

    def receive_role(self, role: TreeRole) -> None:
        """Note this node's role in a tree, which is not in use yet."""
        if role.tree > self._tree:
            self._roles[role.tree] = role
            for tree in sorted(tree for tree in self._roles if tree > self._tree)[:-_MAX_ROLES]:
                del self._roles[tree]

    def receive_route(self, route: kinds.EventRoute, now: float) -> None:
        """Accept the publisher's announcement of its path, which came directly."""
        if route.turn <= self._turn:
            return  # announced again after a reset
        self._turn = route.turn
        if self._behind or (route.wait and not self._ended):
            if not self._behind:
                self._behind_until = now + PATIENCE
            self._hold(route, now)
        else:
            self._go(route, now)

    def receive_direct(self, message: wire.Message, now: float) -> None:
        """Accept events that came directly; for use while ``is_waiting``."""
        self._hold(message, now)

    def _hold(self, message: wire.Message, now: float) -> None:
        self._behind.append(message)
        self._behind_bytes += _weight(message)
        if self._behind_bytes > _HELD_BYTES:
            self._wait_no_longer(now)

    def receive_relayed(self, relayed: RelayedEvents, now: float) -> None:
        """Accept events that came over a tree and are signed by the publisher."""
        if relayed.tree > self._tree or (self._drains and relayed.tree == self._tree):
            self._hold_early(relayed, now)
        else:
            self._receive(relayed, now)

    # -- inside ---------------------------------------------------------------------------------------------

    def _hold_early(self, relayed: RelayedEvents, now: float) -> None:
        weight = _weight(relayed)
        self._early_bytes += weight
        if self._early and self._early_bytes > _HELD_BYTES:  # one finds room, however large it is
            self._early_bytes -= weight
            self._receiver.refuse(MISROUTED)
            return
        if not self._early:
            self._early_until = now + PATIENCE
        self._early.append(relayed)

    def _receive(self, relayed: RelayedEvents, now: float, *, waited: bool = False) -> None:
        if relayed.tree < self._tree or self._ended or relayed.number <= self._number:
            self._receiver.refuse(LATE)
        else:
            role = self._roles[self._tree]
            self._number = relayed.number
            if role.children:
                self._receiver.forward(relayed, role.children)
            if relayed.mask & role.bit:
                if relayed.body == END:
                    self._ended = True
                    self._receiver.ended(self._tree)
                    self._go_on(now)
                elif waited:
                    self._receiver.receive_waiting(relayed.body)
                else:
                    self._receiver.receive_body(relayed.body)

    def _go(self, route: kinds.EventRoute, now: float) -> None:
        """Change to another path."""
        self._ended = True
        if route.tree <= self._tree:
            return  # directly; a tree is used once
        if route.tree not in self._roles:
            self._receiver.refuse(MISROUTED)
            self._turn = route.turn - 1  # it was announced in frames that are lost: the publisher sends both again
            return
        self._tree, self._number, self._ended = route.tree, 0, False
        self._roles = {tree: role for tree, role in self._roles.items() if tree >= route.tree}
        self._drain(now)

    def _drain(self, now: float) -> None:
        """Deliver what has come early and is in turn now, as far as it may be; the rest is due at once."""
        early, self._early = self._early, []
        self._early_bytes, self._early_until = 0, math.inf
        self._drains = False
        for relayed in early:
            in_turn = relayed.tree == self._tree and not self._drains
            if in_turn and not self._receiver.may_receive(relayed.body):
                self._drains, in_turn = True, False
            if relayed.tree > self._tree or (relayed.tree == self._tree and not in_turn):
                self._hold_early(relayed, now)
            else:
                self._receive(relayed, now, waited=True)
        if self._drains:
            self._early_until = now

    def _go_on(self, now: float) -> None:
        """Deliver waiting events, as far as nothing holds them back any more."""
        while self._behind:
            first = self._behind[0]
            if isinstance(first, kinds.EventRoute):
                if first.wait and not self._ended:
                    self._behind_until = now + PATIENCE
                    return
                self._behind.popleft()
                self._go(first, now)
            else:
                self._behind.popleft()
                self._receiver.receive(first)
        self._behind_bytes = 0
        self._behind_until = math.inf

    def _wait_no_longer(self, now: float) -> None:
        self._ended = True
        self._go_on(now)

    def expire(self, now: float) -> None:
        """Stop waiting for what has not arrived in time."""
        if now >= self._behind_until:
            self._wait_no_longer(now)
        if now >= self._early_until and self._drains:
            self._drain(now)
        elif now >= self._early_until:
            for _ in self._early:
                self._receiver.refuse(MISROUTED)
            self._early.clear()
            self._early_bytes, self._early_until = 0, math.inf

    def trees_over(self, node: NodeId) -> list[int]:
        """Return the trees in which this node forwards events to another one."""
        return [tree for tree, role in self._roles.items() if any(child.node == node for child in role.children)]

    def forwards_to(self, node: NodeId) -> bool:
        """Return whether this node forwards events to another one, in the tree in use or one to come."""
        over = self._tree if self._ended else self._tree - 1
        return any(tree > over for tree in self.trees_over(node))

    def reset(self, now: float) -> None:
        """Stop waiting, as frames of the direct link may be lost: the publisher announces its path anew."""
        if self._behind:
            self._wait_no_longer(now)
