"""DNS seeds: all the addresses that the host name of a seed stands for now."""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

import trio

from iris.cluster.addresses import resolve_host, split_url
from iris.kernel.errors import NotSent

PATIENCE: Final = 4.0
"""Seconds that a look-up may take; who does not answer is asked again with the next attempt."""

MAX_ADDRESSES: Final = 32
"""Addresses that one seed, or one name, stands for; gossip brings the other nodes."""


def names_a_host(url: str) -> bool:
    """Return whether what ``url`` stands for may change: it has a host name that a resolver has to look up."""
    parts = split_url(url)
    if parts is None or parts[0] != "tcp":  # a web server in between may go by the name
        return False
    try:
        ipaddress.ip_address(parts[1].strip("[]"))
    except ValueError:
        return True
    return False


async def resolve_url(url: str) -> tuple[str, ...]:
    """Return ``url`` with each address (A, AAAA) of its host in place of the name, in the order of the resolver.

    A URL without a name stands for itself.  Nothing is remembered here: a name may mean other hosts a minute later.

    Raises:
        NotSent: the name is not known, or no name server answers.
    """
    parts = split_url(url)
    if parts is None or not names_a_host(url):
        return (url,)
    scheme, host, rest = parts
    found: list[str] = []
    with trio.move_on_after(PATIENCE):
        try:
            for family, address in await resolve_host(host, socket.SOCK_STREAM):
                text = str(address[0])
                if family == socket.AF_INET:
                    found.append(f"{scheme}://{text}{rest}")
                elif family == socket.AF_INET6 and "%" not in text:
                    found.append(f"{scheme}://[{text}]{rest}")
        except (OSError, UnicodeError, RuntimeError):  # not known, no name at all, or there is no thread to ask
            found.clear()
    if not found:
        raise NotSent(f"the name in {url} is not known, or no name server answers")
    return tuple(dict.fromkeys(found))[:MAX_ADDRESSES]
