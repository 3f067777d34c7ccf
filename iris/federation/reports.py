"""Log reports of a gateway about its neighbours and itself, each reported once."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final, final

from iris.cluster.directory import Hop
from iris.cluster.mesh import Peer
from iris.kernel.errors import RemoteProtocolError

_log: Final = logging.getLogger("iris")

_MAX_REPORTED: Final = 100
"""Names of sites that are reported as used twice, each once: a neighbour can make up any number of both."""


@final
class ReportSchedule:
    """Schedule of reports: what was reported so far, so that each is reported once."""

    def __init__(self) -> None:
        self._conflicts: set[str] = set()
        self._doubted: set[str] = set()
        self._crowded = False

    def __repr__(self) -> str:
        return f"<ReportSchedule: {len(self._conflicts) + len(self._doubted) + self._crowded} made>"

    def impossible(self, peer: Peer, error: RemoteProtocolError) -> None:
        """A neighbour advertises what cannot be; once for each certificate, and the mesh counts each message."""
        if peer.identity.cluster not in self._doubted:
            self._doubted.add(peer.identity.cluster)
            _log.warning(
                "gateway %s of site %r tells what cannot be, and is refused: %s",
                peer.node,
                peer.site,
                error,
                extra={"peer": peer.node, "site": peer.site, "caller": peer.identity.cluster},
            )

    def name_conflicts(self, conflicts: Iterable[Hop]) -> None:
        """Gateways call their sites by the names of others; once for each name."""
        for rival in conflicts:
            if rival.site not in self._conflicts and len(self._conflicts) < _MAX_REPORTED:
                self._conflicts.add(rival.site)
                _log.warning(
                    "gateway %s calls its site %r, and another site has that name: it is not believed",
                    rival.gateway,
                    rival.site,
                    extra={"peer": rival.gateway, "site": rival.site},
                )

    def not_advertised(self, gateways: int, entries: int) -> None:
        """Log that gateways of other sites are not passed on, and that entries of this site are not exported."""
        if (gateways or entries) and not self._crowded:
            self._crowded = True
            _log.warning(
                "more is exported than gateways tell each other: %d gateways of other sites are not passed on, and %d "
                "entries of this one are not exported; export less, or of fewer nodes",
                gateways,
                entries,
                extra={"count": gateways + entries},
            )
