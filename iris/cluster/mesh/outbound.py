"""Outbound connections: which peer owns each, and whom to notify when one breaks.

Where a dial rests on what others say, ``told`` names the source: then ``AddressRules`` decide whether it is made, and
``DialLimits`` how often it may lead to nobody.  An address that the user gives, and one at which a node was found, has
no source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol, cast, final

import trio

from iris.cluster.address_rules import AddressRules, Hearsay, NotDialled
from iris.cluster.mesh.dial_limits import DialLimits
from iris.cluster.mesh.peer import Peer
from iris.cluster.routes import (
    NO_CARRIERS,
    Carriers,
    RelayedConnection,
    ReverseConnection,
    is_reverse_url,
    is_site_url,
    is_two_way,
    is_via_url,
    token_untrusted,
)
from iris.kernel.config import DEFAULTS
from iris.kernel.errors import AuthenticationError, ConfigError, NotSent
from iris.kernel.names import Entropy
from iris.kernel.slots import address_key
from iris.kernel.tasks import AT_ONCE, first_of
from iris.kernel.transport import ConnectionUser, OutgoingConnection, Permit, Refused, Transport

_ANSWERED: Final = 2
"""Addresses of an unauthenticated peer that are dialled at one time, to answer it; see ``Config.dial_backs``."""


def worst(
    failures: Sequence[NotSent | AuthenticationError | ConfigError],
) -> NotSent | AuthenticationError | ConfigError:
    """Return the one error that stands for all addresses of a node that cannot be reached.

    Somebody else who answers comes first.  That nobody listens is evidence against the node, so it has to be so at each
    address.  One alone may well be another host's: two machines with containers have the same one for the bridge
    between these.  What is not dialled says nothing, if there is something else.
    """
    failures = [failure for failure in failures if not isinstance(failure, NotDialled)] or failures
    unauthenticated = [failure for failure in failures if isinstance(failure, AuthenticationError)]
    silent = [failure for failure in failures if isinstance(failure, NotSent) and not isinstance(failure, Refused)]
    refused = [failure for failure in failures if isinstance(failure, Refused)]
    if unauthenticated:
        return unauthenticated[0]
    return (silent or refused or failures or [NotSent("there is no address to connect to")])[-1]


class OutboundObserver(Protocol):
    """The owner of the peers, whose connections these are."""

    def connection_broke(self, outgoing: OutgoingConnection, peer: Peer | None) -> None:
        """A connection broke that was given to a peer, or to nobody; it is closed.  Must not block."""
        ...


@final
class DialRules(NamedTuple):
    """Rules for the dials that rest on what others say."""

    addresses: AddressRules
    """Rules for the addresses that are dialled."""
    limits: DialLimits
    """Limits on the dials in vain that others may cause, by host."""
    refusals: Counter[str]
    """Counter of the dials that were refused."""


@final
class _Line:
    """An outbound connection, from the moment it is dialled.  See ``ConnectionUser``."""

    __slots__ = ("connections", "counted", "outgoing", "owner", "returning", "url", "was_broken")

    def __init__(self, connections: OutboundConnections, url: str) -> None:
        self.connections = connections
        self.url = url
        self.outgoing: OutgoingConnection | None = None
        """The connection; None until it is there."""
        self.was_broken = False
        self.owner: Peer | None = None
        self.returning: str | None = None
        """``reverse://`` address of the connection. None unless the other end has dialled it."""
        self.counted: tuple[str, str] | None = None
        """Source of the address, and host, if it counts as dialled in vain until a node is found there."""

    def connection_broken(self) -> None:
        """See ``ConnectionUser.connection_broken``."""
        self.was_broken = True
        if self.outgoing is not None:
            self.connections.line_broke(self.outgoing)


