"""Tunnel endpoint: connects one end's state machine to its link, its timers and the tasks that wait for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, final

from msgspec.structs import replace

from iris.kernel.errors import NotSent
from iris.kernel.link import BulkSource
from iris.kernel.names import NodeId
from iris.kernel.tasks import Wakeup
from iris.kernel.wire import Message, kinds
from iris.patterns.tunnel.flow_control import STEP, InflightLimit
from iris.patterns.tunnel.machine import TunnelMachine


class TunnelMesh(Protocol):
    """Interface to the mesh, as tunnels use it."""

    def post(self, node: NodeId, message: Message, size: int) -> None:
        """Append a message to the link to ``node``, before all data of tunnels that still waits.

        Raises:
            NotSent: there is no link, or no room on it.
        """
        ...

    def add_bulk_source(self, node: NodeId, source: BulkSource) -> None:
        """Have the link to ``node`` ask ``source`` for data, in turn with others, until it has none.

        Calling it for a source that is being asked already has no effect.

        Raises:
            NotSent: there is no link.
        """
        ...


class EndpointHost(Protocol):
    """The node that an end of a tunnel is of.  No method blocks."""

    @property
    def mesh(self) -> TunnelMesh:
        """Interface to the mesh."""
        ...

    def now(self) -> float:
        """Return the time, on the clock of deadlines."""
        ...

    def end_ended(self, end: TunnelEndpoint) -> None:
        """Note that a tunnel has ended for whatever reason.  Called once for each."""
        ...


@final
class TunnelEndpoint:
    """One end of a tunnel.  It is the source that the link asks for data.

    Args:
        flight: limit of all tunnel data in flight to that node.
        node: node at the other end.
        key: id in messages of the other end.
    """

    __slots__ = (
        "_attached",
        "_ended",
        "_flight",
        "_host",
        "_mark",
        "_reader",
        "_reader_comes",
        "_reading",
        "_waiting",
        "_watching",
        "cluster",
        "due",
        "key",
        "machine",
        "node",
        "senders",
    )

    def __init__(
        self,
        machine: TunnelMachine,
        host: EndpointHost,
        flight: InflightLimit,
        node: NodeId,
        key: int,
        cluster: str,
    ) -> None:
        self.machine: Final = machine
        self.node: Final = node
        self.key: Final = key
        self.cluster: Final = cluster
        self._host = host
        self._flight = flight
        self.due = 0.0
        """Time of the next look at the machine's deadline; never later than that deadline."""
        self._attached = False
        self._ended = False
        self._mark = 0
        """The mark to send back; it counts for those before it."""
        self._reader: Callable[[], bool] | None = None
        """Condition that a task waits for which then reads."""
        self._reader_comes = False
        """True from when that holds until the task has its turn."""
        self._reading = Wakeup()
        self._waiting: dict[Wakeup, Callable[[], bool]] = {}
        self._watching: dict[Callable[[], None], Callable[[], bool]] = {}
        """Functions that are called when a condition holds: for what is no task of trio's."""
        self.senders: Final[deque[object]] = deque()
        """Tasks that wait to send, in order of arrival."""

    # -- the link -------------------------------------------------------------------------------------------

    def pop(self, limit: int, *, shared: bool) -> tuple[Message, int] | None:
        """Return the next message for the link; see ``BulkSource``."""
        if self._mark:
            mark, self._mark = self._mark, 0
            return kinds.TunnelMarked(mark), 16
        flight = self._flight
        room = flight.share(shared)
        piece = self.machine.pop(min(limit, room), data=room > 0)
        if piece is not None:
            message, size = piece
            if isinstance(message, kinds.TunnelChunk) and flight.add(size) and not self._goes_on(limit - size):
                return replace(message, mark=flight.mark(self._host.now())), size
            return piece
        self._attached = False
        if room:
            if flight.blocked:
                flight.unblock_one()
        elif self.machine.sending.has_next:
            flight.block(self)
        return None

    def _goes_on(self, room: int) -> bool:
        """Return whether a frame with so much room left gets another chunk, which can carry the mark that is due."""
        return room >= STEP and self.machine.sending.has_chunk and self._flight.has_room

    def offer(self) -> None:
        """Notify the link if there is something to send and room for it."""
        self.due = 0.0  # the sender may expect an answer sooner than was thought
        if self._attached:
            return
        has_data = self.machine.sending.has_next
        if self._mark or (has_data and self._flight.has_room) or self.machine.has_news:
            self._attached = True
            try:
                self._host.mesh.add_bulk_source(self.node, self)
            except NotSent:
                self._attached = False
        elif has_data:
            self._flight.block(self)

    def offer_again(self) -> None:
        """Do as ``offer``, also if the link was notified before: it may have forgotten."""
        self._attached = False
        self.offer()

    def accepts_mark(self, mark: int) -> bool:
        """Return whether a mark that has come goes back with what this end says next."""
        if self._ended:
            return False
        self._mark = mark
        if not self._is_left_to_reader():
            self.offer()
        return True

    def _is_left_to_reader(self) -> bool:
        """Return whether a task is about to read, so that receipt, credit and mark can go back together in one frame.

        The task is woken.  Each frame that goes back is some 30 us of work for either end, and there were 18 of them
        for 10 of bulk.
        """
        if not self._reader_comes:
            if self._reader is None or not self._reader():
                return False
            self._reader_comes = True
            self._reading.wake()
        return not self.machine.has_urgent_news

    def settle(self) -> None:
        """Act on what has become of the machine: offer data, report the end, wake tasks."""
        is_left_to_reader = self._is_left_to_reader()
        if self.machine.ending is None:
            if not is_left_to_reader:
                self.offer()
        elif not self._ended:
            self._ended = True
            self._flight.forget(self)
            self._host.end_ended(self)
        for wakeup, condition in self._waiting.items():
            if condition():
                wakeup.wake()
        for woken, condition in self._watching.items():
            if condition():
                woken()

    # -- tasks ----------------------------------------------------------------------------------------------

    async def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` holds; it is tried whenever something may have changed.

        When this returns, the condition holds, and no other task has run since it was found to.
        """
        while not condition():
            wakeup = Wakeup()
            self._waiting[wakeup] = condition
            try:
                await wakeup.wait()
            finally:
                del self._waiting[wakeup]

    async def wait_readable(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` holds, for the one task that then reads.

        That calls ``offer``, whatever it has read.
        """
        self._reader = condition
        try:
            while not condition():  # a task that was cancelled may have left what woke it
                await self._reading.wait()
        finally:
            self._reader = None
            self._reader_comes = False

    def watch(self, condition: Callable[[], bool], woken: Callable[[], None]) -> Callable[[], object]:
        """Have ``woken`` called each time that ``condition`` is found to hold; return what ends that.

        ``woken`` must not block, nor use this object.
        """
        self._watching[woken] = condition

        def unwatch() -> None:
            del self._watching[woken]

        return unwatch

    async def wait_room(self, size: int, stopped: Callable[[], bool]) -> None:
        """Wait, in order of arrival, until a message of ``size`` bytes may be queued, or ``stopped`` holds."""
        machine = self.machine
        turn = object()
        self.senders.append(turn)
        machine.hurry()
        self.offer()
        try:
            await self.wait(lambda: stopped() or (self.senders[0] is turn and machine.sending.has_room(size)))
        finally:
            self.senders.remove(turn)
            self.settle()
