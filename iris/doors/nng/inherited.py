"""Inherited descriptors: the child of a fork closes those of its parent's doors for nng.

nng does not give them out, but each is known by where it is: a socket that listens for a door, and every connection
that it has accepted, has the door's address.  The child has none of nng's threads, and uses no socket of nng.  Programs
that are executed have none of these descriptors anyway.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

_listening: Final[set[str]] = set()


def keep_from_children(address: str) -> None:
    """Have the sockets of an address, ``/PATH`` or ``HOST:PORT``, closed in children from now on."""
    _listening.add(address)


def leave_to_children(address: str) -> None:
    """Nothing listens there any more."""
    _listening.discard(address)


def _close_inherited() -> None:
    for descriptor in Path("/dev/fd").iterdir() if _listening else ():
        with suppress(OSError):  # it is no socket
            found = socket.socket(fileno=int(descriptor.name))
            if _is_ours(found):
                found.close()
            else:
                found.detach()


def _is_ours(found: socket.socket) -> bool:
    if found.family == socket.AF_UNIX:
        return found.getsockname() in _listening
    if found.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    host, port, *_ = found.getsockname()
    named = f"[{host}]" if found.family == socket.AF_INET6 else host
    return any(address in _listening for address in (f"{named}:{port}", f"0.0.0.0:{port}", f"[::]:{port}"))


os.register_at_fork(after_in_child=_close_inherited)
