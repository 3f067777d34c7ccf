"""Reports about other sites: frames that are lost in flight again and again, and exports that nothing proves.

Sessions notice what is lost, repeated or changed on the way, and all of it is counted.  Some is lost wherever a
gateway ends or a cable is cut, at one time.  Who drops frames on purpose does it again and again: that is reported,
once for each site that frames come from.  Which gateway it is cannot be seen from here.

The other report names nodes of other sites that are exported as members of clusters which they have no right to serve.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, final

import trio

from iris.cluster.mesh import Mesh
from iris.kernel.names import NodeId
from iris.security.channel import Session

_log: Final = logging.getLogger("iris")

WINDOW: Final = 5.0
"""Seconds that are looked at together."""

WINDOWS: Final = 12

BAD: Final = 6
"""Number of bad windows among the last ``WINDOWS`` that is reported.  A cut that heals makes one bad, or two."""

FEWEST: Final = 5
"""Frames that are missing or refused in a bad window, at least."""

PART: Final = 100
"""Frames among which at least one is missing or refused in a bad window."""

_MAX_SITES: Final = 1024
"""Sites that are remembered at one time."""


class _Window(NamedTuple):
    """Counters of one site: frames received, frames lost, and frames refused as repeated or changed."""

    came: int = 0
    missing: int = 0
    refused: int = 0

    @property
    def is_bad(self) -> bool:
        wrong = self.missing + self.refused
        return wrong >= FEWEST and wrong * PART >= wrong + self.came


@final
class LossReport:
    """Reports sites whose frames are lost window after window.

    Args:
        name_of: returns what a site is called here.
    """

    def __init__(self, name_of: Callable[[str], str] = str) -> None:
        self._name_of = name_of
        self._seen: dict[Session, _Window] = {}
        self._windows: dict[str, deque[_Window]] = {}
        self._reported: set[str] = set()

    def __repr__(self) -> str:
        return f"<LossReport: {len(self._windows)} sites, {len(self._reported)} reported>"

    def look(self, sessions: Iterable[tuple[str, Session]]) -> None:
        """End a window: look at each session and the site of the node at its other end."""
        seen: dict[Session, _Window] = {}
        sums: dict[str, _Window] = {}
        for site, session in sessions:
            counted = session.statistics()
            now = _Window(
                counted.received_frames, counted.lost_frames, counted.replayed_frames + counted.refused_frames
            )
            before = self._seen.get(session, _Window())
            so_far = sums.get(site, _Window())
            sums[site] = _Window(*(a + b - c for a, b, c in zip(so_far, now, before, strict=True)))
            seen[session] = now
        self._seen = seen
        self._windows = {
            site: self._windows.get(site) or deque(maxlen=WINDOWS) for site in list(sums)[:_MAX_SITES]
        }  # nothing is kept of a site with which there is no session
        for site, windows in self._windows.items():
            windows.append(sums[site])
            if sum(window.is_bad for window in windows) >= BAD and site not in self._reported:
                self._report(site, windows)

    def _report(self, site: str, windows: Iterable[_Window]) -> None:
        if len(self._reported) < _MAX_SITES:
            self._reported.add(site)
            came, missing, refused = (sum(counts) for counts in zip(*windows, strict=True))
            _log.warning(
                "of the frames from site %r in the last minute %d came, %d were lost and %d were repeated or changed: "
                "a gateway or a line on the way does that all the time",
                self._name_of(site),
                came,
                missing,
                refused,
                extra={"site": self._name_of(site), "count": missing},
            )

    async def run(self, mesh: Mesh) -> None:
        """Look at the sessions of a node in each window; run it in one task."""
        while True:
            await trio.sleep(WINDOW)
            self.look((peer.site, peer.session) for peer in mesh.peers.values() if peer.at_remote_site and peer.session)


_MAX_REPORTED: Final = 100
"""Sites that are reported for it, each once: gateways can make up any number of names."""


@final
class ExportDoubts:
    """Exports of linked nodes that nothing proves."""

    def __init__(self) -> None:
        self._clusters: dict[NodeId, set[str]] = {}
        self._reported: set[str] = set()

    def __repr__(self) -> str:
        return f"<ExportDoubts about {len(self._clusters)} nodes>"

    def note(self, site: str, node: NodeId, clusters: set[str]) -> int:
        """Note the clusters that a node is exported as a member of without a right to; return how many are new.

        It is reported once for each site.
        """
        fresh = clusters - self._clusters.get(node, set())
        if clusters:
            self._clusters[node] = clusters  # and no former ones: a site can name others each time
        else:
            self._clusters.pop(node, None)
        if fresh and site not in self._reported and len(self._reported) < _MAX_REPORTED:
            self._reported.add(site)
            text = "site %r exports node %s as a member of cluster %r, which it has no right to be: it is not asked"
            _log.warning(text, site, node, min(fresh), extra={"site": site, "peer": node, "cluster": min(fresh)})
        return len(fresh)

    def forget(self, node: NodeId) -> None:
        """A node is not linked any more."""
        self._clusters.pop(node, None)
