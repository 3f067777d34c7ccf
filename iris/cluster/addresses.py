"""Advertised addresses: the URLs at which others can reach this node, and the resolver for names of hosts.

A wildcard in a listening address is replaced by the addresses of this machine, and by the one from which a given peer
is reached.

The resolver has threads of its own, because the system's cannot be interrupted: where no server answers, a look-up
holds its thread for half a minute, also when nobody waits for it any more.  Names that nobody answers for, some of
which other nodes have sent, must not take the threads by which this program reads its files.
A source of seeds that hangs, such as a file on a dead network file system, holds threads of its own only.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Iterable
from typing import Final, TypeVar
from weakref import WeakValueDictionary

import trio

from iris.cluster.address_rules import is_advertised_form
from iris.kernel.tasks import run_in_thread
from iris.kernel.transport import SocketAddress

T = TypeVar("T")

AT_ONCE: Final = 32
"""Look-ups of names that have a thread at one time.  Others wait for theirs, and their callers give up as before."""

AT_ONE_SOURCE: Final = 4
"""Threads at one time that ask one source of seeds, for all nodes of an event loop."""

_Limiters = WeakValueDictionary[str, trio.CapacityLimiter]

_limiters: Final[trio.lowlevel.RunVar[_Limiters]] = trio.lowlevel.RunVar("iris look-ups")
"""Limiters in use, by source; one for all names."""


async def resolve_host(host: str, kind: int) -> list[tuple[int, SocketAddress]]:
    """Return the family and the address of each place that a host is at, in the order of the resolver.

    How long that takes is for the caller to limit.  Cancelling leaves nothing behind but the thread, until it has found
    out.

    Args:
        host: a name, or an address, which is returned without asking anybody.
        kind: ``SOCK_STREAM`` or ``SOCK_DGRAM``.

    Raises:
        OSError, UnicodeError, RuntimeError: it is not known, is no name at all, or no thread can be made.
    """

    def ask(flags: int = 0) -> list[tuple[int, SocketAddress]]:
        found = socket.getaddrinfo(host, 9, type=kind, flags=flags)
        return [(family, address) for family, _, _, _, address in found]

    try:
        return ask(socket.AI_NUMERICHOST)
    except socket.gaierror:
        pass
    return await look_up_in_thread(ask)


async def look_up_in_thread(ask: Callable[[], T], source: str = "") -> T:
    """Ask a name server, or ``source``, on one of the threads for that; see ``resolve_host``."""
    try:
        limiters = _limiters.get()
    except LookupError:
        limiters = _Limiters()
        _limiters.set(limiters)
    limiter = limiters.get(source)
    if limiter is None:
        limiter = limiters[source] = trio.CapacityLimiter(AT_ONE_SOURCE if source else AT_ONCE)
    return await run_in_thread(ask, abandon_on_cancel=True, limiter=limiter)


_HOST = re.compile(r"(?P<scheme>tcp|ws)://(?P<host>\[[^\]]*\]|[^:/]*)(?P<rest>:[0-9]+(?:/.*)?)\Z")
_last_addresses: Final[list[str]] = []
_WILDCARDS = frozenset({"", "*", "0.0.0.0", "[::]"})  # noqa: S104 -- names that are looked for, not bound


def split_url(url: str) -> tuple[str, str, str] | None:
    """Return scheme, host (IPv6 in brackets) and the rest of a tcp or ws URL; None for others."""
    match = _HOST.match(url)
    return None if match is None else (match["scheme"], match["host"], match["rest"])


def has_wildcard(urls: Iterable[str]) -> bool:
    """Return whether one of ``urls`` stands for all addresses of this machine."""
    return any(parts is not None and parts[1] in _WILDCARDS for parts in map(split_url, urls))


def _interface_addresses() -> list[str]:
    """Return this machine's addresses, loopback ones last, IPv6 in brackets."""
    import ifaddr  # here: it costs 3 ms, and is for those who listen at a wildcard

    outer: list[str] = []
    loopback: list[str] = []
    try:
        adapters = list(ifaddr.get_adapters())
    except OSError:  # no descriptor is left to ask the system by: what it said before
        return _last_addresses
    for adapter in adapters:
        for address in adapter.ips:
            text = address.ip if isinstance(address.ip, str) else address.ip[0]
            parsed = ipaddress.ip_address(text)
            if parsed.is_link_local:
                continue
            (loopback if parsed.is_loopback else outer).append(f"[{text}]" if parsed.version == 6 else text)
    _last_addresses[:] = outer or loopback
    return list(_last_addresses)


def advertised(urls: Iterable[str]) -> tuple[str, ...]:
    """Return ``urls`` with each wildcard host replaced by the addresses of this machine's interfaces."""
    result: list[str] = []
    for url in urls:
        parts = split_url(url)
        if parts is None or parts[1] not in _WILDCARDS:
            result.append(url)
            continue
        scheme, host, rest = parts
        result.extend(
            f"{scheme}://{address}{rest}"
            for address in _interface_addresses()
            if address.startswith("[") == (host == "[::]")
        )
    return tuple(dict.fromkeys(result))


async def return_urls(urls: Iterable[str], dialled: str) -> tuple[str, ...]:
    """Return where the node at ``dialled`` can reach this one, which listens at ``urls``; the likeliest first.

    A wildcard becomes the address from which the system would send there; asking costs no packet.
    """
    own = tuple(urls)
    parts = split_url(dialled)
    likely: list[str] = []
    if parts is not None:
        source = await _source_address(parts[1].strip("[]"))
        if source is not None:
            for url in own:
                mine = split_url(url)
                if mine is not None and mine[1] in _WILDCARDS and source.startswith("[") == (mine[1] == "[::]"):
                    likely.append(f"{mine[0]}://{source}{mine[2]}")
    same = dialled.split("://", 1)[0]
    rest = sorted(advertised(own), key=lambda url: not url.startswith(same))
    return tuple(dict.fromkeys([*likely, *rest]))


async def source_url(dialled: str) -> str | None:
    """Return a URL with a free port to listen at, which the node at ``dialled`` can reach; None for ipc."""
    parts = split_url(dialled)
    source = None if parts is None else await _source_address(parts[1].strip("[]"))
    return None if source is None else f"tcp://{source}:0"


async def _source_address(host: str) -> str | None:
    try:
        family, address = (await resolve_host(host, socket.SOCK_DGRAM))[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # which sends nothing
            source = str(probe.getsockname()[0])
    except (OSError, UnicodeError, RuntimeError):  # the host comes from a peer: it may be no name at all
        return None
    return f"[{source}]" if family == socket.AF_INET6 else source


def is_loopback(url: str) -> bool:
    """Return whether ``url`` can be reached from this machine only."""
    parts = split_url(url)
    if parts is None:
        return url.startswith(("ipc://", "mem://"))
    if parts[1] == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts[1].strip("[]")).is_loopback
    except ValueError:
        return False


def is_lasting(url: str) -> bool:
    """Return whether ``url`` may lead from another machine to this one's, and after a restart to the same place."""
    parts = split_url(url)
    if parts is None:
        return url.startswith("mem://")
    return is_advertised_form(url) and not is_loopback(url)