@final
class OutboundConnections:
    """The outbound connections of one node, from the moment they are made until they break or are closed.

    Args:
        observer: notified of each connection that broke.
        tokens: makes those of reverse connections, if this node dials both directions; None if others dial it back.
        rules: rules for the dials that rest on what others say.
        carriers: carriers to the nodes that the transport does not reach.
    """

    def __init__(
        self,
        transport: Transport,
        observer: OutboundObserver,
        tokens: Entropy | None = None,
        *,
        rules: DialRules | None = None,
        carriers: Carriers = NO_CARRIERS,
    ) -> None:
        self._transport: Final = transport
        limits = DialLimits(DEFAULTS.failed_dials, DEFAULTS.failed_dial_rate)
        self._rules, self._limits, self._refusals = rules or DialRules(AddressRules(), limits, Counter())
        self._observer = observer
        self._carriers = carriers
        self._tokens = tokens
        self._answers = tokens is None
        self._lines: dict[OutgoingConnection, _Line] = {}

    def __len__(self) -> int:
        return len(self._lines)

    def __contains__(self, outgoing: object) -> bool:
        """Return True if a connection has neither broken nor been closed, as far as is known."""
        return outgoing in self._lines

    async def dial(self, url: str, hearsay: Hearsay | None = None, *, both: bool = True) -> OutgoingConnection:
        """Connect to a URL.  Cancelling leaves no connection behind.

        Args:
            url: the address.
            hearsay: its source, if it is not the user.
            both: True to dial the direction from there to here, too, if this node does that.

        Raises:
            NotSent, Refused, ConfigError: see ``Transport.dial``; or the address is not to be dialled, or too many
                dials to its host led to nobody.
        """
        counted: list[tuple[str, str]] = []

        def permit(host: str) -> None:
            self._rules.check_host(host, hearsay)
            if hearsay is None or hearsay.host == address_key(host):
                # A stranger may have its own address dialled as often as it may begin handshakes: of a thousand nodes
                # that start there together many are given up before they could prove who they are.
                return
            if not self._limits.acquire(hearsay.by, host, trio.current_time()):
                self._refusals["dial to a host where nobody was found"] += 1
                raise NotSent(f"{host} was dialled too often lately where nobody was found")
            counted.append((hearsay.by, host))

        if hearsay is not None:
            try:
                self._rules.check_advertised(url, hearsay)
            except NotDialled:
                if not url.startswith("ipc:"):  # the records of all other machines hold theirs
                    self._refusals["address that no node has"] += 1
                raise
        outgoing = await self._open(url, partial(self._dial, permit=permit, both=both))
        if counted:
            self._lines[outgoing].counted = counted[-1]
        return outgoing

    def found(self, outgoing: OutgoingConnection) -> None:
        """Note that a node at the other end of a connection has proved who it is."""
        line = self._lines.get(outgoing)
        if line is not None and line.counted is not None:
            self._limits.give_back(*line.counted)
            line.counted = None

    async def answer(self, urls: Sequence[str], hearsay: Hearsay | None = None) -> OutgoingConnection:
        """Connect to a node that has begun a handshake, by the addresses in its hello.

        Raises:
            NotSent, Refused, ConfigError: see ``dial``; or that node is to be dialled by this one, which
                that one cannot know.
        """
        if urls and is_reverse_url(urls[0]):
            token = token_untrusted(urls[0])
            outgoing = await self._open(urls[0], lambda _, user: self._transport.accept_reverse(token, user))
            self._lines[outgoing].returning = urls[0]
            return outgoing
        if not self._answers and urls and is_two_way(urls[0]):
            raise NotSent("this node only dials out: it begins the handshakes over its connections")
        return await self.dial_any(urls, _ANSWERED, hearsay=hearsay, both=False)

    def begin_answering(self) -> None:
        """Answer who dials this node from now on: it listens."""
        self._answers = True

    async def _dial(self, url: str, user: ConnectionUser, permit: Permit, *, both: bool) -> OutgoingConnection:
        for is_meant, carrier in ((is_site_url, self._carriers.gateways), (is_via_url, self._carriers.forwarder)):
            if is_meant(url):
                if carrier is None:
                    raise NotSent(f"nothing leads from here to {url}")
                return await carrier.dial(url, user)
        if is_reverse_url(url):
            # As good as a refusal: it has had connections here, it would dial at once, and nobody else can find out.
            raise Refused("a node that only dials out is not dialled")  # the address is a secret of both
        # To answer is to dial one direction: the other end has dialled its own.  By ipc both ends listen.
        if self._tokens is None or not both or not is_two_way(url):
            return await self._transport.dial(url, user, permit)
        reverse = ReverseConnection(self._transport, url, self._tokens(16), user)
        try:
            await reverse.dial(permit)
        except BaseException:
            reverse.close()
            raise
        return reverse

    async def _open(
        self, url: str, connect: Callable[[str, ConnectionUser], Awaitable[OutgoingConnection]]
    ) -> OutgoingConnection:
        line = _Line(self, url)
        outgoing = await connect(url, line)
        if line.was_broken:
            outgoing.close()
            raise NotSent(f"the connection to {url} broke at once")
        line.outgoing = outgoing
        self._lines[outgoing] = line
        return outgoing

    def line_broke(self, outgoing: OutgoingConnection) -> None:
        """A connection is lost, unless it was closed just now."""
        line = self._lines.pop(outgoing, None)
        if line is not None:
            outgoing.close()
            self._observer.connection_broke(outgoing, line.owner)

    async def dial_any(
        self,
        urls: Iterable[str],
        at_once: int = AT_ONCE,
        *,
        hearsay: Hearsay | None = None,
        proved: str = "",
        both: bool = True,
    ) -> OutgoingConnection:
        """Connect to the first of ``urls`` that can be reached.

        One that does not answer holds the next one up for a quarter of a second; where ``at_once`` are being dialled
        already, the oldest of them is given up after a second.  How long all of it takes is for the
        caller to limit.  Cancelling leaves no connection behind.

        Args:
            urls: in the order in which they are preferred.
            at_once: addresses that are dialled at one time.
            hearsay: the source of the addresses, if it is not the user.
            proved: the one of them at which the node was found before.
            both: see ``dial``.

        Raises:
            Refused: nobody listens at any of them.
            NotSent, ConfigError: what ``worst`` chooses.
        """
        failures: list[Exception] = []
        outgoing = await first_of(
            [partial(self.dial, url, None if url == proved else hearsay, both=both) for url in urls],
            failures,
            expected=(NotSent, ConfigError),
            discard=self.close,
            at_once=at_once,
        )
        if outgoing is None:
            raise worst(cast("list[NotSent | ConfigError]", failures))
        return outgoing

    def url_of(self, outgoing: OutgoingConnection) -> str:
        """Return what was dialled for a connection; nothing if it is gone."""
        line = self._lines.get(outgoing)
        return "" if line is None else line.url

    def give(self, outgoing: OutgoingConnection, peer: Peer) -> None:
        """Note which peer owns a connection."""
        self._lines[outgoing].owner = peer

    def owner(self, outgoing: OutgoingConnection) -> Peer | None:
        """Return the peer that owns a connection, if there is one."""
        line = self._lines.get(outgoing)
        return None if line is None else line.owner

    def own_address(self, outgoing: OutgoingConnection | None) -> str | None:
        """Return how the node at the other end sends to this one, if this one has dialled that direction too."""
        return outgoing.address if isinstance(outgoing, ReverseConnection) else None

    def returning(self, outgoing: OutgoingConnection) -> str | None:
        """Return the ``reverse://`` address of a connection that the other end has dialled."""
        line = self._lines.get(outgoing)
        return None if line is None else line.returning

    def is_relayed(self, outgoing: OutgoingConnection | None) -> bool:
        """Return whether frames go through another node of the site."""
        return isinstance(outgoing, RelayedConnection)

    def supersedes(self, outgoing: OutgoingConnection, used: OutgoingConnection) -> bool:
        """Return whether a new connection to a peer takes the place of that in use: the latter stays if it can.

        It cannot if the peer has dialled both directions of the new one: it does that when the one in use is of no use.
        A direct one takes the place of one through another node, and of two that each end has dialled for both
        directions the one that ``Handshakes`` let pass.
        """
        if self.returning(outgoing) is not None:
            return True
        if self.is_relayed(used):
            return not self.is_relayed(outgoing)
        return self.own_address(outgoing) is not None and self.returning(used) is not None

    def close(self, outgoing: OutgoingConnection) -> None:
        """Close a connection; nobody is notified."""
        self._lines.pop(outgoing, None)
        outgoing.close()

    def close_all(self, peer: Peer | None = None) -> None:
        """Close every connection, or every one of a peer."""
        for outgoing in [outgoing for outgoing, line in self._lines.items() if peer is None or line.owner is peer]:
            self.close(outgoing)
