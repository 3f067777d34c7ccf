"""Engine of an election: one lease, which at most one process holds at a time by the engine's own clock."""

from __future__ import annotations

from typing import Final, Protocol

LEASE: Final = 2
"""Seconds after which a lease that is not renewed ends: whole ones, since etcd counts so, and 2 are the least that it
grants by default.  Nothing is safe by it: terms and promises of the copies are the fence.  It is most of what writers
wait for: with 3 s that was 2.8 s of 3.2."""

ANSWER: Final = 1.0
"""Seconds that an engine has for an answer."""


class EngineAway(Exception):
    """The engine does not answer, or refuses to; the message says why.  Nobody knows then who holds the lease."""


class Engine(Protocol):
    """A lease for ``LEASE`` seconds.  The methods block; they are called by one thread at a time.

    Each may raise ``EngineAway``, and may then have done what it was to do.
    """

    def is_free(self) -> bool:
        """Return whether nobody holds the lease."""
        ...

    def acquire(self) -> bool:
        """Take the lease if it is free, or renew it if it is held here; return whether it is held here now."""
        ...

    def release(self) -> None:
        """Give the lease up, if it is held here."""
        ...

    def close(self) -> None:
        """Close connections; raises nothing.  The lease ends by its time."""
        ...
