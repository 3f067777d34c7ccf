"""Inherited sockets: the child of a fork closes those of its parent's transports, doors and pages.

A child has all descriptors of its parent.  If it kept them, the port of a parent that has died would go on to accept
connections that nobody answers, and peers would not see its connections end.
"""

from __future__ import annotations

import os
import socket
import weakref
from typing import Final

_ours: Final[weakref.WeakSet[socket.socket]] = weakref.WeakSet()


def keep_from_children(made: socket.socket) -> socket.socket:
    """Have a socket closed in every child that this process forks from now on, and return it."""
    _ours.add(made)
    return made


def _close_inherited() -> None:
    for made in list(_ours):
        made.close()


os.register_at_fork(after_in_child=_close_inherited)
