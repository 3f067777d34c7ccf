"""mDNS record selection: as many announcements as a realm has nodes there are followed, and no flood.  Sans-IO.

Anybody on the network can announce any number of nodes, and nothing in an announcement shows whether there is one.
So only so many are followed, and others replace some of them, at random and slowly: who makes up thousands cannot
keep all others out, and makes this node dial no more often.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterable
from random import Random
from typing import TYPE_CHECKING, Final, cast, final

from iris.cluster.address_rules import WEB_PATHS
from iris.cluster.addresses import is_loopback, split_url
from iris.kernel.errors import RemoteProtocolError

if TYPE_CHECKING:
    import zeroconf


MAX_FOLLOWED: Final = 64
"""Announcements that are followed at one time.  One node that is found is enough: gossip reports all others."""

_REPLACED: Final = 1.0
"""Seconds after which one more may take the place of another."""


@final
class FollowedAnnouncements:
    """The announcements that are followed, by name.

    Args:
        random: says which one makes room.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._names: list[str] = []
        self._next = 0.0
        self.ignored = 0
        """Announcements that were not followed, or are not any more, since others were."""

    def __repr__(self) -> str:
        return f"<FollowedAnnouncements: {len(self._names)}, {self.ignored} ignored>"

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def follow(self, name: str, now: float) -> str | None:
        """Follow an announcement that is new if there is room; return which one is not followed any more for it.

        Args:
            name: not one of those that are followed.
            now: this moment in seconds, of any clock.
        """
        replaced: str | None = None
        if len(self._names) >= MAX_FOLLOWED:
            self.ignored += 1
            if now < self._next:
                return None
            self._next = now + _REPLACED
            replaced = self._names.pop(self._random.randrange(len(self._names)))
        self._names.append(name)
        return replaced

    def lose(self, name: str) -> bool:
        """An announcement was taken back, or has run out; return whether it was followed."""
        if name not in self._names:
            return False
        self._names.remove(name)
        return True


TYPE: Final = "_iris-mesh._tcp.local."


_MAX_ADDRESSES: Final = 8
"""Limit on the addresses of one announcement."""


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
