"""Nodes of a realm find each other on a local network: multicast DNS, through the ``zeroconf`` package.

What is announced is opaque: a hash of the realm's fingerprint, a random name, and addresses.  No cluster is named.
What is found is only an address to dial, and anybody on the network can say anything: whoever answers there has to
pass the handshake, and only a few are remembered (``iris.cluster.lan_followed``).

The package runs in threads of its own.  It is imported with the first use, since it costs 4 MiB and a node of the
local realm does without (``iris.cluster.lan_board``).
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Final, cast, final

import trio

from iris.cluster.address_rules import WEB_PATHS
from iris.cluster.addresses import is_loopback, split_url
from iris.cluster.lan_followed import MAX_FOLLOWED
from iris.kernel.background import open_background
from iris.kernel.errors import RemoteProtocolError

if TYPE_CHECKING:
    import zeroconf

    from iris.cluster.lan_board import Board

_log: Final = logging.getLogger("iris")

TYPE: Final = "_iris-mesh._tcp.local."
_TOLD_AGAIN: Final = 600.0
"""Seconds after which it is told once more that there are too many."""

_MAX_ADDRESSES: Final = 8
"""Of one announcement."""

_GOODBYE: Final = 0.5
"""Seconds that taking the announcement back may take."""

OpenLan = Callable[[str, str, tuple[str, ...]], AbstractAsyncContextManager["Lan"]]
"""Opens the notice board of a network: fingerprint of the realm, name of this node there, URLs to announce."""


def realm_mark(fingerprint: str) -> str:
    """Return what stands for a realm on the network: nobody who does not know the realm can tell which it is."""
    return hashlib.blake2b(f"iris lan\0{fingerprint}".encode(), digest_size=8).hexdigest()


@final
class Lan:
    """What is known of the local network.  Made by ``open_lan``."""

    def __init__(self, mark: str, own: str) -> None:
        self.mark: Final = mark
        self._own = own
        self._found: dict[str, tuple[str, ...]] = {}
        self._told = -math.inf
        self.left_out = 0
        """How often somebody announced a node, of this realm as it says, and there were too many."""
        self._news = trio.Event()

    def __repr__(self) -> str:
        return f"<Lan with {len(self._found)} other nodes>"

    def urls(self) -> list[str]:
        """Return the addresses announced for this realm by others."""
        return [url for urls in self._found.values() for url in urls]

    async def wait_news(self, timeout: float) -> None:
        """Wait until there is something new, at most so many seconds."""
        with trio.move_on_after(timeout):
            await self._news.wait()

    def concerns(self, name: str) -> bool:
        """Tell whether an announcement is of this realm and not this node's own."""
        return name.startswith(f"{self.mark}-") and not name.startswith(f"{self.mark}-{self._own}")

    def found(self, name: str, urls: tuple[str, ...]) -> None:
        """Somebody announces itself."""
        if not self.concerns(name) or not urls:
            return
        if self._found.pop(name, None) == urls:
            self._found[name] = urls
            return
        self._found[name] = urls
        if len(self._found) > MAX_FOLLOWED:
            del self._found[next(iter(self._found))]
        self._tell()

    def lost(self, name: str) -> None:
        """An announcement is taken back, or has run out."""
        if self._found.pop(name, None) is not None:
            self._tell()

    def leave_out(self, count: int) -> None:
        """So many more were announced than are followed; say so now and then."""
        if not count:
            return
        self.left_out += count
        now = trio.current_time()
        if now >= self._told + _TOLD_AGAIN:
            self._told = now
            _log.warning(
                "more than %d nodes of this realm are announced on the local network, or somebody makes them up: "
                "others are passed over; seeds lead to them",
                MAX_FOLLOWED,
            )

    def _tell(self) -> None:
        self._news.set()
        self._news = trio.Event()


