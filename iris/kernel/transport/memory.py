"""Simulated network in memory: whole nodes in one process, on a virtual clock, with faults on demand.

It keeps what the real network promises and nothing more.  Frames of one connection arrive in order; when a connection
breaks, frames in transit may be lost; a slow reader holds up its writers.  Everything random comes from the given seed.

``partition`` loses what is sent across it.  A link that is ``blocked`` keeps it, as TCP does: it arrives when the link
is open again, unless the connection was given up before.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import Context, copy_context
from typing import Final, NamedTuple, final

import trio
from msgspec import Struct

from iris.kernel.buffer_pool import give_back
from iris.kernel.config import KIB
from iris.kernel.errors import ConfigError, NotSent
from iris.kernel.tasks import HostLoop
from iris.kernel.transport.port import ConnectionObserver, ConnectionUser, Permit, Refused
from iris.kernel.wire import MAX_FRAME

_SCHEME: Final = "mem://"


def check_memory_url(url: str) -> str:
    """Return ``url``; raise ConfigError if it can be no address here."""
    if not url.startswith(_SCHEME) or url == _SCHEME:
        raise ConfigError(f"{url!r} is not an address of a memory network: use mem://NAME")
    return url


@final
class LinkFault(Struct, frozen=True, kw_only=True):
    """A fault of the route from one host to another."""

    blocked: bool = False
    """Nothing arrives, and connections cannot be made; what was sent arrives later."""
    loss: float = 0.0
    """Probability that a frame vanishes silently."""
    delay: tuple[float, float] = (0.0, 0.0)
    """Least and greatest seconds that a frame takes in addition."""


FrameObserver = Callable[[str, str, int, str], None]
"""Called with each frame that is sent: the host it comes from, that it goes to, its bytes, and what becomes of it:
``sent``, ``held`` or ``lost``."""

_SOUND: Final = LinkFault()


@final
class MemoryStatistics(NamedTuple):
    """Counts of what would be descriptors on a real network."""

    transports: int
    dialled: int
    accepted: int
    listening: int
    opening: int
    """Reverse connections that are being made."""


@final
class MemoryNetwork:
    """The simulated network that joins the transports of one trio run.

    Args:
        seed: seed of all randomness here; the same seed and the same calls give the same run.
        latency: least and greatest seconds that a frame takes one way.
        loss: probability from 0 to 1 that a frame vanishes silently.
        capacity: frames in transit on one way before its writer has to wait.
        capacity_bytes: bytes likewise, as the buffers of sockets have room for; a frame may go beyond.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        latency: tuple[float, float] = (0.0001, 0.0005),
        loss: float = 0.0,
        capacity: int = 64,
        capacity_bytes: int = 1024 * KIB,
    ) -> None:
        self.random: Final = random.Random(seed)
        self.latency = latency
        self.loss = loss
        self.capacity: Final = capacity
        self.capacity_bytes: Final = capacity_bytes
        self._transports: list[MemoryTransport] = []
        self._listening: dict[str, MemoryTransport] = {}
        self.accepting: Final[dict[str, _Accepting]] = {}
        """Nodes that wait for a reverse connection, by token."""
        self.calling: Final[dict[str, MemoryIncoming]] = {}
        """Reverse connections that are being dialled, by token."""
        self.cut: Final[set[tuple[str, str]]] = set()
        """Pairs of hosts between which everything is dropped, in that direction."""
        self.faults: Mapping[tuple[str, str], LinkFault] = {}
        """Links that are faulty, by the hosts that they go from and to."""
        self.observer: FrameObserver | None = None
        self._names = 0

    def transport(self, host: str, max_frame: int = MAX_FRAME) -> MemoryTransport:
        """Return a new transport on the host ``host``; several may share a host.

        A frame of more than ``max_frame`` bytes ends the connection that it comes by, as on a real network.
        """
        transport = MemoryTransport(self, host, max_frame)
        self._transports.append(transport)
        return transport

    def partition(self, *groups: Iterable[str], one_way: bool = False) -> None:
        """Silently drop everything between hosts of different groups, until ``heal``.

        With ``one_way``, only what goes from an earlier group to a later one is dropped.
        """
        sides = [list(group) for group in groups]
        for index, side in enumerate(sides):
            for opposite in sides[index + 1 :]:
                for one in side:
                    for other in opposite:
                        self.cut.add((one, other))
                        if not one_way:
                            self.cut.add((other, one))

    def heal(self) -> None:
        """End every partition."""
        self.cut.clear()

    def set_faults(self, faults: dict[tuple[str, str], LinkFault]) -> None:
        """Have these links be faulty from now on, by the hosts that they go from and to, and all others be sound."""
        self.faults = faults
        for transport in self._transports:
            transport.links_changed()

    def pause(self, host: str) -> None:
        """Have a host read nothing, see ``MemoryTransport.pause``; transports that it opens meanwhile do."""
        for transport in self._transports:
            if transport.host == host:
                transport.pause()

    def resume(self, host: str) -> None:
        """Have it read again."""
        for transport in self._transports:
            if transport.host == host:
                transport.resume()

    def break_links(self, one: str, other: str) -> None:
        """Break every connection between two hosts, both ways; they can be made anew at once."""
        for transport in self._transports:
            if transport.host in (one, other):
                transport.break_links({one, other} - {transport.host})

    def reset(self, source: str | None = None, target: str | None = None) -> None:
        """Break off at once the connections that hosts have opened, of one host or to one host only if it is given."""
        for transport in self._transports:
            if source is None or transport.host == source:
                transport.reset(target)

    def statistics(self) -> MemoryStatistics:
        """Return counts of what would be descriptors on a real network."""
        return MemoryStatistics(
            transports=len(self._transports),
            dialled=sum(transport.dialled for transport in self._transports),
            accepted=sum(transport.accepted for transport in self._transports),
            listening=len(self._listening),
            opening=len(self.accepting) + len(self.calling),
        )

    def crash(self, host: str) -> None:
        """Kill a host as SIGKILL kills a process: its peers' connections break at once, dialling it is refused."""
        for transport in [transport for transport in self._transports if transport.host == host]:
            transport.close()

    def bind(self, url: str, transport: MemoryTransport) -> str:
        """Reserve ``url``, or a fresh one if it ends in ``:0``, for ``transport``."""
        check_memory_url(url)
        if url.endswith(":0"):
            self._names += 1
            url = f"{url.removesuffix('0')}{self._names}"
        if url in self._listening:
            raise ConfigError(f"cannot listen at {url}: the address is in use by another program")
        self._listening[url] = transport
        return url

    def unbind(self, transport: MemoryTransport) -> None:
        """Forget a transport that is closed, and free its URLs."""
        self._transports.remove(transport)
        for url in [url for url, bound in self._listening.items() if bound is transport]:
            del self._listening[url]

    def find(self, url: str) -> MemoryTransport | None:
        """Return the transport that listens at ``url``."""
        return self._listening.get(url)

    def join(self, token: str) -> None:
        """Make a reverse connection if both ends are there and can reach each other."""
        accepting, calling = self.accepting.get(token), self.calling.get(token)
        if accepting is None or calling is None or accepting.outgoing is not None:
            return
        acceptor, caller = accepting.transport, calling.transport
        cut = self.is_cut(acceptor.host, caller.host) or self.is_cut(caller.host, acceptor.host)
        if self.find(calling.url) is acceptor and not cut and not caller.closed:
            del self.calling[token]
            accepting.outgoing = calling.outgoing = MemoryOutgoing(self, acceptor, caller, accepting.user)
            acceptor.opened(accepting.outgoing)
            caller.accept(accepting.outgoing, calling)
            accepting.news.set()

    def is_cut(self, source: str, target: str) -> bool:
        """Return whether a partition lies between two hosts."""
        return (source, target) in self.cut or self.faults.get((source, target), _SOUND).blocked


