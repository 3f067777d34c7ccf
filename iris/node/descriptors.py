"""File descriptors: a warning in the log before links take the last ones that this process may open."""

from __future__ import annotations

import errno
import logging
import math
import os
import resource
from collections.abc import Callable
from typing import Final, final

from iris.cluster.mesh import Mesh, Peer, PeerObserver

_log: Final = logging.getLogger("iris")

DESCRIPTORS_PER_LINK: Final = 2
"""Descriptors of one link: one connection by which frames leave, one by which they arrive."""

_SHARE: Final = 0.8
"""Share of the limit that is in use when a warning is logged: early enough to raise it."""

_OPEN: Final = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"  # noqa: PTH112 - looked at once


def open_descriptors() -> tuple[int, int]:
    """Return how many file descriptors this process has open, and how many it may have.  Linux, macOS, BSD.

    It takes 0.1 ms for a few hundred.  To count takes one itself: where there is none left, all are in use.

    Raises:
        OSError: this system does not tell.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        return len(os.listdir(_OPEN)), soft  # noqa: PTH208 - paths would be five times as dear
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        return soft, soft


@final
class DescriptorWatch(PeerObserver):
    """Watches the links of a node: logs one warning when four fifths of the descriptors are in use.

    It counts when the links since the last count may have taken a quarter of what was left then: so never too late for
    the warning, and not at each link, because to count thousands takes milliseconds.

    Args:
        mesh: whose links.
        count: returns how many are open, and how many may be.
    """

    def __init__(self, mesh: Mesh, count: Callable[[], tuple[int, int]]) -> None:
        self._mesh = mesh
        self._count = count
        self._look_at = 0.0
        """Links at which it counts again."""
        self._warned = 0
        """The limit that was warned of; one that was raised since may be warned of as well."""

    def peer_connected(self, peer: Peer) -> None:  # noqa: ARG002 - see PeerObserver
        """See ``PeerObserver``."""
        links = len(self._mesh.peers)
        if links < self._look_at:
            return
        try:
            opened, limit = self._count()
        except OSError as error:  # a container without /proc, for one: it costs the warning, and nothing else
            self._look_at = math.inf
            _log.debug("open files cannot be counted: %s", error, extra={"cause": "file descriptors"})
            return
        self._look_at = links + max(1, (int(_SHARE * limit) - opened) // (4 * DESCRIPTORS_PER_LINK))
        if opened >= _SHARE * limit and limit != self._warned:
            self._warned = limit
            _log.warning(
                "%d of the %d files that this process may open are open, with %d nodes linked, each by %d of them: "
                "raise the limit (ulimit -n %d, or LimitNOFILE=%d of systemd), or further nodes cannot be linked",
                *(opened, limit, links, DESCRIPTORS_PER_LINK, 16 * limit, 16 * limit),
                extra={"cause": "file descriptors"},
            )