def urls_untrusted(
    addresses: Iterable[str], port: object, properties: object, *, loopback: bool = False
) -> tuple[str, ...]:
    """Return the URLs in an announcement; addresses at which nobody can be are passed over.

    So are those of this machine itself, unless ``loopback``: nobody is to have a node dial what listens for its own
    machine only.

    Raises:
        RemoteProtocolError: its port or path makes no sense.
    """
    said = cast("dict[object, object]", properties) if isinstance(properties, dict) else {}
    path = said.get(b"ws")
    scheme, rest = "tcp", ""
    if path is not None:
        scheme, rest = "ws", f"/{path.decode('ascii', 'replace').lstrip('/')}" if isinstance(path, bytes) else ""
        if rest not in WEB_PATHS:
            raise RemoteProtocolError(f"the path in an announcement is one of {', '.join(WEB_PATHS)}")
    if not isinstance(port, int) or not 0 < port < 65536:
        raise RemoteProtocolError("an announcement has a port from 1 to 65535")
    urls: list[str] = []
    for address in addresses:
        with contextlib.suppress(ValueError):
            parsed = ipaddress.ip_address(address)
            nowhere = parsed.is_multicast or parsed.is_unspecified or parsed.is_link_local
            if not nowhere and (loopback or not parsed.is_loopback):
                urls.append(f"{scheme}://{f'[{parsed}]' if parsed.version == 6 else parsed}:{port}{rest}")
    return tuple(urls[:_MAX_ADDRESSES])


def announcements(mark: str, own: str, urls: Iterable[str], *, loopback: bool) -> list[zeroconf.ServiceInfo]:
    """Return what is announced for a node: for each of its ports the addresses of all URLs with it."""
    import zeroconf

    ports: dict[tuple[str, str], list[str]] = {}
    for url in urls:
        parts = split_url(url)
        if parts is not None and (loopback or not is_loopback(url)):
            with contextlib.suppress(ValueError):
                host = str(ipaddress.ip_address(parts[1].strip("[]")))
                ports.setdefault((parts[0], parts[2]), []).append(host)
    announcements: list[zeroconf.ServiceInfo] = []
    for number, ((scheme, rest), hosts) in enumerate(ports.items()):
        port, _, path = rest[1:].partition("/")
        name = f"{mark}-{own}-{number}"
        announcements.append(
            zeroconf.ServiceInfo(
                TYPE,
                f"{name}.{TYPE}",
                port=int(port),
                properties={"ws": path} if scheme == "ws" else {},
                server=f"{name}.local.",
                parsed_addresses=hosts,
            )
        )
    return announcements


@asynccontextmanager
async def open_lan(
    fingerprint: str, own: str, urls: tuple[str, ...], *, interfaces: list[str] | None = None
) -> AsyncIterator[Lan]:
    """Announce a node to the local network and listen for others, until the block ends.

    A machine on which that is not possible costs one line in the log: seeds work everywhere.

    Args:
        fingerprint: of the realm.
        own: a random name for this node.
        urls: where it listens; those of loopback are not announced.
        interfaces: addresses of this machine whose networks are used; None: all.  Given ones may be loopback.
    """
    lan = Lan(realm_mark(fingerprint), own)
    token = trio.lowlevel.current_trio_token()
    try:
        board = await trio.to_thread.run_sync(_open_board, lan, token, interfaces)
    except (OSError, RuntimeError) as error:
        _log.warning("nodes on the local network are not looked for: %s", error)
        yield lan
        return
    try:
        async with open_background() as nursery:
            nursery.start_soon(board.announce, own, urls)
            nursery.start_soon(board.ask)
            yield lan
    finally:
        with trio.move_on_after(_GOODBYE) as scope:
            scope.shield = True
            await trio.to_thread.run_sync(board.close, abandon_on_cancel=True)


def _open_board(lan: Lan, token: trio.lowlevel.TrioToken, interfaces: list[str] | None) -> Board:
    from iris.cluster.lan_board import Board  # which imports the package

    return Board(lan, token, interfaces)
