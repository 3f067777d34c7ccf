"""Looking up the names of hosts, apart from all else that takes threads.

The system's resolver cannot be interrupted: where no server answers, a look-up has its thread for half a minute, also
when nobody waits for it any more.  Names that nobody answers for, some of which other nodes have told, must not take
the threads by which this program reads its files.
"""

from __future__ import annotations

import socket
from typing import Any, Final

import trio

AT_ONCE: Final = 32
"""Look-ups that have a thread at one time.  Others wait for theirs, and whoever waits for them gives up as before."""

_limiter: Final[trio.lowlevel.RunVar[trio.CapacityLimiter]] = trio.lowlevel.RunVar("iris look-ups")


async def look_up(host: str, kind: int) -> list[tuple[int, Any]]:
    """Return the family and the address of each place that a host is at, in the order of the resolver.

    How long that takes is for the caller to limit.  Cancelling leaves nothing behind but the thread, until it has found
    out.

    Args:
        host: a name, or an address, which is returned without asking anybody.
        kind: ``SOCK_STREAM`` or ``SOCK_DGRAM``.

    Raises:
        OSError, UnicodeError, RuntimeError: it is not known, is no name at all, or no thread can be made.
    """

    def ask(flags: int = 0) -> list[tuple[int, Any]]:
        found = socket.getaddrinfo(host, 9, type=kind, flags=flags)
        return [(family, address) for family, _, _, _, address in found]

    try:
        return ask(socket.AI_NUMERICHOST)
    except socket.gaierror:
        pass
    try:
        limiter = _limiter.get()
    except LookupError:
        limiter = trio.CapacityLimiter(AT_ONCE)
        _limiter.set(limiter)
    return await trio.to_thread.run_sync(ask, abandon_on_cancel=True, limiter=limiter)