@final
class MemoryTransport:
    """One node's end of a ``MemoryNetwork``."""

    def __init__(self, network: MemoryNetwork, host: str, max_frame: int) -> None:
        self.host: Final = host
        self.max_frame: Final = max_frame
        self._network = network
        self._arrived: list[_Arrival] = []
        self._reader = trio.lowlevel.ParkingLot()
        self._until_due = trio.CancelScope()
        """Scope of the reader's wait, which ends when the first frame is due."""
        self._inward: set[MemoryOutgoing] = set()
        self._outward: set[MemoryOutgoing] = set()
        self._reverse: dict[MemoryOutgoing, MemoryIncoming] = {}
        self._observer: ConnectionObserver | None = None
        self._source = 0
        self.context: Final = copy_context()
        """Context of the node: observers are called in it."""
        self.closed = False
        self.paused = False

    async def listen(self, urls: Sequence[str]) -> tuple[str, ...]:
        """See ``Transport.listen``."""
        return tuple([self._network.bind(url, self) for url in urls])

    async def dial(self, url: str, user: ConnectionUser, permit: Permit | None = None) -> MemoryOutgoing:
        """See ``Transport.dial``.  The host is the name in the URL, without a ``:`` and what follows."""
        check_memory_url(url)
        if permit is not None:
            permit(url.removeprefix(_SCHEME).partition(":")[0])
        target = self._network.find(url)
        if target is not None and self._network.is_cut(self.host, target.host):
            await trio.sleep_forever()  # what a real network does: no answer; callers have their own deadline
        await trio.sleep(self._network.random.uniform(*self._network.latency))
        target = self._network.find(url)
        if target is None:
            raise Refused(f"cannot connect to {url}: connection refused")
        outgoing = MemoryOutgoing(self._network, self, target, user)
        self.opened(outgoing)
        target.accept(outgoing)
        return outgoing

    async def accept_reverse(self, token: str, user: ConnectionUser) -> MemoryOutgoing:
        """See ``Transport.accept_reverse``."""
        accepting = _Accepting(self, user, trio.Event())
        if self._network.accepting.setdefault(token, accepting) is not accepting:
            raise NotSent("cannot wait for a reverse connection: address in use")
        try:
            await trio.sleep(self._network.random.uniform(*self._network.latency))
            self._network.join(token)
            await accepting.news.wait()
        except BaseException:
            if accepting.outgoing is not None:
                accepting.outgoing.close()
            raise
        finally:
            del self._network.accepting[token]
        assert accepting.outgoing is not None
        return accepting.outgoing

    def dial_reverse(self, url: str, token: str, user: ConnectionUser) -> MemoryIncoming:
        """See ``Transport.dial_reverse``."""
        incoming = self._network.calling[token] = MemoryIncoming(self._network, self, url, token, user)
        self._network.join(token)
        return incoming

    def opened(self, outgoing: MemoryOutgoing) -> None:
        """Register an outgoing connection."""
        self._outward.add(outgoing)

    def accept(self, outgoing: MemoryOutgoing, reverse: MemoryIncoming | None = None) -> None:
        """Take a connection that another transport has opened, or a reverse one of this transport."""
        self._inward.add(outgoing)
        if reverse is not None:
            self._reverse[outgoing] = reverse
        if self._observer is not None:
            self.context.copy().run(self._observer.connection_opened, outgoing.number, outgoing.host)

    def links_changed(self) -> None:
        """Send what was held back on links that are open again."""
        for outgoing in sorted(self._outward, key=lambda way: way.number):
            outgoing.send_held()

    def break_links(self, hosts: set[str]) -> None:
        """Break the connections that this transport has opened to some hosts."""
        for outgoing in sorted(self._outward, key=lambda way: way.number):
            if outgoing.target_host in hosts:
                outgoing.break_soon()

    def reset(self, target: str | None) -> None:
        """Break off the connections that this transport has opened, to one host only if it is given."""
        for outgoing in sorted(self._outward, key=lambda way: way.number):
            if target is None or outgoing.target_host == target:
                outgoing.break_off()

    @property
    def dialled(self) -> int:
        """Number of open connections that this transport has dialled."""
        return len(self._outward)

    @property
    def accepted(self) -> int:
        """Number of open connections that others have dialled."""
        return len(self._inward)

    def deliver(self, arrival: _Arrival) -> None:
        """Take a frame that becomes readable at its due time."""
        # Frames come nearly in the order of their due times, so the place is found from the end.
        place = len(self._arrived)
        while place and self._arrived[place - 1].due > arrival.due:
            place -= 1
        self._arrived.insert(place, arrival)
        if not place and not self.paused:
            self._until_due.deadline = arrival.due

    def receive_nowait(self) -> bytes | None:
        """See ``Transport.receive_nowait``."""
        if self.closed:
            raise trio.ClosedResourceError("this transport is closed")
        if self.paused or not self._arrived or self._arrived[0].due > trio.current_time():
            return None
        arrival = self._arrived.pop(0)
        arrival.outgoing.taken(arrival.frame)
        self._source = arrival.outgoing.number
        return arrival.frame

    def observe(self, observer: ConnectionObserver) -> None:
        """See ``Transport.observe``."""
        self._observer = observer
        for incoming in sorted(self._inward, key=lambda way: way.number):
            observer.connection_opened(incoming.number, incoming.host)

    @property
    def held(self) -> int:
        """See ``Transport.held``: frames come whole."""
        return 0

    def source(self) -> int:
        """See ``Transport.source``."""
        return self._source

    def hang_up(self, connection: int) -> None:
        """See ``Transport.hang_up``."""
        for incoming in self._inward:
            if incoming.number == connection:
                incoming.break_soon()

    async def wait_readable(self) -> None:
        """See ``Transport.wait_readable``."""
        if self.closed:
            raise trio.ClosedResourceError("this transport is closed")
        due = self._arrived[0].due if self._arrived and not self.paused else math.inf
        if due <= trio.current_time():
            await trio.lowlevel.checkpoint()
            return
        with trio.CancelScope(deadline=due) as self._until_due:
            await self._reader.park()
        if self.closed:
            raise trio.ClosedResourceError("this transport was closed")

    def receive_in(self, host: HostLoop, readable: Callable[[], None]) -> bool:  # noqa: ARG002 -- a port's names
        """See ``Transport.receive_in``: frames come by trio's clock, and so by its tasks."""
        return False

    def interrupt(self) -> None:
        """See ``Transport.interrupt``."""
        self._reader.unpark_all()

    def pause(self) -> None:
        """Stop reading, as SIGSTOP stops a process: nobody is notified, and writers run out of room."""
        self.paused = True
        self._until_due.deadline = math.inf

    def resume(self) -> None:
        """Read again."""
        self.paused = False
        if self._arrived:
            self._until_due.deadline = self._arrived[0].due

    def forget(self, outgoing: MemoryOutgoing) -> None:
        """Drop a connection that has ended."""
        self._outward.discard(outgoing)
        if outgoing in self._inward:
            self._inward.remove(outgoing)
            if self._observer is not None and not self.closed:
                self.context.copy().run(self._observer.connection_closed, outgoing.number)
        reverse = self._reverse.pop(outgoing, None)
        if reverse is not None and not self.closed:
            self.context.copy().run(reverse.broken)

    def close(self) -> None:
        """See ``Transport.close``.  Peers see their connections break."""
        if self.closed:
            return
        self.closed = True
        self._network.unbind(self)
        self._arrived.clear()
        self._reader.unpark_all()
        for incoming in sorted(self._inward, key=lambda way: way.number):
            incoming.break_off()
        for incoming in sorted(self._outward, key=lambda way: way.number):
            incoming.close()


