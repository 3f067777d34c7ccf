"""Locks of files that one process has at a time, or several that share it, and that no child which it forks keeps.

The lock is the kernel's and of the open file: it ends with the process, however that dies.  A child has the open files
of its parent, and with them would have its locks, for as long as it lives.
"""

from __future__ import annotations

import fcntl
import os
from typing import Final

_ours: Final[set[int]] = set()


def try_lock(descriptor: int, *, shared: bool = False) -> None:
    """Lock an open file, which ``close_locked`` closes.

    Args:
        descriptor: the open file.
        shared: others may have it as well that share it.

    Raises:
        OSError: another process has the lock, or the file system has none.
    """
    _ours.add(descriptor)
    fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def close_locked(descriptor: int) -> None:
    """Close an open file that was to be locked; in a child of the process that did it, it is closed already."""
    if descriptor in _ours:
        _ours.remove(descriptor)
        os.close(descriptor)


def _close_inherited() -> None:
    for descriptor in _ours:
        os.close(descriptor)
    _ours.clear()


os.register_at_fork(after_in_child=_close_inherited)
