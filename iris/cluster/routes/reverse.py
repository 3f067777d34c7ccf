"""Connection reversal: a node that was not said to listen dials both directions of the links that it begins.

Its own outgoing connection is an ordinary one.  In the hello of its handshake it does not say where it listens, but the
token of a reverse connection, ``reverse://TOKEN``; the other node sends its answer there, and everything after it.
Each connection has a token of its own, sealed in the first frame of the handshake: a node of another realm cannot make
anybody listen.
"""

from __future__ import annotations

from typing import Final, final

from iris.kernel.errors import ConfigError
from iris.kernel.transport import ConnectionUser, IncomingConnection, OutgoingConnection, Permit, Transport

SCHEME: Final = "reverse://"

_TOKEN_SIZE: Final = 32
_TWO_WAY: Final = ("tcp://", "ws://", "mem://")


def reverse_url(token: bytes) -> str:
    """Return the address of the node that dials a reverse connection with this token of 16 bytes."""
    return SCHEME + token.hex()


def is_reverse_url(url: str) -> bool:
    """Return whether an address is that of a reverse connection."""
    return url.startswith(SCHEME)


def token_untrusted(url: str) -> str:
    """Return the token in an address that a peer has named; raise ConfigError if it has none."""
    token = url.removeprefix(SCHEME)
    if not is_reverse_url(url) or len(token) != _TOKEN_SIZE or not set(token) <= set("0123456789abcdef"):
        raise ConfigError(f"{url[:80]!r} is not the address of a reverse connection")
    return token


def is_two_way(url: str) -> bool:
    """Return whether both directions of a link can be dialled at ``url``."""
    return url.startswith(_TWO_WAY)


@final
class ReverseConnection:
    """An outgoing connection, with the reverse connection that belongs to it.  If one of them breaks, both end.

    Attributes:
        address: the address that the other node is sent.
    """

    def __init__(self, transport: Transport, url: str, token: bytes, user: ConnectionUser) -> None:
        self.address: Final = reverse_url(token)
        self._transport = transport
        self._url = url
        self._user = user
        self._outgoing: OutgoingConnection | None = None
        self._incoming: IncomingConnection | None = None
        self.closed = False

    def __repr__(self) -> str:
        return f"<ReverseConnection to {self._url}{' (closed)' if self.closed else ''}>"

    async def dial(self, permit: Permit | None = None) -> None:
        """Dial the outgoing connection; see ``Transport.dial``."""
        self._outgoing = await self._transport.dial(self._url, self, permit)

    def send_nowait(self, frame: bytes | memoryview) -> bool:
        """See ``OutgoingConnection.send_nowait``."""
        assert self._outgoing is not None
        taken = self._outgoing.send_nowait(frame)
        if self._incoming is None and taken:
            # The first frame tells the token: before it, nobody would be there.
            self._incoming = self._transport.dial_reverse(self._url, self.address.removeprefix(SCHEME), self)
        return taken

    async def wait_writable(self) -> None:
        """See ``OutgoingConnection.wait_writable``."""
        assert self._outgoing is not None
        await self._outgoing.wait_writable()

    def connection_broken(self) -> None:
        """One of the two connections is lost."""
        if not self.closed:
            self.close()
            self._user.connection_broken()

    def close(self) -> None:
        """See ``OutgoingConnection.close``."""
        if not self.closed:
            self.closed = True
            if self._incoming is not None:
                self._incoming.close()
            if self._outgoing is not None:
                self._outgoing.close()