@final
class MemoryOutgoing:
    """An outbound connection from one transport to another."""

    _made = 0

    def __init__(
        self,
        network: MemoryNetwork,
        source: MemoryTransport,
        target: MemoryTransport,
        user: ConnectionUser,
    ) -> None:
        MemoryOutgoing._made += 1
        self.number: Final = MemoryOutgoing._made
        self._network = network
        self._source = source
        self._target = target
        self._user = user
        self._in_transit = self._bytes_in_transit = 0
        self._due = 0.0
        self._held: list[bytes] = []
        """Frames that were sent while the link was blocked."""
        self._context: Final[Context] = source.context
        self._room = trio.lowlevel.ParkingLot()
        self.closed = False

    @property
    def host(self) -> str:
        """The host that opened the connection."""
        return self._source.host

    @property
    def target_host(self) -> str:
        """The host that it goes to."""
        return self._target.host

    def send_nowait(self, frame: bytes | memoryview) -> bool:
        """See ``OutgoingConnection.send_nowait``."""
        if self.closed:
            raise trio.ClosedResourceError("this way out is closed")
        network = self._network
        if self._in_transit >= network.capacity or self._bytes_in_transit >= network.capacity_bytes:
            return False
        source, target = self._source.host, self._target.host
        fault = network.faults.get((source, target), _SOUND)
        if len(frame) > self._target.max_frame:
            self.break_soon()
            return True
        if fault.blocked or self._held:
            fate = "held"
            self._in_transit += 1
            self._bytes_in_transit += len(frame)
            self._held.append(bytes(frame))
        elif (source, target) in network.cut or ((fault.loss or network.loss) and self._is_lost(fault.loss)):
            fate = "lost"
        else:
            fate = "sent"
            self._in_transit += 1
            self._bytes_in_transit += len(frame)
            self._deliver(bytes(frame), fault)
        if network.observer is not None:
            network.observer(source, target, len(frame), fate)
        give_back(frame)
        return True

    def _is_lost(self, loss: float) -> bool:
        network = self._network
        return network.random.random() < max(loss, network.loss)

    def _deliver(self, frame: bytes, fault: LinkFault) -> None:
        network = self._network
        least, greatest = network.latency
        more = fault.delay
        delay = network.random.uniform(least + more[0], greatest + more[1])
        self._due = max(self._due, trio.current_time() + delay)
        self._target.deliver(_Arrival(due=self._due, frame=frame, outgoing=self))

    def send_held(self) -> None:
        """Send what was held back, if the link is open again."""
        fault = self._network.faults.get((self._source.host, self._target.host), _SOUND)
        if self._held and not fault.blocked:
            held, self._held = self._held, []
            for frame in held:
                self._deliver(frame, fault)

    def break_soon(self) -> None:
        """Break off from outside of whatever is sending now."""
        trio.lowlevel.current_trio_token().run_sync_soon(self.break_off)

    async def wait_writable(self) -> None:
        """See ``OutgoingConnection.wait_writable``."""
        if self.closed:
            raise trio.ClosedResourceError("this way out is closed")
        if self._is_full:
            await self._room.park()
            if self.closed:
                raise trio.ClosedResourceError("this way out was closed")
        else:
            await trio.lowlevel.checkpoint()

    @property
    def _is_full(self) -> bool:
        network = self._network
        return self._in_transit >= network.capacity or self._bytes_in_transit >= network.capacity_bytes

    def taken(self, frame: bytes) -> None:
        """Note that the target has read a frame of this connection."""
        self._in_transit -= 1
        self._bytes_in_transit -= len(frame)
        self._room.unpark_all()

    def break_off(self) -> None:
        """End the connection from the far side: its owner is notified."""
        if not self.closed:
            self.close()
            self._context.copy().run(self._user.connection_broken)

    def close(self) -> None:
        """See ``OutgoingConnection.close``."""
        if not self.closed:
            self.closed = True
            self._room.unpark_all()
            self._source.forget(self)
            self._target.forget(self)


@final
class MemoryIncoming:
    """A reverse connection, from the end that dials it."""

    def __init__(
        self, network: MemoryNetwork, transport: MemoryTransport, url: str, token: str, user: ConnectionUser
    ) -> None:
        self._network = network
        self._user = user
        self._closed = False
        self.transport: Final = transport
        self.url: Final = url
        self.token: Final = token
        self.outgoing: MemoryOutgoing | None = None

    def broken(self) -> None:
        """The connection is lost."""
        if not self._closed:
            self._closed = True
            self._user.connection_broken()

    def close(self) -> None:
        """See ``IncomingConnection.close``."""
        if not self._closed:
            self._closed = True
            self._network.calling.pop(self.token, None)
            if self.outgoing is not None:
                self.outgoing.break_soon()


@final
class _Accepting(Struct):
    transport: MemoryTransport
    user: ConnectionUser
    news: trio.Event
    outgoing: MemoryOutgoing | None = None


@final
class _Arrival(Struct, frozen=True):
    due: float
    frame: bytes
    outgoing: MemoryOutgoing
