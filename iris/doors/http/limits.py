"""Limits of the HTTP door, and what it counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import final

from iris.doors.bounds import check_numbers
from iris.kernel.config import Config


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Limits of what clients use of one HTTP door: finite numbers above 0.

    Args:
        connections: connections at a time; one more is refused with the status 503.
        body: bytes of a request's body, and of one WebSocket message.
        head_timeout: seconds for the head of a request, and for the handshake of TLS.
        body_timeout: seconds for its body.
        stall_timeout: seconds that a client may take nothing of what was sent to it, before its connection is dropped.
        beat: seconds between comments in a stream of events, by which both sides see that the connection works.
        close_timeout: seconds that requests have to end when the door closes.
        ping: seconds between two pings by WebSocket, by which the door sees that the client works.
        ping_timeout: seconds that it has to answer, before its connection is dropped.
    """

    connections: int = 1000
    body: int = Config().max_payload
    head_timeout: float = 10.0
    body_timeout: float = 30.0
    stall_timeout: float = 30.0
    beat: float = 15.0
    close_timeout: float = 3.0
    ping: float = 5.0
    ping_timeout: float = 10.0

    def __post_init__(self) -> None:
        check_numbers(self)


@final
@dataclass(slots=True)
class HttpStatistics:
    """Counters of what an HTTP door has done since it was opened.

    Attributes:
        connections: connections of clients, now.
        turned_away: connections refused because the door had as many as it may.
        answered: requests, surveys, broadcasts and events that did what they should.
        refused: answers that told of a problem, and streams and tunnels that ended by one, by status.
        paused: messages of tunnels and replies of programs that waited, as the token has a rate.
        delivered: events sent to clients.
        missed: events that clients did not get because they did not read.
        programs: programs that serve, or use the bridge, now.
        unheard: broadcasts that such a program did not get, as it had not done with those before.
    """

    connections: int = 0
    turned_away: int = 0
    answered: int = 0
    refused: Counter[int] = field(default_factory=Counter[int])
    paused: int = 0
    delivered: int = 0
    missed: int = 0
    programs: int = 0
    unheard: int = 0
