"""Port to the network: the interface by which frames leave and arrive.

``iris.kernel.transport.network`` is the real one, ``iris.kernel.transport.memory`` the simulated one.  A node has one
transport.  Everything that peers send arrives in its one inbox, in the order of each peer; what it sends to a peer goes
through one ``OutgoingConnection``.  Frames are opaque here.

Connections that others open have numbers, so that strangers can be told apart and their connections closed.

A node that cannot be dialled dials for both directions: besides its own outgoing connection it has the other node's
frames come by a *reverse* connection, which it dials too.  A token joins the two: it has chosen one, and sent it to the
other node over its outgoing connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, final

from iris.kernel.errors import NotSent
from iris.kernel.tasks import HostLoop

SocketAddress = tuple[str | int | bytes, ...]
"""Address of a socket, as the resolver returns it: host and port, of IPv6 two numbers more."""

Permit = Callable[[str], None]
"""Called with each host that is about to be connected to: its IP address, also where a URL has a name, or what a
network has in place of that.  Raises ``NotSent`` if it is not to be."""


@final
class Refused(NotSent):
    """The host answered that nobody listens there: the node that did is gone."""


class ConnectionUser(Protocol):
    """The user of one connection that this node dials, or that it waits for."""

    def connection_broken(self) -> None:
        """The connection is lost other than by its ``close``, and of no further use.

        Called in the trio thread, at most once, perhaps before the connection was returned; must not block.
        """
        ...


class OutgoingConnection(Protocol):
    """A connection to one address: ``StreamOutgoing`` of ``iris.kernel.transport.writer``, or one in memory.

    Frames arrive in order; those in transit when it breaks may be lost.
    """

    def send_nowait(self, frame: bytes | memoryview) -> bool:
        """Hand over a frame; False if the peer or the network is not taking more at the moment.

        A view of a buffer is this object's from then on: it gives the buffer back (``iris.kernel.buffer_pool``).

        Raises:
            trio.ClosedResourceError: it was closed.
        """
        ...

    async def wait_writable(self) -> None:
        """Wait until ``send_nowait`` is worth another try.  Cancelling has no effect on frames."""
        ...

    def close(self) -> None:
        """Give the connection up; frames not yet on the network are lost.  Never blocks; may be called twice."""
        ...


class IncomingConnection(Protocol):
    """A reverse connection, seen from the node that dialled it.  Its frames arrive in the inbox."""

    def close(self) -> None:
        """Close it, or stop trying; the other node sees it break.  Never blocks; may be called twice."""
        ...


class ConnectionObserver(Protocol):
    """Observer of the connections that others open; plain calls in the trio thread, which must not raise."""

    def connection_opened(self, connection: int, address: str | None) -> None:
        """There is a new connection; its number is used once.

        ``address`` is the host that it comes from, or None if the operating system vouches for it: another process
        of this user, by ipc.
        """
        ...

    def connection_closed(self, connection: int) -> None:
        """The connection is gone, no matter which end ended it.  Frames that came by it may still be in the inbox.

        That others have ended one may be noticed only while somebody receives, or waits for something to receive.
        """
        ...

    def connections_refused(self, count: int) -> None:
        """``count`` more were refused unseen: their header did not come in time, or they came faster than were read."""
        ...


class Transport(Protocol):
    """The network as one node sees it."""

    async def listen(self, urls: Sequence[str]) -> tuple[str, ...]:
        """Bind every URL and return the URLs really bound (a port 0 is replaced by the port chosen).

        Raises:
            ConfigError: a URL is malformed, its scheme is not known, or its address is taken or not ours.
        """
        ...

    async def dial(self, url: str, user: ConnectionUser, permit: Permit | None = None) -> OutgoingConnection:
        """Connect to a URL.

        ``permit`` is asked before each attempt; by ipc there is no host, and it is not.

        ``user`` is notified of its loss.  That may be noticed only while somebody receives, or waits for something to
        receive; only then does the rest follow of what the connection has not taken at once.

        Raises:
            Refused: nobody listens there.
            NotSent: unreachable, or not permitted, with the reason.
            ConfigError: the URL is malformed or its scheme is not known.
        """
        ...

    async def accept_reverse(self, token: str, user: ConnectionUser) -> OutgoingConnection:
        """Wait for the node that knows ``token`` to dial a reverse connection, and return it to send by.

        It has no limit in time; cancelling it leaves nothing behind.  A second caller is turned away.

        Args:
            token: letters and digits.
            user: see ``dial``.

        Raises:
            NotSent: nobody can come, for this node listens at no ``tcp://`` or ``ws://`` address; or the token is in
                use.
        """
        ...

    def dial_reverse(self, url: str, token: str, user: ConnectionUser) -> IncomingConnection:
        """Have the node at ``url`` send here what it sends to ``token``; tried again until that node is ready.

        What comes by it comes by a connection like those that others open: the observer is notified of it.

        Args:
            url: a ``tcp://`` or ``ws://`` address that ``dial`` has reached.
            token: the token that the other node knows, of 32 letters and digits.
            user: notified when the connection was there and is lost.

        Raises:
            NotSent: the address cannot be used for that.
        """
        ...

    def receive_nowait(self) -> bytes | memoryview | None:
        """Return the next frame that has arrived, or None.  A view is there until the next call only."""
        ...

    async def wait_readable(self) -> None:
        """Wait until a frame has arrived, or ``interrupt`` is called.

        Raises:
            trio.ClosedResourceError: this transport is closed.
        """
        ...

    def receive_in(self, host: HostLoop, readable: Callable[[], None]) -> bool:
        """Have an event loop call ``readable`` when a frame has arrived, in place of ``wait_readable``'s end.

        It is called again while the network has something that was not received.  Returns False, and changes nothing,
        if the loop cannot.
        """
        ...

    def interrupt(self) -> None:
        """End the wait of the task that is in ``wait_readable``."""
        ...

    def observe(self, observer: ConnectionObserver) -> None:
        """Notify ``observer`` of the connections that others have opened and will open."""
        ...

    @property
    def held(self) -> int:
        """Size of what has come of incomplete frames, in bytes."""
        ...

    def source(self) -> int:
        """Return which connection the frame came by that ``receive_nowait`` returned last.

        The observer has been notified of that connection by then.
        """
        ...

    def hang_up(self, connection: int) -> None:
        """Close a connection that another node opened; that node sees it break.  One that is gone is passed over."""
        ...

    def close(self) -> None:
        """Stop listening and drop what has arrived.  Never blocks for long; may be called twice."""
        ...
