"""Address rules, a filter for dials: of the addresses that others send, only such as a node gives itself are dialled.

What comes from others - records, first frames of strangers, the local network, the address book - says where a node is
to be reached, and this one then connects there.  It must not be made to connect to anything else, or to say there
anything else than that it is a node:

- ``tcp://HOST:PORT`` and ``ws://HOST:PORT`` with one of ``WEB_PATHS``.  No user, no query, no other path, so that what
  is asked of a web server is the same for all.  The host is none of those at which no node of another machine can be:
  multicast, unspecified and link-local addresses, of which one is where clouds tell machines their secrets.
- ``ipc://`` leads to a socket of this machine.  From elsewhere only that one is taken which the node in question has
  in the directory of its realm, which is closed to other users; any other one only from a node that came by ipc.
- Addresses that lead through other nodes have rules where they are read.

The user's own addresses (seeds, peers of a gateway) may be any.  Networks that the user names hold for all.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final, final

from msgspec import Struct

from iris.kernel.errors import ConfigError, NotSent
from iris.kernel.names import NodeId

WEB_PATHS: Final = ("/iris", "/gateway")
"""Paths of ``ws://`` addresses that nodes listen at, and gateways for those of other sites."""

_OPEN: Final = ("via://", "site://", "mem://")
"""Schemes of addresses that no host and no file stands behind; the real network does not know the last one."""

_URL: Final = re.compile(r"(tcp|ws)://(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253}):([1-9][0-9]{0,4})(/[a-z]+)?")
_LABEL: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_NUMBER: Final = re.compile(r"0[xX][0-9A-Fa-f]*|[0-9]+")
_WEB: Final = re.compile(r"ws://[^/?#@]+(/[^?#]*)?\Z")


@final
class NotDialled(NotSent):
    """Others named an address that is not dialled: nothing follows from it for the node that is said to be there."""


@final
class Hearsay(Struct, frozen=True, kw_only=True):
    """The source of an address: somebody else's word for it.

    Args:
        by: the source, for the limits on dials; see ``DialLimits``.
        node: the node that is said to be there, if that is known.
        host: from where that one has connected to this node, if it is nobody's word but its own where it is.
        by_ipc: True if that node came, or was found, by ipc: on this machine, as a process of this user.
    """

    by: str
    node: NodeId | None = None
    host: str | None = None
    by_ipc: bool = False


@final
class AddressRules:
    """Decides which addresses one node dials.

    Args:
        networks: in CIDR notation; only IP addresses in one of them are dialled.  None given: any.
        sockets: the directory in which nodes of the realm have their sockets on this machine; None: there is none.

    Raises:
        ConfigError: a network is none.
    """

    def __init__(self, *, networks: Iterable[str] = (), sockets: str | None = None) -> None:
        self._sockets: Final = sockets
        self._networks: Final = tuple(map(_network, networks))

    def check_advertised(self, url: str, hearsay: Hearsay) -> None:
        """Raise NotDialled, with the reason, unless an address which others report may be dialled."""
        if url.startswith("ipc://"):
            own = self._sockets is not None and url == f"ipc://{self._sockets}/{hearsay.node}"
            if not own and not (hearsay.by_ipc and url.startswith("ipc:///")):
                raise NotDialled(f"{url!r:.200} is a socket of another machine, or of no node")
        elif not url.startswith(_OPEN) and not is_advertised_form(url):
            raise NotDialled(f"{url!r:.200} is no address that a node gives itself")

    def check_host(self, host: str, hearsay: Hearsay | None) -> None:
        """See that a host may be connected to.

        Args:
            host: IP address of the host.  Any other name has no network, and is not looked at.
            hearsay: the source of the address, if it is not the user.

        Raises:
            NotSent: it may not, with the reason.
        """
        # The address and not the name: the owner of a name can have it stand for any address, also for one of the
        # user's own network, by the time it is dialled.
        if not self._networks and hearsay is None:
            return
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return
        if isinstance(address, ipaddress.IPv6Address):
            address = address.ipv4_mapped or address
        if hearsay is not None and _is_nowhere(address):
            raise NotSent(f"no node of another machine is at {host}")
        if self._networks and not any(address in network for network in self._networks):
            raise NotSent(f"{host} is in none of the networks that this node may dial (dial_networks)")


def is_advertised_form(url: str) -> bool:
    """Return whether a tcp or ws address is of the form that nodes give their own: host, port, and one of few paths."""
    parts = _URL.fullmatch(url)
    if parts is None:
        return False
    scheme, host, port, path = parts.groups()
    return int(port) <= 65535 and _is_host(host) and (path in WEB_PATHS if scheme == "ws" else path is None)


def check_listening(url: str) -> str:
    """Return a URL to listen at, if others would dial it.

    Raises:
        ConfigError: it is a ``ws://`` address with another path than they dial.
    """
    if url.startswith("ws://"):
        parts = _WEB.match(url)
        if parts is None or parts[1] not in WEB_PATHS:
            raise ConfigError(
                f"{url!r}: nodes dial each other at no other path of a ws:// address than "
                f"{' and '.join(WEB_PATHS)}: use ws://HOST:PORT{WEB_PATHS[0]}"
            )
    return url


def _is_host(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        labels = host.split(".")
        # A last label of digits is an IPv4 address to some, in one of its odd forms: 127.1, 0x7f.1
        return "[" not in host and not _NUMBER.fullmatch(labels[-1]) and all(map(_LABEL.fullmatch, labels))
    return ("[" in host) == (address.version == 6) and not _is_nowhere(address)


def _is_nowhere(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return address.is_multicast or address.is_unspecified or address.is_link_local


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        if not isinstance(text, str):
            raise ValueError(f"{text!r} is no text")
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise ConfigError(f"dial_networks: {error}: use networks in CIDR notation, as 10.0.0.0/8") from None
