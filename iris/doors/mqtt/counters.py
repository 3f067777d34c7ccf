"""Counters of a door, its log about its clients, and the state that its connections share."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, final

import iris.aio
from iris.doors.clients import Clients
from iris.doors.programs import ServedClusters

_logger: Final = logging.getLogger("iris")

_MAX_LOGGED: Final = 10_000
"""Things of which is remembered that the log has them; beyond it, it may have them again."""


@final
@dataclass(slots=True)
class MqttStatistics:
    """Counters of what a door has done since it was opened.

    Attributes:
        connections: connections of clients, now.
        turned_away: connections that ended before they were a client's.
        published: messages of clients that became events, wills included.
        refused: messages of clients that did not, by the status that they would have by HTTP.
        paused: times that messages of a client waited, as its token has a rate.
        called: requests of clients to clusters.
        served: requests to clusters that clients have answered.
        delivered: messages sent to clients.
        missed: events that clients did not get, as they did not read or had no room.
        untellable: events on topics that MQTT cannot have.
        stalled: connections that were ended because their client did not read.
    """

    connections: int = 0
    turned_away: int = 0
    published: int = 0
    refused: Counter[int] = field(default_factory=Counter[int])
    paused: int = 0
    called: int = 0
    served: int = 0
    delivered: int = 0
    missed: int = 0
    untellable: int = 0
    stalled: int = 0


@final
class Surroundings:
    """State that all connections of a door share."""

    def __init__(self, node: iris.aio.Node, clients: Clients, clusters: ServedClusters, max_payload: int) -> None:
        self.node: Final = node
        self.clusters: Final = clusters
        self.clients: Final = clients
        self.max_payload: Final = max_payload
        self.counted: Final = MqttStatistics()
        self._logged: set[tuple[str, str]] = set()

    def log_once(self, client: str, code: str, text: str) -> None:
        """Log what a client does not get to know, once for each client and sort of thing."""
        if (client, code) in self._logged:
            return
        if len(self._logged) >= _MAX_LOGGED:
            self._logged.clear()
        self._logged.add((client, code))
        _logger.warning(
            "client %s of MQTT: %s (logged once for this client)",
            client,
            text,
            extra={"door": "mqtt", "client": client, "reason": code, "cause": f"{client} {code}"},
        )
