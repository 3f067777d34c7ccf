"""Linking: who dials whom, what waits for a link, and for how long a dead member keeps one.

Of two nodes that both want a link one dials, as their ids say; the other one waits a moment for it, unless it has
something to send.  Where processors are short it waits longer, for a second handshake makes them shorter yet.

A member that is declared dead but was heard since it fell under suspicion is most likely slow: it will refute, and a
link costs both ends milliseconds of work.  Dropping the links of slow nodes would make them slower yet, and a loaded
machine would never come to rest.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Protocol, final

import trio

from iris.cluster.membership.link_states import LinkStates
from iris.cluster.mesh import Mesh
from iris.cluster.routes import is_two_way, is_via_url, via_url
from iris.cluster.swim import NodeRecord
from iris.kernel.errors import AuthenticationError, ConfigError, IrisError, NotSent
from iris.kernel.names import NodeId
from iris.kernel.transport import Refused
from iris.kernel.wire import Message

_PAUSES: Final = (0.25, 0.5, 1.0, 2.0, 5.0)
"""Seconds between attempts to link to a node that gossip calls alive; the last one repeats."""

_LONGEST: Final = 30.0
"""The same at most, for one whose link is not to be kept: each pause is twice as long as the one before."""

_RETRIES: Final = 50.0
"""Attempts per second, beyond the first one for each node, to link to members of one cluster: where more of them cannot
be reached than that is enough for, the pauses are longer.  An attempt takes 0.3 ms, and a holder of the cluster's key
can make up thousands of members."""

_COURTESY: Final = 0.5
"""Seconds that one of two nodes which learn of each other waits, while the other one dials."""

_LATER: Final = 20.0
"""Factor of its own lateness that it waits in addition: a handshake goes through as many threads, of both nodes."""

_LATER_AT_MOST: Final = 2.0
"""Seconds that it waits for that at most: the other end may want no link, because by now it knows of many members."""

_SPREAD: Final = 20.0
"""Factor of its lateness within which a node begins to dial: a newcomer that all discover at once has to answer all."""

_LATE: Final = 0.02
"""Seconds of lateness from which a node that has something to say waits as well."""

_FIRST_ATTEMPTS: Final = 2
"""Attempts to link to a new member that have to fail before its silence counts against it."""

_COURTESY_TO_DIALLERS: Final = 5.0
"""Seconds for which a node that only dials out is left to dial this one, before others are asked to relay."""

_HELD_BACK: Final = 64
"""Messages of the machine kept for a node that is being linked."""

_REPRIEVE: Final = 5.0
"""Seconds that a dead member which was heard under suspicion keeps its link.  An accusation and its refutation take
less even where each process waits a second for its turn."""


@final
class _Wait:
    """Messages for a node that is being linked, and the state of that.

    Attributes:
        messages: messages of the machine, for when it is linked.
        alone: True if the other end does not dial: it does not know that there is to be a link.
        failed: True once an attempt has failed.
        kept: False while a link is tried again that is not to be kept.
        again: set when it is to be tried again without further delay.
        hurry: set when there is something for it, or when it is linked.
        linked: set when it is linked.
    """

    __slots__ = ("again", "alone", "failed", "hurry", "kept", "linked", "messages")

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.alone = False
        self.failed = False
        self.kept = True
        self.again = trio.Event()
        self.hurry = trio.Event()
        self.linked = trio.Event()


class LinkingHost(Protocol):
    """The part of membership that linking needs.  Plain calls; none may block."""

    def record_of(self, node: NodeId) -> NodeRecord | None:
        """Return the record of a node, alive or dead, if it is known."""
        ...

    def knows(self, node: NodeId) -> bool:
        """Return whether a node is held alive, or only suspected."""
        ...

    def wants(self, node: NodeId) -> bool:
        """Return whether a link to a node is to be kept, and not only made for what is sent now."""
        ...

    def peer_refused(self, node: NodeId) -> None:
        """The address of a node refuses connections."""
        ...

    def link_failed(self, error: IrisError) -> None:
        """An attempt ended with an error."""
        ...

    def news(self) -> None:
        """The first attempt to link to a node has come to nothing."""
        ...


@final
class Linking:
    """Makes the links to members, and ends those to the dead.

    Args:
        mesh: the links.
        nursery: for the tasks that dial.
        host: the membership.
        states: table of the nodes that are new.
    """

    def __init__(self, mesh: Mesh, nursery: trio.Nursery, host: LinkingHost, states: LinkStates) -> None:
        self._mesh = mesh
        self._nursery = nursery
        self._host = host
        self._new = states.new
        self._waits: dict[NodeId, _Wait] = {}
        self._unreached: Counter[str] = Counter()
        """Nodes that an attempt to link to has failed with, by cluster."""
        self._suspected: dict[NodeId, int] = {}
        self._straightening: set[NodeId] = set()
        """Nodes that are dialled although they are linked, through others."""

    def __len__(self) -> int:
        return len(self._waits)

    def begin(self, node: NodeId, *, new: bool = False, alone: bool = False) -> None:
        """Link to a node, unless that is in progress.

        Args:
            node: it.
            new: it was not linked before.
            alone: the other end does not dial by itself.
        """
        wait = self._wait(node, new=new)
        if alone:
            wait.alone = True
            wait.hurry.set()
        if not wait.kept and self._host.wants(node):
            wait.again.set()

    def retry(self, node: NodeId | None = None) -> None:
        """Dial a node that could not be reached without further delay; None: each of them."""
        for wait in self._waits.values() if node is None else filter(None, (self._waits.get(node),)):
            wait.again.set()

    def straighten(self, node: NodeId) -> None:
        """Link to a node directly that is linked through another one, and listens by now.  Tried twice."""
        peer, record = self._mesh.peers.get(node), self._host.record_of(node)
        if (
            peer is not None
            and record is not None
            and is_via_url(next(iter(peer.addresses), ""))
            and any(map(is_two_way, record.addresses))
            and node not in self._straightening
            and not self._mesh.closing
        ):
            self._straightening.add(node)
            self._nursery.start_soon(self._straighten, node, record)

    async def _straighten(self, node: NodeId, record: NodeRecord) -> None:
        try:
            if dials_second(self._mesh.node, node):
                await trio.sleep(_COURTESY)  # it may listen and know of this one as well
            for pause in (_PAUSES[-1], 0.0):
                try:
                    await self._mesh.straighten(node, record.addresses, f"cluster {record.name}")
                except (NotSent, AuthenticationError, ConfigError) as error:
                    self._host.link_failed(error)
                    await trio.sleep(pause)
                except Exception as error:  # noqa: BLE001 -- others chose its addresses, and must not end the node
                    self._mesh.note_unexpected("dialling a member", error)
                    return
                else:
                    return
        finally:
            self._straightening.discard(node)

    def is_unreached(self, node: NodeId) -> bool:
        """Return whether an attempt to link to a node has come to nothing; others follow."""
        wait = self._waits.get(node)
        return wait is not None and wait.failed

    def hold(self, node: NodeId, message: Message) -> None:
        """Link to a node without delay, and keep a message for then.  The 65th is dropped: gossip repeats itself.

        Nothing is begun for one held dead at whose addresses others are: it would be each second, for each of the dead.
        """
        if node not in self._waits and not self._host.knows(node):
            record = self._host.record_of(node)
            if record is not None and not self._urls(record):
                return
        wait = self._wait(node)
        if len(wait.messages) < _HELD_BACK:
            wait.messages.append(message)
        wait.hurry.set()

    def linked(self, node: NodeId) -> list[Message]:
        """Note that a node is linked; return what was held for it."""
        wait = self._waits.get(node)
        if wait is None:
            return []
        wait.hurry.set()
        wait.again.set()
        wait.linked.set()
        messages, wait.messages = wait.messages, []
        return messages

    def frames_from(self, node: NodeId) -> int:
        """Return how many frames have come from a linked node under its present session."""
        session = self._mesh.peers[node].session
        return 0 if session is None else session.statistics().received_frames

    def suspected(self, node: NodeId) -> None:
        """Note that a node is under suspicion; what it sends from the first time on counts."""
        if node in self._mesh.peers:
            self._suspected.setdefault(node, self.frames_from(node))

    def cleared(self, node: NodeId) -> None:
        """Note that a node is under suspicion no more."""
        self._suspected.pop(node, None)

    def dead(self, node: NodeId) -> None:
        """End the link to a dead node, if there is one: at once, or when it had time to refute."""
        before = self._suspected.pop(node, None)
        if node in self._mesh.peers:
            has_received = before is not None and self.frames_from(node) != before  # fewer if the session was replaced
            self._drop_soon(node, "it is dead", _REPRIEVE if has_received else 0.0)

    def expelled(self, node: NodeId) -> None:
        """End the link to a node whose certificates hold no more; there is nothing that it could refute."""
        self._suspected.pop(node, None)
        self._drop_soon(node, "its certificates hold no more", 0.0)

    def _drop_soon(self, node: NodeId, reason: str, patience: float) -> None:
        if not self._mesh.closing:
            self._nursery.start_soon(self._drop, node, reason, patience)

    async def _drop(self, node: NodeId, reason: str, patience: float) -> None:
        # Also without patience outside the loop that reads its messages.
        if patience:
            await trio.sleep(patience)
        if not self._host.knows(node):
            self._mesh.drop(node, reason)

    # -- dialling -------------------------------------------------------------------------------------------

    def _wait(self, node: NodeId, *, new: bool = False) -> _Wait:
        wait = self._waits.get(node)
        if wait is None:
            wait = _Wait()
            if not self._mesh.closing:  # else there is nobody any more who could do it
                self._waits[node] = wait
                if new:
                    self._new.add(node)  # it may well not have had its turn yet
                self._nursery.start_soon(self._link, node, wait)
        return wait

    def _urls(self, record: NodeRecord) -> list[str]:
        """Return where to dial a node; one held dead not where nodes are that are linked.

        A node that was started anew has another identity at the same address: the one that is dead is not there, and
        each try to reach it would be a handshake with the other.
        """
        through_others = (via_url(record.node),) if self._mesh.dial_only else ()
        urls = list(dict.fromkeys((*record.addresses, *through_others)))
        if self._host.knows(record.node):
            return urls
        linked = map(self._host.record_of, self._mesh.peers)
        taken = {address for other in linked if other is not None for address in other.addresses}
        return [url for url in urls if url not in taken]

    async def _link(self, node: NodeId, wait: _Wait) -> None:
        """Dial a node until it is linked or no longer alive; one that is dead once.

        The machine tries the dead again at its own pace.  Callers wait for the first attempt only: from its failure on
        the node counts as unreached until it is linked, or each of them would wait for it in turn.
        """
        unreached: str | None = None
        try:
            await self._be_courteous(node, wait)
            if damping := self._mesh.redialling.flapping.pause(node, trio.current_time()):
                await trio.sleep(damping)
            for attempt in range(1_000_000):
                record = self._host.record_of(node)
                if record is None or self._mesh.peer(node) is not None:
                    return
                try:
                    urls = self._urls(record)
                    if not urls and not self._host.knows(node):
                        return
                    # Who has a credential can make up any number of nodes, but not of another cluster's.
                    await self._mesh.connect(urls, expected=node, source=f"cluster {record.name}", hearsay=True)
                except Refused:
                    self._new.discard(node)
                    self._host.peer_refused(node)
                except (NotSent, AuthenticationError, ConfigError) as error:
                    self._host.link_failed(error)
                except Exception as error:  # noqa: BLE001 -- others chose its addresses, and must not end the node
                    self._mesh.note_unexpected("dialling a member", error)
                if attempt + 1 >= _FIRST_ATTEMPTS:
                    self._new.discard(node)
                if not wait.failed:
                    wait.failed = True
                    self._host.news()
                if not self._host.knows(node):
                    return
                # Also after one that has come about: a node that lets this one in and leaves is not dialled at once.
                wait.kept = self._host.wants(node) or self._mesh.peer(node) is not None
                if wait.kept:
                    pause = _PAUSES[min(attempt, len(_PAUSES) - 1)]
                else:
                    wait.messages.clear()
                    pause = min(_PAUSES[0] * 2 ** min(attempt, 16), _LONGEST)
                if unreached is None:
                    unreached = record.name
                    self._unreached[unreached] += 1
                wait.again = trio.Event()
                with trio.move_on_after(max(pause, self._unreached[unreached] / _RETRIES)):
                    await wait.again.wait()
                if not self._host.knows(node):
                    return
        finally:
            if unreached is not None:
                self._unreached[unreached] -= 1
                if not self._unreached[unreached]:
                    del self._unreached[unreached]
            self._waits.pop(node, None)
            self._new.discard(node)

    async def _be_courteous(self, node: NodeId, wait: _Wait) -> None:
        """Leave it to a node to dial this one for a while, if it is the one to do it.  No member dials a client."""
        if self._mesh.tag.client:
            return
        record = self._host.record_of(node)
        dials = record is not None and any(map(is_via_url, record.addresses))
        if dials and any(map(is_two_way, self._mesh.advertised)):
            with trio.move_on_after(_COURTESY_TO_DIALLERS):
                await wait.linked.wait()
        elif wait.alone:
            return
        elif dials_second(self._mesh.node, node) if dials == self._mesh.dial_only else dials:
            late = self._mesh.turns.lateness()
            with trio.move_on_after(_COURTESY + min(_LATER * late, _LATER_AT_MOST)):
                await (wait.linked if late > _LATE else wait.hurry).wait()
        elif node in self._new and (late := self._mesh.turns.lateness()) > _LATE:
            with trio.move_on_after(min(_SPREAD * late, _LATER_AT_MOST) * share_of(self._mesh.node, node)):
                await wait.linked.wait()


def share_of(node: NodeId, other: NodeId) -> float:
    """Return a number from 0 to 1 that is another one for each two nodes, and the same each time."""
    return (int(node[:8], 16) ^ int(other[:8], 16)) / 0xFFFFFFFF


def dials_second(node: NodeId, other: NodeId) -> bool:
    """Return whether of these two the first one leaves it to the other to dial.

    Not by the order of the ids alone: the smallest would have all the others to dial, some at a time, and the whole
    realm would wait for it.  So each dials about half of them.
    """
    odd = (int(node[-1], 16) ^ int(other[-1], 16)) & 1
    return (node > other) != bool(odd)
