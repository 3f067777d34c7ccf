"""Fork guard: a forked child never uses its parent's ciphers, for both would encrypt with the same key and nonce.

Sessions and half-finished handshakes register here, and the child of a fork makes them all unusable before any
other code of the child runs.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Poisonable(Protocol):
    """Something that holds a key with a nonce."""

    def poison(self) -> None:
        """Make every further use raise LocalProtocolError."""
        ...


_live: weakref.WeakSet[Poisonable] = weakref.WeakSet()


def poison_after_fork(owner: Poisonable) -> None:
    """Have ``owner.poison`` called in every child that this process forks from now on."""
    _live.add(owner)


def _poison_all() -> None:
    for owner in list(_live):
        owner.poison()


os.register_at_fork(after_in_child=_poison_all)
