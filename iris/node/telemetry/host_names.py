"""Names by which an HTTP server is called, and which of them a page of somebody else cannot have.

A page may have its own name lead to an address of this machine or its network, and then read what is there (DNS
rebinding).  Its requests have that name in them.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Collection
from typing import Final

_HOST: Final = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]{0,5})?")

_PRIVATE: Final = ("localhost", "local", "internal", "svc", "home.arpa", "test")
"""Ends of names that nobody can register: RFC 6761, 6762 and 8375, ICANN's ``internal``, and Kubernetes' ``svc``."""


def host_of(header: str) -> str:
    """Return the name or address in a ``Host`` header, in lower case; empty if it is malformed."""
    found = _HOST.fullmatch(header)
    return "" if found is None else (found["address"] or found["name"]).lower()


def is_address(name: str) -> bool:
    """Return True if a name is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_ours(header: str, names: Collection[str] = ()) -> bool:
    """Return True if a ``Host`` header holds a name that no page elsewhere can have.

    Such names are addresses, names of one word, those that nobody can register, that of this machine, and ``names``.
    """
    name = host_of(header).rstrip(".")
    if not name:
        return False
    if is_address(name) or "." not in name or name.endswith(tuple(f".{end}" for end in _PRIVATE)):
        return True
    return name in {socket.gethostname().lower(), *map(str.lower, names)}
